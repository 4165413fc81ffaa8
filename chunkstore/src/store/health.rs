//! Whether a server answers: what is said when it does not, and when it is given up.
//!
//! Each request has its tries and its time (`store/retry.rs`). This module is about all requests of
//! a run together, as one server (a host and a port) sees them, or does not:
//!
//! - The first try that finds nobody is said at once, and that it answers again. One line each; the
//!   number of tries is in the second, or in the error.
//! - A server that has answered nothing good for [`RETRY_TIME`] is *known dead*, whichever requests
//!   found that out. From then on each request has one try, and a short one, until one is answered.
//!   So an outage costs a run its time once, and not once for each of the steps that end it.
//! - A server that never answered is more likely misnamed than down: it is given up sooner. One whose certificate is not trusted is given up at once.
//!
//! Nothing here waits; who sends asks. Times are counted from any fixed start.

use super::retry::RETRY_TIME;
use object_store::client::{HttpError, HttpErrorKind};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// No further try of a server that never answered after this long: with the pause before it and its
/// own time a run is over 15 seconds after its start.
const START_TIME: Duration = Duration::from_secs(7);
/// A server that never answered is said to be slow after this long.
pub(super) const SLOW: Duration = Duration::from_secs(2);
/// The one try of a server that is known dead.
pub(super) const LAST_TRY: Duration = Duration::from_secs(3);
/// Refusals for the moment, and connections that break, are everyday: only so long a row of them is
/// worth a line.
const ROW: Duration = Duration::from_secs(2);
/// Of a server that comes and goes no more than a line in so long is said.
const QUIET: Duration = Duration::from_secs(60);

/// Why a try failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no such name, or nobody listens, or nothing comes back.
    NoConnection,
    /// The server shows a certificate that is not trusted.
    Untrusted,
    /// There was a connection, and no answer in time.
    NoAnswer,
    /// The connection broke, or the server is busy.
    Busy,
}

impl Failure {
    /// `None`: the request never left.
    pub(super) fn of(e: &HttpError) -> Option<Self> {
        if root(e).contains("invalid peer certificate") {
            return Some(Self::Untrusted);
        }
        match e.kind() {
            HttpErrorKind::Connect => Some(Self::NoConnection),
            HttpErrorKind::Timeout => Some(Self::NoAnswer),
            HttpErrorKind::Request | HttpErrorKind::Interrupted => Some(Self::Busy),
            _ => None,
        }
    }
}

/// The innermost cause's own words.
fn root(e: &dyn StdError) -> String {
    let mut cause = e;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// What is to be done about a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Say it, and for how long it is tried again at most.
    pub(super) say: Option<Duration>,
    /// No further try: so many were made, in this time.
    pub(super) given_up: Option<(u32, Duration)>,
}

/// One server, as the requests of this run have found it.
#[derive(Debug, Default)]
struct Server {
    /// When it gave a good answer last.
    answered: Option<Duration>,
    outage: Option<Outage>,
    /// When that it gives none was said last.
    said: Option<Duration>,
}

/// Since the last good answer.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// When the first try that failed was begun, or the last good answer came after that.
    since: Duration,
    tries: u32,
    said: bool,
    dead: bool,
}

impl Server {
    /// What was said to be away is back: after how many tries and how long.
    fn answers(&mut self, now: Duration) -> Option<(u32, Duration)> {
        self.answered = Some(now);
        let outage = self.outage.take().filter(|outage| outage.said)?;
        Some((outage.tries, now.saturating_sub(outage.since)))
    }

