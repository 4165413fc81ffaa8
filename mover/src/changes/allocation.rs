//! The list of allocated blocks that a volume's own file system gives.

use super::{ChangeKind, ChangedBlocks, Extents, ListRequest, Origin};
use crate::device::{Source, SourceOptions};
use crate::filesystem::{Limits, ReadAt, Refusal, WHILE_IN_USE, used_space};
use chunkstore::{Error, ErrorKind, Result};
use std::io;
use std::path::Path;

impl ReadAt for Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset).map_err(io::Error::other)
    }

    fn sector_bytes(&self) -> Option<u64> {
        self.is_block_device().then(|| self.logical_block_bytes().into())
    }
}

/// Reads what the file system on a device uses. Nobody may be writing to it: what is on the device
/// then is behind what is in use.
pub(super) fn filesystem_list(path: &Path, request: &ListRequest<'_>) -> Result<ChangedBlocks> {
    let context = || format!("find out what the file system on {} uses", path.display());
    let opened;
    let source = match request.device {
        Some(source) => source,
        None => {
            opened = Source::open(path, SourceOptions::default())?;
            &opened
        }
    };
    if let Some(mount) = source.mounted_read_write()? {
        let detail = format!("it is mounted read-write at {}", mount.display());
        return Err(Error::new(ErrorKind::Unsupported, context(), detail)
            .hint("back up a snapshot instead"));
    }
    let limits = Limits { granule_bytes: request.granule_bytes, ranges_max: request.ranges_max };
    let found = used_space(source, source.size_bytes(), limits);
    let found = found.map_err(|refusal| {
        let kind = match &refusal {
            Refusal::Io { .. } => ErrorKind::Device,
            Refusal::Unknown | Refusal::Unusable { .. } => ErrorKind::Unsupported,
        };
        Error::new(kind, context(), refusal.to_string())
    })?;
    // what LVM and swap space say of themselves is true while they are in use
    if !WHILE_IN_USE.contains(&found.kind) && source.is_claimed_unseen()? {
        let detail = "it is in use by something that is not seen from here, \
                      a mount in another container perhaps";
        return Err(Error::new(ErrorKind::Unsupported, context(), detail)
            .hint("back up a snapshot instead"));
    }
    tracing::info!(
        "{} on {} has {} bytes free, {} transactions of its journal counted in",
        found.kind,
        path.display(),
        found.free_bytes,
        found.replayed
    );
    Ok(ChangedBlocks {
        kind: ChangeKind::Allocated,
        origin: Origin::FileSystem,
        volume_bytes: Some(source.size_bytes()),
        data: found.used,
        zero: Extents::new(),
        notes: found.notes,
        contexts: Vec::new(),
    })
}
