//! Which object of a real repository is which of the model.

use super::record::Request;
use crate::store::{
    Condemned, ENTRIES, LEASES, Manifest, NONE, PACKS, Packs, Places, Store, bits, place,
};
use chunkstore::format::names::{
    AttemptName, GcObject, blockers_key, condemned_key, lease_key, pack_key, parse_forgotten_key,
    parse_gc_key, parse_lease_key, parse_manifest_key, parse_pack_key, parse_stub_key, stub_key,
    verdict_key,
};
use chunkstore::testkit::Verb;
use chunkstore::{
    PackId,
    ids::{GenerationId, LeaseId},
};
use std::collections::{BTreeMap, BTreeSet};

/// A chunk or page of a pack.
pub(super) type RealPlace = (PackId, u32, u16);

/// An object of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    Pack(u8),
    Manifest(u8),
    Forgotten(u8),
    Lease(u8),
    Stub(u8),
    Condemned(u8),
    Blockers(u8),
    Verdict(u8),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Names {
    packs: Vec<PackId>,
    slots: Vec<AttemptName>,
    gens: Vec<GenerationId>,
    leases: BTreeMap<LeaseId, u8>,
    /// Places that belong together: what refers to one of them refers to all.
    places: BTreeMap<RealPlace, u8>,
}

fn number<T: PartialEq>(all: &[T], one: &T) -> Option<u8> {
    all.iter().position(|other| other == one).map(|n| u8::try_from(n).unwrap())
}

fn named<T: Clone + PartialEq>(all: &mut Vec<T>, one: &T, most: usize) -> u8 {
    number(all, one).unwrap_or_else(|| {
        assert!(all.len() < most, "the model has only {most} of them");
        all.push(one.clone());
        u8::try_from(all.len() - 1).unwrap()
    })
}

impl Names {
    pub(super) fn pack(&mut self, pack: &PackId) -> u8 {
        named(&mut self.packs, pack, PACKS - 1)
    }

    pub(super) fn slot(&mut self, name: &AttemptName) -> u8 {
        named(&mut self.slots, name, crate::store::SLOTS)
    }

    pub(super) fn generation(&mut self, generation: &GenerationId) -> u8 {
        named(&mut self.gens, generation, crate::store::GENS)
    }

    pub(super) fn lease(&mut self, lease: &LeaseId, number: u8) {
        assert!(usize::from(number) < LEASES, "the model has only {LEASES} leases");
        self.leases.retain(|_, other| *other != number);
        self.leases.insert(*lease, number);
    }

    /// The number of a lease that somebody has made.
    pub(super) fn knows_lease(&self, lease: &LeaseId) -> Option<u8> {
        self.leases.get(lease).copied()
    }

    /// Groups what is referred to: places of one pack that the same backups refer to are one
    /// place of the model.
    pub(super) fn group(&mut self, maps: &BTreeMap<AttemptName, BTreeSet<RealPlace>>) {
        let mut users: BTreeMap<RealPlace, BTreeSet<&AttemptName>> = BTreeMap::new();
        for (name, map) in maps {
            for at in map {
                users.entry(*at).or_default().insert(name);
            }
        }
        let mut groups: BTreeMap<PackId, Vec<BTreeSet<&AttemptName>>> = BTreeMap::new();
        for (at, users) in users {
            let of_pack = groups.entry(at.0).or_default();
            let entry = of_pack.iter().position(|other| *other == users).unwrap_or_else(|| {
                of_pack.push(users);
                of_pack.len() - 1
            });
            let entry = u8::try_from(entry).unwrap();
            assert!(entry < ENTRIES, "a pack of this run has more than two kinds of chunks");
            if let Some(pack) = number(&self.packs, &at.0) {
                self.places.insert(at, place(pack, entry));
            }
        }
    }

    pub(super) fn places(&self, map: &BTreeSet<RealPlace>) -> Places {
        map.iter().fold(0, |all, at| all | 1 << self.places[at])
    }

    /// Which entries of a pack anybody ever refers to.
    pub(super) fn entries(&self, pack: u8) -> u8 {
        let of_pack = self.places.values().filter(|p| **p / ENTRIES == pack);
        of_pack.fold(0, |all, p| all | 1 << (p % ENTRIES))
    }

