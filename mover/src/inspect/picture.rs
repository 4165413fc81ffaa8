//! A map of the volume as SVG: where it changed, what is allocated, what is zero.
//!
//! The volume is cut into equal cells, row by row. A cell has the colour of what most of its bytes
//! are, but a cell with any changed byte shows it, however little that is: a picture that hides
//! small changes would be of no use. Neighbours of one colour are one rectangle, so the picture is
//! small however many ranges there are.

use mover_changes::{ChangeKind, ChangedBlocks};
use mover_extents::Extents;
use std::io::{self, Write};
use std::ops::Range;

const COLUMNS: u64 = 128;
const ROWS: u64 = 64;
/// Edge of a cell, in units of the picture.
const CELL: u64 = 6;
/// Height of the line of text below.
const LEGEND: u64 = 24;

/// What a cell shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shade {
    /// All of it changed, half of it at least, or less.
    Changed(u8),
    Allocated,
    Zero,
    /// Unchanged, or not known to be anything.
    Plain,
}

impl Shade {
    fn colour(self) -> &'static str {
        match self {
            Self::Changed(0) => "#f4a259",
            Self::Changed(1) => "#e2711d",
            Self::Changed(_) => "#b23a0e",
            Self::Allocated => "#5b8e7d",
            Self::Zero => "#ffffff",
            Self::Plain => "#d9d9d9",
        }
    }
}

/// Draws a volume by the lists that there are of it: a delta, a list of allocated blocks, or both.
pub fn draw(lists: &[&ChangedBlocks], size_bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    let of = |kind| lists.iter().copied().find(|list| list.kind == kind);
    let delta = of(ChangeKind::Delta);
    let allocated = of(ChangeKind::Allocated).or_else(|| of(ChangeKind::Whole));
    let cell_bytes = size_bytes.div_ceil(COLUMNS * ROWS).max(1);
    let cells = size_bytes.div_ceil(cell_bytes);
    let rows = cells.div_ceil(COLUMNS);
    let (width, height) = (COLUMNS * CELL, rows * CELL + LEGEND);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">"
    )?;
    writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#f7f7f7\"/>")?;
    let mut changed = Cursor::of(delta.map(|list| &list.data));
    let mut changed_zero = Cursor::of(delta.map(|list| &list.zero));
    let mut used = Cursor::of(allocated.map(|list| &list.data));
    let mut run: Option<(Shade, Range<u64>)> = None;
    for cell in 0..cells {
        let bytes = cell * cell_bytes..((cell + 1) * cell_bytes).min(size_bytes);
        let len = bytes.end - bytes.start;
        let zeroed = changed_zero.within(&bytes);
        let shade = match changed.within(&bytes) {
            0 if allocated.is_none() && zeroed > 0 => Shade::Zero,
            0 => match (used.within(&bytes), allocated) {
                (_, None) => Shade::Plain,
                (0, Some(_)) => Shade::Zero,
                (_, Some(_)) => Shade::Allocated,
            },
            all if all == len => Shade::Changed(2),
            some => Shade::Changed(u8::from(some >= len / 2)),
        };
        match &mut run {
            Some((same, cells)) if *same == shade && cell % COLUMNS != 0 => cells.end += 1,
            run => {
                if let Some((shade, cells)) = run.replace((shade, cell..cell + 1)) {
                    rectangle(out, shade, &cells)?;
                }
            }
        }
    }
    if let Some((shade, cells)) = run {
        rectangle(out, shade, &cells)?;
    }
    legend(out, rows * CELL, delta, allocated, cell_bytes)?;
    writeln!(out, "</svg>")
}

fn rectangle(out: &mut dyn Write, shade: Shade, cells: &Range<u64>) -> io::Result<()> {
    let (x, y) = (cells.start % COLUMNS * CELL, cells.start / COLUMNS * CELL);
    let width = (cells.end - cells.start) * CELL;
    let colour = shade.colour();
    writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{CELL}\" fill=\"{colour}\"/>"
    )
}

