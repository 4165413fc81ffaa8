//! Lists in pages. Pure.

use crate::records::Record;
use tonic::Status;

/// What a token begins with; the id of the last entry that was sent follows.
const AFTER: &str = "after:";

/// The entries of one page, and the token of the next one, which is empty after the last. A list
/// that changes between two pages neither repeats nor leaves out what was there all the time.
///
/// `all` is in the order of its ids.
pub(crate) fn page<'a, R: Record>(
    all: impl Iterator<Item = &'a R>,
    token: &str,
    max_entries: i32,
) -> Result<(Vec<&'a R>, String), Status> {
    let max = usize::try_from(max_entries)
        .map_err(|_| Status::invalid_argument(format!("max_entries is negative: {max_entries}")))?;
    let after = if token.is_empty() { Some("") } else { token.strip_prefix(AFTER) };
    let after = after.ok_or_else(|| {
        Status::aborted(format!("starting_token {token} is none of this list: begin anew"))
    })?;
    let mut rest = all.filter(|record| record.id() > after).peekable();
    let max = if max == 0 { usize::MAX } else { max };
    let found: Vec<_> = rest.by_ref().take(max).collect();
    let last = found.last().filter(|_| rest.peek().is_some());
    let next = last.map(|last| format!("{AFTER}{}", last.id())).unwrap_or_default();
    Ok((found, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};
    use tonic::Code;

    #[derive(Debug, Serialize, Deserialize)]
    struct Thing(String);

    impl Record for Thing {
        fn id(&self) -> &str {
            &self.0
        }
        fn name(&self) -> &str {
            &self.0
        }
    }

    #[test]
    fn pages_follow_each_other_to_the_end() {
        let mut all: Vec<_> = ["a", "b", "c", "d", "e"].map(|id| Thing(id.to_owned())).into();
        let ids = |all: &[Thing], token: &str, max| {
            let (found, next) = page(all.iter(), token, max)?;
            Ok((found.iter().map(|thing| thing.id()).collect::<String>(), next))
        };
        let code = |all: &[Thing], token: &str, max| {
            ids(all, token, max).map_err(|error: Status| error.code())
        };
        assert_eq!(code(&all, "", 0), Ok(("abcde".to_owned(), String::new())));
        assert_eq!(code(&all, "", 2), Ok(("ab".to_owned(), "after:b".to_owned())));
        // Somebody removes what was sent.
        all.remove(1);
        assert_eq!(code(&all, "after:b", 2), Ok(("cd".to_owned(), "after:d".to_owned())));
        assert_eq!(code(&all, "after:d", 2), Ok(("e".to_owned(), String::new())));
        assert_eq!(code(&all, "after:e", 2), Ok((String::new(), String::new())));
        assert_eq!(code(&all, "2", 2), Err(Code::Aborted));
        assert_eq!(code(&all, "", -1), Err(Code::InvalidArgument));
    }
}
