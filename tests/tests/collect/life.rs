//! Random lives: backups that share chunks, forgets, collections, and deaths in the middle of any
//! of them.

use crate::world::{CHUNK, LONG, World};
use std::fs;
use std::sync::Arc;
use tests::{ClockedStore, Death, DyingStore, Rng, expect_clean};

/// What a life does to the repository that it has in mind.
struct Life {
    world: Arc<World>,
    objects: Arc<ClockedStore>,
    rng: Rng,
    pool: Vec<Vec<u8>>,
    alive: Vec<(String, Vec<u8>)>,
    steps: u64,
    rewritten: u64,
}

impl Life {
    /// A volume of new chunks, and of some that others have had: packs die in part, and what is
    /// left of them moves again and again.
    fn image(&mut self) -> Vec<u8> {
        let mut content = self.rng.bytes(CHUNK * 25);
        for _ in 0..self.rng.below(8) {
            let at = self.rng.below(self.pool.len() as u64);
            content.extend(&self.pool[usize::try_from(at).unwrap()]);
        }
        content
    }

    fn step(&mut self) {
        self.steps += 1;
        let objects = self.objects.clone();
        match self.rng.below(10) {
            0..4 => {
                let (content, id) = (self.image(), format!("b{}", self.steps));
                let image = self.world.vault.path("life.img");
                fs::write(&image, &content).unwrap();
                let death = Death { change: self.rng.below(8), done: self.rng.once_in(2) };
                let death = self.rng.once_in(5).then_some(death);
                let dying = DyingStore::new(objects, death);
                let done = self.world.vault.backup(dying, &image, &id, None);
                let there = self.world.vault.restored(self.objects.clone(), &id);
                assert!(done.is_err() || there.is_ok(), "{id}");
                self.alive.extend(there.is_ok().then_some((id, content)));
            }
            4..7 if self.alive.len() > 2 => {
                let at = self.rng.below(self.alive.len() as u64);
                let (id, _) = self.alive.swap_remove(usize::try_from(at).unwrap());
                self.world.vault.forget(objects, &id).unwrap();
            }
            7 => self.objects.advance(LONG),
            _ => {
                let death = Death { change: self.rng.below(20), done: self.rng.once_in(2) };
                let death = self.rng.once_in(3).then_some(death);
                let done = self.world.vault.collect(DyingStore::new(objects, death), false);
                self.rewritten += done.map_or(0, |done| done.rewritten_packs);
            }
        }
    }

    fn check(&self, when: &str) {
        for (id, content) in &self.alive {
            let restored = self.world.vault.restored(self.objects.clone(), id);
            assert!(restored.unwrap_or_else(|e| panic!("{when}: {id}: {e}")) == *content, "{when}");
        }
    }
}

#[test]
fn a_life_of_backups_forgets_collections_and_deaths_keeps_what_counts() {
    let world = World::new("collect-life");
    let mut rng = Rng::new(5);
    let (mut rewritten, mut stubs) = (0, 0);
    for life in 0..6 {
        let mut rng = rng.fork();
        let pool = (0..12).map(|_| rng.bytes(CHUNK)).collect();
        let (objects, alive) = (world.start(), Vec::new());
        let mut life_of =
            Life { world: world.clone(), objects, rng, pool, alive, steps: 0, rewritten: 0 };
        for step in 0..60 {
            life_of.step();
            if step % 6 == 5 {
                life_of.check(&format!("life {life}, step {step}"));
            }
        }
        for _ in 0..2 {
            life_of.objects.advance(LONG);
            world.vault.collect(life_of.objects.clone(), false).unwrap();
        }
        life_of.check(&format!("life {life}, end"));
        let repo = world.vault.open(life_of.objects.clone()).unwrap();
        let (count, when) = (life_of.alive.len(), format!("life {life}"));
        world.vault.block_on(expect_clean(&repo, count, &when));
        let left = world.vault.block_on(repo.store().list("moved")).unwrap().len();
        println!(
            "life {life}: {count} backups, {} packs rewritten, {left} stubs",
            life_of.rewritten
        );
        rewritten += life_of.rewritten;
        stubs += left;
    }
    assert!(rewritten > 0 && stubs > 0, "nothing was ever moved");
}
