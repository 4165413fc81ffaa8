//! The one place where a failure becomes an exit code. `docs/reference.md` has the same table; the
//! codes are stable.

use chunkstore::ErrorKind;

/// All went well.
pub(crate) const OK: u8 = 0;
/// It may work when it is tried again, unchanged.
pub(crate) const RETRYABLE: u8 = 1;
/// What was asked for cannot be done; the command has to change.
pub(crate) const USAGE: u8 = 2;
/// Stored data is damaged or gone.
pub(crate) const INTEGRITY: u8 = 3;
/// A key, a credential or a permission is missing.
pub(crate) const DENIED: u8 = 4;
/// Done, but not as asked (only with `--fail-on-degraded`).
pub(crate) const DEGRADED: u8 = 5;
/// A bound that the user has set was reached; the same command goes on from there.
pub(crate) const LIMIT: u8 = 6;
/// A mistake of this program.
pub(crate) const BUG: u8 = 70;
/// SIGINT or SIGTERM.
pub(crate) const CANCELLED: u8 = 143;

/// Exit code of a failure.
pub(crate) fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Unavailable | ErrorKind::NoSpace | ErrorKind::Device | ErrorKind::Fenced => {
            RETRYABLE
        }
        ErrorKind::Usage
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::Unsupported
        | ErrorKind::Forgotten => USAGE,
        ErrorKind::Corrupt | ErrorKind::Missing => INTEGRITY,
        ErrorKind::WrongKey | ErrorKind::Denied => DENIED,
        ErrorKind::Degraded => DEGRADED,
        ErrorKind::Limit => LIMIT,
        ErrorKind::Cancelled => CANCELLED,
        // the enum may grow: what has no code of its own yet is our mistake
        _ => BUG,
    }
}

/// Whether the same command may end otherwise when it is run again.
pub(crate) fn is_retryable(exit_code: u8) -> bool {
    matches!(exit_code, RETRYABLE | LIMIT | CANCELLED)
}

/// One word for machines: the `kind` of an error line with `--json`.
pub(crate) fn kind_word(kind: ErrorKind) -> String {
    let mut word = String::new();
    for c in format!("{kind:?}").chars() {
        if c.is_ascii_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.push(c.to_ascii_lowercase());
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY_KIND: [(ErrorKind, u8); 17] = [
        (ErrorKind::Usage, 2),
        (ErrorKind::NotFound, 2),
        (ErrorKind::AlreadyExists, 2),
        (ErrorKind::Corrupt, 3),
        (ErrorKind::Missing, 3),
        (ErrorKind::WrongKey, 4),
        (ErrorKind::Unsupported, 2),
        (ErrorKind::Denied, 4),
        (ErrorKind::Unavailable, 1),
        (ErrorKind::NoSpace, 1),
        (ErrorKind::Device, 1),
        (ErrorKind::Fenced, 1),
        (ErrorKind::Forgotten, 2),
        (ErrorKind::Cancelled, 143),
        (ErrorKind::Degraded, 5),
        (ErrorKind::Limit, 6),
        (ErrorKind::Bug, 70),
    ];

    #[test]
    fn every_kind_has_its_code() {
        for (kind, code) in EVERY_KIND {
            assert_eq!(exit_code(kind), code, "{kind:?}");
        }
    }

    /// The enum is `non_exhaustive`, so the compiler does not notice a new kind; its source does.
    #[test]
    fn no_kind_is_forgotten() {
        let source = include_str!("../../../chunkstore/src/error.rs");
        let body = source.split_once("pub enum ErrorKind {").unwrap().1.split_once('}').unwrap().0;
        let declared: Vec<_> = body
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with("//"))
            .map(|l| l.trim_end_matches(',').to_owned())
            .collect();
        let tested: Vec<_> = EVERY_KIND.iter().map(|(kind, _)| format!("{kind:?}")).collect();
        assert_eq!(declared, tested);
    }

    #[test]
    fn the_manual_has_every_code() {
        let manual = include_str!("../../../docs/reference.md");
        for code in [OK, RETRYABLE, USAGE, INTEGRITY, DENIED, DEGRADED, LIMIT, BUG, CANCELLED] {
            assert!(manual.contains(&format!("\n| {code} | ")), "{code}");
        }
    }

    #[test]
    fn kinds_are_words_for_machines() {
        assert_eq!(kind_word(ErrorKind::WrongKey), "wrong-key");
        assert_eq!(kind_word(ErrorKind::Usage), "usage");
    }
}
