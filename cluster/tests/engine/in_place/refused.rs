//! Writes that the API refuses.

use super::*;
use mover_cluster::engine::Step;

/// Each write is refused, every time: the claim is given back, or it says where its data is, and the
/// next restore ends well.
#[test]
fn whatever_write_is_refused_the_data_stays() {
    for form in FORMS {
        for refused in 0.. {
            let (mut fake, anchor) = start(form);
            let Some((_, like)) = pause(&mut fake.clone(), &anchor, form, refused) else {
                assert!(refused > 8);
                break;
            };
            let mut seen = Observed::default();
            let mut end = None;
            for _ in 0..3000 {
                seen.set_now(fake.now);
                if let Err(Stop::Next(Next::Do(write))) = plan(&anchor, &seen)
                    && is_like(&write, &like)
                {
                    let why = mover_cluster::engine::Failure::new(4, "no right");
                    seen.refuse(*write, why);
                    continue;
                }
                // Its record may not be able to say how it ended.
                match turn(&mut fake, &anchor, &mut seen) {
                    Ok(None) => {}
                    other => {
                        end = Some(other);
                        break;
                    }
                }
                check(&fake, form);
            }
            let end = end.unwrap_or_else(|| panic!("{like:?}: {:#?}", fake.written));
            settle(&mut fake, form);
            let data = fake.storage["vol-db"].clone();
            let marked =
                Meta::of(&fake.objects[&volume_key()]).annotations.contains_key(HALF_WRITTEN);
            assert!(data != HALF || marked, "{like:?}: {end:?}");
            // Whoever has the right ends what is unfinished, and restores.
            let _ = drive(&mut fake, &anchor, form);
            heals(&mut fake, form);
        }
    }
}

/// The same verb upon the same object.
fn is_like(one: &Step, other: &Step) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other) && one.key() == other.key()
}
