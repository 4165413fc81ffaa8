//! The *Differential Snapshot* REST draft: pages of blocks by GET, until there is no next one.
//!
//! `docs/changed-blocks.md` has the profile of it that is spoken here. A result that has expired
//! (`410`, or `timeout` is past) is asked for anew from its first page, for its pages may come from
//! another run of the server; a page that failed in a way that may pass is asked for again by
//! itself. A `nextOffset` that comes twice is a loop and an error. No order is promised, so none is
//! asked for: ranges are merged as they come.

mod client;
mod page;

use super::{Collector, RetryPolicy, refused};
use crate::changes::{ChangeKind, ChangedBlocks, Origin};
use chunkstore::{ErrorKind, Result, redact};
use client::{Answer, Client};
use page::{Block, Page, read_page};
use std::collections::HashSet;
use std::path::PathBuf;

/// Most pages of one list: what is remembered of them to find a loop takes 32 MiB then.
const PAGES_MAX: usize = 1_000_000;
/// Most times that an expired result is asked for anew.
const RESTARTS_MAX: u32 = 3;
/// Longest part of a server's own words in a message, characters.
const QUOTED_CHARS_MAX: usize = 300;

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
    /// Name of the query parameter that carries `nextOffset`; by default
    /// [`Self::OFFSET_PARAMETER`].
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
    /// By the names of the profile.
    pub const OFFSET_PARAMETER: &'static str = "startOffset";
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

    pub(crate) fn name(&self) -> String {
        let url = self.delta_url.as_ref().or(self.allocated_url.as_ref());
        url.map_or_else(String::new, |url| client::without_query(url).to_owned())
    }

    pub(crate) async fn fetch(&self, mut list: Collector) -> Result<ChangedBlocks> {
        let Some(url) = self.url_of(list.kind()) else {
            let what = format!("no URL of a list of this kind ({}) is known", list.kind().as_str());
            return Err(refused(ErrorKind::Usage, &self.name(), what));
        };
        let client = Client::new(self, url)?;
        for restart in 0..=RESTARTS_MAX {
            if let Some(volume_bytes) = enumerate(&client, &mut list).await? {
                return list.finish(client.name(), Origin::Rest, volume_bytes);
            }
            tracing::info!("the result of {} has expired: asking anew", client.name());
            list.clear();
            tokio::time::sleep(self.retry.wait(restart + 1, None)).await;
        }
        let what = format!("its result expired {} times before it was read", RESTARTS_MAX + 1);
        Err(refused(ErrorKind::Unavailable, client.name(), what)
            .hint("ask for a result that can be had for longer"))
    }
}

/// All pages, from the first: the volume's size as the server states it, if it does. `None`: the
/// result has expired.
async fn enumerate(client: &Client, list: &mut Collector) -> Result<Option<Option<u64>>> {
    let corrupt = |what: String| refused(ErrorKind::Corrupt, client.name(), what);
    let mut seen = HashSet::new();
    let mut next: Option<String> = None;
    let mut volume_bytes = None;
    for number in 1..=PAGES_MAX {
        let (body, server_time) = match client.get(next.as_deref()).await? {
            Answer::Page { body, server_time } => (body, server_time),
            Answer::Expired => return Ok(None),
        };
        let page =
            take_page(&body, list).map_err(|what| corrupt(format!("page {number}: {what}")))?;
        drop(body);
        if let Some(error) = page.error {
            let words: String = redact(&error).chars().take(QUOTED_CHARS_MAX).collect();
            let what = format!("it says: {words}");
            return Err(refused(ErrorKind::Unsupported, client.name(), what));
        }
        if let (Some(before), Some(now)) = (volume_bytes, page.volume_bytes)
            && before != now
        {
            let what = format!("volumeSize is {now} in page {number}, and was {before} before");
            return Err(corrupt(what));
        }
        volume_bytes = volume_bytes.or(page.volume_bytes);
        let Some(token) = page.next else { return Ok(Some(volume_bytes)) };
        // by the server's own clock: ours may be wrong, and then no result would ever do
        if let (Some(expiry), Some(now)) = (page.expiry, server_time)
            && expiry < now
        {
            return Ok(None);
        }
        let digest = blake3::hash(token.as_bytes());
        let digest: [u8; 16] = *digest.as_bytes().first_chunk().unwrap_or(&[0; 16]);
        if !seen.insert(digest) {
            let what =
                format!("page {number} names a nextOffset that came before: it would never end");
            return Err(corrupt(what));
        }
        next = Some(token);
    }
    Err(corrupt(format!("it has more than {PAGES_MAX} pages"))
        .hint("ask for more blocks in a page, with --changes-page"))
}

fn take_page(body: &[u8], list: &mut Collector) -> Result<Page, String> {
    let mut each = |block: Block| {
        let end = block.offset.checked_add(block.len).ok_or_else(|| {
            let (offset, len) = (block.offset, block.len);
            format!("offset {offset} and size {len} add up to more than 64 bits hold")
        })?;
        if let Some(context) = block.context {
            list.add_context(block.offset..end, block.zero, context);
        }
        list.add(block.offset..end, block.zero);
        Ok(())
    };
    read_page(body, &mut each)
        .map_err(|e| redact(&e.to_string()).chars().take(QUOTED_CHARS_MAX).collect())
}