    pub(super) fn packs<'a>(&self, packs: impl IntoIterator<Item = &'a PackId>) -> Packs {
        let number = |pack| number(&self.packs, pack).expect("a pack that somebody has put");
        packs.into_iter().fold(0, |all, pack| all | 1 << number(pack))
    }

    pub(super) fn slots<'a>(&self, names: impl IntoIterator<Item = &'a AttemptName>) -> u8 {
        let number = |name| number(&self.slots, name).expect("a backup that somebody has made");
        names.into_iter().fold(0, |all, name| all | 1 << number(name))
    }

    /// The object that a key names; `None`: none that the model has.
    pub(super) fn object(&self, key: &str) -> Option<Object> {
        if let Ok(pack) = parse_pack_key(key) {
            return number(&self.packs, &pack).map(Object::Pack);
        }
        if let Ok(pack) = parse_stub_key(key) {
            return number(&self.packs, &pack).map(Object::Stub);
        }
        if let Ok(name) = parse_manifest_key(key) {
            return number(&self.slots, &name).map(Object::Manifest);
        }
        if let Ok(name) = parse_forgotten_key(key) {
            return number(&self.slots, &name).map(Object::Forgotten);
        }
        if let Ok(lease) = parse_lease_key(key) {
            return self.leases.get(&lease).map(|l| Object::Lease(*l));
        }
        let (generation, object) = parse_gc_key(key).ok()?;
        let g = number(&self.gens, &generation)?;
        Some(match object {
            GcObject::Condemned => Object::Condemned(g),
            GcObject::Blockers => Object::Blockers(g),
            GcObject::Verdict => Object::Verdict(g),
        })
    }

    pub(super) fn lease_of(&self, number: u8) -> Option<String> {
        self.leases.iter().find(|(_, n)| **n == number).map(|(id, _)| lease_key(id))
    }

    /// The key of an object, if it has one.
    pub(super) fn key(&self, object: Object) -> Option<String> {
        let n = usize::from;
        Some(match object {
            Object::Pack(p) => pack_key(self.packs.get(n(p))?),
            Object::Stub(p) => stub_key(self.packs.get(n(p))?),
            Object::Manifest(s) => self.slots.get(n(s))?.manifest_key(),
            Object::Forgotten(s) => self.slots.get(n(s))?.forgotten_key(),
            Object::Lease(l) => self.lease_of(l)?,
            Object::Condemned(g) => condemned_key(self.gens.get(n(g))?),
            Object::Blockers(g) => blockers_key(self.gens.get(n(g))?),
            Object::Verdict(g) => verdict_key(self.gens.get(n(g))?),
        })
    }

    /// Where the attempts of a backup are listed.
    pub(super) fn attempts_of(&self, slot: u8) -> Option<String> {
        let key = self.slots.get(usize::from(slot))?.manifest_key();
        key.rsplit_once('/').map(|(folder, _)| folder.to_owned())
    }

    /// Whether the store of the model answers as the real one did.
    pub(super) fn check(&self, store: &Store, request: &Request, what: &str) {
        if request.verb == Verb::List {
            return self.check_list(store, request, what);
        }
        let Some(object) = self.object(&request.key) else { return };
        let there = exists(store, object);
        assert_eq!(there, request.found, "{what}: {object:?} {request:?}, the model has {store:?}");
    }

    fn check_list(&self, store: &Store, request: &Request, what: &str) {
        let mut real = BTreeSet::new();
        for key in &request.listed {
            real.extend(self.object(key));
        }
        let all = all_objects(store);
        let prefix = format!("{}/", request.key);
        let is_listed = |o: &Object| self.key(*o).is_some_and(|key| key.starts_with(&prefix));
        let model: BTreeSet<Object> = all.into_iter().filter(is_listed).collect();
        assert_eq!(model, real, "{what}: {} lists otherwise", request.key);
    }
}

pub(super) fn exists(store: &Store, object: Object) -> bool {
    let n = usize::from;
    match object {
        Object::Pack(p) => store.packs & 1 << p != 0,
        Object::Stub(p) => store.stubs[n(p)] != 0,
        Object::Manifest(s) => store.manifests[n(s)] != Manifest::Absent,
        Object::Forgotten(s) => store.forgotten & 1 << s != 0,
        Object::Lease(l) => l != NONE && store.has_lease(l),
        Object::Condemned(g) => store.gens[n(g)].condemned != Condemned::Absent,
        Object::Blockers(g) => store.gens[n(g)].blockers.is_some(),
        Object::Verdict(g) => store.gens[n(g)].verdict.is_some(),
    }
}

fn all_objects(store: &Store) -> Vec<Object> {
    let mut all = Vec::new();
    let n = |most: usize| 0..u8::try_from(most).unwrap();
    all.extend(n(PACKS).flat_map(|p| [Object::Pack(p), Object::Stub(p)]));
    all.extend(n(store.manifests.len()).flat_map(|s| [Object::Manifest(s), Object::Forgotten(s)]));
    all.extend(bits(store.leases.into()).map(Object::Lease));
    let of = |g| [Object::Condemned(g), Object::Blockers(g), Object::Verdict(g)];
    all.extend(n(store.gens.len()).flat_map(of));
    all.retain(|object| exists(store, *object));
    all
}
