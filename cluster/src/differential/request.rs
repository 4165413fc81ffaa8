//! What a client asks for: `GET /NAMESPACE/NAME?startOffset=…&maxEntries=…`. Pure.
//!
//! Names of parameters are compared without regard to case, `_` and `-`. One that is not known is
//! refused: whoever skips it answers another question, and a client whose offset is not seen would
//! read the first page for ever.

use super::answer::Answer;
use super::subject::is_name;

/// Longest path with its query.
pub(super) const TARGET_MAX: usize = 4 << 10;
/// Most blocks of a page, and how many there are where nobody says it.
pub(super) const ENTRIES_MAX: usize = 10_000;

/// A page that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asking {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) start: Option<String>,
    pub(super) entries_max: usize,
}

impl Asking {
    /// Of a path and its query.
    pub(super) fn parse(path: &str, query: &str) -> Result<Self, Answer> {
        let absent = || Answer::error(404, "lists are at /NAMESPACE/NAME");
        let mut parts = path.strip_prefix('/').ok_or_else(absent)?.split('/');
        let (Some(namespace), Some(name), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(absent());
        };
        if !is_name(namespace) || namespace.contains('.') || !is_name(name) {
            return Err(absent());
        }
        let mut asking = Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            start: None,
            entries_max: ENTRIES_MAX,
        };
        let mut seen = [false; 2];
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (given, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = |what: &str| Answer::error(400, &format!("{given}: {what}"));
            let value = unescaped(value).ok_or_else(|| bad("its escapes are not understood"))?;
            let plain: String = given.chars().filter(|c| !matches!(c, '_' | '-')).collect();
            let which = match plain.to_ascii_lowercase().as_str() {
                "startoffset" | "nextoffset" => 0,
                "maxentries" => 1,
                _ => return Err(bad("this parameter is not known")),
            };
            if std::mem::replace(&mut seen[which], true) {
                return Err(bad("it is given twice"));
            }
            match which {
                0 => asking.start = (!value.is_empty()).then_some(value),
                _ => {
                    let entries: u64 =
                        value.parse().map_err(|_| bad("this is no number of blocks"))?;
                    // 0 is what a client sends that leaves it to the server
                    let most = ENTRIES_MAX;
                    if entries > 0 {
                        asking.entries_max = usize::try_from(entries).unwrap_or(most).min(most);
                    }
                }
            }
        }
        Ok(asking)
    }
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16).and_then(|n| u8::try_from(n).ok());
                16 * digit(rest.next()?)? + digit(rest.next()?)?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(path: &str, query: &str) -> Result<Asking, u16> {
        Asking::parse(path, query).map_err(|answer| answer.status)
    }

    #[test]
    fn a_page_is_asked_for_by_namespace_and_name() {
        let plain = asking("/shop/one", "").unwrap();
        assert_eq!((plain.namespace.as_str(), plain.name.as_str()), ("shop", "one"));
        assert_eq!((plain.start, plain.entries_max), (None, ENTRIES_MAX));
        let asked = asking("/shop/one.two", "max_entries=7&StartOffset=a%2Db").unwrap();
        assert_eq!((asked.start.as_deref(), asked.entries_max), (Some("a-b"), 7));
        assert_eq!(asking("/shop/one", "NextOffset=x").unwrap().start.as_deref(), Some("x"));
        assert_eq!(asking("/shop/one", "maxEntries=0").unwrap().entries_max, ENTRIES_MAX);
        let most = asking("/shop/one", "maxEntries=99999999999999").unwrap();
        assert_eq!(most.entries_max, ENTRIES_MAX);
    }

    #[test]
    fn all_else_is_refused() {
        for path in
            ["", "/", "/shop", "/shop/one/", "/shop/one/x", "/../one", "/shop/%2e%2e", "//x"]
        {
            assert_eq!(asking(path, ""), Err(404), "{path}");
        }
        for query in [
            "maxEntries=many",
            "maxEntries=-1",
            "startOffset=a&nextOffset=b",
            "offset=1",
            "startOffset=%f",
            "startOffset=%ff",
        ] {
            assert_eq!(asking("/shop/one", query), Err(400), "{query}");
        }
    }
}
