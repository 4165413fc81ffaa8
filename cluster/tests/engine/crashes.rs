//! A driver that dies at each request, before it and after it, and one that comes after it.

use super::kept::from_snapshot;
use super::pause::drive_until;
use super::*;
use mover_cluster::engine::Step;

/// Whether it is a backup; where its Jobs are; whether it is of a filesystem; whether the snapshot stays
/// as a base, or the restored volume begins as one that stayed.
fn forms() -> Vec<(bool, &'static str, bool, bool)> {
    let mut all = Vec::new();
    for backup in [true, false] {
        for filesystem in [true, false] {
            for jobs_in in [NAMESPACE, "mover-system"] {
                for keep_base in [true, false] {
                    all.push((backup, jobs_in, filesystem, keep_base));
                }
            }
        }
    }
    all
}

fn start(backup: bool, jobs_in: &str, filesystem: bool, keep_base: bool) -> (Fake, Anchor) {
    let mut fake = shop(filesystem);
    let request = if backup {
        backup_request(&fake, filesystem, jobs_in, keep_base)
    } else {
        fake.repository.insert("old".into(), DATA.into());
        let request = restore_request("old", filesystem, jobs_in);
        // It is of another state than the backup: what comes out is the backup all the same.
        if keep_base { from_snapshot(&mut fake, request, "other") } else { request }
    };
    let anchor = begin(&mut fake, "first", &request);
    (fake, anchor)
}

#[test]
fn killed_before_and_after_each_write_the_same_command_ends_well() {
    for (backup, jobs_in, filesystem, keep_base) in forms() {
        for done in [false, true] {
            for writes in 0.. {
                let (mut fake, anchor) = start(backup, jobs_in, filesystem, keep_base);
                let ended = drive_until(&mut fake, &anchor, writes, done);
                let outcome = drive(&mut fake, &anchor);
                let about = format!("{backup} {jobs_in} {filesystem} {keep_base} {done} {writes}");
                assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
                assert_clean(&mut fake, &anchor, usize::from(!backup), usize::from(keep_base));
                if backup {
                    assert_eq!(fake.repository[&anchor.uid], DATA, "{about}");
                } else {
                    assert_restored(&fake, filesystem);
                }
                if ended {
                    assert!(writes > 5, "{about}: an operation writes more than that");
                    break;
                }
            }
        }
    }
}

/// Asked to stop after each write: everything is removed, or it was too late and all is done.
#[test]
fn cancelled_after_each_write_nothing_is_left() {
    for (backup, jobs_in, filesystem, keep_base) in forms() {
        for writes in 0.. {
            let (mut fake, anchor) = start(backup, jobs_in, filesystem, keep_base);
            let ended = drive_until(&mut fake, &anchor, writes, true);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let outcome = drive(&mut fake, &anchor);
            let about =
                format!("{backup} {jobs_in} {filesystem} {keep_base} {writes}: {outcome:?}");
            assert!([0, 143].contains(&outcome.exit_code), "{about}");
            let good = outcome.exit_code == 0;
            let base = usize::from(keep_base && (good || !backup));
            assert_clean(&mut fake, &anchor, usize::from(good && !backup), base);
            if good && !backup {
                assert_restored(&fake, filesystem);
            }
            if ended {
                break;
            }
        }
    }
}

/// Whatever the operation made is deleted by somebody at any moment: it ends, right or with an
/// error, and with nothing left; and it is never a claim that is bound to other data.
#[test]
fn an_object_that_somebody_deletes_is_an_error_and_never_other_data() {
    for (backup, jobs_in, filesystem, keep_base) in forms() {
        for kind in [
            Kind::VolumeSnapshot,
            Kind::VolumeSnapshotContent,
            Kind::PersistentVolumeClaim,
            Kind::PersistentVolume,
            Kind::Job,
            Kind::Pod,
            Kind::Lease,
        ] {
            for writes in 1.. {
                let (mut fake, anchor) = start(backup, jobs_in, filesystem, keep_base);
                let ended = drive_until(&mut fake, &anchor, writes, true);
                for (key, object) in fake.of_kind(kind) {
                    let meta = Meta::of(&object);
                    if !["db", "pv-db"].contains(&key.name.as_str()) {
                        fake.delete(&key, &meta.uid);
                    }
                }
                let outcome = drive(&mut fake, &anchor);
                let about =
                    format!("{kind:?} {backup} {jobs_in} {filesystem} {writes}: {outcome:?}");
                settle(&mut fake);
                assert_eq!(fake.left(), Vec::<String>::new(), "{about}");
                if let Some(data) = fake.repository.get(&anchor.uid) {
                    assert_eq!(data, DATA, "{about}");
                }
                let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db-restored");
                if fake.get(&claim).is_some_and(|claim| claim["status"]["phase"] == "Bound") {
                    assert_restored_data(&fake, &claim, &about);
                }
                assert_eq!(fake.storage["vol-db"], DATA, "{about}");
                if ended {
                    break;
                }
            }
        }
    }
}

fn assert_restored_data(fake: &Fake, claim: &Key, about: &str) {
    let name = fake.objects[claim]["spec"]["volumeName"].as_str().expect("bound");
    if let Some(volume) = fake.get(&Key::wide(Kind::PersistentVolume, name)) {
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().expect("a handle");
        assert_eq!(fake.storage.get(handle).map(String::as_str), Some(DATA), "{about}");
    }
}

/// A write that is done twice, as after an answer that was lost, is done once.
#[test]
fn each_write_may_be_done_twice() {
    for (backup, jobs_in, filesystem, keep_base) in forms() {
        let (mut fake, anchor) = start(backup, jobs_in, filesystem, keep_base);
        let mut seen = Observed::default();
        let mut end = None;
        while end.is_none() {
            seen.set_now(fake.now);
            if let Err(Stop::Next(Next::Do(step))) = plan(&anchor, &seen) {
                let mut lost: Observed = seen.clone();
                fake.execute(&step, &mut lost);
                let again: &Step = &step;
                fake.execute(again, &mut seen);
                continue;
            }
            end = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds its outcome");
        }
        assert_eq!(end.map(|end| end.exit_code), Some(0));
        assert_clean(&mut fake, &anchor, usize::from(!backup), usize::from(keep_base));
    }
}
