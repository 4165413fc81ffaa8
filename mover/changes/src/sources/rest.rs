//! The *Differential Snapshot* REST draft: pages of blocks by GET, until there is no next one.
//!
//! `docs/changed-blocks.md` has the profile of it that is spoken here. A result that has expired
//! (`410`, or `timeout` is past) is asked for anew from its first page, for its pages may come from
//! another run of the server; what the first run named the next one has to name as well. A page
//! that failed in a way that may pass is asked for again by itself. No order is promised, so none
//! is asked for: ranges are merged as they come. Pages that bring nothing new for long, or a
//! `nextOffset` that comes twice, would never end and are an error (`rest/walk.rs`).

mod client;
mod page;
mod walk;

use super::RetryPolicy;
use super::collector::{Collector, refused};
use crate::{ChangeKind, ChangedBlocks, ListOrigin};
use chunkstore::{ErrorKind, Result};
use client::Client;
use std::path::PathBuf;
use walk::Walk;

/// Most times that an expired result is asked for anew.
const RESTARTS_MAX: u32 = 3;

/// Where a list is, and how to get at it.
#[derive(Debug, Clone, Default)]
pub struct RestSource {
    /// Of the list from the base to the snapshot.
    pub delta_url: Option<String>,
    /// Of the list of all that the snapshot holds.
    pub allocated_url: Option<String>,
    /// Whether a URL without a scheme means `http` instead of `https`, and a token may be sent that
    /// way.
    pub plain_http: bool,
    /// Most blocks in one page that are asked for; 0 leaves it to the server.
    pub page_entries: u32,
    /// Name of the query parameter that carries `nextOffset`; by default the first of
    /// [`Self::OFFSET_PARAMETERS`] that the server understands.
    pub offset_parameter: Option<String>,
    /// Name of the query parameter that carries the most blocks in one page; by default
    /// [`Self::ENTRIES_PARAMETER`].
    pub entries_parameter: Option<String>,
    /// File with a bearer token, read for each request.
    pub token_file: Option<PathBuf>,
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// How often to ask again.
    pub retry: RetryPolicy,
}

impl RestSource {
    /// By the names of the profile, and as the proposal has it.
    pub const OFFSET_PARAMETERS: [&'static str; 3] = ["startOffset", "nextOffset", "NextOffset"];
    /// By the names of the profile.
    pub const ENTRIES_PARAMETER: &'static str = "maxEntries";

    pub(crate) fn offers(&self, kind: ChangeKind) -> bool {
        self.url_of(kind).is_some()
    }

    fn url_of(&self, kind: ChangeKind) -> Option<&str> {
        match kind {
            ChangeKind::Delta => self.delta_url.as_deref(),
            ChangeKind::Allocated => self.allocated_url.as_deref(),
            ChangeKind::Whole => None,
        }
    }

    /// The name by which messages call it.
    pub fn name(&self) -> String {
        let url = self.delta_url.as_ref().or(self.allocated_url.as_ref());
        url.map_or_else(String::new, |url| client::without_query(url).to_owned())
    }

    pub(crate) async fn fetch(&self, mut list: Collector) -> Result<ChangedBlocks> {
        let Some(url) = self.url_of(list.kind()) else {
            let what = format!("no URL of a list of this kind ({}) is known", list.kind().as_str());
            return Err(refused(ErrorKind::Usage, &self.name(), what));
        };
        let mut client = Client::new(self, url, list.movement())?;
        let mut volume_bytes = None;
        for restart in 0..=RESTARTS_MAX {
            if Walk::new(&mut client, &mut list, &mut volume_bytes).run().await? {
                return list.finish(client.name(), ListOrigin::Rest, volume_bytes);
            }
            tracing::info!("the result of {} has expired: asking anew", client.name());
            list.restart();
            tokio::time::sleep(self.retry.wait(restart + 1, None)).await;
        }
        let what = format!("its result expired {} times before it was read", RESTARTS_MAX + 1);
        Err(refused(ErrorKind::Unavailable, client.name(), what)
            .hint("ask for a result that can be had for longer"))
    }
}
