use super::*;
use crate::controller::repositories::Calendar;
use crate::engine::Meta;
use crate::kinds::RepositorySpec;
use serde_json::json;

fn spec() -> RepositorySpec {
    serde_json::from_value(json!({
        "url": "s3://b/p",
        "keySecretRef": { "name": "key" },
        "credentials": { "secretRef": { "name": "store" }, "serviceAccountName": "cloud" },
        "gcCredentials": { "secretRef": { "name": "deleter" } },
        "caConfigMapRef": { "name": "ca" },
        "jobTemplate": {},
    }))
    .expect("a spec")
}

fn with<T>(told: &Told, then: impl FnOnce(&Facts<'_>, &Told) -> T) -> T {
    let meta = Meta { name: "main".into(), namespace: Some("shop".into()), ..Meta::default() };
    let (spec, status) = (spec(), RepositoryStatus::default());
    let facts = Facts {
        meta: &meta,
        generation: 4,
        created: DateTime::UNIX_EPOCH,
        spec: &spec,
        status: &status,
        schedules: &[],
        calendar: &Calendar::default(),
        image: "mover:1",
        restricted: false,
        now: DateTime::UNIX_EPOCH,
        seal: &|_, _| String::new(),
        listed: None,
    };
    then(&facts, told)
}

#[test]
fn what_a_pod_lacks_is_named_with_the_next_step() {
    let volume = "MountVolume.SetUp failed for volume";
    for (why, reason, names) in [
        (format!("pod/x has not begun: {volume} \"keys\" : secret \"key\" not found"), "KeySecretMissing", "secret/key"),
        ("pod/x has not begun: CreateContainerConfigError: secret \"store\" not found".into(), "CredentialsMissing", "secret/store"),
        ("pod/x has not begun: CreateContainerConfigError: secret \"deleter\" not found".into(), "CredentialsMissing", "secret/deleter"),
        ("job/x has no pod: error looking up service account shop/cloud: serviceaccount \"cloud\" not found".into(), "AccountMissing", "serviceaccount/cloud"),
        (format!("pod/x has not begun: {volume} \"ca\" : configmap \"ca\" not found"), "AuthorityMissing", "configmap/ca"),
        ("pod/x has not begun: ErrImagePull: no such image".into(), "PodPending", "ErrImagePull"),
    ] {
        let mut told = Told::default();
        told.waits.insert(INIT.into(), why.clone());
        let new = with(&told, ready);
        assert_eq!((new.status, new.reason), ("False", reason), "{why}");
        assert!(new.message.contains(names) && new.message.contains("shop"), "{}", new.message);
    }
    let mut told = Told::default();
    told.waits.insert(INIT.into(), "pod/x has not begun".into());
    assert_eq!(with(&told, ready).reason, "Opening", "nothing is wrong yet");
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    let told = Told { trouble: Some(Failure::new(4, "denied")), ..Told::default() };
    let mut first = with(&told, of);
    assert_eq!(first.conditions[0].reason, "Refused");
    assert_eq!(first.conditions[0].observed_generation, 4);
    first.conditions[0].last_transition_time = "before".into();
    with(&told, |facts, told| {
        let again = of(&Facts { status: &first, ..*facts }, told);
        assert_eq!(again.conditions[0].last_transition_time, "before");
        assert_eq!(again, first, "so nothing is written");
    });
}

#[test]
fn a_transition_is_told_once() {
    let condition = |status: &str, reason: &str| Condition {
        kind: "Ready".into(),
        status: status.into(),
        reason: reason.into(),
        ..Condition::default()
    };
    let status = |condition| RepositoryStatus { conditions: vec![condition], ..Default::default() };
    let (open, bad) =
        (status(condition("Unknown", "Opening")), status(condition("False", "InitFailed")));
    let good = status(condition("True", "Opened"));
    let none = RepositoryStatus::default();
    assert_eq!(transitions(&none, &open), []);
    assert_eq!(transitions(&open, &bad), [(true, "InitFailed".to_owned(), String::new())]);
    assert_eq!(transitions(&bad, &good), [(false, "Opened".to_owned(), String::new())]);
    assert_eq!(transitions(&good, &good), []);
}
