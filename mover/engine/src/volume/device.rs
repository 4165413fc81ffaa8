//! Volumes as devices, files and NBD exports: what they are, whether they may be read or
//! overwritten, and their zeros.
//!
//! A [`Source`] is opened for reading, a [`Target`] for writing; both hand an
//! [`IoFile`](crate::volume::io::IoFile) to an engine, which moves the bytes. All that can destroy data is
//! decided in [`Target::open`]: a target that is too small, in use, the source itself, or holds
//! something that is recognised (without `force`) is refused before a byte is written.
//!
//! Owns: the descriptors. Must not: read or write volume data other than superblocks and zeros.

mod cache;
mod geometry;
mod lock;
mod mounts;
mod nbd;
mod open;
mod reach;
mod signatures;
mod source;
mod stable;
mod state;
mod target;
mod volume;
mod zero;

pub use geometry::DeviceKind;
pub use nbd::check_address;
pub use open::DirectIo;
pub use reach::leads_into;
pub use source::{Source, SourceOptions};
pub use target::{Target, TargetOptions};
pub use zero::ZeroMethod;
