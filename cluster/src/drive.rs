//! Drives an operation: what the plan asks for is read, written and waited for, until it ends.
//!
//! One task does one thing at a time, so there is nothing to lock. A watch that was begun stays for
//! as long as the operation, and costs one request until it runs out.

use crate::api::{Api, Written};
use crate::engine::{
    ATTEMPT, DRIVER, Failure, Hook, Key, Lock, LockState, Meta, Next, Observed, Planned, Query,
    Step, Stop, Wait, exit,
};
use crate::hooks::{self, Broken, Session};
use futures::stream::{BoxStream, StreamExt as _};
use pace::Contention;
use std::time::{Duration, Instant};
use watches::Watches;

mod pace;
mod watches;

/// A server that is away for longer ends the command; the operation goes on when it is run again.
const AWAY_MAX: Duration = Duration::from_secs(120);
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// What is driven, and what is known of the cluster.
pub struct Driver<'a> {
    api: &'a Api,
    /// The same, for what an application waits for that holds still.
    urgent: Api,
    seen: Observed,
    began: Instant,
    watches: Watches,
    /// Writes that others came before.
    contention: Contention,
    /// The locks in the applications' pods, and whose they are; they end with us.
    session: Option<(Held, Vec<Session>)>,
    /// The log of the pod that runs.
    log: Option<(Key, BoxStream<'static, String>)>,
    /// How long there was nothing to do.
    waited: Duration,
    /// Since when no request has been answered, and how long the next pause is.
    away: Option<(Instant, Duration)>,
}

/// Whose locks are held.
#[derive(Debug, Clone)]
struct Held {
    hooks: Vec<Hook>,
    /// Names the driver whose lock it is.
    lease: Key,
    attempt: u32,
}

/// How long an operation took its driver.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// From its begin.
    pub total: Duration,
    /// Of that, until something that was waited for came: the rest is the driver's own.
    pub waited: Duration,
}

impl std::fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("watches", &self.watches).finish_non_exhaustive()
    }
}

impl<'a> Driver<'a> {
    /// Begins with what is known.
    pub fn new(api: &'a Api, seen: Observed) -> Self {
        Self {
            api,
            urgent: api.urgent(),
            seen,
            began: Instant::now(),
            watches: Watches::default(),
            contention: Contention::default(),
            session: None,
            log: None,
            waited: Duration::ZERO,
            away: None,
        }
    }

    /// How long it took until now.
    #[must_use]
    pub fn times(&self) -> Times {
        Times { total: self.began.elapsed(), waited: self.waited }
    }

    /// Drives a plan to its end. `always` is watched during each wait, and `tell` hears of it.
    ///
    /// # Errors
    ///
    /// The plan failed; or the API server is away for too long: then nothing has ended, and it goes
    /// on when the same command runs again.
    pub async fn run<T>(
        &mut self,
        plan: impl Fn(&Observed) -> Planned<T>,
        always: Option<Query>,
        mut tell: impl FnMut(&Wait),
    ) -> Result<T, Failure> {
        loop {
            self.seen.set_now(self.began.elapsed());
            let next = match plan(&self.seen) {
                Ok(done) => return Ok(done),
                Err(Stop::Failure(why)) => return Err(why),
                Err(Stop::Next(next)) => next,
            };
            let done = match next {
                Next::Refresh => {
                    self.seen.forget_all();
                    Ok(())
                }
                Next::Quiesce(hooks, attempt, lease) => {
                    self.quiesce(hooks, attempt, lease).await;
                    Ok(())
                }
                Next::Resume(taken) => {
                    self.resume(taken).await;
                    Ok(())
                }
                Next::Read(query) => self.read(&query).await,
                Next::Do(step) => {
                    tracing::debug!(?step, "do");
                    self.execute(*step).await
                }
                Next::Wait(mut wait) => {
                    tell(&wait);
                    wait.on.extend(always.clone());
                    let done = self.wait(*wait, &mut tell).await;
                    self.seen.set_now(self.began.elapsed());
                    self.seen.waited();
                    done
                }
            };
            match done {
                Ok(()) => self.away = None,
                Err(why) => self.pause(why).await?,
            }
        }
    }

