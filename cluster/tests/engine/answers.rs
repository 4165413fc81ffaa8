//! Answers that come late, and writes that the API refuses.

use super::*;
use mover_cluster::engine::{Kind, Selection, Step};
use serde_json::Value;

fn pod(uid: &str, version: &str) -> Value {
    json!({ "metadata": {
        "name": "p", "namespace": NAMESPACE, "uid": uid, "resourceVersion": version,
    } })
}

fn known(seen: &Observed, key: &Key) -> Option<(String, String)> {
    let found = seen.find::<Value>(key).expect("it is known");
    found.map(|found| (found.meta.uid, found.meta.resource_version))
}

fn is(uid: &str, version: &str) -> Option<(String, String)> {
    Some((uid.into(), version.into()))
}

/// What a watch tells of an object is older than what a write of it answered since.
#[test]
fn a_late_event_changes_nothing_that_is_newer() {
    let key = Key::new(Kind::Pod, NAMESPACE, "p");
    let mut seen = Observed::default();
    seen.set_object(key.clone(), Some(pod("a", "9")));
    seen.hear_object(key.clone(), pod("a", "8"), false);
    assert_eq!(known(&seen, &key), is("a", "9"));
    // As numbers, not as texts.
    seen.hear_object(key.clone(), pod("a", "10"), false);
    assert_eq!(known(&seen, &key), is("a", "10"));
    // The one that had the name before.
    seen.hear_object(key.clone(), pod("b", "3"), true);
    assert_eq!(known(&seen, &key), is("a", "10"));
    // A write found it gone: it does not come back.
    seen.set_object(key.clone(), None);
    seen.hear_object(key.clone(), pod("a", "11"), false);
    assert_eq!(known(&seen, &key), None);
    seen.hear_object(key.clone(), pod("c", "12"), false);
    assert_eq!(known(&seen, &key), is("c", "12"));
    seen.hear_object(key.clone(), pod("c", "13"), true);
    assert_eq!(known(&seen, &key), None);
    // Of versions that are no numbers the newer telling counts.
    seen.hear_object(key.clone(), pod("d", "v2"), false);
    seen.hear_object(key.clone(), pod("d", "v1"), false);
    assert_eq!(known(&seen, &key), is("d", "v1"));
}

/// A server that is set back to an older state has an object again that went since: it is heard of.
#[test]
fn an_object_that_is_read_again_is_not_gone() {
    let key = Key::new(Kind::Pod, NAMESPACE, "p");
    let mut seen = Observed::default();
    seen.set_object(key.clone(), Some(pod("a", "9")));
    seen.hear_object(key.clone(), pod("a", "10"), true);
    seen.set_object(key.clone(), Some(pod("a", "8")));
    seen.hear_object(key.clone(), pod("a", "9"), false);
    assert_eq!(known(&seen, &key), is("a", "9"));
}

/// A conflict has the object read again: the echo of the own write does not stand in for that.
#[test]
fn an_echo_is_no_answer() {
    let key = Key::new(Kind::Pod, NAMESPACE, "p");
    let mut seen = Observed::default();
    seen.set_object(key.clone(), Some(pod("a", "9")));
    seen.forget(&key.clone().into());
    seen.hear_object(key.clone(), pod("a", "9"), false);
    assert!(!seen.knows(&key.into()));
}

#[test]
fn a_late_event_of_a_list_changes_nothing_that_is_newer() {
    let selection = Selection::labelled(Kind::Pod, NAMESPACE, "a=b");
    let versions = |seen: &Observed| {
        let all = seen.list::<Value>(&selection).expect("it is known");
        all.into_iter().map(|one| one.meta.resource_version).collect::<Vec<_>>()
    };
    let mut seen = Observed::default();
    seen.set_list(selection.clone(), vec![pod("a", "9")], Some("20".into()));
    // The list knew of it, and says that it is not there.
    seen.hear_member(&selection, pod("b", "15"), false);
    seen.hear_member(&selection, pod("a", "15"), true);
    assert_eq!(versions(&seen), ["9"]);
    seen.hear_member(&selection, pod("a", "22"), false);
    seen.hear_member(&selection, pod("a", "21"), false);
    assert_eq!(versions(&seen), ["22"]);
    seen.hear_member(&selection, pod("b", "23"), false);
    seen.hear_member(&selection, pod("a", "24"), true);
    assert_eq!(versions(&seen), ["23"]);
}

fn word(step: &Step) -> String {
    let verb = match step {
        Step::Create(_) | Step::Fill(..) => "create",
        Step::Patch { .. } => "patch",
        Step::Delete { .. } | Step::DeleteVersion { .. } => "delete",
    };
    format!("{verb} {}", step.key())
}

