//! The rules of a topic, one by one.

use super::super::event::Event;
use super::super::selector::route;
use super::super::topic::{Bounds, Subscription, Topic, lock};
use super::{OWNER, Random, SPACE};
use crate::api::{ApiError, Change};
use crate::engine::{Failure, Key, Kind, Query, Selection, exit};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;
use std::sync::{Arc, Mutex};

fn pod(name: &str, owner: &str, version: u64) -> Event {
    let meta = json!({
        "name": name, "namespace": SPACE, "uid": name, "labels": { OWNER: owner },
        "resourceVersion": version.to_string(), "managedFields": [{ "manager": "somebody" }],
    });
    Event::of(Kind::Pod, json!({ "metadata": meta }), false).expect("a pod")
}

fn topic(labelled: bool) -> Arc<Mutex<Topic>> {
    let bounds = Bounds { ring_bytes: 100_000, queue_events: 100, queue_bytes: 20_000 };
    let topic = Arc::new(Mutex::new(Topic::new(bounds, labelled)));
    drop(lock(&topic).begin(Some("1"), Vec::new()));
    topic
}

fn subscribe(topic: &Arc<Mutex<Topic>>, query: Query, version: &str) -> Subscription {
    let (_, wanted) = route(&query).expect("it is served");
    Subscription::begin(topic, wanted, Some(version)).expect("it is on")
}

fn told(changes: &mut Subscription) -> Vec<Change> {
    std::iter::from_fn(|| changes.next().now_or_never().flatten()).collect()
}

#[test]
fn whoever_does_not_listen_has_a_short_queue_and_is_told_once() {
    let topic = topic(false);
    let all = Query::from(Selection::labelled(Kind::Pod, SPACE, ""));
    let (mut slow, mut quick) = (subscribe(&topic, all.clone(), "1"), subscribe(&topic, all, "1"));
    for version in 2..100_000 {
        let event = pod("x", "owner", version);
        drop(lock(&topic).publish(event).expect("it is newer"));
        assert!(matches!(told(&mut quick).as_slice(), [Change::Set(_)]));
        assert!(slow.queued() <= 100);
    }
    assert!(matches!(told(&mut slow).as_slice(), [Change::Missed]));
    // It goes on.
    drop(lock(&topic).publish(pod("x", "owner", 100_000)).expect("it is newer"));
    assert!(matches!(told(&mut slow).as_slice(), [Change::Set(_)]));
    assert!(lock(&topic).ring_bytes() <= 100_000);
}

#[test]
fn subscribers_that_are_dropped_are_forgotten() {
    let topic = topic(false);
    let mut random = Random(7);
    let mut live = Vec::new();
    for number in 0..100_000 {
        let query = match number % 3 {
            0 => Query::from(Selection::labelled(Kind::Pod, SPACE, "")),
            _ => Key::new(Kind::Pod, SPACE, &format!("pod-{number}")).into(),
        };
        live.push(subscribe(&topic, query, "1"));
        if live.len() > 50 {
            drop(live.swap_remove(random.below(50)));
        }
    }
    assert_eq!(lock(&topic).subscribers(), 50);
    drop(live);
    assert_eq!(lock(&topic).subscribers(), 0);
    assert_eq!(lock(&topic).slots(), 0);
}

/// All are told, each once, however often the hub begins anew until they listen.
#[test]
fn a_new_beginning_is_told_once_to_each() {
    let topic = topic(false);
    let one = |number: usize| Key::new(Kind::Pod, SPACE, &format!("pod-{number}")).into();
    let mut all: Vec<_> = (0..20).map(|number| subscribe(&topic, one(number), "1")).collect();
    for version in [10, 20, 30] {
        drop(lock(&topic).begin(Some(&version.to_string()), Vec::new()));
    }
    for changes in &mut all {
        assert!(matches!(told(changes).as_slice(), [Change::Missed]));
    }
    // Whoever has read since needs nothing.
    let mut late = subscribe(&topic, one(3), "30");
    drop(lock(&topic).begin(Some("30"), Vec::new()));
    assert!(told(&mut late).is_empty());
}

