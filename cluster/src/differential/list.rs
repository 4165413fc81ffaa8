//! One page of a list, asked for at the driver's service: what the client asked, what the objects
//! say now, one call, and what its end means.

use super::answer::Answer;
use super::offset::{Listing, Place, Start};
use super::page::{Draft, Halt, Page};
use super::request::Asking;
use super::subject::{ALL_CHANGED, Service, Subject, find, is_same};
use super::{LIFE_SECONDS, Shared};
use mover_tracker::{BadAddress, Call, Code, Connection, Ended, Patience, Status};
use std::time::Duration;

/// Largest message of a driver: a page of ten thousand ranges has a tenth of it.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Longest part of a driver's own words, characters.
const QUOTED_CHARS_MAX: usize = 300;

/// Why a call brought no page.
enum Miss {
    /// The client gets this.
    Answer(Answer),
    /// The driver does not know a snapshot.
    NotFound(String),
    /// The driver refuses our token.
    Token(String),
}

impl Miss {
    fn answer(self) -> Answer {
        match self {
            Self::Answer(answer) => answer,
            Self::NotFound(why) => Answer::error(409, &why),
            Self::Token(why) => Answer::error(500, &why),
        }
    }
}

/// Where a page begins.
struct Begin {
    listing: Listing,
    at: u64,
    behind: Option<Place>,
    expiry: u64,
}

impl Begin {
    /// As the client wants it, or the spec.
    fn of(shared: &Shared, subject: &Subject, asking: &Asking) -> Result<Self, Answer> {
        let now = (shared.clock)();
        let fresh = |at| Self {
            listing: subject.listing,
            at,
            behind: None,
            expiry: now.saturating_add(LIFE_SECONDS),
        };
        let Some(text) = asking.start.as_ref().or(subject.start.as_ref()) else {
            return Ok(fresh(0));
        };
        let place = match shared.sealer.open(text) {
            Some(Start::Byte(at)) => return Ok(fresh(at)),
            Some(Start::Place(place)) => place,
            None => {
                let why =
                    "startOffset is neither a number of bytes nor a nextOffset of this server";
                return Err(Answer::error(400, why));
            }
        };
        // A driver may have lost a base whose object is there.
        let is_without_base = place.listing == Listing::AllChanged
            && subject.listing == Listing::Delta
            && subject.all_changed_without_base;
        if place.pair != subject.pair || (place.listing != subject.listing && !is_without_base) {
            let why = "the offset is of other snapshots than these: ask from the beginning";
            return Err(Answer::expired(why));
        }
        if place.expiry < now {
            return Err(Answer::expired("the list has expired: ask from the beginning"));
        }
        Ok(Self { listing: place.listing, at: place.at, behind: Some(place), expiry: place.expiry })
    }
}

/// The page, or why there is none.
pub(super) async fn answer(shared: &Shared, asking: &Asking) -> Result<Answer, Answer> {
    let api = &shared.api;
    let subject = find(api, &asking.namespace, &asking.name).await?;
    let mut begin = Begin::of(shared, &subject, asking)?;
    let page = match begin.behind {
        Some(place) if place.at >= place.capacity => Ok(Page::behind(place.capacity)),
        _ => Box::pin(asked(shared, &subject, asking, &begin)).await,
    };
    let page = match page {
        Err(Miss::NotFound(why)) if begin.listing == Listing::Delta => {
            if begin.behind.is_some() {
                return Err(Answer::expired(&why));
            }
            if !subject.all_changed_without_base {
                return Err(Answer::error(
                    409,
                    &format!("{why}; if it is the base: {ALL_CHANGED}"),
                ));
            }
            begin.listing = Listing::AllChanged;
            Box::pin(asked(shared, &subject, asking, &begin)).await
        }
        page => page,
    };
    let page = page.map_err(Miss::answer)?;
    // The service was asked by a name, which may stand for another snapshot by now.
    if !is_same(api, &subject).await? {
        return Err(Answer::expired("the target was made anew meanwhile: ask from the beginning"));
    }
    let next = page.next.map(|(at, block_type, capacity)| {
        shared.sealer.seal(&Place {
            listing: begin.listing,
            block_type,
            at,
            capacity,
            expiry: begin.expiry,
            pair: subject.pair,
        })
    });
    Ok(Answer::page(page.json(next.as_deref().unwrap_or_default(), begin.expiry)))
}

/// One call, and a second one where the first had a token that was not good any more.
async fn asked(
    shared: &Shared,
    subject: &Subject,
    asking: &Asking,
    begin: &Begin,
) -> Result<Page, Miss> {
    match Box::pin(call(shared, subject, asking, begin)).await {
        Err(Miss::Token(_)) => {
            shared.account.forget(&subject.service.audience);
            Box::pin(call(shared, subject, asking, begin)).await
        }
        page => page,
    }
}

