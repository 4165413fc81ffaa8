//! Salvage: data that is damaged in a pack that is there, and stands a second time in the
//! repository, is given back, and a repair makes that last.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

mod repair;
mod roots;
mod world;

use mover_engine::ops::check::ReadData;
use world::{BOTH, World};

#[test]
fn what_stands_a_second_time_is_restored_verified_and_told() {
    for encryption in BOTH {
        let world = World::new("salvage-read", encryption);
        for (what, damage) in world.damages() {
            let objects = world.fork();
            damage(&world, &objects);
            let restored = world.vault.restored(objects.clone(), "one").unwrap();
            assert!(restored == world.content, "{what}");
            let verified = world.vault.verify(objects.clone(), "one").unwrap();
            let found = verified.salvaged.unwrap();
            assert!(found.chunks + found.pages > 0, "{what}");
            let said = verified.warnings.join("; ");
            assert!(said.contains("found elsewhere"), "{what}: {said}");
            let report = world.check(&objects, ReadData::All, false);
            assert!(report.lost.is_empty(), "{what}: {:?}", report.lost);
            let [of] = report.elsewhere.as_slice() else { panic!("{what}: {report:?}") };
            assert!(of.name.backup_id.as_str() == "one" && of.elsewhere_bytes > 0, "{what}");
            let repo = world.vault.open(objects.clone()).unwrap();
            let e = report.to_result(&repo).unwrap_err();
            assert!(e.to_string().contains("stored elsewhere"), "{what}: {e}");
        }
    }
}

#[test]
fn where_the_other_copy_is_damaged_too_the_data_is_lost() {
    let world = World::new("salvage-both", BOTH[0]);
    let objects = world.fork();
    for at in [world.chunk_at("v@one", 5), world.chunk_at("w@other", 5)] {
        world.flip_entry(&objects, &at);
    }
    assert!(world.vault.restored(objects.clone(), "one").is_err());
    let report = world.check(&objects, ReadData::All, true);
    assert!(report.lost.len() == 2 && report.elsewhere.is_empty(), "{report:?}");
    assert_eq!(report.repaired.backups, 0);
    assert_eq!(world.attempts(&objects), [("one".to_owned(), 0), ("other".to_owned(), 0)]);
}
