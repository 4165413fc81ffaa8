//! The list of allocated blocks that a volume's own file system gives.

use super::ListRequest;
use crate::volume::Volume;
use crate::{ChangeKind, ChangedBlocks, ListOrigin};
use chunkstore::{Error, ErrorKind, Result};
use mover_extents::Extents;
use mover_fsmap::{Limits, ReadAt, Refusal, UsedSpace, WHILE_IN_USE, used_space};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// Read at once around a small piece: what a file system keeps beside it is often asked for next,
/// and no cache is before the device.
const WINDOW_BYTES: usize = 64 << 10;
/// Windows that are kept. Not more: each is looked at in turn.
const WINDOWS: usize = 16;
const LETS_GO: &str =
    "somebody who is not seen from here has the device; its map is read again if they let it go";
/// Readings of a device that somebody lets go of each time.
const ROUNDS_MAX: u32 = 3;

/// A device, of which what was read last is kept. Nobody writes to it while its map is made.
struct Windows<'a> {
    source: &'a dyn Volume,
    /// Each with where it begins, the newest at the end.
    kept: RefCell<VecDeque<(u64, Vec<u8>)>>,
}

impl<'a> Windows<'a> {
    fn new(source: &'a dyn Volume) -> Self {
        Self { source, kept: RefCell::default() }
    }

    /// Takes all of `buffer` from one window, if they are all in one.
    fn copy(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        let start = offset / WINDOW_BYTES as u64 * WINDOW_BYTES as u64;
        let skip = usize::try_from(offset - start).map_err(io::Error::other)?;
        if skip + buffer.len() > WINDOW_BYTES || offset >= self.source.size_bytes() {
            return Ok(false);
        }
        let mut kept = self.kept.borrow_mut();
        let window = match kept.iter().position(|(at, _)| *at == start) {
            Some(at) => kept.remove(at),
            None => {
                let len = (self.source.size_bytes() - start).min(WINDOW_BYTES as u64);
                let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
                // a bad block beside what is wanted is nothing to the map
                self.source.read_exact_at(&mut bytes, start).ok().map(|()| (start, bytes))
            }
        };
        let Some((start, bytes)) = window else { return Ok(false) };
        let found = bytes.get(skip..skip + buffer.len()).map(|part| buffer.copy_from_slice(part));
        if kept.len() == WINDOWS {
            kept.pop_front();
        }
        kept.push_back((start, bytes));
        Ok(found.is_some())
    }
}

impl ReadAt for Windows<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.copy(buffer, offset)? {
            return Ok(());
        }
        self.source.read_exact_at(buffer, offset).map_err(io::Error::other)
    }

    fn sector_bytes(&self) -> Option<u64> {
        self.source.sector_bytes()
    }
}

/// Reads what the file system on a device uses. Nobody may be writing to it: what is on the device
/// then is behind what is in use.
pub(super) fn filesystem_list(path: &Path, request: &ListRequest<'_>) -> Result<ChangedBlocks> {
    let context = || format!("find out what the file system on {} uses", path.display());
    let Some(source) = request.device else {
        let what = "the volume is not open";
        return Err(Error::new(ErrorKind::Usage, context(), what).hint("name its device"));
    };
    let in_use = |detail: String| {
        Error::new(ErrorKind::Unsupported, context(), detail).hint("back up a snapshot instead")
    };
    let check_mounts = || match source.mounted_read_write()? {
        Some(at) => Err(in_use(format!("it is mounted read-write at {}", at.display()))),
        None => Ok(()),
    };
    check_mounts()?;
    let limits = Limits { granule_bytes: request.granule_bytes, ranges_max: request.ranges_max };
    let found = while_unclaimed(source, || {
        let found = used_space(&Windows::new(source), source.size_bytes(), limits);
        found.map_err(|refusal| {
            let kind = match &refusal {
                Refusal::Io { .. } => ErrorKind::Device,
                Refusal::Unknown | Refusal::Unusable { .. } => ErrorKind::Unsupported,
            };
            Error::new(kind, context(), refusal.to_string())
        })
    })?;
    let Some(found) = found else {
        let detail = "it is in use by something that is not seen from here, \
                      a mount in another container perhaps";
        return Err(in_use(detail.into()));
    };
    // who has mounted it meanwhile is seen, and no claim that is not
    check_mounts()?;
    tracing::info!(
        "{} on {} has {} bytes free, {} transactions of its journal counted in",
        found.kind,
        path.display(),
        found.free_bytes,
        found.replayed
    );
    Ok(ChangedBlocks {
        kind: ChangeKind::Allocated,
        origin: ListOrigin::FileSystem,
        volume_bytes: Some(source.size_bytes()),
        data: found.used,
        zero: Extents::new(),
        notes: found.notes,
        contexts: Vec::new(),
    })
}