fn connection(
    shared: &Shared,
    subject: &Subject,
    Service { address, ca, .. }: &Service,
) -> Result<Connection, Miss> {
    let patience = Patience {
        idle: shared.limits.page,
        nothing_new: shared.limits.page,
        message_bytes_max: MESSAGE_BYTES_MAX,
    };
    let name = format!("the service of {}", subject.driver);
    let place = (address.as_str(), None);
    Connection::kubernetes(name, place, ca, subject.namespace.clone(), patience).map_err(|why| {
        let (member, why) = match why {
            BadAddress::Malformed(why) => ("address", why),
            BadAddress::Certificates(why) => ("caCert", why),
        };
        let driver = &subject.driver;
        let what = format!("snapshotmetadataservice/{driver} has no good member {member}: {why}");
        Miss::Answer(Answer::error(409, &what))
    })
}

async fn call(
    shared: &Shared,
    subject: &Subject,
    asking: &Asking,
    begin: &Begin,
) -> Result<Page, Miss> {
    let service = &subject.service;
    let token = shared.account.token(&shared.api, &service.audience).await;
    let token = token.map_err(|trouble| Miss::Answer(trouble.into()))?;
    let mut connection = connection(shared, subject, service)?;
    let starting_offset = i64::try_from(begin.at)
        .map_err(|_| Miss::Answer(Answer::error(400, "startOffset is behind any volume")))?;
    let call = Call {
        token: Some(token),
        base_id: subject.base.clone().filter(|_| begin.listing == Listing::Delta),
        target: subject.target.0.clone(),
        starting_offset,
        max_results: i32::try_from(asking.entries_max).unwrap_or(i32::MAX),
    };
    let mut draft = Draft::new(begin.listing, begin.at, begin.behind.as_ref(), asking.entries_max);
    let mut take = |message| {
        draft.take(message).map_err(|halt| match halt {
            Halt::Full => String::new(),
            Halt::Broken(what) => what,
        })
    };
    let ended = tokio::time::timeout(shared.limits.page, connection.drain(call, &mut take)).await;
    match ended {
        Ok(Ok(())) => draft.ended_well().map_err(|what| broken(subject, &what)),
        Ok(Err(Ended::Broken(_))) if draft.is_full() => {
            cut(draft, || Answer::error(500, "a page has no room for any block"))
        }
        Ok(Err(ended)) => {
            let (passes, miss) = judged(subject, begin, ended);
            match passes.then(|| draft.cut()).flatten() {
                Some(page) => Ok(page),
                None => Err(miss),
            }
        }
        Err(_) => cut(draft, || silent(subject, shared.limits.page)),
    }
}

/// What was told until now, if it is anything.
fn cut(draft: Draft, otherwise: impl FnOnce() -> Answer) -> Result<Page, Miss> {
    draft.cut().ok_or_else(|| Miss::Answer(otherwise()))
}

fn silent(subject: &Subject, time: Duration) -> Answer {
    let seconds = time.as_secs();
    Answer::later(&format!("the service of {} told nothing within {seconds} s", subject.driver))
}

fn broken(subject: &Subject, what: &str) -> Miss {
    let what = format!("the service of {} broke its protocol: {what}", subject.driver);
    tracing::warn!("{what}");
    Miss::Answer(Answer::error(500, &what))
}

/// Whether what came before a failure can be used, and what the failure is otherwise.
fn judged(subject: &Subject, begin: &Begin, ended: Ended) -> (bool, Miss) {
    let of = |what: String| {
        let what: String = what.chars().take(QUOTED_CHARS_MAX).collect();
        format!("the service of {}: {what}", subject.driver)
    };
    let later = |what: String| Miss::Answer(Answer::later(&of(what)));
    let error = |status, what: String| Miss::Answer(Answer::error(status, &of(what)));
    match ended {
        Ended::Status(status) => judged_status(begin, &status, &of),
        Ended::Interrupted(what) => (true, later(what)),
        Ended::Unconnected(what) | Ended::Endless(what) => (false, later(what)),
        Ended::Untrusted(what) => {
            (false, error(500, format!("its certificate is not trusted: {what}")))
        }
        Ended::Damaged(what) => (false, error(500, what)),
        Ended::TooLarge(bytes) => {
            (false, error(500, format!("it sends a message of {bytes} bytes")))
        }
        Ended::Broken(what) => (false, broken(subject, &what)),
    }
}

fn judged_status(begin: &Begin, status: &Status, of: &dyn Fn(String) -> String) -> (bool, Miss) {
    let words = of(format!("{:?}: {}", status.code(), status.message()));
    let error = |status| Miss::Answer(Answer::error(status, &words));
    match status.code() {
        Code::Unavailable
        | Code::Aborted
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Cancelled => (true, Miss::Answer(Answer::later(&words))),
        Code::Internal | Code::Unknown => (true, error(500)),
        Code::Unauthenticated => (false, Miss::Token(words)),
        Code::PermissionDenied => {
            let why = "the account that drivers are asked by needs get on volumesnapshots";
            (false, Miss::Answer(Answer::error(500, &format!("{words}; {why}"))))
        }
        Code::NotFound => (false, Miss::NotFound(words)),
        Code::OutOfRange if begin.behind.is_none() && begin.at > 0 => (false, error(400)),
        _ => (false, error(409)),
    }
}