/// Drives to the end, with these writes refused; what was left, or how it failed without a record.
pub(crate) fn drive_refused(
    fake: &mut Fake,
    anchor: &Anchor,
    refused: &str,
) -> Result<Outcome, String> {
    let mut seen = Observed::default();
    seen.set_now(fake.now);
    for _ in 0..2000 {
        if let Err(Stop::Next(Next::Do(step))) = plan(anchor, &seen)
            && word(&step) == refused
        {
            seen.refuse(*step, engine::Failure::new(4, format!("{refused}: no right")));
            continue;
        }
        if let Some(outcome) = turn(fake, anchor, &mut seen)? {
            return Ok(outcome);
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

/// All writes of an operation that ends well, each once.
pub(crate) fn writes(fake: &Fake, anchor: &Anchor) -> Vec<String> {
    let mut fake = fake.clone();
    let mut seen = Observed::default();
    seen.set_now(fake.now);
    let mut all: Vec<String> = Vec::new();
    loop {
        if let Err(Stop::Next(Next::Do(step))) = plan(anchor, &seen)
            && !all.contains(&word(&step))
        {
            all.push(word(&step));
        }
        if let Some(outcome) = turn(&mut fake, anchor, &mut seen).expect("an outcome") {
            assert_eq!(outcome.exit_code, 0, "{outcome:?}");
            return all;
        }
    }
}

/// Each write is refused, every time: the operation ends, says so, and removes all that it may.
#[test]
fn whatever_write_is_refused_the_rest_is_removed() {
    for jobs_in in [NAMESPACE, "mover-system"] {
        let mut fake = shop(true);
        let request = backup_request(&fake, true, jobs_in, false);
        let anchor = begin(&mut fake, "first", &request);
        for refused in writes(&fake, &anchor) {
            ends_with_a_refusal(fake.clone(), &anchor, &refused);
        }
    }
    for (filesystem, jobs_in) in [(true, NAMESPACE), (false, "mover-system")] {
        let mut fake = shop(filesystem);
        fake.repository.insert("old".into(), DATA.into());
        let anchor = begin(&mut fake, "first", &restore_request("old", filesystem, jobs_in));
        for refused in writes(&fake, &anchor) {
            ends_with_a_refusal(fake.clone(), &anchor, &refused);
        }
    }
}

fn ends_with_a_refusal(mut fake: Fake, anchor: &Anchor, refused: &str) {
    let outcome = drive_refused(&mut fake, anchor, refused);
    settle(&mut fake);
    let said = format!("{outcome:?}");
    assert!(said.contains(&format!("{refused}: no right")), "{refused}: {said}");
    // What may not be deleted stays, with what it uses; nothing else does.
    let stays = refused.strip_prefix("delete ").unwrap_or("nothing");
    // A storage that keeps a deleted snapshot for good must be told otherwise first.
    let held = stays.starts_with("job/") || refused.starts_with("patch volumesnapshotcontent/");
    let left: Vec<String> = fake.left().into_iter().filter(|left| left != stays).collect();
    assert!(left.is_empty() || held, "{refused}: {left:?} {said} {:#?}", fake.written);
    // No volume without an owner: a restored one is named.
    let volumes = fake.storage.keys().filter(|name| name.starts_with("vol-")).count();
    let handed = fake.get(&anchor.key).expect("it stays")["data"]["handover"].is_string();
    assert!(volumes == 1 || handed || held || stays.starts_with("pvc/"), "{refused}: {said}");
    if handed && volumes > 1 && !matches!(&outcome, Ok(outcome) if outcome.exit_code == 0) {
        let named = said.contains("the restored volume is pv/") || said.contains("is complete");
        assert!(named, "{refused}: {said}");
    }
}

/// Whoever holds an object back is named.
#[test]
fn what_does_not_go_away_names_its_finalizers() {
    let mut fake = shop(true);
    let request = backup_request(&fake, true, NAMESPACE, false);
    let anchor = begin(&mut fake, "first", &request);
    let mut seen = Observed::default();
    let volume = anchor.volume(NAMESPACE);
    let held =
        json!({ "metadata": { "finalizers": ["shop/keeps-it"], "deletionTimestamp": "now" } });
    while !fake.get(&volume).is_some_and(|at| at["metadata"]["deletionTimestamp"].is_string()) {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None));
    }
    fake.change(&volume, &held);
    let outcome = drive(&mut fake, &anchor);
    assert_eq!(outcome.exit_code, 0, "the backup is good");
    assert_eq!(outcome.left.len(), 1, "{outcome:?}");
    assert!(outcome.left[0].contains(&volume.to_string()), "{outcome:?}");
    assert!(outcome.left[0].contains("finalizers hold it: shop/keeps-it"), "{outcome:?}");
}
