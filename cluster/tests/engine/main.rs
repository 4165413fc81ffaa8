//! The engine alone, on a cluster in memory: each order of events, a crash at each request, two
//! drivers at once.

mod answers;
mod before;
mod carried;
mod crashes;
mod doctor;
mod fake;
mod fence;
mod given;
mod groups;
mod import;
mod in_place;
mod jobs;
mod kept;
mod late;
mod locks;
mod orders;
mod pause;
mod populate;
mod refusals;
mod repositories;
mod retained;
mod room;
mod sources;

use fake::{CLASS, DRIVER, Fake};
use mover_cluster::engine::{
    self, Anchor, Backup, ClaimRef, ConfigMap, Group, Hook, Key, Kind, Limits, Lock, LockState,
    Mandate, Meta, Next, Observed, OnTimeout, Outcome, Planned, Populate, Query, Repository,
    Request, Restore, STATE, Stop, anchor, request_of,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

const NAMESPACE: &str = "shop";
const DATA: &str = "all that the shop has";

fn repository(namespace: &str) -> Repository {
    Repository {
        namespace: namespace.into(),
        name: "default".into(),
        url: "s3://bucket/prefix".into(),
        cluster: "c1".into(),
        key_secret: "mover-key-default".into(),
        service_account: "mover".into(),
        image: "mover:1".into(),
        image_pull_policy: "Never".into(),
        memory: "320Mi".into(),
        cpu: "1".into(),
        allow_mode_change: true,
        restricted: false,
        ..Repository::default()
    }
}

/// A cluster with one claim of data.
fn shop(filesystem: bool) -> Fake {
    let mut fake = Fake::default();
    fake.storage.insert("vol-db".into(), DATA.into());
    let mode = if filesystem { "Filesystem" } else { "Block" };
    fake.create(&json!({
        "kind": "PersistentVolume",
        "metadata": { "name": "pv-db" },
        "spec": {
            "csi": { "driver": DRIVER, "volumeHandle": "vol-db", "fsType": "ext4" },
            "volumeMode": mode,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": { "namespace": NAMESPACE, "name": "db" },
        },
        "status": { "phase": "Available" },
    }));
    fake.create(&json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db", "namespace": NAMESPACE },
        "spec": { "volumeName": "pv-db", "volumeMode": mode, "storageClassName": CLASS },
    }));
    while fake.tick() {}
    fake
}

fn backup_request(fake: &Fake, filesystem: bool, jobs_in: &str, keep_base: bool) -> Request {
    let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db");
    let uid = Meta::of(fake.get(&claim).expect("the claim")).uid;
    Request::Backup(Box::new(Backup {
        source: ClaimRef { namespace: NAMESPACE.into(), name: "db".into(), uid },
        driver: DRIVER.into(),
        volume_handle: "vol-db".into(),
        repository: repository(jobs_in),
        volume: "c1/shop/db".into(),
        snapshot_class: "snaps".into(),
        storage_class: CLASS.into(),
        read_only: false,
        filesystem,
        capacity: "1Gi".into(),
        labels: BTreeMap::new(),
        changes: None,
        given: None,
        hook: None,
        keep_base,
        retain: None,
        objects: None,
        arguments: Vec::new(),
        limits: Limits::default(),
    }))
}

fn hooked(mut request: Request, on_timeout: OnTimeout) -> Request {
    if let Request::Backup(backup) = &mut request {
        backup.hook = Some(Hook {
            namespace: NAMESPACE.into(),
            pod: "db-0".into(),
            uid: "uid-of-the-pod".into(),
            container: "db".into(),
            container_id: "containerd://1".into(),
            command: "hold".into(),
            after: None,
            whole: false,
            timeout_seconds: 60,
            on_timeout,
        });
    }
    request
}

fn restore_request(backup: &str, filesystem: bool, jobs_in: &str) -> Request {
    Request::Restore(Box::new(Restore {
        repository: repository(jobs_in),
        volume: "c1/shop/db".into(),
        asked: "db@latest".into(),
        backup: backup.into(),
        size_bytes: 1 << 30,
        namespace: NAMESPACE.into(),
        claim: "db-restored".into(),
        storage_class: CLASS.into(),
        capacity: "1Gi".into(),
        access_modes: vec!["ReadWriteOnce".into()],
        filesystem: filesystem.then(|| "ext4".into()),
        in_place: None,
        differential: false,
        kept: None,
        populate: None,
        limits: Limits::default(),
    }))
}

fn begin(fake: &mut Fake, name: &str, request: &Request) -> Anchor {
    let key = Key::new(Kind::ConfigMap, NAMESPACE, name);
    fake.create(&anchor(name, NAMESPACE, "source", request));
    Anchor::new(key.clone(), Meta::of(fake.get(&key).expect("it was made")).uid)
}

/// The plan of whoever began the operation.
fn plan(anchor: &Anchor, seen: &Observed) -> Planned<Outcome> {
    match seen.find::<ConfigMap>(&anchor.key)? {
        Some(found) => {
            let request = request_of(&found)?;
            engine::plan(anchor, Mandate::Request(&request), seen)
        }
        None => engine::plan(anchor, Mandate::Removal, seen),
    }
}

