//! A list in the shapes of `docs/changed-blocks.md`, each of which is read back as the same list.
//!
//! A shape that cannot say what the list says is refused, unless all that is lost is a known zero:
//! that is then named as data, which costs a read and is right.

use chunkstore::{Error, ErrorKind, Result};
use mover_changes::{ChangeKind, ChangedBlocks};
use mover_extents::Extents;
use std::io::{self, Write};
use std::ops::Range;

/// A shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Our own, which can say everything.
    Mover,
    /// A bare array of ranges.
    Extents,
    /// Records of the CSI snapshot-metadata lister.
    Csi,
    /// `rbd diff`.
    Rbd,
    /// `qemu-img map`.
    Qemu,
    /// A page of the REST draft.
    Rest,
}

/// Ranges in one CSI record.
const RECORD_RANGES: usize = 256;

/// A range and whether it is known to be zero.
type Piece = (Range<u64>, bool);

impl Form {
    /// Whether the list can be said in this form at all.
    pub fn check(self, list: &ChangedBlocks) -> Result<()> {
        if self != Self::Qemu || list.kind != ChangeKind::Delta {
            return Ok(());
        }
        let what = "it says what is allocated, and cannot say what changed";
        Err(Error::new(ErrorKind::Usage, "write the list as a map of qemu-img", what)
            .hint("choose another form"))
    }

    /// Writes it; [`Self::check`] has been asked.
    pub fn write(
        self,
        list: &ChangedBlocks,
        size_bytes: u64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        match self {
            Self::Mover => list.write_json(out),
            Self::Extents => array(out, pieces(list), |out, (r, zero)| {
                let mark = if zero { ",\"ZeroOut\":true" } else { "" };
                write!(out, "{{\"offset\":{},\"length\":{}{mark}}}", r.start, r.end - r.start)
            }),
            Self::Rbd => array(out, pieces(list), |out, (r, zero)| {
                let len = r.end - r.start;
                write!(out, "{{\"offset\":{},\"length\":{len},\"exists\":\"{}\"}}", r.start, !zero)
            }),
            Self::Qemu => qemu(list, size_bytes, out),
            Self::Csi => csi(list, size_bytes, out),
            Self::Rest => {
                write!(out, "{{\"volumeSize\":{size_bytes},\"changeBlockList\":")?;
                array(out, pieces(list), |out, (r, zero)| {
                    let mark = if zero { ",\"zeroOut\":true" } else { "" };
                    write!(out, "{{\"offset\":{},\"size\":{}{mark}}}", r.start, r.end - r.start)
                })?;
                writeln!(out, "}}")
            }
        }
    }
}

/// Data and zeros together, ascending.
fn pieces(list: &ChangedBlocks) -> impl Iterator<Item = Piece> {
    let mut data = list.data.iter().peekable();
    let mut zero = list.zero.iter().peekable();
    std::iter::from_fn(move || {
        let zero_first = match (data.peek(), zero.peek()) {
            (Some(d), Some(z)) => z.start < d.start,
            (None, Some(_)) => true,
            _ => false,
        };
        let next = if zero_first { zero.next() } else { data.next() };
        next.map(|range| (range, zero_first))
    })
}

fn array<T>(
    out: &mut dyn Write,
    items: impl Iterator<Item = T>,
    each: impl Fn(&mut dyn Write, T) -> io::Result<()>,
) -> io::Result<()> {
    write!(out, "[")?;
    for (n, item) in items.enumerate() {
        write!(out, "{}", if n == 0 { "\n" } else { ",\n" })?;
        each(out, item)?;
    }
    writeln!(out, "]")
}

