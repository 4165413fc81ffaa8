//! How runs end, and how that is said.

use super::*;
use mover_cluster::controller::repositories::transitions;

#[test]
fn damage_is_said_until_a_check_finds_none() {
    let mut world = world(spec());
    world.fake.alone.ends.insert("check".into(), (3, "2 backups lost data".into()));
    lone(&mut world, hours(24));
    let (status, reason, message) = world.condition("Checked");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Damaged"));
    assert!(message.contains("2 backups lost data; look"), "{message}");
    assert_eq!(world.ran()["check"], 1, "the same again would find the same");
    // One that cannot look takes nothing back, and neither does a new controller.
    world.fake.alone.ends.insert("check".into(), (4, "denied".into()));
    lone(&mut world, hours(24));
    let (_, reason, message) = world.condition("Checked");
    assert_eq!(reason, "Damaged");
    assert!(message.contains("could not look") && message.contains("denied"), "{message}");
    world.fake.alone.ends.insert("check".into(), (0, json!({ "backups": 2 })));
    lone(&mut world, hours(24));
    assert_eq!(world.condition("Checked").1, "Whole");
}

#[test]
fn each_check_that_finds_damage_is_an_event() {
    let mut world = world(spec());
    lone(&mut world, hours(24));
    let good = world.status();
    world.fake.alone.ends.insert("check".into(), (3, "lost".into()));
    lone(&mut world, hours(24));
    let first = world.status();
    let told = transitions(&good, &first);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].0 && told[0].1 == "Damaged");
    assert_eq!(transitions(&first, &first), []);
    lone(&mut world, hours(24));
    assert_eq!(transitions(&first, &world.status()).len(), 1, "the next night's");
}

#[test]
fn a_secret_that_is_missing_is_named_and_its_coming_is_enough() {
    for (said, reason) in [
        ("secret \"key\" not found", "KeySecretMissing"),
        ("secret \"store\" not found", "CredentialsMissing"),
        ("Back-off pulling image \"mover:1\"", "PodPending"),
    ] {
        let mut world = world(spec());
        world.fake.alone.stuck = Some(said.into());
        lone(&mut world, Duration::from_secs(60));
        let (status, found, message) = world.condition("Ready");
        assert_eq!((status.as_str(), found.as_str()), ("False", reason), "{message}");
        assert!(message.contains("kubectl") || message.contains("make it"), "{message}");
        world.fake.alone.stuck = None;
        lone(&mut world, Duration::from_secs(60));
        assert_eq!(world.condition("Ready").1, "Opened");
        world.assert_clean(said);
        // Nobody has read it.
        assert!(world.fake.written.iter().all(|text| !text.contains("secret/")));
    }
}

#[test]
fn a_pod_that_never_begins_is_given_up_and_tried_again() {
    let mut world = world(spec());
    world.fake.alone.stuck = Some("secret \"key\" not found".into());
    lone(&mut world, hours(3));
    assert_eq!(world.condition("Ready").1, "KeySecretMissing", "{:?}", world.condition("Ready"));
    world.fake.alone.stuck = None;
    lone(&mut world, hours(2));
    assert_eq!(world.condition("Ready").1, "Opened");
    world.assert_clean("given up");
}

#[test]
fn a_pattern_that_cannot_be_meant_is_said_and_stops_nothing_else() {
    let mut spec = spec();
    spec["check"] = json!({ "cron": "0 0 31 2 *" });
    let mut world = world(spec);
    lone(&mut world, hours(24));
    let (status, reason, message) = world.condition("Ready");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "BadSchedule"));
    assert!(message.starts_with("spec.check: cron:"), "{message}");
    assert_eq!(world.condition("Collected").0, "True");
    assert_eq!(world.condition("Checked").1, "NotScheduled");
}

#[test]
fn without_a_clock_nothing_is_forgotten_and_that_is_said() {
    let mut spec = spec();
    spec["gc"] = Value::Null;
    let mut world = world(spec);
    lone(&mut world, hours(48));
    assert_eq!(world.ran().get("forget"), None);
    let (status, reason, message) = world.condition("Collected");
    assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "NotScheduled"));
    assert!(message.contains("nothing is forgotten by keep"), "{message}");
}

#[test]
fn the_status_is_output_and_what_stands_there_decides_nothing() {
    let mut world = world(spec());
    let conditions = json!([{ "type": "Ready", "status": "True", "reason": "Forged" }]);
    let forged = json!({ "conditions": conditions, "lastGc": "2036-01-01T00:00:00Z", "lastCheck": "2036-01-01T00:00:00Z", "clusterName": "evil" });
    world.fake.change(&key(), &json!({ "status": forged }));
    lone(&mut world, hours(24));
    assert_eq!((world.ran()["init"], world.ran()["gc"], world.ran()["check"]), (1, 1, 1));
    assert_eq!(world.condition("Ready").1, "Opened");
    assert_ne!(world.status().cluster_name.as_deref(), Some("evil"));
}