#[test]
fn a_watch_that_is_turned_off_ends_all_and_is_over_once() {
    let topic = topic(false);
    let key = Key::new(Kind::Pod, SPACE, "x");
    let mut changes = subscribe(&topic, key.clone().into(), "1");
    drop(lock(&topic).publish(pod("x", "owner", 2)).expect("it is newer"));
    let why = ApiError::Refused(Failure::new(exit::DENIED, "no"));
    drop(lock(&topic).turn_off(why, None));
    assert!(matches!(told(&mut changes).as_slice(), [Change::Set(_), Change::Over]));
    let (_, wanted) = route(&key.into()).expect("it is served");
    let refused = Subscription::begin(&topic, wanted, Some("1"));
    assert!(matches!(refused, Err(ApiError::Refused(_))));
    drop(changes);
    assert_eq!(lock(&topic).subscribers(), 0);
}

/// The versions of an old past are not compared with those of another one.
#[test]
fn a_server_that_was_set_back_is_not_trusted_any_more() {
    let topic = topic(false);
    drop(lock(&topic).publish(pod("x", "owner", 90)).expect("it is newer"));
    assert!(lock(&topic).may_resume(Some("90"), Some(90)));
    assert!(lock(&topic).publish(pod("x", "owner", 80)).is_err());
    // Somebody has read more than was told.
    assert!(!lock(&topic).may_resume(Some("95"), Some(96)));
    drop(lock(&topic).begin(Some("95"), Vec::new()));
    let mut changes = subscribe(&topic, Key::new(Kind::Pod, SPACE, "x").into(), "96");
    assert!(matches!(told(&mut changes).as_slice(), [Change::Missed]));
    drop(lock(&topic).publish(pod("x", "owner", 96)).expect("it is newer"));
    assert!(matches!(told(&mut changes).as_slice(), [Change::Set(_)]));
}

#[test]
fn questions_go_to_the_narrowest_watch_that_is_safe() {
    let place = |query: Query| route(&query).map(|(place, _)| place);
    let many = |kind, labels: &str| Query::from(Selection::labelled(kind, SPACE, labels));
    let labels = |query: Query| place(query).map(|place| place.labels);
    for (text, expected) in [
        ("", Some("")),
        ("a/b=c", Some("a/b")),
        ("b==c,a", Some("a,b")),
        ("b in (c, d),a=x,a!=y", Some("a,b")),
        ("a,!b", Some("a")),
        ("a notin (b)", None),
        ("!a", None),
        ("a=b=c", None),
        ("a > 3", None),
    ] {
        assert_eq!(labels(many(Kind::Pod, text)).as_deref(), expected, "{text}");
    }
    assert_eq!(place(Key::new(Kind::Secret, SPACE, "x").into()), None);
    assert_eq!(place(Key::new(Kind::Lease, "kube-node-lease", "x").into()), None);
    let lease = place(Key::new(Kind::Lease, SPACE, "x").into()).expect("it is served");
    assert_eq!(lease.selection().fields, "metadata.namespace!=kube-node-lease");
    assert!(place(Selection::events(SPACE, "x").into()).is_some());
    let phase = Selection { fields: "status.phase=Running".into(), ..Selection::all(Kind::Pod) };
    assert_eq!(place(phase.into()), None);
}

#[test]
fn a_selection_hears_what_leaves_it() {
    let topic = topic(true);
    let known = ("x".to_owned(), Arc::new([(OWNER.to_owned(), "a".to_owned())].into()));
    drop(lock(&topic).begin(Some("5"), vec![known]));
    let of = |labels: &str| Query::from(Selection::labelled(Kind::Pod, SPACE, labels));
    let mut before = subscribe(&topic, of("mover.dev/owner=a"), "5");
    let mut after = subscribe(&topic, of("mover.dev/owner in (b,c)"), "5");
    let mut other = subscribe(&topic, of("mover.dev/owner=d"), "5");
    drop(lock(&topic).publish(pod("x", "b", 6)).expect("it is newer"));
    // From the ring as well.
    let mut late = subscribe(&topic, of("mover.dev/owner=a"), "5");
    assert!(matches!(told(&mut before).as_slice(), [Change::Gone(_)]));
    assert!(matches!(told(&mut late).as_slice(), [Change::Gone(_)]));
    assert!(matches!(told(&mut after).as_slice(), [Change::Set(_)]));
    assert!(told(&mut other).is_empty());
}
