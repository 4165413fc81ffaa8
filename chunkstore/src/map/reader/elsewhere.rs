//! Pages that are damaged where the map says, and stand whole in another pack.

use super::{Answer, MapReader, Want};
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{EntryAddr, Fetched, RangeRead, read_range};
use crate::format::page::Page;
use crate::ids::PageId;
use crate::limits::PAGE_PLAIN_BYTES_MAX;
use crate::salvage::Salvage;
use crate::units::Location;
use std::collections::HashMap;
use std::sync::Arc;

/// What is of a newer version is whole, and stays where it is.
pub(super) fn may_be_elsewhere(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
}

impl MapReader {
    /// From now on a page that is damaged or missing is looked for in other packs, by its id,
    /// before it counts as such; and headers of packs are looked at.
    pub fn salvage_with(&mut self, salvage: &Arc<Salvage>) {
        self.salvage = Some(Arc::clone(salvage));
    }

    /// Looks for the pages of a load that were not where they should be, all of them at once.
    pub(super) async fn look_elsewhere(
        &mut self,
        wanted: &[Want],
        found: &mut [Answer],
    ) -> Result<()> {
        let bad = std::mem::take(&mut self.bad);
        let Some(salvage) = self.salvage.clone().filter(|_| !bad.is_empty()) else {
            return Ok(());
        };
        let page = |(at, _): &(usize, Error)| (wanted[*at].page.id, wanted[*at].page.location);
        let lost: Vec<(PageId, Location)> = bad.iter().map(page).collect();
        let places = Box::pin(salvage.find_pages(&lost)).await.unwrap_or_else(|e| {
            // lost as they would be if nobody had looked
            tracing::warn!("damaged pages could not be looked for elsewhere: {e}");
            HashMap::new()
        });
        for (at, e) in bad {
            let of_page = places.get(&wanted[at].page.id).map_or(&[][..], Vec::as_slice);
            match self.first_right(&wanted[at], of_page).await? {
                Some(page) => {
                    salvage.count_page();
                    tracing::warn!("{e}; it was found elsewhere");
                    found[at] = Answer::Page(Arc::new(page));
                }
                None => self.lose_for_good(wanted, at, found, e)?,
            }
        }
        Ok(())
    }

    async fn first_right(&mut self, want: &Want, places: &[Location]) -> Result<Option<Page>> {
        for place in places {
            let addr = EntryAddr::from(place);
            if addr.check(PAGE_PLAIN_BYTES_MAX).is_err() {
                continue;
            }
            let (start, len) = (addr.offset, addr.stored_len);
            let read = RangeRead { pack: addr.pack, start, len, entries: vec![addr] };
            match read_range(&self.repo, &read).await {
                Ok(Fetched::Data(stored)) => match self.open(want, &addr, &stored) {
                    Ok(page) => return Ok(Some(page)),
                    Err(e) => tracing::debug!("not there either: {e}"),
                },
                Ok(Fetched::Gone) => {}
                Err(e) if may_be_elsewhere(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}
