//! One connection with many requests in flight, without a thread of its own and without copying.
//!
//! Whoever calls sends its request and then waits for its reply together with all the others. One
//! of them, the *reader*, reads from the socket. When the head of a reply has come it knows whose
//! it is, and that one alone is woken: the stream then stands at its bytes, which it reads into its
//! own buffer. When it has its whole reply it leaves, and wakes one of those that still wait, to be
//! the reader. So every byte goes from the kernel to where it is wanted.
//!
//! State: `reading` is set while someone may read from the socket; `arrived` is a head that its
//! owner has not taken yet, during which nobody reads. An error of the stream is kept in `broken`,
//! ends the socket, wakes all, and answers all calls from then on.
//!
//! Cannot deadlock: whoever waits here has sent its request, or the stream is broken; while
//! requests are under way somebody is the reader, or has been woken to be. Who is sending holds the
//! lock for that and waits only for the server, which may itself wait for its replies to be read:
//! those belong to others, who wait here and do read. Every wait for the server has an end
//! (`socket.rs`).

use super::handshake::{Contexts, Negotiated, Refusal, greet, negotiate, start_tls};
use super::reply::Answer;
use super::socket::{Line, Socket, StopFlag};
use super::uri::NbdUri;
use super::wire::{Command, ReplyBody, ReplyHead, broken, request};
use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Enough for some heads; what is longer is read past it.
const READ_AHEAD_BYTES: usize = 512;
/// A wake-up is never lost; this only bounds what a mistake here could cost.
const LOOK_UP: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    next_cookie: u64,
    /// Who waits for the reply with this cookie.
    waiting: HashMap<u64, Thread>,
    reading: bool,
    arrived: Option<ReplyHead>,
    broken: Option<(io::ErrorKind, String)>,
}

/// A connection in its transmission phase.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Arc<Socket>,
    agreed: Negotiated,
    sending: Mutex<Line>,
    /// Only the reader, and the owner of what arrived, lock it.
    incoming: Mutex<BufReader<Line>>,
    state: Mutex<State>,
    in_flight: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // nothing is left half done in a panic: the state is changed in single steps
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Connects and goes through the handshake, all within `timeout`.
    pub(super) fn open(
        uri: &NbdUri,
        timeout: Duration,
        contexts: Contexts,
        stop: &StopFlag,
    ) -> Result<Self, Refusal> {
        let end = Instant::now() + timeout;
        let socket = Arc::new(Socket::connect(uri, timeout, stop)?);
        let mut line = Line::until(&socket, end);
        greet(&mut line)?;
        if let Some(tls) = &uri.tls {
            start_tls(&mut line)?;
            line.secure(tls)?;
        }
        let agreed = negotiate(&mut line, &uri.export, contexts)?;
        Ok(Self {
            agreed,
            sending: Mutex::new(Line::moving(&socket)),
            incoming: Mutex::new(BufReader::with_capacity(READ_AHEAD_BYTES, Line::moving(&socket))),
            state: Mutex::new(State::default()),
            in_flight: AtomicUsize::new(0),
            socket,
        })
    }

    pub(super) fn agreed(&self) -> &Negotiated {
        &self.agreed
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.state).broken.is_some()
    }

    /// Sends a request and waits for its reply. `payload` is what is written.
    pub(super) fn call(
        &self,
        command: Command,
        offset: u64,
        len: u32,
        payload: &[u8],
        answer: &mut Answer<'_>,
    ) -> io::Result<()> {
        let cookie = self.enrol()?;
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let sent = {
            let mut line = lock(&self.sending);
            line.write_all(&request(command, cookie, offset, len))
                .and_then(|()| line.write_all(payload))
        };
        if let Err(e) = sent {
            self.break_off(&e);
        }
        let received = self.receive(cookie, answer);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        received?;
        match answer.finish() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.into_io()),
            Err(e) => {
                self.break_off(&e);
                Err(e)
            }
        }
    }

    /// Ends it, and all calls that wait.
    pub(super) fn give_up(&self) {
        let what = "the run ended before the NBD server answered";
        self.break_off(&io::Error::new(io::ErrorKind::ConnectionAborted, what));
    }

    fn enrol(&self) -> io::Result<u64> {
        let mut state = lock(&self.state);
        if let Some((kind, what)) = &state.broken {
            return Err(io::Error::new(*kind, what.clone()));
        }
        if state.waiting.is_empty() {
            self.socket.touch();
        }
        state.next_cookie += 1;
        let cookie = state.next_cookie;
        state.waiting.insert(cookie, std::thread::current());
        Ok(cookie)
    }

    fn receive(&self, cookie: u64, answer: &mut Answer<'_>) -> io::Result<()> {
        let mut reader = false;
        loop {
            let body = self.turn(cookie, reader)?;
            let taken = answer.take(body, self.agreed.structured, &mut *lock(&self.incoming));
            match taken {
                Ok(true) => {
                    self.leave(cookie);
                    return Ok(());
                }
                Ok(false) => reader = true,
                Err(e) => {
                    self.break_off(&e);
                    // what was noted first is what went wrong
                    return self.turn(cookie, false).map(|_| ());
                }
            }
        }
    }

    /// Waits until the stream stands at bytes for this cookie. `reader`: whether the caller is the
    /// one that reads.
    fn turn(&self, cookie: u64, mut reader: bool) -> io::Result<ReplyBody> {
        let mut state = lock(&self.state);
        loop {
            if let Some((kind, what)) = &state.broken {
                let error = io::Error::new(*kind, what.clone());
                state.waiting.remove(&cookie);
                return Err(error);
            }
            match state.arrived {
                Some(head) if head.cookie == cookie => {
                    state.arrived = None;
                    return Ok(head.body);
                }
                None if reader || !state.reading => {
                    state.reading = true;
                    drop(state);
                    let head = ReplyHead::read(&mut *lock(&self.incoming));
                    state = self.arrive(head);
                    reader = false;
                }
                _ => {
                    drop(state);
                    std::thread::park_timeout(LOOK_UP);
                    state = lock(&self.state);
                }
            }
        }
    }

    /// Notes whose the head of a reply is, and wakes that one.
    fn arrive(&self, head: io::Result<ReplyHead>) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        let unknown = |cookie| broken(format_args!("a reply to request {cookie}, which is none"));
        let wrong = match head {
            Ok(head) => match state.waiting.get(&head.cookie) {
                Some(owner) => {
                    owner.unpark();
                    state.arrived = Some(head);
                    return state;
                }
                None => unknown(head.cookie),
            },
            Err(e) => e,
        };
        drop(state);
        self.break_off(&wrong);
        state = lock(&self.state);
        state
    }

    /// The whole reply has come: somebody else is to read.
    fn leave(&self, cookie: u64) {
        let mut state = lock(&self.state);
        state.waiting.remove(&cookie);
        state.reading = false;
        if let Some(next) = state.waiting.values().next() {
            next.unpark();
        }
    }

    /// The stream is of no more use.
    fn break_off(&self, e: &io::Error) {
        let mut state = lock(&self.state);
        if state.broken.is_none() {
            state.broken = Some((e.kind(), e.to_string()));
        }
        state.waiting.values().for_each(Thread::unpark);
        drop(state);
        self.socket.shut_down();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Nobody waits any more. The server may already be gone.
        if !self.is_broken() {
            let _ = lock(&self.sending).write_all(&request(Command::Disconnect, 0, 0, 0));
        }
        self.socket.shut_down();
    }
}