    fn fails(&mut self, begun: Duration, now: Duration, failure: Failure) -> Verdict {
        // of a long transfer the store has been well for a while
        let begun = begun.max(self.answered.unwrap_or_default());
        let outage =
            self.outage.get_or_insert(Outage { since: begun, tries: 0, said: false, dead: false });
        outage.since = outage.since.min(begun);
        outage.tries += 1;
        let lasted = now.saturating_sub(outage.since);
        let time = match failure {
            Failure::Untrusted => Duration::ZERO,
            Failure::NoConnection | Failure::NoAnswer if self.answered.is_none() => START_TIME,
            _ => RETRY_TIME,
        };
        outage.dead |= lasted >= time;
        // what is given up already is an error, which says it
        let worth_it = failure != Failure::Busy || lasted >= ROW;
        let quiet = self.said.is_some_and(|said| now.saturating_sub(said) < QUIET);
        let say = (worth_it && !quiet && !outage.said && !outage.dead).then_some(time);
        outage.said |= say.is_some();
        self.said = say.map(|_| now).or(self.said);
        let given_up = outage.dead.then_some((outage.tries, lasted));
        Verdict { say, given_up }
    }

    fn is_slow(&mut self, begun: Duration) -> bool {
        let outage = Outage { since: begun, tries: 0, said: true, dead: false };
        let says = self.answered.is_none() && self.outage.is_none_or(|outage| !outage.said);
        if says {
            self.outage.get_or_insert(outage).said = true;
        }
        says
    }
}

/// All servers that one store's requests go to.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<HashMap<String, Server>>);

impl Health {
    fn with<T>(&self, server: &str, look: impl FnOnce(&mut Server) -> T) -> T {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match servers.get_mut(server) {
            Some(known) => look(known),
            None => look(servers.entry(server.to_owned()).or_default()),
        }
    }

    pub(super) fn has_answered(&self, server: &str) -> bool {
        self.with(server, |s| s.answered.is_some())
    }

    pub(super) fn is_dead(&self, server: &str) -> bool {
        self.with(server, |s| s.outage.is_some_and(|outage| outage.dead))
    }

    /// A try was answered, at last if it was said before that none was.
    pub(super) fn answers(&self, server: &str, now: Duration) {
        if let Some((tries, lasted)) = self.with(server, |s| s.answers(now)) {
            match tries {
                0 => tracing::warn!("{server} has answered, after {} s", lasted.as_secs()),
                _ => tracing::warn!("{server} answers again: {}", Row { tries, lasted }),
            }
        }
    }

    /// A try that was begun at `begun` has failed, `why`.
    pub(super) fn fails(
        &self,
        server: &str,
        [begun, now]: [Duration; 2],
        failure: Failure,
        why: &dyn StdError,
    ) -> Verdict {
        let verdict = self.with(server, |s| s.fails(begun, now, failure));
        if let Some(time) = verdict.say {
            let why = match failure {
                Failure::NoAnswer => "it does not answer in time".to_owned(),
                _ => root(why),
            };
            tracing::warn!("no answer from {server}: {why}; trying again for {} s", time.as_secs());
        }
        verdict
    }

    /// The first answer takes its time.
    pub(super) fn is_slow(&self, server: &str, begun: Duration) {
        if self.with(server, |s| s.is_slow(begun)) {
            tracing::warn!("no answer from {server} yet; waiting for it");
        }
    }
}

/// "4 failed tries in 9 s"
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) tries: u32,
    pub(super) lasted: Duration,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tries = if self.tries == 1 { "try" } else { "tries" };
        write!(f, "{} failed {tries} in {} s", self.tries, self.lasted.as_secs())
    }
}

