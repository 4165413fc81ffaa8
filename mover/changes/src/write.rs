//! Writes a list in our own shape, one range a line, so that people and line tools can read it too.

use super::{BlockContext, ChangedBlocks};
use mover_extents::Extents;
use std::io::{self, Write};

impl ChangedBlocks {
    /// Writes it as JSON that [`super::parse_changed_blocks`] reads back: same kind, same ranges.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        write!(out, "{{")?;
        if let Some(bytes) = self.volume_bytes {
            write!(out, "\"volume_size\": {bytes}, ")?;
        }
        write!(out, "\"kind\": \"{}\",\n\"extents\": ", self.kind.as_str())?;
        write_ranges(&mut out, &self.data, self.contexts.iter().filter(|c| !c.zero))?;
        let mut contexts = self.contexts.iter().filter(|c| c.zero).peekable();
        if !self.zero.is_empty() || contexts.peek().is_some() {
            write!(out, ",\n\"zero\": ")?;
            write_ranges(&mut out, &self.zero, contexts)?;
        }
        writeln!(out, "}}")
    }

    /// The same as text.
    pub fn to_json(&self) -> String {
        let mut out = Vec::new();
        // writing to a vector cannot fail, and what is written is ASCII
        let _ = self.write_json(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Blocks with a context come once more, each by itself: ranges may repeat.
fn write_ranges<'a>(
    out: &mut impl Write,
    ranges: &Extents,
    contexts: impl Iterator<Item = &'a BlockContext>,
) -> io::Result<()> {
    write!(out, "[")?;
    let mut separator = "\n";
    for range in ranges.iter() {
        let len = range.end - range.start;
        write!(out, "{separator}{{\"offset\": {}, \"len\": {len}}}", range.start)?;
        separator = ",\n";
    }
    for BlockContext { range, context, .. } in contexts {
        let (offset, len) = (range.start, range.end - range.start);
        // base64 needs no escapes
        write!(
            out,
            "{separator}{{\"offset\": {offset}, \"len\": {len}, \"context\": \"{context}\"}}"
        )?;
        separator = ",\n";
    }
    write!(out, "]")
}