    /// Makes one write. One that others come before is decided anew, at a pace, and not for ever.
    async fn execute(&mut self, step: Step) -> Result<(), Failure> {
        let api = if self.session.is_some() { &self.urgent } else { self.api };
        if api.execute(&step, &mut self.seen).await? == Written::Settled {
            self.contention.settled(&step.key());
            return Ok(());
        }
        match self.contention.again(&step.key()) {
            Ok(pause) => tokio::time::sleep(pause).await,
            Err(why) => self.seen.refuse(step, why),
        }
        Ok(())
    }

    /// Begins to read the log of the pod that runs, for its progress: without it nothing is lost.
    async fn follow(&mut self, wait: &Wait) {
        let Some(pod) = &wait.pod else { return };
        if self.log.as_ref().is_some_and(|(of, _)| of == pod) {
            return;
        }
        let lines = match self.api.follow(pod).await {
            Ok(lines) => lines,
            Err(why) => {
                tracing::debug!("{}", Failure::from(why));
                futures::stream::pending().boxed()
            }
        };
        self.log = Some((pod.clone(), lines));
    }

    /// Takes all locks, or none: those that hold are let go of where one does not.
    async fn quiesce(&mut self, hooks: Vec<Hook>, attempt: u32, lease: Key) {
        let mut held = Held { hooks: Vec::new(), lease, attempt };
        let mut sessions = Vec::new();
        let mut state = LockState::Held;
        for hook in hooks {
            match hooks::begin(&self.urgent, &hook).await {
                Ok(session) => {
                    held.hooks.push(hook);
                    sessions.push(session);
                }
                Err(broken) => {
                    // What did not hold may be somebody else's.
                    let why = match hook.whole {
                        true => broken.why,
                        false => self.let_go(&held, &hook, broken).await,
                    };
                    self.end(&held, std::mem::take(&mut sessions)).await;
                    state = LockState::Broken(why);
                    break;
                }
            }
        }
        if state == LockState::Held {
            self.session = Some((held, sessions));
        }
        self.seen.set_lock(Lock { attempt, state });
    }

    async fn resume(&mut self, taken: Option<String>) {
        let Some(lock) = self.seen.lock().cloned() else { return };
        let state = match self.session.take() {
            Some((held, sessions)) => match self.end(&held, sessions).await {
                None => LockState::Released(taken),
                Some(why) => LockState::Broken(why),
            },
            None => LockState::Broken("it was let go of before".into()),
        };
        self.seen.set_lock(Lock { state, ..lock });
    }

    /// Has all locks let go of; why the first of them did not live until then, if one did not.
    async fn end(&self, held: &Held, sessions: Vec<Session>) -> Option<String> {
        let ends = sessions.into_iter().zip(&held.hooks).map(async |(session, hook)| match session
            .end()
            .await
        {
            Ok(()) => None,
            Err(broken) => Some(self.let_go(held, hook, broken).await),
        });
        futures::future::join_all(ends).await.into_iter().flatten().next()
    }

    /// One lock is broken, which ends the others.
    async fn broken(&mut self) {
        let Some((held, sessions)) = self.session.take() else { return };
        let Some(lock) = self.seen.lock().cloned() else { return };
        let mut whys = Vec::new();
        let mut holds = (Held { hooks: Vec::new(), ..held.clone() }, Vec::new());
        for (mut session, hook) in sessions.into_iter().zip(&held.hooks) {
            match session.is_broken() {
                true => {
                    let broken = session.gone().await;
                    whys.push(self.let_go(&held, hook, broken).await);
                }
                false => {
                    holds.0.hooks.push(hook.clone());
                    holds.1.push(session);
                }
            }
        }
        self.end(&holds.0, holds.1).await;
        let state = LockState::Broken(whys.join("; "));
        self.seen.set_lock(Lock { state, ..lock });
    }

    /// A lock that did not end as it should: the application is let go on, whatever is left of it,
    /// but for the lock of whoever came after us.
    async fn let_go(&self, held: &Held, hook: &Hook, broken: Broken) -> String {
        let Broken { why, is_gone } = broken;
        if is_gone || hook.after.is_none() {
            return why;
        }
        // Whoever cannot be asked may have named another.
        let done = match self.urgent.get(&held.lease).await {
            Ok(lease) if lease.as_ref().is_none_or(|lease| self.names(held, lease)) => {
                hooks::let_go(&self.urgent, hook).await
            }
            Ok(_) => Err("another command has its own lock by now".to_owned()),
            Err(why) => Err(Failure::from(why).to_string()),
        };
        match done {
            Ok(()) => why,
            Err(second) => {
                let what =
                    format!("it may still hold still, as nobody could let it go on: {second}");
                tracing::warn!("pod/{}: {what}", hook.pod);
                format!("{why}; and {what}")
            }
        }
    }

