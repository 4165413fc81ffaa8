//! A controller that dies at each write, and two at once.

use super::*;

/// What has to be after a night, whatever happened on the way.
fn assert_done(world: &World, about: &str) {
    world.assert_clean(about);
    let wanted = [("check", 1), ("forget", 1), ("gc", 1), ("init", 1), ("list", 2)];
    assert_eq!(world.ran(), BTreeMap::from(wanted), "{about}: {:#?}", world.fake.alone.runs);
    assert_eq!(world.fake.of_kind(Kind::VolumeBackup).len(), 2, "{about}");
    for kind in ["Ready", "Synced", "Collected", "Checked"] {
        assert_eq!(world.condition(kind).0, "True", "{about}: {kind} {:?}", world.condition(kind));
    }
}

#[test]
fn each_night_has_one_run_of_each() {
    let mut world = night();
    lone(&mut world, hours(3));
    assert_done(&world, "one night");
    let status = world.status();
    assert_eq!(status.repository_id.as_deref(), Some("abc"));
    assert_eq!((status.backups, status.stored_bytes), (Some(2), Some(1024)), "{status:?}");
    assert!(status.last_check.is_some_and(|at| at.starts_with("2026-03-01T02:0")));
    lone(&mut world, hours(24));
    // It is collected after it was forgotten.
    let order: Vec<&str> = world.fake.alone.runs.iter().map(|(_, args)| args[0].as_str()).collect();
    let night = ["forget", "gc", "check", "list"];
    assert_eq!(order, [&["init", "list"], &night[..], &night[..]].concat());
    world.assert_clean("two nights");
    for account in ["mover", "mover-gc"] {
        let begin = format!("create serviceaccount/{account} ");
        let made = world.fake.written.iter().any(|text| text.starts_with(&begin));
        assert!(made, "{account}: {:#?}", world.fake.written);
    }
}

#[test]
fn killed_before_and_after_each_write_another_controller_goes_on() {
    for done in [false, true] {
        for writes in 0.. {
            let mut world = night();
            let dies = Some((writes, done));
            let mut first = [Controller { dies, ..Controller::default() }];
            world.run(&mut first, hours(3));
            assert_done(&world, &format!("write {writes} {done}"));
            if first[0].dies.is_some() {
                assert!(writes > 30, "there are more writes than {writes}");
                break;
            }
        }
    }
}

#[test]
fn two_controllers_make_each_run_once() {
    for lag in 0..7 {
        let mut world = night();
        let mut both = [Controller::default(), Controller::default()];
        // One begins somewhat later, and sees what the other did in the middle.
        for _ in 0..lag * 5 {
            if matches!(world.turn(&mut both[0]), Turn::Waits(_)) {
                world.fake.tick();
            }
        }
        world.run(&mut both, hours(3));
        assert_done(&world, &format!("lag {lag}"));
    }
}

#[test]
fn two_controllers_of_which_one_dies_again_and_again() {
    for period in [3, 5, 8, 13] {
        let mut world = night();
        for part in 0..6 {
            let dies = Some((period, part % 2 == 0));
            let mut both = [Controller { dies, ..Controller::default() }, Controller::default()];
            world.run(&mut both, hours(1) / 2);
        }
        assert_done(&world, &format!("period {period}"));
    }
}

/// A Job of the name that is to be made: it is never taken for ours.
#[test]
fn a_name_that_is_taken_is_a_failure_and_nothing_is_adopted() {
    let mut world = world(spec());
    let uid = Meta::of(world.fake.get(&key()).expect("it")).uid;
    let name = format!("mover-{uid}-init-2603011200-1");
    let metadata = json!({ "namespace": HOME, "name": name });
    world.fake.create(&json!({ "kind": "Job", "metadata": metadata, "status": { "conditions": [{ "type": "Complete", "status": "True" }] } }));
    lone(&mut world, hours(0));
    let (status, reason, message) = world.condition("Ready");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InitFailed"));
    assert!(message.contains("does not belong to this operation"), "{message}");
    // The next try has another name.
    lone(&mut world, hours(1));
    assert_eq!(world.condition("Ready").0, "True");
    assert!(world.fake.get(&Key::new(Kind::Job, HOME, &name)).is_some(), "it is somebody's");
}

/// Whoever changes the record gains nothing but work that is done once more.
#[test]
fn a_record_that_others_changed_is_written_anew() {
    let mut world = world(spec());
    lone(&mut world, hours(24));
    let before = world.ran().values().sum::<usize>();
    let record = world.fake.of_kind(Kind::ConfigMap)[0].0.clone();
    let forged = json!({ "lanes": { "check": { "last": { "due": "2036-01-01T00:00:00Z", "at": "2036-01-01T00:00:00Z", "exitCode": 0 } } } });
    world.fake.change(&record, &json!({ "data": { "record": forged.to_string() } }));
    lone(&mut world, hours(24));
    let ran = world.ran();
    assert_eq!(ran["check"], 3, "the last night's once more, and this night's");
    assert!(world.ran().values().sum::<usize>() > before + 4);
    assert_eq!(world.fake.of_kind(Kind::Job), []);
    assert_eq!(world.condition("Checked").0, "True");
}

#[test]
fn pods_that_go_before_they_are_read_are_made_again() {
    let mut world = world(spec());
    world.fake.faults.pods_lost = 2;
    lone(&mut world, hours(24));
    assert_eq!(world.condition("Ready").0, "True", "{:?}", world.condition("Ready"));
    assert_eq!(world.ran()["init"], 3);
    assert_eq!(world.fake.of_kind(Kind::Job), []);
}