/// What is read of a device that nobody else uses, neither before nor after; nothing if somebody
/// does. What was read while somebody had it is behind what is on the device once it was let go:
/// it is read again.
fn while_unclaimed(
    source: &dyn Volume,
    mut read: impl FnMut() -> Result<UsedSpace>,
) -> Result<Option<UsedSpace>> {
    for _ in 0..ROUNDS_MAX {
        let claimed = source.is_claimed_unseen()?;
        let found = read();
        // what LVM and swap space say of themselves is true while they are in use
        if matches!(&found, Ok(found) if WHILE_IN_USE.contains(&found.kind)) {
            return found.map(Some);
        }
        if !claimed && !source.is_claimed_unseen()? {
            return found.map(Some);
        }
        tracing::info!("{LETS_GO}");
        if source.stays_claimed_unseen()? {
            return Ok(None);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::path::PathBuf;

    /// It is claimed when it is looked at, or not; `stays` for each look that waits.
    #[derive(Debug)]
    struct Claims {
        looks: RefCell<VecDeque<bool>>,
        stays: RefCell<VecDeque<bool>>,
    }

    impl Volume for Claims {
        fn size_bytes(&self) -> u64 {
            0
        }

        fn read_exact_at(&self, _: &mut [u8], _: u64) -> Result<()> {
            Ok(())
        }

        fn sector_bytes(&self) -> Option<u64> {
            None
        }

        fn mounted_read_write(&self) -> Result<Option<PathBuf>> {
            Ok(None)
        }

        fn is_claimed_unseen(&self) -> Result<bool> {
            Ok(self.looks.borrow_mut().pop_front().expect("no more looks"))
        }

        fn stays_claimed_unseen(&self) -> Result<bool> {
            Ok(self.stays.borrow_mut().pop_front().expect("no more looks that wait"))
        }

        fn export(&self) -> Option<&mover_nbd::Export> {
            None
        }
    }

    /// Which reading counts, if any. The first one fails where it is `torn`.
    fn counted(
        kind: &'static str,
        looks: &[bool],
        stays: &[bool],
        torn: bool,
    ) -> Result<Option<u64>> {
        let [looks, stays] = [looks, stays].map(|all| RefCell::new(all.iter().copied().collect()));
        let claims = Claims { looks, stays };
        let times = Cell::new(0);
        let read = || {
            times.set(times.get() + 1);
            let replayed = times.get();
            if torn && replayed == 1 {
                return Err(Error::new(ErrorKind::Unsupported, "read it", "it is torn"));
            }
            Ok(UsedSpace { kind, used: Extents::new(), free_bytes: 0, replayed, notes: Vec::new() })
        };
        let found = while_unclaimed(&claims, read);
        assert!(claims.looks.borrow().is_empty() && claims.stays.borrow().is_empty());
        Ok(found?.map(|found| found.replayed))
    }

    #[test]
    fn what_was_read_while_somebody_used_the_device_does_not_count() {
        let counted =
            |looks: &[bool], stays: &[bool]| counted("ext4", looks, stays, false).unwrap();
        assert_eq!(counted(&[false, false], &[]), Some(1));
        // somebody has it all the time
        assert_eq!(counted(&[true], &[true]), None);
        assert_eq!(counted(&[false, true], &[true]), None);
        // it was let go while it was read, or after that
        assert_eq!(counted(&[true, false, false], &[false]), Some(2));
        assert_eq!(counted(&[false, true, false, false], &[false]), Some(2));
        // somebody else each time
        assert_eq!(counted(&[true, true, true], &[false, false, false]), None);
    }

    #[test]
    fn a_map_is_torn_for_good_only_where_nobody_had_the_device() {
        assert_eq!(counted("ext4", &[true, false, false], &[false], true).unwrap(), Some(2));
        assert_eq!(counted("ext4", &[true], &[true], true).unwrap(), None);
        counted("ext4", &[false, false], &[], true).unwrap_err();
        assert_eq!(counted(WHILE_IN_USE[0], &[true], &[], false).unwrap(), Some(1));
    }
}