    /// Whether a Lease names this driver and this attempt.
    fn names(&self, held: &Held, lease: &serde_json::Value) -> bool {
        let notes = Meta::of(lease).annotations;
        notes.get(DRIVER).map(String::as_str) == Some(self.seen.driver())
            && notes.get(ATTEMPT) == Some(&held.attempt.to_string())
    }

    async fn pause(&mut self, why: Failure) -> Result<(), Failure> {
        let (since, pause) = self.away.unwrap_or((Instant::now(), RETRY_FIRST));
        if since.elapsed() > AWAY_MAX {
            let seconds = AWAY_MAX.as_secs();
            let what =
                format!("for {seconds} s no request was answered; the last one: {}", why.message);
            return Err(Failure::new(exit::RETRYABLE, what)
                .hint("the operation has not ended: the same command goes on with it"));
        }
        tracing::warn!("{why}; it is tried again");
        tokio::time::sleep(pause).await;
        self.away = Some((since, (pause * 2).min(RETRY_MOST)));
        Ok(())
    }

    /// Until something changes, or its time is over.
    async fn wait(&mut self, wait: Wait, tell: &mut impl FnMut(&Wait)) -> Result<(), Failure> {
        if !self.watch(&wait.on).await? || self.was_silent(&wait.on) {
            return Ok(());
        }
        let looked_at: Vec<&Query> =
            wait.on.iter().filter(|query| self.watches.is_looked_at(query)).collect();
        let time = wait.time.min(self.watches.look_after(self.api, &wait.on));
        self.follow(&wait).await;
        let broken = async {
            match &mut self.session {
                Some((_, sessions)) => {
                    let all = sessions.iter_mut().map(|session| Box::pin(session.broken()));
                    futures::future::select_all(all).await;
                }
                None => std::future::pending().await,
            }
        };
        let changed = self.watches.next();
        let said = async {
            let Some((_, lines)) = &mut self.log else { return std::future::pending().await };
            while let Some(line) = lines.next().await {
                if let Some((why, moved)) = progress(&line) {
                    tell(&Wait { why, moved: Some(moved), ..wait.clone() });
                }
            }
            std::future::pending().await
        };
        let since = Instant::now();
        let change = tokio::select! {
            never = said => never,
            change = changed => change,
            () = broken => {
                self.waited += since.elapsed();
                self.broken().await;
                return Ok(());
            }
            () = tokio::time::sleep(time) => None,
        };
        self.waited += since.elapsed();
        let Some(change) = change else {
            for query in looked_at {
                self.seen.forget(query);
            }
            return Ok(());
        };
        self.seen.set_now(self.began.elapsed());
        self.hear(change);
        Ok(())
    }
}

/// How far the program is, if a line of its log says that: for people, and in bytes of all bytes.
fn progress(line: &str) -> Option<(String, (u64, u64))> {
    let said: serde_json::Value = serde_json::from_str(line).ok()?;
    if said["type"] != "progress" {
        return None;
    }
    let number = |name: &str| said[name].as_u64().unwrap_or(0);
    let (done, total) = (number("done_bytes"), number("total_bytes"));
    let phase = said["phase"].as_str().unwrap_or("runs");
    let percent = (u128::from(done) * 100).checked_div(u128::from(total)).unwrap_or(0);
    let rate = show_bytes(number("bytes_per_second"));
    let left =
        said["eta_seconds"].as_u64().map_or(String::new(), |left| format!(", {left} s left"));
    let text = format!(
        "{phase}: {percent}%, {} of {}, {rate}/s{left}",
        show_bytes(done),
        show_bytes(total)
    );
    Some((text, (done, total)))
}

/// Bytes for people.
#[allow(clippy::cast_precision_loss)]
pub fn show_bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = bytes as f64;
    let mut shown = None;
    for unit in units {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        shown = Some(unit);
    }
    shown.map_or_else(|| format!("{bytes} B"), |unit| format!("{scaled:.1} {unit}"))
}