fn legend(
    out: &mut dyn Write,
    top: u64,
    delta: Option<&ChangedBlocks>,
    allocated: Option<&ChangedBlocks>,
    cell_bytes: u64,
) -> io::Result<()> {
    let show = |list: Option<&ChangedBlocks>| list.map(|list| list.data.total());
    let mut entries = Vec::new();
    if let Some(bytes) = show(delta) {
        entries.push((
            Shade::Changed(2),
            format!("changed, {}", mover_engine::sizes::show_bytes(bytes)),
        ));
    }
    if let Some(bytes) = show(allocated) {
        entries.push((
            Shade::Allocated,
            format!("allocated, {}", mover_engine::sizes::show_bytes(bytes)),
        ));
    }
    entries.push((Shade::Zero, "zero".to_owned()));
    if allocated.is_none() {
        entries.push((Shade::Plain, "unchanged".to_owned()));
    }
    let y = top + 7;
    let mut x = 4;
    for (shade, text) in &entries {
        let colour = shade.colour();
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\" stroke=\"#888\"/><text x=\"{}\" y=\"{}\">{text}</text>",
            x + 14,
            y + 9
        )?;
        x += 150;
    }
    let cell = mover_engine::sizes::show_bytes(cell_bytes);
    writeln!(out, "<text x=\"{x}\" y=\"{}\">a cell is {cell}</text>", y + 9)
}

/// Counts the bytes of a set within ascending windows.
struct Cursor<'a> {
    ranges: Box<dyn Iterator<Item = Range<u64>> + 'a>,
    current: Option<Range<u64>>,
}

impl<'a> Cursor<'a> {
    fn of(set: Option<&'a Extents>) -> Self {
        let mut ranges: Box<dyn Iterator<Item = Range<u64>> + 'a> = match set {
            Some(set) => Box::new(set.iter()),
            None => Box::new(std::iter::empty()),
        };
        let current = ranges.next();
        Self { ranges, current }
    }

    fn within(&mut self, window: &Range<u64>) -> u64 {
        let mut bytes = 0;
        while let Some(range) = &self.current {
            if range.start >= window.end {
                break;
            }
            bytes += range.end.min(window.end).saturating_sub(range.start.max(window.start));
            if range.end > window.end {
                break;
            }
            self.current = self.ranges.next();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover_changes::ListOrigin;

    fn list(kind: ChangeKind, data: Extents) -> ChangedBlocks {
        let (origin, volume_bytes, zero) = (ListOrigin::Mover, None, Extents::new());
        ChangedBlocks { kind, origin, volume_bytes, data, zero, contexts: vec![], notes: vec![] }
    }

    fn drawn(lists: &[&ChangedBlocks], size: u64) -> String {
        let mut out = Vec::new();
        draw(lists, size, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn count(picture: &str, shade: Shade) -> usize {
        let map = picture.lines().filter(|l| l.contains(&format!("height=\"{CELL}\"")));
        map.filter(|l| l.contains(shade.colour())).count()
    }

    #[test]
    fn no_change_is_too_small_to_be_seen() {
        let size = 1 << 40;
        let delta = list(ChangeKind::Delta, [0..1, (1 << 39)..(1 << 39) + 1].into_iter().collect());
        let used = list(ChangeKind::Allocated, Extents::of(0..1 << 38));
        let picture = drawn(&[&delta, &used], size);
        assert_eq!(count(&picture, Shade::Changed(0)), 2);
        assert!(count(&picture, Shade::Allocated) == 16 && count(&picture, Shade::Zero) == 48);
        assert!(count(&drawn(&[&delta], size), Shade::Plain) > 60);
    }

    #[test]
    fn odd_volumes_are_drawn_to_their_end() {
        for size in [1, 511, 4097, 8192 * 7 + 1, u64::MAX / 2] {
            let all = list(ChangeKind::Delta, Extents::of(0..size));
            let picture = drawn(&[&all], size);
            assert_eq!(count(&picture, Shade::Plain), 0, "{size}");
            assert!(count(&picture, Shade::Changed(2)) > 0, "{size}");
            assert!(picture.ends_with("</svg>\n"));
        }
    }
}
