//! Volume maps: the tree of pages that says, for each chunk of a volume, zero or which chunk and
//! where it is stored.
//!
//! | file | |
//! |---|---|
//! | `volume` | [`VolumeMap`]: what a manifest says of a map, and the arithmetic of its pages |
//! | `pages` | [`PageSet`]: loaded pages and which chunks they answer for |
//! | `reader` | [`MapReader`]: loads pages level by level, merged, many requests in flight |
//! | `walk` | [`MapWalk`]: all of a map in windows of bounded memory, skipping Zero subtrees |
//! | `diff` | [`diff`]: which chunks differ between two maps |
//! | `delta` | [`delta_of`]: which bytes differ between two backups, stored and zero apart |
//! | `reach` | [`reach()`]: everything that many maps reach, each page once |
//! | `open` | opens a page and holds it against the reference that led to it |
//! | `live` | [`LiveSet`]: which stored chunks and pages something refers to, in a bit or two each |
//! | `lost` | [`damaged_chunks`]: which chunks of a map lead into what is damaged |
//! | `builder` | [`MapBuilder`]: the map of a new backup, in one ascending pass, at the cost of the changed paths |
//! | `sink` | [`PageSink`]: seals new pages into packs |
//!
//! Invariants: no page is used before its id, level and extent were checked against the reference
//! that led to it; a chunk whose pages are not loaded is an error, never Zero; no work is done for
//! a subtree that is Zero or unchanged.

mod builder;
mod delta;
mod diff;
mod live;
mod lost;
mod open;
mod pages;
mod reach;
mod reader;
mod sink;
mod volume;
mod walk;

pub use builder::{Inherit, MapBuilder, check_frontier};
pub use delta::{MapDelta, delta_of};
pub use diff::diff;
pub use live::{LivePack, LiveSet};
pub use lost::damaged_chunks;
pub(crate) use open::{PageKey, Visited};
pub use pages::PageSet;
pub use reach::{PageAt, Reached, Visitor, reach};
pub use reader::{LostPage, MapReader, ReadLimits};
pub use sink::PageSink;
pub use volume::VolumeMap;
pub(crate) use volume::normalise;
pub use walk::{MapWalk, Window};

#[cfg(test)]
pub(crate) mod model;
