//! Going down from the best list that there could be to what can be had: delta, allocated, nothing.
//!
//! The only loop over sources. It asks each kind of each source, best kind first, until one attempt
//! succeeds. What an attempt is, the caller knows: `backup/ladder.rs` has the rules of a backup,
//! `mover changes` only wants to see the list.

use super::{ChangeKind, ChangeSource};
use chunkstore::{Error, ErrorKind, Result, Setting};

/// Where the way down ended.
#[derive(Debug)]
pub struct Descent<T> {
    /// What the first attempt that succeeded gave; `None`: none did.
    pub found: Option<T>,
    /// Each step down, and why.
    pub steps: Vec<String>,
    /// Why the last attempt failed, if it did.
    pub last: Option<Error>,
}

/// Asks until something is found. Ends early with an error where going on would not be right: for a
/// mistake of the user, for a request to stop, and below `floor`.
pub fn descend<T>(
    sources: &[ChangeSource],
    floor: Option<ChangeKind>,
    mut attempt: impl FnMut(ChangeKind, &ChangeSource) -> Result<T>,
) -> Result<Descent<T>> {
    let rungs = rungs(sources);
    let (mut steps, mut last) = (Vec::new(), None);
    for (at, (kind, source)) in rungs.iter().enumerate() {
        let error = match attempt(*kind, source) {
            Ok(found) => return Ok(Descent { found: Some(found), steps, last }),
            Err(error) => error,
        };
        let next = rungs.get(at + 1).map_or(ChangeKind::Whole, |(kind, _)| *kind);
        let error = may_go_on(error, next, floor).inspect_err(|_| {
            // what it ends with is the last reason; the others came before it
            steps.iter().for_each(|step: &String| tracing::warn!("{step}"));
        })?;
        let step = step(*kind, next, &error);
        tracing::info!("{step}");
        steps.push(step);
        last = Some(error);
    }
    Ok(Descent { found: None, steps, last })
}

/// Whether what there is lies below the floor.
pub fn check_floor(kind: ChangeKind, floor: Option<ChangeKind>) -> Result<()> {
    let Some(floor) = floor.filter(|floor| height(kind) < height(*floor)) else { return Ok(()) };
    let what = match kind {
        ChangeKind::Whole => "no list of changed blocks is asked for or given".to_owned(),
        kind => format!("what there is, is {}", kind.as_str()),
    };
    Err(Error::new(
        ErrorKind::Usage,
        format!("keep to {require} {}", floor.as_str(), require = Setting("require")),
        what,
    )
    .hint(format!(
        "name a source of such a list, or leave {require} out",
        require = Setting("require")
    )))
}

/// All that can be asked for, best first.
fn rungs(sources: &[ChangeSource]) -> Vec<(ChangeKind, &ChangeSource)> {
    let kinds = [ChangeKind::Delta, ChangeKind::Allocated];
    let of = |kind| sources.iter().filter(move |s| s.offers(kind)).map(move |s| (kind, s));
    kinds.into_iter().flat_map(of).collect()
}

fn height(kind: ChangeKind) -> u8 {
    match kind {
        ChangeKind::Whole => 0,
        ChangeKind::Allocated => 1,
        ChangeKind::Delta => 2,
    }
}

/// Gives the error back, or ends the way down with it.
fn may_go_on(error: Error, next: ChangeKind, floor: Option<ChangeKind>) -> Result<Error> {
    let ours = matches!(error.kind(), ErrorKind::Usage | ErrorKind::Cancelled | ErrorKind::Bug);
    match floor.filter(|floor| height(next) < height(*floor)) {
        _ if ours => Err(error.within("ask for changed blocks")),
        Some(floor) => Err(error.within(format!(
            "keep to {require} {}",
            floor.as_str(),
            require = Setting("require")
        ))),
        None => Ok(error),
    }
}

fn step(from: ChangeKind, to: ChangeKind, why: &Error) -> String {
    let (from, to) = (from.as_str(), to.as_str());
    if from == to {
        return format!("another source of a list of kind {to} is asked: {why}");
    }
    format!("went down from {from} to {to}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RestSource;
    use ChangeKind::{Allocated, Delta, Whole};

    fn sources() -> [ChangeSource; 2] {
        let rest = |delta: Option<&str>, allocated: Option<&str>| {
            ChangeSource::Rest(RestSource {
                delta_url: delta.map(Into::into),
                allocated_url: allocated.map(Into::into),
                ..RestSource::default()
            })
        };
        [rest(None, Some("a")), rest(Some("b"), Some("c"))]
    }

    fn fail(kind: ErrorKind) -> Error {
        Error::new(kind, "ask", "no")
    }

    #[test]
    fn the_best_kind_of_every_source_comes_first() {
        let sources = sources();
        let found: Vec<_> = rungs(&sources).iter().map(|(k, s)| (k.as_str(), s.name())).collect();
        let wanted = [("delta", "b"), ("allocated", "a"), ("allocated", "b")];
        assert_eq!(found, wanted.map(|(k, s)| (k, s.to_owned())));
        assert!(rungs(&[ChangeSource::Stdin(None)]).is_empty());
    }

    #[test]
    fn each_failure_is_one_step() {
        let mut left = 2;
        let mut attempt = |kind, _: &ChangeSource| match left {
            0 => Ok(kind),
            _ => {
                left -= 1;
                Err(fail(ErrorKind::Denied))
            }
        };
        let down = descend(&sources(), None, &mut attempt).unwrap();
        assert_eq!(down.found, Some(Allocated));
        assert_eq!(down.steps[0], "went down from delta to allocated: ask: no");
        assert_eq!(down.steps[1], "another source of a list of kind allocated is asked: ask: no");
        let nothing = descend(&sources(), None, |_, _| Err::<(), _>(fail(ErrorKind::NotFound)));
        let nothing = nothing.unwrap();
        assert!(nothing.found.is_none() && nothing.last.is_some() && nothing.steps.len() == 3);
        assert!(nothing.steps[2].starts_with("went down from allocated to whole"));
    }

    #[test]
    fn mistakes_and_floors_end_it() {
        let all = |kind, floor| descend(&sources(), floor, |_, _| Err::<(), _>(fail(kind)));
        for kind in [ErrorKind::Usage, ErrorKind::Cancelled] {
            assert_eq!(all(kind, None).unwrap_err().kind(), kind);
        }
        let error = all(ErrorKind::Denied, Some(Delta)).unwrap_err();
        assert!(error.to_string().starts_with("keep to `require` delta"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(all(ErrorKind::Denied, Some(Allocated)).is_err());
        for (kind, floor, fine) in [
            (Whole, None, true),
            (Whole, Some(Allocated), false),
            (Allocated, Some(Allocated), true),
            (Allocated, Some(Delta), false),
            (Delta, Some(Allocated), true),
        ] {
            assert_eq!(check_floor(kind, floor).is_ok(), fine, "{kind:?} {floor:?}");
        }
    }
}
