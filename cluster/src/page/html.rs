//! Text of HTML. Markup is written in the program; all else is escaped on its way in.

use std::fmt::{self, Display, Write};

/// A text that grows. Only literals become markup.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup, which has to stand in the program.
    pub(super) fn put(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text between tags or within quotes.
    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        // Strings do not fail.
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    /// Text of which no more than so many characters are shown.
    pub(super) fn cut(&mut self, text: &str, characters_max: usize) -> &mut Self {
        match text.char_indices().nth(characters_max) {
            None => self.text(text),
            Some((end, _)) => self.text(&text[..end]).put("…"),
        }
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_plain =
            |b: u8| matches!(b, b' '..=b'~') && !matches!(b, b'&' | b'<' | b'>' | b'"' | b'\'');
        if text.bytes().all(is_plain) {
            self.0.push_str(text);
            return Ok(());
        }
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(' '),
                c if is_hidden(c) => {
                    // Shown, so that nobody is led astray.
                    write!(self.0, "\\u{{{:x}}}", u32::from(c))?;
                }
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// Control characters, and those that turn the direction of writing or take no room.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{180e}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(given: &str) -> String {
        let mut html = Html::default();
        html.text(given);
        html.into_string()
    }

    #[test]
    fn nothing_of_a_text_becomes_markup() {
        assert_eq!(text("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        assert_eq!(text("a\nb\u{0}\u{202e}c\u{200b}"), "a b\\u{0}\\u{202e}c\\u{200b}");
        assert_eq!(text("Grüße 日本"), "Grüße 日本");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut html = Html::default();
        html.cut("äöü", 2).put("|").cut("äöü", 3).put("|").cut("<<<", 1);
        assert_eq!(html.into_string(), "äö…|äöü|&lt;…");
    }
}
