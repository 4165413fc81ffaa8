//! Lists of blocks that are wrong.

use super::Name;
use crate::extents::Range;
use serde::{Deserialize, Serialize};
use tonic::Status;

/// What is wrong with the lists of blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Tracker {
    /// There is no such service.
    Gone,
    /// It answers with an error.
    Refuses { code: Name },
    /// It says that nothing is in use, or has changed.
    Empty,
    /// It leaves out every so-many-th range.
    Omits { every: usize },
    /// It names places that lie so many bytes behind the right ones.
    Shifts { bytes: u64 },
    /// After each range it names the last so many bytes of it once more.
    Overlaps { bytes: u64 },
    /// It names the ranges from the last to the first.
    Descends,
    /// It names so many bytes behind the end of the volume, too.
    Beyond { bytes: u64 },
    /// It says that the volume has so many bytes.
    Capacity { bytes: u64 },
    /// It ends with an error after so many ranges.
    BreaksOff { after: usize },
    /// It ends well after so many ranges, as if there were no more.
    Truncates { after: usize },
}

/// A list as a tracker tells it.
#[derive(Debug)]
pub(crate) struct Bent {
    pub(crate) ranges: Vec<Range>,
    /// The size of the volume.
    pub(crate) size: u64,
    /// What it ends with.
    pub(crate) error: Option<Status>,
}

impl Tracker {
    /// A right list, of a volume of `size` bytes, made what this tracker says.
    pub(crate) fn bend(&self, ranges: Vec<Range>, size: u64) -> Bent {
        let well = |ranges| Bent { ranges, size, error: None };
        let badly = |ranges, error| Bent { ranges, size, error: Some(error) };
        match self {
            Self::Gone => {
                let text = "this driver knows no SnapshotMetadata, by order of the faults file";
                badly(Vec::new(), Status::unimplemented(text))
            }
            Self::Refuses { code } => {
                let text = "the tracker refuses by order of the faults file";
                badly(Vec::new(), Status::new(code.0, text))
            }
            Self::Empty => well(Vec::new()),
            Self::Omits { every } => {
                let kept = ranges.into_iter().zip(1_usize..);
                let every = (*every).max(1);
                well(kept.filter(|(_, n)| n % every != 0).map(|(range, _)| range).collect())
            }
            Self::Shifts { bytes } => {
                let shift = |range: &Range| {
                    let start = range.start.saturating_add(*bytes);
                    let end = start.saturating_add(range.bytes).min(size);
                    (start < end).then(|| Range { start, bytes: end - start })
                };
                well(ranges.iter().filter_map(shift).collect())
            }
            Self::Overlaps { bytes } => {
                let twice = |range: Range| {
                    let bytes = range.bytes.min(*bytes);
                    [range, Range { start: range.start + range.bytes - bytes, bytes }]
                };
                well(ranges.into_iter().flat_map(twice).collect())
            }
            Self::Descends => well(ranges.into_iter().rev().collect()),
            Self::Beyond { bytes } => {
                let behind = Range { start: size, bytes: *bytes };
                well(ranges.into_iter().chain([behind]).collect())
            }
            Self::Capacity { bytes } => Bent { ranges, size: *bytes, error: None },
            Self::BreaksOff { after } => {
                let text = "the list breaks off by order of the faults file";
                badly(ranges.into_iter().take(*after).collect(), Status::unavailable(text))
            }
            Self::Truncates { after } => well(ranges.into_iter().take(*after).collect()),
        }
    }
}
