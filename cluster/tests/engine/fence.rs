//! A driver of a restore that was paused, and goes on with what it knew then: nothing of it ever
//! writes to a volume that was proved.

use super::*;
use mover_cluster::engine::Step;

fn start(filesystem: bool, jobs_in: &str) -> (Fake, Anchor) {
    let mut fake = shop(filesystem);
    fake.repository.insert("old".into(), DATA.into());
    let anchor = begin(&mut fake, "first", &restore_request("old", filesystem, jobs_in));
    (fake, anchor)
}

/// Drives until it is about to make its write of this number; that write, and what is known by then.
fn pause(fake: &mut Fake, anchor: &Anchor, writes: usize) -> Option<(Observed, Step)> {
    super::pause::pause(fake, anchor, Observed::default(), writes, |_| {})
}

fn is_handed_over(fake: &Fake, anchor: &Anchor) -> bool {
    fake.get(&anchor.key).expect("it stays")["data"]["handover"].is_string()
}

/// Each write of the late driver is made at each moment after the proof, and a few more by what it
/// knew. Then it is gone. The cluster in memory has every pod fail that writes after the proof.
#[test]
fn a_late_driver_has_no_pod_that_writes_after_the_proof() {
    for (filesystem, jobs_in) in [(true, NAMESPACE), (false, NAMESPACE), (false, "mover-system")] {
        for paused in 0.. {
            let (mut before, anchor) = start(filesystem, jobs_in);
            let Some((late, step)) = pause(&mut before, &anchor, paused) else {
                assert!(paused > 8, "a restore writes more than that");
                break;
            };
            let mut other = Observed::default();
            other.set_now(before.now);
            while !is_handed_over(&before, &anchor) {
                assert_eq!(turn(&mut before, &anchor, &mut other), Ok(None));
            }
            let mut ended = false;
            for turns in 0.. {
                if turns > 0 {
                    ended = turn(&mut before, &anchor, &mut other).expect("an outcome").is_some();
                }
                let mut fake = before.clone();
                goes_on_late(&mut fake, &anchor, late.clone(), &step);
                let outcome = drive(&mut fake, &anchor);
                assert_eq!(outcome.exit_code, 0, "{paused} {turns}: {outcome:?}");
                assert_clean(&mut fake, &anchor, 1, 0);
                assert_restored(&fake, filesystem);
                if ended {
                    break;
                }
            }
        }
    }
}

/// What it was about to write, and what follows from that for it, with all that the cluster does then.
fn goes_on_late(fake: &mut Fake, anchor: &Anchor, mut late: Observed, step: &Step) {
    fake.execute(step, &mut late);
    settle(fake);
    for _ in 0..4 {
        let Err(Stop::Next(Next::Do(step))) = plan(anchor, &late) else { break };
        fake.execute(&step, &mut late);
        settle(fake);
    }
}

/// A Job that a late driver made after the end is one that never has a pod.
#[test]
fn a_job_that_is_made_after_the_end_stays_suspended() {
    let (mut fake, anchor) = start(false, NAMESPACE);
    let job = anchor.job(NAMESPACE, 1);
    let is_it =
        |step: &Step| matches!(step, Step::Create(made) if mover_cluster::api::key_of(made) == job);
    let (late, step) = (0..)
        .map_while(|writes| pause(&mut fake.clone(), &anchor, writes))
        .find(|(_, step)| is_it(step))
        .expect("it makes a Job");
    // The cluster is as that driver left it.
    let mut seen = Observed::default();
    while !is_handed_over(&fake, &anchor) {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None));
    }
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    settle(&mut fake);
    assert!(fake.get(&job).is_none(), "it was removed");
    goes_on_late(&mut fake, &anchor, late, &step);
    let made = fake.get(&job).expect("the late driver made it");
    assert_eq!(made["spec"]["suspend"], true);
    assert_eq!(fake.of_kind(Kind::Pod), Vec::new());
    // Whoever looks at the operation again takes it away.
    assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    assert_clean(&mut fake, &anchor, 1, 0);
}

/// A result that went with its pod is asked for by another Job, which the anchor names as well.
#[test]
fn a_job_that_runs_again_is_named_too() {
    for lost in 1..=2 {
        let (mut fake, anchor) = start(true, "mover-system");
        fake.faults.pods_lost = lost;
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 0, "{outcome:?}");
        let named = fake.get(&anchor.key).expect("it stays")["data"]["jobs"].clone();
        let named = named.as_str().expect("its Jobs").split(' ').count();
        assert_eq!(named, usize::try_from(lost).expect("few") + 1);
        assert_clean(&mut fake, &anchor, 1, 0);
        assert_restored(&fake, true);
    }
}

/// A pod of ours that its Job does not take along may still have the volume mounted, and not every
/// driver has attachments: the volume is not handed over before it is gone.
#[test]
fn a_volume_is_not_handed_over_while_a_pod_of_ours_is_there() {
    for (filesystem, jobs_in) in [(true, NAMESPACE), (true, "mover-system"), (false, NAMESPACE)] {
        let mut fake = shop(filesystem);
        fake.repository.insert("old".into(), DATA.into());
        let request = restore_request("old", filesystem, jobs_in);
        let anchor = begin(&mut fake, "first", &request);
        let labels = json!({ "mover.dev/owner": anchor.uid });
        fake.create(&json!({
            "kind": "Pod",
            "metadata": { "name": "orphan", "namespace": jobs_in, "labels": labels },
            "spec": {},
            "status": { "phase": "Succeeded" },
        }));
        let outcome = drive(&mut fake, &anchor);
        assert_eq!(outcome.exit_code, 1, "{outcome:?}");
        assert!(outcome.message.contains("pod/orphan in namespace"), "{outcome:?}");
        assert!(outcome.message.contains("the restored volume is pv/"), "{outcome:?}");
        let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db-restored");
        assert!(fake.get(&claim).is_none(), "{:#?}", fake.written);
    }
}

/// A driver is paused before each write of the hand-over. Another one ends it, and the user deletes
/// the claim with its volume: the first one makes neither anew.
#[test]
fn a_late_driver_makes_no_claim_that_its_user_has_deleted() {
    for (filesystem, jobs_in) in [(true, NAMESPACE), (true, "mover-system"), (false, NAMESPACE)] {
        for writes in 0.. {
            let mut fake = shop(filesystem);
            fake.repository.insert("old".into(), DATA.into());
            let request = restore_request("old", filesystem, jobs_in);
            let anchor = begin(&mut fake, "first", &request);
            let mut late = Observed::default();
            let mut made = 0;
            let mut ended = false;
            while made < writes && !ended {
                late.set_now(fake.now);
                made += usize::from(matches!(plan(&anchor, &late), Err(Stop::Next(Next::Do(_)))));
                ended = turn(&mut fake, &anchor, &mut late).expect("an outcome").is_some();
            }
            if ended {
                assert!(writes > 5);
                break;
            }
            assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
            settle(&mut fake);
            let claim = Key::new(Kind::PersistentVolumeClaim, NAMESPACE, "db-restored");
            let uid = Meta::of(&fake.objects[&claim]).uid;
            fake.delete(&claim, &uid);
            settle(&mut fake);
            fake.now += Duration::from_secs(60);
            while turn(&mut fake, &anchor, &mut late).expect("an outcome").is_none() {}
            settle(&mut fake);
            assert!(fake.get(&claim).is_none(), "{writes}: {:#?}", fake.written);
            assert_eq!(fake.of_kind(Kind::PersistentVolume).len(), 1, "{writes}");
        }
    }
}
