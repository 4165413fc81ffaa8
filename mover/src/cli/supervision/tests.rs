use super::*;
use crate::cli::settings::{Environment, json_only};

/// The second signal ends the process, and with it this test.
#[test]
fn a_stop_at_a_bound_is_no_signal() {
    let cancel = Cancel::new();
    let output = Output::new(json_only(&Environment::default()));
    let supervisor = Supervisor::start(&cancel, &output).unwrap();
    cancel.request_for(StopReason::Bound(Bound::Deadline));
    // told after the others, in the same order
    let seen = Arc::<AtomicBool>::default();
    signal_hook::flag::register(SIGTERM, Arc::clone(&seen)).unwrap();
    signal_hook::low_level::raise(SIGTERM).unwrap();
    while !seen.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(supervisor);
    assert_eq!(cancel.reason(), Some(StopReason::Bound(Bound::Deadline)));
}

/// The steps of the thread, without the thread.
fn shared() -> Shared {
    Shared {
        cancel: Cancel::new(),
        output: Output::new(json_only(&Environment::default())),
        signalled: Arc::default(),
        wake: UnixStream::pair().unwrap().0,
        speakers: ["message", "words"].map(|name| speaker(name).unwrap()),
        state: Mutex::default(),
    }
}

fn sleeps(step: Step) -> Option<Instant> {
    match step {
        Step::Sleep(until) => until,
        Step::Force(reason) => panic!("ended by force for {reason:?}"),
        Step::Signalled => panic!("there is no signal"),
    }
}

#[test]
fn a_deadline_asks_once_and_forces_only_what_is_held_to_it() {
    let shared = shared();
    let now = Instant::now();
    let deadline = now + Duration::from_secs(60);
    let mut state = State { deadline: Some(deadline), ..State::default() };
    assert_eq!(sleeps(shared.step(&mut state, now)), Some(deadline));
    assert!(!shared.cancel.cancelled());
    assert_eq!(sleeps(shared.step(&mut state, deadline)), Some(deadline + STOP_WITHIN));
    assert_eq!(shared.cancel.reason(), Some(StopReason::Bound(Bound::Deadline)));
    let late = deadline + STOP_WITHIN;
    assert!(matches!(shared.step(&mut state, late), Step::Force(StopReason::Bound(_))));
    state.deadline = None;
    assert_eq!(sleeps(shared.step(&mut state, late)), None, "it has ended in time");
}

/// A signal is said, has all of its time, and decides the exit code, whatever has asked before.
#[test]
fn a_signal_after_a_bound_is_the_first_one() {
    let shared = shared();
    let deadline = Instant::now();
    let mut state = State { deadline: Some(deadline), ..State::default() };
    assert_eq!(sleeps(shared.step(&mut state, deadline)), Some(deadline + STOP_WITHIN));
    state.deadline = None;
    let signal = deadline + 2 * STOP_WITHIN;
    assert_eq!(sleeps(shared.step(&mut state, signal)), None);
    shared.signalled.store(true, Ordering::SeqCst);
    assert!(matches!(shared.step(&mut state, signal), Step::Signalled));
    assert_eq!(sleeps(shared.step(&mut state, signal)), Some(signal + STOP_WITHIN));
    let forced = shared.step(&mut state, signal + STOP_WITHIN);
    assert!(matches!(forced, Step::Force(StopReason::Requested)));
    // the operation itself was asked by the deadline
    assert_eq!(shared.cancel.reason(), Some(StopReason::Bound(Bound::Deadline)));
}

#[test]
fn what_is_held_to_a_deadline_ends_by_it_though_a_signal_came_later() {
    let shared = shared();
    let deadline = Instant::now();
    let mut state = State { deadline: Some(deadline), ..State::default() };
    shared.step(&mut state, deadline);
    shared.signalled.store(true, Ordering::SeqCst);
    let later = deadline + STOP_WITHIN / 2;
    assert!(matches!(shared.step(&mut state, later), Step::Signalled));
    assert_eq!(sleeps(shared.step(&mut state, later)), Some(deadline + STOP_WITHIN));
    let forced = shared.step(&mut state, deadline + STOP_WITHIN);
    assert!(matches!(forced, Step::Force(StopReason::Bound(Bound::Deadline))));
}

#[test]
fn a_signal_is_said_and_forces_an_end() {
    let shared = shared();
    let now = Instant::now();
    let mut state = State::default();
    assert_eq!(sleeps(shared.step(&mut state, now)), None);
    // as the handlers do, in their order
    shared.signalled.store(true, Ordering::SeqCst);
    shared.cancel.flag().store(true, Ordering::SeqCst);
    assert!(matches!(shared.step(&mut state, now), Step::Signalled));
    assert_eq!(sleeps(shared.step(&mut state, now)), Some(now + STOP_WITHIN));
    assert_eq!(shared.cancel.reason(), Some(StopReason::Requested));
    let forced = shared.step(&mut state, now + STOP_WITHIN);
    assert!(matches!(forced, Step::Force(StopReason::Requested)));
}

#[test]
fn only_a_stop_and_what_broke_because_of_it_get_its_reason() {
    let failed = |kind| Err(Error::new(kind, "read 7 bytes", "no answer"));
    let kind = |kind, cancel: &Cancel| explain(failed(kind), cancel).unwrap_err().kind();
    let cancel = Cancel::new();
    assert_eq!(kind(ErrorKind::Device, &cancel), ErrorKind::Device);
    cancel.request();
    assert_eq!(kind(ErrorKind::Device, &cancel), ErrorKind::Cancelled);
    assert_eq!(kind(ErrorKind::Unavailable, &cancel), ErrorKind::Cancelled);
    assert_eq!(kind(ErrorKind::Corrupt, &cancel), ErrorKind::Corrupt);
    let text = explain(failed(ErrorKind::Device), &cancel).unwrap_err().to_string();
    assert!(text.contains("stopped: on request: read 7 bytes: no answer"), "{text}");
    assert!(explain(Ok(()), &cancel).is_ok());

    cancel.request_for(StopReason::Bound(Bound::Deadline));
    assert_eq!(kind(ErrorKind::Cancelled, &cancel), ErrorKind::Cancelled, "a signal was first");
    for (reason, becomes) in [
        (StopReason::Bound(Bound::Deadline), ErrorKind::Limit),
        (StopReason::Stalled(Duration::from_secs(60)), ErrorKind::Unavailable),
    ] {
        let cancel = Cancel::new();
        cancel.request_for(reason);
        assert_eq!(kind(ErrorKind::Cancelled, &cancel), becomes);
        assert_eq!(kind(ErrorKind::Device, &cancel), becomes);
        assert_eq!(kind(ErrorKind::Corrupt, &cancel), ErrorKind::Corrupt);
    }
}
