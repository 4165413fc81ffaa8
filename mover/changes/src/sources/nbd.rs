//! Lists that an NBD server gives of the export that is read: its dirty bitmaps, and what is
//! allocated.
//!
//! They come through the connection that the volume is read by: what they say is of the very export
//! that is open, and servers that let one client in at a time are served.

use super::ListRequest;
use super::collector::Collector;
use crate::volume::Volume;
use crate::{ChangeKind, ChangedBlocks, ListOrigin};
use chunkstore::{Error, ErrorKind, Result};
use mover_nbd::{BASE_ALLOCATION, DIRTY_BITMAP, Export, STATE_DIRTY, STATE_ZERO};
use std::path::PathBuf;

/// Blocks that a server may tell of one by one: more is no list any more, and asking would not end
/// in a day.
const BLOCKS_MAX: u64 = 1 << 26;

/// What an NBD server is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdSource {
    /// Address of the export, which is also what is read.
    pub uri: PathBuf,
    /// Dirty bitmap that has been kept since the base snapshot; without one there is no delta.
    pub bitmap: Option<String>,
}

impl NbdSource {
    pub(super) fn offers(&self, kind: ChangeKind) -> bool {
        kind == ChangeKind::Allocated || (kind == ChangeKind::Delta && self.bitmap.is_some())
    }

    /// Its address.
    pub fn name(&self) -> String {
        self.uri.display().to_string()
    }

    pub(super) async fn fetch(&self, request: &ListRequest<'_>) -> Result<ChangedBlocks> {
        let Some(export) = request.device.and_then(Volume::export) else {
            let what = "the volume is not read from an NBD server";
            return Err(Error::new(ErrorKind::Usage, self.context(), what)
                .hint("name the source by its NBD address, nbd:// or nbd+unix://"));
        };
        let (context, bit) = match (request.kind, &self.bitmap) {
            (ChangeKind::Delta, Some(bitmap)) => (format!("{DIRTY_BITMAP}{bitmap}"), STATE_DIRTY),
            _ => (BASE_ALLOCATION.to_owned(), STATE_ZERO),
        };
        if !export.contexts().any(|offered| offered == context) {
            return Err(self.not_offered(export, &context));
        }
        // a bitmap marks what is listed, zero blocks what is not
        let listed = if bit == STATE_DIRTY { bit } else { 0 };
        let mut collector = Collector::new(request);
        let (mut at, mut blocks) = (0, 0);
        while at < export.size_bytes() {
            let found = export.block_status(&context, at).map_err(|e| {
                let what = format!("at offset {at}");
                Error::new(kind_of(&e), self.context(), what).caused_by(e)
            })?;
            collector.moved();
            blocks += found.len() as u64;
            if blocks > BLOCKS_MAX {
                let what = format!("it tells of more than {BLOCKS_MAX} single blocks");
                return Err(Error::new(ErrorKind::Corrupt, self.context(), what)
                    .hint("back up without its list: its blocks are too small to ask about"));
            }
            for (range, state) in found {
                at = range.end;
                if state & bit == listed {
                    collector.add(range, false);
                }
            }
            // each question is short: here a run that is to stop does
            tokio::task::yield_now().await;
        }
        collector.finish(&self.name(), ListOrigin::Nbd, Some(export.size_bytes()))
    }

    fn context(&self) -> String {
        format!("get the changed-block list from {}", self.name())
    }

    fn not_offered(&self, export: &Export, context: &str) -> Error {
        let offered: Vec<&str> = export.contexts().collect();
        let what = match offered.as_slice() {
            [] => format!("the server offers no {context}, nor anything else about its blocks"),
            some => format!("the server offers no {context}, but {}", some.join(", ")),
        };
        let hint = match context {
            BASE_ALLOCATION => "use a server that tells its holes, or leave it out",
            _ => {
                "let the server export the bitmap: qemu-nbd --bitmap NAME, exportbitmap in libvirt"
            }
        };
        Error::new(ErrorKind::Unsupported, self.context(), what).hint(hint)
    }
}

fn kind_of(e: &std::io::Error) -> ErrorKind {
    match e.kind() {
        std::io::ErrorKind::InvalidData => ErrorKind::Corrupt,
        std::io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    }
}
