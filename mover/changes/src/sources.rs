//! Where a changed-block list comes from: one enum of sources, and what a run wants of them.
//!
//! A list is either *given* (a file, standard input: it is what it is, and what is wrong with it is
//! an error) or *asked for* (a server). Only a source that is asked can offer several kinds, and
//! only for such a source is there a way down when it fails: `backup/ladder.rs` decides about that,
//! nothing here does.
//!
//! A list is drained to its end before the device is read: the servers end a stream after some
//! minutes, so neither device nor store may ever slow it down. A server's words are outside data:
//! every promise of its protocol is checked here; bodies, pages, tries and waits are bounded; a
//! broken promise is an error.

mod collector;
mod credentials;
mod filesystem;
mod grpc;
mod nbd;
mod rest;
mod retry;

pub use grpc::{SnapshotEndpoint, SnapshotSource};
pub use nbd::NbdSource;
pub use rest::RestSource;
pub use retry::RetryPolicy;

use crate::volume::{Movement, Volume};
use crate::{ChangeKind, ChangedBlocks};
use chunkstore::{Error, ErrorKind, Result, format::SnapshotInfo};
use collector::Collector;
use filesystem::filesystem_list;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// A source of changed-block lists.
#[derive(Debug, Clone)]
pub enum ChangeSource {
    /// A list in a file; the kind is for lists that do not say it.
    File(PathBuf, Option<ChangeKind>),
    /// A list on standard input; the kind is for lists that do not say it.
    Stdin(Option<ChangeKind>),
    /// A server of the REST draft.
    Rest(RestSource),
    /// A SnapshotMetadata service.
    Snapshot(SnapshotSource),
    /// The file system on the volume itself, which is this device or image.
    FileSystem(PathBuf),
    /// The NBD server that the volume is read from.
    Nbd(NbdSource),
}

/// What a backup is to know about changes.
#[derive(Debug, Clone, Default)]
pub struct ChangeRequest {
    /// Sources, best first among those of one kind. Empty: the whole volume is read.
    pub sources: Vec<ChangeSource>,
    /// The least that will do: `Delta`, or `Allocated`, which a delta serves as well. Otherwise the
    /// whole volume is read when no list can be had.
    pub require: Option<ChangeKind>,
}

impl ChangeRequest {
    /// A list in a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { sources: vec![ChangeSource::File(path.into(), None)], require: None }
    }

    /// A source, and whatever can be had of it.
    pub fn of(source: ChangeSource) -> Self {
        Self { sources: vec![source], require: None }
    }
}

/// What a source is asked for.
#[derive(Debug, Clone, Copy)]
pub struct ListRequest<'a> {
    /// `Delta` or `Allocated`.
    pub kind: ChangeKind,
    /// Size of the device.
    pub volume_bytes: u64,
    /// Most ranges that are held. What is beyond makes the list coarser, never wrong.
    pub ranges_max: usize,
    /// The first step of coarseness: ranges within one piece of this size are read together anyway.
    /// A power of two.
    pub granule_bytes: u64,
    /// For a delta, the snapshot that it starts from, as the parent recorded it.
    pub base: Option<&'a SnapshotInfo>,
    /// The volume, where it is open: what it tells about itself is read through it.
    pub device: Option<&'a dyn Volume>,
    /// Counts the pieces of the list.
    pub movement: Option<&'a Arc<dyn Movement>>,
}

impl ChangeSource {
    /// Whether the list is there already, and is used as it is or not at all.
    pub fn is_given(&self) -> bool {
        matches!(self, Self::File(..) | Self::Stdin(_))
    }

    /// Whether it can be asked for this kind.
    pub(crate) fn offers(&self, kind: ChangeKind) -> bool {
        match self {
            Self::File(..) | Self::Stdin(_) => false,
            Self::Rest(rest) => rest.offers(kind),
            Self::Snapshot(service) => service.offers(kind),
            Self::FileSystem(_) => kind == ChangeKind::Allocated,
            Self::Nbd(nbd) => nbd.offers(kind),
        }
    }

    /// What to call it in messages; holds no secret.
    pub fn name(&self) -> String {
        match self {
            Self::File(path, _) => path.display().to_string(),
            Self::Stdin(_) => "standard input".to_owned(),
            Self::Rest(rest) => rest.name(),
            Self::Snapshot(service) => service.name(),
            Self::Nbd(nbd) => nbd.name(),
            Self::FileSystem(device) => format!("the file system on {}", device.display()),
        }
    }

    /// Asks for a list and drains it to its end.
    pub fn fetch<'a>(
        &'a self,
        request: &'a ListRequest<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<ChangedBlocks>> + 'a>> {
        Box::pin(async move {
            match self {
                Self::File(..) | Self::Stdin(_) => {
                    let context = format!("ask {} for a changed-block list", self.name());
                    Err(Error::new(ErrorKind::Bug, context, "it is a list, not a server"))
                }
                Self::Rest(rest) => rest.fetch(Collector::new(request)).await,
                Self::Snapshot(service) => {
                    service.fetch(Collector::new(request), request.base).await
                }
                Self::Nbd(nbd) => nbd.fetch(request).await,
                // some reads of metadata, beside which this thread has nothing to do
                Self::FileSystem(device) => filesystem_list(device, request),
            }
        })
    }
}