/// What one driver does next; the outcome, if that is the end. Each wait lets the cluster do one
/// thing, or time pass where it has nothing to do.
fn turn(fake: &mut Fake, anchor: &Anchor, seen: &mut Observed) -> Result<Option<Outcome>, String> {
    seen.set_now(fake.now);
    let next = match plan(anchor, seen) {
        Ok(outcome) => return Ok(Some(outcome)),
        Err(Stop::Failure(why)) => return Err(why.to_string()),
        Err(Stop::Next(next)) => next,
    };
    match next {
        Next::Refresh => seen.forget_all(),
        Next::Quiesce(hooks, attempt, _) => {
            assert!(!fake.is_locked(), "two locks at once: {:#?}", fake.written);
            let seconds = hooks.iter().map(|hook| hook.timeout_seconds).min().expect("a hook");
            fake.lock = Some((attempt, fake.now + Duration::from_secs(seconds)));
            seen.set_lock(Lock { attempt, state: LockState::Held });
        }
        Next::Resume(taken) => {
            let held = fake.is_locked_by(seen);
            if held {
                fake.lock = None;
            }
            let lock = seen.lock().expect("there is one").clone();
            let broken = || LockState::Broken("its time was over".into());
            let state = if held { LockState::Released(taken) } else { broken() };
            seen.set_lock(Lock { state, ..lock });
        }
        Next::Read(query) => fake.read(&query, seen),
        Next::Do(step) => fake.execute(&step, seen),
        Next::Wait(wait) => {
            if !fake.tick() {
                fake.now += wait.time;
            }
            seen.set_now(fake.now);
            seen.waited();
            if let Some(lock) = seen.lock().filter(|lock| lock.state == LockState::Held).cloned()
                && !fake.is_locked_by(seen)
            {
                let state = LockState::Broken("its time was over".into());
                seen.set_lock(Lock { state, ..lock });
            }
            let anchor: Query = anchor.key.clone().into();
            for query in wait.on.iter().chain([&anchor]) {
                fake.read(query, seen);
            }
        }
    }
    Ok(None)
}

/// Drives an operation until it waits for something: for what.
fn waits_for(fake: &mut Fake, anchor: &Anchor, seen: &mut Observed) -> String {
    for _ in 0..200 {
        seen.set_now(fake.now);
        match plan(anchor, seen) {
            Err(Stop::Next(Next::Wait(wait))) => return wait.why,
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, seen),
            Err(Stop::Next(Next::Do(step))) => fake.execute(&step, seen),
            other => panic!("{other:?}"),
        }
    }
    panic!("it waits for nothing: {:#?}", fake.written);
}

/// What a new driver knows.
fn observed(fake: &Fake) -> Observed {
    let mut seen = Observed::default();
    seen.set_now(fake.now);
    if let Some(payload) = &fake.payload {
        seen.set_payload(payload.clone());
    }
    seen
}

/// Drives an operation to its end.
fn drive(fake: &mut Fake, anchor: &Anchor) -> Outcome {
    let mut seen = observed(fake);
    for _ in 0..2000 {
        if let Some(outcome) = turn(fake, anchor, &mut seen).expect("the anchor holds its outcome")
        {
            return outcome;
        }
    }
    panic!("it does not end: {:#?}", fake.written);
}

fn settle(fake: &mut Fake) {
    while fake.tick() {}
}

/// After any end: nothing of the operation is left, the source is as it was, and the storage has
/// what it should.
fn assert_clean(fake: &mut Fake, anchor: &Anchor, more_volumes: usize, snapshots: usize) {
    settle(fake);
    assert_eq!(fake.left(), Vec::<String>::new(), "{:#?}", fake.written);
    let held = fake.get(&anchor.key).expect("the anchor stays");
    assert_eq!(Meta::of(held).labels[STATE], "ended");
    assert_eq!(fake.storage["vol-db"], DATA);
    let count = |prefix: &str| fake.storage.keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(count("vol-"), 1 + more_volumes, "{:?} {:#?}", fake.storage, fake.written);
    assert_eq!(count("snap-"), snapshots, "{:?} {:#?}", fake.storage, fake.written);
}

/// The restored claim, bound to a volume with the data, of the mode that was asked for.
fn assert_restored(fake: &Fake, filesystem: bool) {
    let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db-restored");
    let claim = fake.get(&claim).expect("the claim");
    assert_eq!(claim["status"]["phase"], "Bound");
    let volume = claim["spec"]["volumeName"].as_str().expect("a volume");
    let volume = fake.get(&Key::wide(Kind::PersistentVolume, volume)).expect("the volume");
    let mode = if filesystem { "Filesystem" } else { "Block" };
    assert_eq!(volume["spec"]["volumeMode"], mode);
    let policy = if fake.faults.retains { "Retain" } else { "Delete" };
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], policy);
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER);
    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().expect("a handle");
    assert_eq!(fake.storage[handle], DATA);
}