/// The error of a try after which no other is made, whatever the request's own time is.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) row: Row,
    pub(super) source: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl StdError for GivenUp {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tenths: u64) -> Duration {
        Duration::from_millis(100 * tenths)
    }

    /// Fails at these tenths of a second; what was said, and when it was given up.
    fn fails(server: &mut Server, failure: Failure, times: &[u64]) -> (Vec<u64>, Option<u64>) {
        let (mut said, mut given_up) = (Vec::new(), None);
        for time in times {
            let verdict = server.fails(at(*time), at(*time), failure);
            said.extend(verdict.say.map(|_| *time));
            if verdict.given_up.is_some() && given_up.is_none() {
                given_up = Some(*time);
            }
        }
        (said, given_up)
    }

    const EVERY_SECOND: [u64; 50] = {
        let mut times = [0; 50];
        let mut n = 0;
        while n < 50 {
            times[n] = 10 * n as u64;
            n += 1;
        }
        times
    };

    #[test]
    fn a_wrong_name_is_said_at_once_and_given_up_soon() {
        let found = fails(&mut Server::default(), Failure::NoConnection, &EVERY_SECOND);
        assert_eq!(found, (vec![0], Some(70)));
        // and at the worst: a pause as long as there is any before a try that takes all of its time
        let pause = super::super::retry::RETRY_PAUSE_MAX;
        assert!(START_TIME + pause <= Duration::from_secs(15));
    }

    #[test]
    fn a_store_that_answered_before_has_more_time() {
        let mut server = Server::default();
        assert_eq!(server.answers(at(0)), None);
        let found = fails(&mut server, Failure::NoConnection, &EVERY_SECOND);
        assert_eq!(found, (vec![0], Some(400)));
        // it stays dead for whoever comes next, at the first try
        let verdict = server.fails(at(9000), at(9000), Failure::Busy);
        assert_eq!(verdict.given_up, Some((51, at(9000))));
        // until it answers
        assert_eq!(server.answers(at(9100)), Some((51, at(9100))));
        let verdict = server.fails(at(9200), at(9200), Failure::NoAnswer);
        assert_eq!(verdict, Verdict { say: Some(RETRY_TIME), given_up: None });
    }

    #[test]
    fn everyday_failures_are_worth_a_line_only_in_a_row() {
        let mut server = Server::default();
        for time in 0..100 {
            let verdict = server.fails(at(10 * time), at(10 * time), Failure::Busy);
            assert_eq!(verdict, Verdict { say: None, given_up: None });
            assert_eq!(server.answers(at(10 * time + 5)), None, "nothing was said");
        }
        let mut server = Server::default();
        server.answers(at(0));
        let found = fails(&mut server, Failure::Busy, &EVERY_SECOND);
        assert_eq!(found, (vec![20], Some(400)));
    }

    #[test]
    fn of_a_server_that_comes_and_goes_a_line_a_minute_is_said() {
        let mut server = Server::default();
        server.answers(at(0));
        let (mut said, mut back) = (Vec::new(), Vec::new());
        for second in 0..130 {
            let now = at(10 * second);
            let say = server.fails(now, now, Failure::NoConnection).say;
            said.extend(say.map(|_| second));
            back.extend(server.answers(at(10 * second + 5)).map(|_| second));
        }
        assert_eq!((said, back), (vec![0, 60, 120], vec![0, 60, 120]));
    }

    #[test]
    fn many_requests_at_once_are_one_outage() {
        let mut server = Server::default();
        server.answers(at(0));
        let mut said = 0;
        for request in 0..32 {
            // each was begun later than the one before, and ends as late
            let verdict = server.fails(at(request), at(300 + request), Failure::NoAnswer);
            said += u32::from(verdict.say.is_some());
            assert_eq!(verdict.given_up, None);
        }
        assert_eq!(said, 1);
        assert_eq!(server.fails(at(390), at(400), Failure::Busy).given_up, Some((33, at(400))));
    }

    #[test]
    fn a_long_transfer_that_breaks_is_no_long_outage() {
        let mut server = Server::default();
        server.answers(at(0));
        server.answers(at(5990));
        let verdict = server.fails(at(10), at(6000), Failure::Busy);
        assert_eq!(verdict, Verdict { say: None, given_up: None });
        assert!(fails(&mut server, Failure::Busy, &[6389]).1.is_none());
        assert!(fails(&mut server, Failure::Busy, &[6390]).1.is_some());
    }

    #[test]
    fn a_certificate_is_not_trusted_any_more_a_second_later() {
        let verdict = Server::default().fails(at(5), at(6), Failure::Untrusted);
        assert_eq!(verdict, Verdict { say: None, given_up: Some((1, at(1))) });
    }

    #[test]
    fn a_slow_first_answer_is_said_once_and_is_no_outage() {
        let mut server = Server::default();
        assert!(server.is_slow(at(0)) && !server.is_slow(at(1)));
        assert_eq!(server.answers(at(30)), Some((0, at(30))));
        assert!(!server.is_slow(at(40)), "it has answered before");
    }
}
