//! Swap space: its header. What was swapped out is of no use to anyone once the system that did it
//! has ended.
//!
//! Layout: `include/linux/swap.h` of the kernel. A mark ends the first page, so where it stands
//! tells how large pages are. A system that was suspended to disk has put another mark in its
//! place: then all of it is needed. Bad pages are on the device's own list of what cannot be read,
//! and are left out as free ones are.

use super::{Limits, Map, ReadAt, Refusal, UsedSpace, field, le32, read};

pub(super) const KIND: &str = "swap";
const MARK_LEN: usize = 10;
const MARK: &[u8; MARK_LEN] = b"SWAPSPACE2";
const OLD_MARK: &[u8; MARK_LEN] = b"SWAP-SPACE";
/// Of the kernel, of uswsusp, and of TuxOnIce.
const SUSPENDED: [&[u8]; 5] =
    [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001", b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"];
const PAGES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// What stands before the header is for boot loaders.
const HEADER: usize = 1024;
/// What follows its fields, UUID and label.
const PADDING: usize = HEADER + 44;
const BAD_PAGES: usize = 1536;
/// What a system that was suspended leaves before the mark, which it puts back when it goes on.
const OF_A_SUSPENSION: usize = 30;

fn unusable(why: impl Into<String>) -> Refusal {
    Refusal::Unusable { kind: KIND, why: why.into() }
}

/// See [`super::used_space`].
pub(super) fn used_space(
    volume: &dyn ReadAt,
    volume_bytes: u64,
    limits: Limits,
) -> Result<UsedSpace, Refusal> {
    let Some(page_bytes) = find(volume, volume_bytes)? else { return Err(Refusal::Unknown) };
    // at most 64 KiB
    let page = read(volume, 0, usize::try_from(page_bytes).unwrap_or(0))?;
    match le32(&page, HEADER) {
        1 => {}
        0x0100_0000 => return Err(unusable("it was made by a machine of another byte order")),
        version => return Err(unusable(format!("it is of version {version}"))),
    }
    let (last, bad) = (le32(&page, HEADER + 4), le32(&page, HEADER + 8));
    let pages = u64::from(last) + 1;
    if pages * page_bytes > volume_bytes {
        return Err(unusable(format!(
            "it has {pages} pages of {page_bytes} bytes, and the volume is smaller"
        )));
    }
    let list = &page[BAD_PAGES..page.len() - MARK_LEN];
    let list = &list[..list.len() - OF_A_SUSPENSION];
    let mut unused = page[PADDING..BAD_PAGES].iter().chain(list.iter().skip(4 * bad as usize));
    if unused.any(|byte| *byte != 0) {
        return Err(unusable("there is more in its first page than a header"));
    }
    if last == 0 || bad >= last || bad as usize > list.len() / 4 {
        return Err(unusable("its header does not fit together"));
    }
    let mut numbers = list.chunks_exact(4).take(bad as usize).map(|number| le32(number, 0));
    if let Some(outside) = numbers.find(|number| !(1..=last).contains(number)) {
        return Err(unusable(format!("its bad page {outside} leads outside")));
    }
    let mut map = Map::new(KIND, volume_bytes, limits);
    map.add(0..page_bytes)?;
    map.add(pages * page_bytes..u64::MAX)?;
    let free_bytes = u64::from(last - bad) * page_bytes;
    Ok(UsedSpace { kind: KIND, used: map.finish(), free_bytes, ..UsedSpace::default() })
}

/// How large its pages are, if it is swap space.
fn find(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Option<u64>, Refusal> {
    let mut found = None;
    for page_bytes in PAGES.into_iter().filter(|bytes| *bytes <= volume_bytes) {
        let mark = read(volume, page_bytes - MARK_LEN as u64, MARK_LEN)?;
        if SUSPENDED.iter().any(|suspended| mark.starts_with(suspended)) {
            return Err(unusable("a suspended system is in it"));
        }
        if field(&mark, 0) == *OLD_MARK {
            return Err(unusable("it is of version 0"));
        }
        if field(&mark, 0) == *MARK && found.replace(page_bytes).is_some() {
            return Err(unusable("it has marks of pages of two sizes"));
        }
    }
    Ok(found)
}
