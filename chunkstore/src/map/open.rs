//! Opens a page and holds it against the reference that led to it: the one place that says which
//! pages are right. Whoever follows a map asks here, so a check accepts what a restore accepts.

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::EntryAddr;
use crate::format::names::pack_key;
use crate::format::page::Page;
use crate::keys::Keys;
use crate::map::volume::VolumeMap;
use crate::pack::EntryKind;
use crate::seal::Opener;
use crate::units::PageRef;
use std::collections::HashSet;

/// Where a page stands in a map, and what leads to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PagePlace {
    pub(crate) level: u8,
    pub(crate) number: u64,
    pub(crate) page: PageRef,
}

/// The page in `stored`, which was read from `addr`: where the reference says, or where a stub
/// says. Its level, its id, and that it lists no more children than the volume has there.
pub(crate) fn open_page(
    opener: &mut Opener,
    keys: &Keys,
    map: &VolumeMap,
    at: &PagePlace,
    addr: &EntryAddr,
    stored: &[u8],
) -> Result<Page> {
    let mut plain = Vec::new();
    opener.open_entry(EntryKind::Page, &addr.pack, addr.offset, stored, &mut plain)?;
    let page = Page::decode(&plain, map.fanout())?;
    let listed = page.children().len() as u64;
    let most = map.children_max(at.level, at.number);
    let wrong = if page.level() != at.level {
        format!("it is a page of level {}, not {}", page.level(), at.level)
    } else if listed > most {
        format!("it lists {listed} children where the volume has {most}")
    } else if page.id(keys) != at.page.id {
        format!("its content does not have the id {}", at.page.id)
    } else {
        return Ok(page);
    };
    let place = format!("open entry {} of {}", addr.entry, pack_key(&addr.pack));
    Err(Error::new(ErrorKind::Corrupt, place, wrong))
}

/// All that decides whether what a reference to a page leads to is right, as one number: the
/// reference, the page's level, and how many bytes of the volume lie below it. Two references with
/// one key are right or wrong together, with all that lies below them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PageKey(u128);

impl PageKey {
    pub(crate) fn new(map: &VolumeMap, level: u8, number: u64, page: &PageRef) -> Self {
        let at = &page.location;
        let mut hasher = blake3::Hasher::new();
        hasher.update(at.pack.as_bytes());
        for n in [at.entry, at.offset, at.stored_len, u32::from(at.index), u32::from(level)] {
            hasher.update(&n.to_le_bytes());
        }
        hasher.update(page.id.as_bytes());
        hasher.update(&map.page_bytes(level, number).to_le_bytes());
        let hash = hasher.finalize();
        Self(hash.as_bytes().first_chunk().map_or(0, |half| u128::from_le_bytes(*half)))
    }
}

/// Pages that a walk has been to, at some 30 bytes each.
#[derive(Debug, Default)]
pub(crate) struct Visited(HashSet<PageKey>);

impl Visited {
    /// True: it was not there before.
    pub(crate) fn insert(&mut self, page: PageKey) -> bool {
        self.0.insert(page)
    }

    pub(crate) fn contains(&self, page: &PageKey) -> bool {
        self.0.contains(page)
    }

    pub(crate) fn extend(&mut self, pages: impl IntoIterator<Item = PageKey>) {
        self.0.extend(pages);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.0.capacity() * (size_of::<PageKey>() + 1)) as u64
    }
}
