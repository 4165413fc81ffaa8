//! One walk over all pages of a list, from the first to the last.
//!
//! How `nextOffset` is handed back is not the same everywhere: a server that does not know the
//! parameter gives its first page again. That is seen at the second page, before anything of it
//! counts; then the next name is tried, and what works is kept.

use super::super::collector::{Collector, refused};
use super::client::{Answer, Client};
use super::page::{Block, Page, read_page};
use chunkstore::{Error, ErrorKind, Result, Setting, secrets::redact};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Most pages of one list: what is remembered of them to find a loop takes 32 MiB then.
const PAGES_MAX: u64 = 1_000_000;
/// Longest part of a server's own words in a message, characters.
const QUOTED_CHARS_MAX: usize = 300;
/// How often there is a look whether there was something new: it costs a sort.
const LOOK: Duration = Duration::from_secs(1);

const HINT_PROFILE: &str = "docs/changed-blocks.md shows what is understood: check that the address is of such a list, and tell whoever maintains its server";

fn hint_parameter() -> String {
    let setting = Setting("changes-offset-parameter");
    format!("{setting} names the parameter that carries nextOffset to this server")
}

/// A walk, and what it has seen.
pub(super) struct Walk<'a> {
    client: &'a mut Client,
    list: &'a mut Collector,
    /// The volume's size as the server states it, in any walk.
    volume_bytes: &'a mut Option<u64>,
    /// Digests of all `nextOffset`s.
    seen: HashSet<[u8; 16]>,
    /// Digest of the blocks of the first page, if it has any.
    first: Option<blake3::Hash>,
    blocks: u64,
    total: Option<u64>,
    total_pages: Option<u64>,
    /// A block without an offset came.
    implied: bool,
    news: News,
}

