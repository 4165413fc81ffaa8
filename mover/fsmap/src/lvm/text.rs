//! The text that metadata is: names with numbers, strings, lists of these, and sections. What is
//! not exactly that is refused.

use super::unusable;
use crate::Refusal;

/// A group has sections four deep.
const DEPTH_MAX: u32 = 8;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value<'t> {
    Section(Section<'t>),
    Number(i64),
    /// As it is written: no name has anything to escape.
    Text(&'t str),
    List(Vec<Value<'t>>),
}

/// Ascending by name; no name is there twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Section<'t>(Vec<(&'t str, Value<'t>)>);

impl<'t> Section<'t> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'t str, &Value<'t>)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value<'t>> {
        let at = self.0.binary_search_by(|(own, _)| (*own).cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    pub(super) fn section(&self, name: &str) -> Result<&Self, Refusal> {
        match self.get(name) {
            Some(Value::Section(section)) => Ok(section),
            _ => Err(missing(name)),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, Refusal> {
        match self.get(name) {
            Some(Value::Number(number)) => u64::try_from(*number).map_err(|_| missing(name)),
            _ => Err(missing(name)),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<&'t str, Refusal> {
        match self.get(name) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(missing(name)),
        }
    }

    pub(super) fn list(&self, name: &str) -> Result<&[Value<'t>], Refusal> {
        match self.get(name) {
            Some(Value::List(list)) => Ok(list),
            _ => Err(missing(name)),
        }
    }
}

fn missing(name: &str) -> Refusal {
    unusable(format!("its metadata does not have {name} as it should"))
}

/// Reads a text, which a zero may end.
pub(super) fn parse(bytes: &[u8]) -> Result<Section<'_>, Refusal> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let text = str::from_utf8(bytes).map_err(|_| unusable("its metadata is no text"))?;
    let mut parser = Parser { text, at: 0 };
    let section = parser.section(0);
    section.ok_or_else(|| unusable(format!("its metadata makes no sense at byte {}", parser.at)))
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips white space and comments; gives what comes then.
    fn next(&mut self) -> Option<u8> {
        loop {
            match self.peek()? {
                b'#' => {
                    while self.peek().is_some_and(|byte| byte != b'\n') {
                        self.at += 1;
                    }
                }
                byte if byte.is_ascii_whitespace() => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    fn take(&mut self, expected: u8) -> Option<()> {
        (self.next()? == expected).then(|| self.at += 1)
    }

    /// What is taken as long as it is of some kind; at least one byte.
    fn word(&mut self, is_own: fn(u8) -> bool) -> Option<&'t str> {
        self.next()?;
        let start = self.at;
        while self.peek().is_some_and(is_own) {
            self.at += 1;
        }
        self.text.get(start..self.at).filter(|word| !word.is_empty())
    }

    /// Up to its end, which is that of the text for the outermost.
    fn section(&mut self, depth: u32) -> Option<Section<'t>> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.+".contains(&byte);
        let mut all = Vec::new();
        loop {
            match self.next() {
                None if depth == 0 => break,
                Some(b'}') if depth > 0 => {
                    self.at += 1;
                    break;
                }
                _ => {}
            }
            let name = self.word(is_name)?;
            let value = match self.next()? {
                b'{' if depth < DEPTH_MAX => {
                    self.at += 1;
                    Value::Section(self.section(depth + 1)?)
                }
                _ => {
                    self.take(b'=')?;
                    self.value()?
                }
            };
            all.push((name, value));
        }
        all.sort_by(|one, other| one.0.cmp(other.0));
        let twice = all.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!twice).then_some(Section(all))
    }

    fn value(&mut self) -> Option<Value<'t>> {
        if self.next()? != b'[' {
            return self.single();
        }
        self.at += 1;
        let mut list = Vec::new();
        if self.next()? == b']' {
            self.at += 1;
            return Some(Value::List(list));
        }
        loop {
            list.push(self.single()?);
            match self.next()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Some(Value::List(list));
                }
                _ => return None,
            }
        }
    }

    fn single(&mut self) -> Option<Value<'t>> {
        if self.next()? != b'"' {
            let word = self.word(|byte| !byte.is_ascii_whitespace() && !b",]}#".contains(&byte))?;
            return word.parse().ok().map(Value::Number);
        }
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let text = self.text.get(start..self.at)?;
        self.at += 1;
        Some(Value::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_read() {
        let text = b"# made by a test\nvg-0.1+x {\n\tseqno = 12 # a comment\n\tstatus = [\"READ\", \"WRITE\"]\n\
            flags = []\nat = -1 name=\"a \\\" b\" stripes = [\n\"pv0\", 7\n] one {} }\nversion = 1\n\0";
        let all = parse(text).expect("a text");
        assert_eq!(all.number("version").ok(), Some(1));
        let group = all.section("vg-0.1+x").expect("a section");
        assert_eq!(group.number("seqno").ok(), Some(12));
        assert_eq!(group.text("name").ok(), Some("a \\\" b"));
        assert!(group.number("at").is_err() && group.has("at"));
        assert_eq!(group.list("flags").expect("a list"), []);
        assert_eq!(group.list("status").expect("a list").len(), 2);
        let stripes = group.list("stripes").expect("a list");
        assert_eq!(stripes, [Value::Text("pv0"), Value::Number(7)]);
        assert_eq!(group.section("one").ok(), Some(&Section::default()));
        assert!(group.section("seqno").is_err() && group.list("name").is_err());
        assert!(!group.has("two"));
    }

    #[test]
    fn anything_else_is_refused() {
        let deep = "a {".repeat(9) + &"}".repeat(9);
        for text in [
            "a",
            "a =",
            "a = b",
            "a = 1.5",
            "a = [",
            "a = [1",
            "a = [1,]",
            "a = [1 2]",
            "a = [[1]]",
            "a {",
            "a = 1 }",
            "}",
            "= 1",
            "a = \"",
            "a = \"\\",
            "a = 1 a = 2",
            "a { b = 1 b = 1 }",
            "a = 99999999999999999999",
            "a = --1",
            "a = 1.5 = 2",
            "a/b = 1",
            "a = 1\0b = 2",
            &deep,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(&deep.as_bytes()[3..35]).is_ok(), "one level less");
        assert!(parse(b"a = \"\xff\"").is_err());
        assert!(parse(b"").is_ok());
    }
}
