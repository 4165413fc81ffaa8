//! Writes a list in our own shape, one range a line, so that people and line tools can read it too.

use super::{ChangedBlocks, Extents};
use std::io::{self, Write};

impl ChangedBlocks {
    /// Writes it as JSON that [`super::parse_changed_blocks`] reads back: same kind, same ranges.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        write!(out, "{{")?;
        if let Some(bytes) = self.volume_bytes {
            write!(out, "\"volume_size\": {bytes}, ")?;
        }
        write!(out, "\"kind\": \"{}\",\n\"extents\": ", self.kind.as_str())?;
        write_ranges(&mut out, &self.data)?;
        if !self.zero.is_empty() {
            write!(out, ",\n\"zero\": ")?;
            write_ranges(&mut out, &self.zero)?;
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

fn write_ranges(out: &mut impl Write, ranges: &Extents) -> io::Result<()> {
    write!(out, "[")?;
    for (i, range) in ranges.iter().enumerate() {
        let separator = if i == 0 { "\n" } else { ",\n" };
        let len = range.end - range.start;
        write!(out, "{separator}{{\"offset\": {}, \"len\": {len}}}", range.start)?;
    }
    write!(out, "]")
}
