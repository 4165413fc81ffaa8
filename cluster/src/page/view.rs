//! What was asked for, in the query of the address.

use std::fmt::Write as _;

/// Longest value that is looked at: longer than any name.
const VALUE_MAX: usize = 300;

/// Which part of everything is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// Objects of this namespace alone.
    pub namespace: Option<String>,
    /// Volumes whose name has this in it.
    pub find: Option<String>,
    /// Number of the page of volumes, from 1; 0 counts as 1.
    pub page: usize,
}

impl View {
    /// Reads `namespace=…&find=…&page=…`. Whatever it does not know it ignores.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        let mut view = Self::default();
        for pair in query.split('&').take(20) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value);
            let text = (!value.is_empty()).then_some(value);
            match name {
                "namespace" => view.namespace = text,
                "find" => view.find = text,
                "page" => view.page = text.and_then(|t| t.parse().ok()).unwrap_or_default(),
                _ => {}
            }
        }
        view
    }

    /// The address of another page of it.
    pub(super) fn address(&self, page: usize) -> String {
        let mut address = String::from("?");
        for (name, value) in [("namespace", &self.namespace), ("find", &self.find)] {
            if let Some(value) = value {
                let _ = write!(address, "{name}={}&", encoded(value));
            }
        }
        if page > 1 {
            let _ = write!(address, "page={page}");
        }
        address.truncate(address.trim_end_matches('&').len());
        address
    }
}

/// The value of a form, of which no more than so much is read.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes().iter().copied().take(3 * VALUE_MAX);
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()].map(Option::unwrap_or_default);
                let text = str::from_utf8(&digits).unwrap_or_default();
                u8::from_str_radix(text, 16).unwrap_or(b'?')
            }
            other => other,
        });
    }
    bytes.truncate(VALUE_MAX);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn encoded(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                text.push(char::from(byte));
            }
            other => {
                let _ = write!(text, "%{other:02X}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_query_says_what_is_shown() {
        let view = View::parse("namespace=shop&find=a%26b+c&page=3&else=1&find");
        assert_eq!(view.namespace.as_deref(), Some("shop"));
        assert_eq!(view.find, None, "the last one counts");
        assert_eq!(view.page, 3);
        assert_eq!(View::parse("find=a%26b+c").find.as_deref(), Some("a&b c"));
        assert_eq!(View::parse("page=-1&namespace="), View::default());
        assert_eq!(View::parse("find=%zz%4").find.as_deref(), Some("??"));
    }

    proptest! {
        #[test]
        fn an_address_leads_to_its_page(
            namespace in ".{1,60}", find in ".{1,60}", page in 2_usize..99,
        ) {
            let view = View { namespace: Some(namespace), find: Some(find), page };
            let address = view.address(page);
            prop_assert!(address.bytes().all(|b| b.is_ascii_graphic() && !b"\"'<>".contains(&b)));
            prop_assert_eq!(View::parse(&address[1..]), view);
        }

        #[test]
        fn any_query_is_read(query in ".{0,2000}") {
            let view = View::parse(&query);
            prop_assert!(view.find.is_none_or(|text| text.len() <= 3 * VALUE_MAX));
        }
    }
}
