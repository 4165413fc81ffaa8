//! Drivers that were paused, or whose watch is dead.

use super::*;
use mover_cluster::engine::Step;

/// A driver that is paused before each of its writes, and makes it when another one has cancelled
/// the operation, or ended it: then it is gone.
#[test]
fn a_late_write_undoes_nothing() {
    for form in FORMS {
        for cancelled in [false, true] {
            for writes in 0.. {
                let (mut fake, anchor) = start(form);
                let Some((late, write)) = pause(&mut fake, &anchor, form, writes) else { break };
                if cancelled {
                    let note =
                        json!({ "metadata": { "annotations": { "mover.dev/cancel": "1" } } });
                    fake.change(&anchor.key, &note);
                }
                let first = drive(&mut fake, &anchor, form);
                late_write(&mut fake, &anchor, form, late, &write);
                // Whoever looks again removes what the late one made; `sweep` does as well.
                let outcome = drive(&mut fake, &anchor, form);
                assert_eq!(first.exit_code, outcome.exit_code, "{form:?} {writes}");
                assert_ended(&mut fake, &anchor, form, &outcome);
            }
        }
    }
}

/// A driver that may not write the record cannot end the time of writing: it gives nothing back
/// that another one, which was paused, may still write to.
#[test]
fn a_driver_that_may_not_write_its_record_gives_nothing_back() {
    for form in FORMS {
        for writes in 0.. {
            let (mut fake, anchor) = start(form);
            let Some((mut late, write)) = pause(&mut fake, &anchor, form, writes) else { break };
            remove_without_record(&mut fake, &anchor, form);
            fake.execute(&write, &mut late);
            settle(&mut fake, form);
            for _ in 0..40 {
                match plan(&anchor, &late) {
                    Err(Stop::Next(Next::Do(write))) => fake.execute(&write, &mut late),
                    Err(Stop::Next(Next::Read(query))) if query != anchor.key.clone().into() => {
                        fake.read(&query, &mut late);
                    }
                    _ => break,
                }
                settle(&mut fake, form);
            }
            let outcome = drive(&mut fake, &anchor, form);
            assert_ended(&mut fake, &anchor, form, &outcome);
        }
    }
}

/// Somebody removes the operation, and may not change its anchor.
fn remove_without_record(fake: &mut Fake, anchor: &Anchor, form: Form) {
    let mut seen = Observed::default();
    for _ in 0..3000 {
        seen.set_now(fake.now);
        match engine::plan(anchor, Mandate::Removal, &seen) {
            Err(Stop::Next(Next::Do(write))) if write.key() == anchor.key => {
                seen.refuse(*write, engine::Failure::new(4, "no right"));
            }
            Err(Stop::Next(Next::Do(write))) => fake.execute(&write, &mut seen),
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
            Err(Stop::Next(Next::Refresh)) => seen.forget_all(),
            Err(Stop::Next(Next::Wait(wait))) => {
                if !fake.tick() {
                    fake.now += wait.time;
                }
                seen.set_now(fake.now);
                wait.on.iter().for_each(|query| fake.read(query, &mut seen));
            }
            _ => return,
        }
        check(fake, form);
    }
    panic!("it does not end");
}

fn late_write(fake: &mut Fake, anchor: &Anchor, form: Form, mut late: Observed, write: &Step) {
    let before = fake.objects[&volume_key()].clone();
    // A note on the claim does no harm.
    let claim = |fake: &Fake| fake.get(&claim_key()).map(without_note);
    let claim_before = claim(fake);
    fake.execute(write, &mut late);
    settle(fake, form);
    for _ in 0..4 {
        let Err(Stop::Next(Next::Do(write))) = plan(anchor, &late) else { break };
        fake.execute(&write, &mut late);
        settle(fake, form);
    }
    assert_eq!(fake.objects[&volume_key()], before, "{write:?}");
    assert_eq!(claim(fake), claim_before, "{write:?}");
}

fn without_note(claim: &Value) -> Value {
    let mut claim = claim.clone();
    claim["metadata"]["resourceVersion"] = Value::Null;
    let notes = claim["metadata"]["annotations"].as_object_mut();
    notes.map(|notes| notes.remove(CLAIMED));
    claim
}

/// A driver whose watch of the anchor is dead, and that sees all else as it is: at each moment of
/// another driver it does nothing that this one cannot bring to its end.
#[test]
fn a_driver_with_an_old_anchor_does_no_harm() {
    for form in FORMS {
        for (writes, cancelled) in [(1, false), (2, false), (4, false), (8, false), (8, true)] {
            let (mut fake, anchor) = start(form);
            drive_until(&mut fake, &anchor, form, writes, true);
            let old = fake.objects[&anchor.key].clone();
            if cancelled {
                let note = json!({ "metadata": { "annotations": { "mover.dev/cancel": "1" } } });
                fake.change(&anchor.key, &note);
            }
            let mut seen = Observed::default();
            loop {
                let mut other = fake.clone();
                by_an_old_anchor(&mut other, &anchor, &old, form);
                let outcome = drive(&mut other, &anchor, form);
                assert!(outcome.exit_code == 0 || cancelled, "{form:?} {writes}: {outcome:?}");
                assert_ended(&mut other, &anchor, form, &outcome);
                if step(&mut fake, &anchor, &mut seen, form).is_some() {
                    break;
                }
            }
        }
    }
}

fn by_an_old_anchor(fake: &mut Fake, anchor: &Anchor, old: &Value, form: Form) {
    let mut seen = Observed::default();
    seen.set_object(anchor.key.clone(), Some(old.clone()));
    for _ in 0..40 {
        match plan(anchor, &seen) {
            Err(Stop::Next(Next::Read(query))) if query != anchor.key.clone().into() => {
                fake.read(&query, &mut seen);
            }
            Err(Stop::Next(Next::Do(write))) => {
                fake.execute(&write, &mut seen);
                settle(fake, form);
            }
            Err(Stop::Next(Next::Wait(wait))) => {
                for query in wait.on.iter().filter(|query| **query != anchor.key.clone().into()) {
                    fake.read(query, &mut seen);
                }
            }
            // It looks at the anchor again.
            _ => return,
        }
    }
}