/// Every byte of the volume is named; what is not allocated is zero.
fn qemu(list: &ChangedBlocks, size_bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    let all = Extents::of(0..size_bytes);
    let rest = all.subtract(&list.data);
    let (kind, contexts, notes) = (list.kind, Vec::new(), Vec::new());
    let (origin, volume_bytes) = (list.origin, list.volume_bytes);
    let data = list.data.clone();
    let whole = ChangedBlocks { kind, origin, volume_bytes, data, zero: rest, contexts, notes };
    array(out, pieces(&whole), |out, (r, zero)| {
        let (start, len) = (r.start, r.end - r.start);
        write!(
            out,
            "{{\"start\":{start},\"length\":{len},\"depth\":0,\"present\":{0},\"zero\":{zero},\"data\":{0}}}",
            !zero
        )
    })
}

/// The protocol knows no zeros: a delta names them as changed, a list of allocated blocks leaves
/// them out.
fn csi(list: &ChangedBlocks, size_bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    let named = match list.kind {
        ChangeKind::Delta => list.data.union(&list.zero),
        ChangeKind::Allocated | ChangeKind::Whole => list.data.clone(),
    };
    let mut records: Vec<&[Range<u64>]> = named.as_slice().chunks(RECORD_RANGES).collect();
    if records.is_empty() {
        records.push(&[]);
    }
    array(out, records.into_iter(), |out, ranges| {
        let head = "{\"block_metadata_type\":2,\"volume_capacity_bytes\":";
        write!(out, "{head}{size_bytes},\"block_metadata\":")?;
        array(out, ranges.iter(), |out, r| {
            write!(out, "{{\"byte_offset\":{},\"size_bytes\":{}}}", r.start, r.end - r.start)
        })?;
        write!(out, "}}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover_changes::{ListOrigin, ParseOptions, parse_changed_blocks};

    const SIZE: u64 = 1 << 20;

    fn list(kind: ChangeKind) -> ChangedBlocks {
        let data: Extents = (0..600u64).map(|n| n * 1000..n * 1000 + 10).collect();
        let zero = Extents::of(700_000..800_000);
        let (origin, volume_bytes) = (ListOrigin::Mover, Some(SIZE));
        let (contexts, notes) = (vec![], vec![]);
        ChangedBlocks { kind, origin, volume_bytes, data, zero, contexts, notes }
    }

    #[test]
    fn each_form_is_read_back_as_the_same_list() {
        for kind in [ChangeKind::Delta, ChangeKind::Allocated] {
            let list = list(kind);
            for form in [Form::Mover, Form::Extents, Form::Csi, Form::Rbd, Form::Qemu] {
                if form.check(&list).is_err() {
                    assert_eq!((form, kind), (Form::Qemu, ChangeKind::Delta));
                    continue;
                }
                let mut text = Vec::new();
                form.write(&list, SIZE, &mut text).unwrap();
                let kind_override = Some(kind);
                let options = ParseOptions { kind_override, ..ParseOptions::new("x", SIZE) };
                let back = parse_changed_blocks(&text[..], &options).unwrap();
                assert_eq!(back.kind, kind, "{form:?}");
                match (form, kind) {
                    (Form::Csi, ChangeKind::Delta) => {
                        assert_eq!(back.data, list.data.union(&list.zero));
                    }
                    (Form::Csi, _) => assert_eq!(back.data, list.data),
                    (Form::Qemu, _) => {
                        assert_eq!(back.data, list.data);
                        assert!(list.zero.subtract(&back.zero).is_empty());
                    }
                    _ => assert_eq!((&back.data, &back.zero), (&list.data, &list.zero), "{form:?}"),
                }
            }
        }
    }

    #[test]
    fn a_list_without_ranges_is_a_list_in_every_form() {
        let empty = ChangedBlocks {
            data: Extents::new(),
            zero: Extents::new(),
            ..list(ChangeKind::Allocated)
        };
        for form in [Form::Mover, Form::Extents, Form::Csi, Form::Rbd, Form::Qemu] {
            let mut text = Vec::new();
            form.write(&empty, SIZE, &mut text).unwrap();
            let kind_override = Some(ChangeKind::Allocated);
            let options = ParseOptions { kind_override, ..ParseOptions::new("x", SIZE) };
            assert!(parse_changed_blocks(&text[..], &options).unwrap().data.is_empty(), "{form:?}");
        }
    }
}
