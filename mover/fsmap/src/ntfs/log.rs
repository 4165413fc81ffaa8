//! The log: whether the volume was unmounted.
//!
//! It begins with two restart pages, of which the one with the larger number counts. Unless it says
//! that the volume is clean, or that nobody has the log open, there is something to replay. A log
//! of nothing but ones was emptied: by mkfs, or by ntfs-3g, which does so after it has found it
//! clean, and before it writes.

use super::record::{Runs, mend};
use super::{Ntfs, unusable};
use crate::{Refusal, le16, le32, le64};

/// Of a page, before what is in it.
const HEADER: usize = 30;
/// Of what is in a restart page, as far as it is read.
const AREA: usize = 16;
const PAGES_MAX: u64 = 64 << 10;
const PIECE: u64 = 1 << 20;
/// What Windows gives one at most.
const BYTES_MAX: u64 = 4 << 30;
const CLEAN: u16 = 2;
const NOBODY: u16 = u16::MAX;
/// Those that write 2.0 keep metadata in memory over a shutdown.
const VERSION: (u16, u16) = (1, 1);

/// Refuses one that has anything to replay.
pub(super) fn check(fs: &Ntfs<'_>, log: &Runs) -> Result<(), Refusal> {
    if is_empty(fs, log)? {
        return Ok(());
    }
    let first = fs.read(log, 0, HEADER as u64)?;
    let page_bytes = u64::from(le32(&first, 16));
    if !page_bytes.is_power_of_two() || !(512..=PAGES_MAX).contains(&page_bytes) {
        return Err(broken());
    }
    let mut newest: Option<Restart> = None;
    for at in [0, page_bytes] {
        let restart = Restart::parse(fs.read(log, at, page_bytes)?)?;
        newest = match newest {
            Some(one) if one.number > restart.number => Some(one),
            Some(one) if one.number == restart.number => {
                Some(Restart { clean: one.clean && restart.clean, ..one })
            }
            _ => Some(restart),
        };
    }
    if newest.is_some_and(|one| one.clean) {
        return Ok(());
    }
    Err(unusable("it was not unmounted, or its Windows is hibernated"))
}

fn broken() -> Refusal {
    unusable("the restart pages of its log do not fit together")
}

fn is_empty(fs: &Ntfs<'_>, log: &Runs) -> Result<bool, Refusal> {
    if log.bytes > BYTES_MAX {
        return Err(unusable("its log is larger than a log can be"));
    }
    let mut at = 0;
    while at < log.bytes {
        let len = (log.bytes - at).min(PIECE);
        if fs.read(log, at, len)?.iter().any(|byte| *byte != 0xff) {
            return Ok(false);
        }
        at += len;
    }
    Ok(log.bytes > 0)
}

/// What a restart page says.
struct Restart {
    number: u64,
    clean: bool,
}

impl Restart {
    fn parse(mut page: Vec<u8>) -> Result<Self, Refusal> {
        if page.starts_with(b"CHKD") {
            return Err(unusable("chkdsk was at its log: mount it once, and unmount it"));
        }
        if !page.starts_with(b"RSTR") {
            return Err(broken());
        }
        mend(&mut page).ok_or_else(broken)?;
        let version = (le16(&page, 28), le16(&page, 26));
        if version != VERSION {
            let (major, minor) = version;
            return Err(unusable(format!(
                "its log is of version {major}.{minor}: Windows has it mounted, or was shut down to start fast"
            )));
        }
        let from = usize::from(le16(&page, 24));
        let area = page.get(from..).and_then(|area| area.get(..AREA));
        let area = area.filter(|_| from >= HEADER).ok_or_else(broken)?;
        let (open, flags) = (le16(area, 12), le16(area, 14));
        Ok(Self { number: le64(area, 0), clean: open == NOBODY || flags & CLEAN != 0 })
    }
}