/// What the list named at the last look, and since when that is so.
struct News {
    named: (u64, u64),
    since: Instant,
    looked: Instant,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        client: &'a mut Client,
        list: &'a mut Collector,
        volume_bytes: &'a mut Option<u64>,
    ) -> Self {
        let now = Instant::now();
        Self {
            client,
            list,
            volume_bytes,
            seen: HashSet::new(),
            first: None,
            blocks: 0,
            total: None,
            total_pages: None,
            implied: false,
            news: News { named: (0, 0), since: now, looked: now },
        }
    }

    /// To the last page. False: the result has expired before.
    pub(super) async fn run(mut self) -> Result<bool> {
        let mut next: Option<String> = None;
        for number in 1..=PAGES_MAX {
            let answer = match (number, next.as_deref()) {
                (2, Some(token)) => self.second(token).await?,
                (_, next) => self.client.get(next).await?,
            };
            let (body, server_time) = match answer {
                Answer::Page { body, server_time } => (body, server_time),
                Answer::Expired => return Ok(false),
                Answer::BadRequest(error) => return Err(error),
            };
            let page = self.take(number, &body)?;
            drop(body);
            let Some(token) = page.next else { return self.end(number).map(|()| true) };
            // by the server's own clock: ours may be wrong, and then no result would ever do
            if let (Some(expiry), Some(now)) = (page.expiry, server_time)
                && expiry < now
            {
                return Ok(false);
            }
            let digest = blake3::hash(token.as_bytes());
            let digest: [u8; 16] = *digest.as_bytes().first_chunk().unwrap_or(&[0; 16]);
            if !self.seen.insert(digest) {
                let what = format!(
                    "page {number} names a nextOffset that came before: it would never end"
                );
                return Err(self.corrupt(what).hint(hint_parameter()));
            }
            self.look()?;
            next = Some(token);
        }
        Err(self.corrupt(format!("it has more than {PAGES_MAX} pages")).hint(format!(
            "ask for more blocks in a page, with {changes_page}",
            changes_page = Setting("changes-page")
        )))
    }

    /// The second page: the first request that hands `nextOffset` back.
    async fn second(&mut self, token: &str) -> Result<Answer> {
        let mut refusal = None;
        for name in self.client.offset_parameters() {
            self.client.use_parameter(name);
            match self.client.get(Some(token)).await? {
                Answer::Page { body, .. } if self.is_first_again(&body, token) => {}
                Answer::BadRequest(error) => refusal = Some(error),
                Answer::Expired => return Ok(Answer::Expired),
                answer @ Answer::Page { .. } => {
                    self.client.keep_parameter();
                    return Ok(answer);
                }
            }
        }
        let names = self.client.offset_parameters().join(", ");
        Err(refusal
            .unwrap_or_else(|| {
                let what =
                    format!("it gives its first page again where {names} carries nextOffset");
                refused(ErrorKind::Unsupported, self.client.name(), what)
            })
            .hint(hint_parameter()))
    }

    fn is_first_again(&self, body: &[u8], token: &str) -> bool {
        let mut digest = BlocksDigest::default();
        let page = read_page(body, &mut |block| {
            digest.add(&block);
            Ok(())
        });
        // what is wrong with it is said when it is taken
        page.is_ok_and(|page| {
            page.next.as_deref() == Some(token)
                || (self.first.is_some() && digest.finish() == self.first)
        })
    }

    fn corrupt(&self, what: String) -> Error {
        refused(ErrorKind::Corrupt, self.client.name(), what)
    }

    fn take(&mut self, number: u64, body: &[u8]) -> Result<Page> {
        let mut digest = BlocksDigest::default();
        let (list, implied) = (&mut *self.list, &mut self.implied);
        let mut each = |block: Block| {
            if block.implied && std::mem::replace(implied, true) {
                return Err("a second block without an offset".to_owned());
            }
            if number == 1 {
                digest.add(&block);
            }
            take_block(block, list)
        };
        let page = read_page(body, &mut each).map_err(|e| {
            let words: String = redact(&e.to_string()).chars().take(QUOTED_CHARS_MAX).collect();
            self.corrupt(format!("page {number}: {words}")).hint(HINT_PROFILE)
        })?;
        if let Some(error) = &page.error {
            let words: String = redact(error).chars().take(QUOTED_CHARS_MAX).collect();
            let what = format!("it says: {words}");
            return Err(refused(ErrorKind::Unsupported, self.client.name(), what)
                .hint("ask the storage system for the list again, or look into its log"));
        }
        self.list.moved();
        if number == 1 {
            self.first = digest.finish();
        }
        self.blocks += page.blocks;
        let stated = [
            ("volumeSize", &mut *self.volume_bytes, page.volume_bytes),
            ("total", &mut self.total, page.total),
            ("totalPages", &mut self.total_pages, page.total_pages),
        ];
        for (name, before, now) in stated {
            if let (Some(before), Some(now)) = (*before, now)
                && before != now
            {
                let what = format!("{name} is {now} in page {number}, and was {before} before");
                let name = self.client.name();
                return Err(refused(ErrorKind::Corrupt, name, what).hint(HINT_PROFILE));
            }
            *before = before.or(now);
        }
        Ok(page)
    }

    /// The last page has come: what the server said of the whole must fit.
    fn end(&self, pages: u64) -> Result<()> {
        let counted = [
            ("total", self.total, self.blocks, "blocks"),
            ("totalPages", self.total_pages, pages, "pages"),
        ];
        for (name, stated, found, what) in counted {
            if let Some(stated) = stated.filter(|stated| *stated != found) {
                let what = format!("its {name} is {stated}, but {found} {what} came");
                return Err(self.corrupt(what).hint(HINT_PROFILE));
            }
        }
        Ok(())
    }

    /// Fresh tokens for the same blocks would never end.
    fn look(&mut self) -> Result<()> {
        let (now, quiet) = (Instant::now(), self.client.nothing_new());
        if now.duration_since(self.news.looked) < LOOK.min(quiet / 4) {
            return Ok(());
        }
        let named = (self.list.named_bytes(), if self.list.is_coarse() { self.blocks } else { 0 });
        if named != self.news.named {
            self.news = News { named, since: now, looked: now };
            return Ok(());
        }
        self.news.looked = now;
        let still = now.duration_since(self.news.since);
        if still <= quiet {
            return Ok(());
        }
        let what = format!("for {} s no page brought anything new", still.as_secs());
        Err(refused(ErrorKind::Unavailable, self.client.name(), what).hint(hint_parameter()))
    }
}

fn take_block(block: Block, list: &mut Collector) -> std::result::Result<(), String> {
    let end = block.offset.checked_add(block.len).ok_or_else(|| {
        let (offset, len) = (block.offset, block.len);
        format!("offset {offset} and size {len} add up to more than 64 bits hold")
    })?;
    if let Some(context) = block.context {
        list.add_context(block.offset..end, block.zero, context);
    }
    list.add(block.offset..end, block.zero);
    Ok(())
}

/// Of the blocks of a page.
#[derive(Default)]
struct BlocksDigest {
    hasher: blake3::Hasher,
    any: bool,
}

impl BlocksDigest {
    fn add(&mut self, block: &Block) {
        self.any = true;
        self.hasher.update(&block.offset.to_le_bytes());
        self.hasher.update(&block.len.to_le_bytes());
    }

    /// `None` of no block.
    fn finish(self) -> Option<blake3::Hash> {
        self.any.then(|| self.hasher.finalize())
    }
}
