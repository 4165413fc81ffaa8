//! The store of the model: which objects there are, and as much of their content as the protocol
//! looks at.
//!
//! A *place* is one entry of a pack. A backup is the set of places that its manifest leads to,
//! chunks and pages alike: a page is immutable, so what it names never changes after the commit.
//! Everything is a bit set or a small array, so that a state is a few hundred bytes and hashing
//! it is cheap.

use std::fmt;

/// Entries of a pack.
pub(crate) const ENTRIES: u8 = 2;
/// Most packs; the last one is for the collector that tidies up at the end.
pub(crate) const PACKS: usize = 13;
/// Most manifest keys.
pub(crate) const SLOTS: usize = 6;
/// Most generations; the last [`SETTLING`] belong to the collector that tidies up at the end.
pub(crate) const GENS: usize = 5;
/// Generations of the last collector.
pub(crate) const SETTLING: usize = 2;
/// Most leases.
pub(crate) const LEASES: usize = 14;
/// No such thing.
pub(crate) const NONE: u8 = u8::MAX;

pub(crate) type Places = u32;
pub(crate) type Packs = u16;
pub(crate) type Slots = u8;
pub(crate) type Gens = u8;
pub(crate) type Leases = u16;

/// Place `entry` of `pack`.
pub(crate) const fn place(pack: u8, entry: u8) -> u8 {
    pack * ENTRIES + entry
}

/// All places of a pack.
pub(crate) const fn places_of(pack: u8) -> Places {
    0b11 << (pack * ENTRIES)
}

/// The bits that are set, ascending.
pub(crate) fn bits(mut set: u32) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let low = u8::try_from(set.trailing_zeros()).expect("at most 32");
            set &= set - 1;
            low
        })
    })
}

/// The packs that places lie in.
pub(crate) fn packs_of(places: Places) -> Packs {
    bits(places).fold(0, |packs, place| packs | 1 << (place / ENTRIES))
}

/// What stands at a manifest key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Manifest {
    #[default]
    Absent,
    Fence,
    Backup(Places),
}

/// What stands at a condemned key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Condemned {
    #[default]
    Absent,
    Fence,
    List,
}

/// A condemned list: what dies, what was copied, what it took for forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct List {
    pub(crate) dead: Packs,
    /// The places whose copies are entry 0 and 1 of `target`.
    pub(crate) copied: [u8; 2],
    pub(crate) target: u8,
    pub(crate) forgotten: Slots,
}

impl Default for List {
    fn default() -> Self {
        Self { dead: 0, copied: [NONE; 2], target: NONE, forgotten: 0 }
    }
}

impl List {
    pub(crate) fn rewritten(&self) -> Packs {
        packs_of(self.copied_places())
    }

    pub(crate) fn copied_places(&self) -> Places {
        self.copied.iter().filter(|c| **c != NONE).fold(0, |set, c| set | 1 << c)
    }

    /// Where a place was copied to.
    pub(crate) fn moved(&self, from: u8) -> Option<u8> {
        let entry = self.copied.iter().position(|c| *c == from)?;
        Some(place(self.target, u8::try_from(entry).expect("two entries")))
    }
}

/// `gc/<generation>/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Generation {
    pub(crate) condemned: Condemned,
    /// The list as it was created; a generation has one in its life. It counts only while
    /// `condemned` is `List`.
    pub(crate) list: List,
    pub(crate) blockers: Option<Leases>,
    pub(crate) verdict: Option<Packs>,
}

/// What a fence of a lease's holder must take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Key {
    #[default]
    Nothing,
    Manifest(u8),
    Condemned(u8),
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Store {
    pub(crate) packs: Packs,
    pub(crate) manifests: [Manifest; SLOTS],
    pub(crate) forgotten: Slots,
    /// Places that any segment names.
    pub(crate) segments: Places,
    /// Stub of a pack: 1 + the generation whose copies it names; 0: none.
    pub(crate) stubs: [u8; PACKS],
    pub(crate) leases: Leases,
    /// Fixed when a lease is created.
    pub(crate) keys: [Key; LEASES],
    /// What the checkpoint of a lease says is stored.
    pub(crate) checkpoints: [Places; LEASES],
    pub(crate) gens: [Generation; GENS],
    /// Fences that were begun.
    pub(crate) fenced: u8,
    /// Not in the store: places whose bytes are lost or damaged, from the beginning. Only chunks: a
    /// mark reads pages.
    pub(crate) bad: Places,
    /// Places that damage records name, one each.
    pub(crate) damaged: Places,
    /// A feature was added that the writers know and no collector does.
    pub(crate) feature: bool,
    /// Not in the store: a damage record was written.
    pub(crate) was_recorded: bool,
    /// Not in the store: somebody who began after that has committed a backup that leads to a bad
    /// place.
    pub(crate) built_on_damage: bool,
    /// Not in the store: backups whose writer was told that they exist and that nobody has
    /// forgotten since.
    pub(crate) owed: Slots,
    /// Not in the store: a reader whose lease was there found neither a pack nor a stub.
    pub(crate) reader_failed: bool,
}

impl Store {
    /// Whether the bytes of a place can be had, through stubs if need be.
    pub(crate) fn readable(&self, place: u8) -> bool {
        let mut at = place;
        for _ in 0..=PACKS {
            if self.packs & 1 << (at / ENTRIES) != 0 {
                return true;
            }
            match self.stub(at) {
                Some(next) => at = next,
                None => return false,
            }
        }
        false
    }

    /// One hop through `moved/`.
    pub(crate) fn stub(&self, place: u8) -> Option<u8> {
        let generation = self.stubs[usize::from(place / ENTRIES)].checked_sub(1)?;
        self.gens[usize::from(generation)].list.moved(place)
    }

    /// A backup that exists: its manifest is there and no forgotten record is.
    pub(crate) fn backup(&self, slot: u8) -> Option<Places> {
        match self.manifests[usize::from(slot)] {
            Manifest::Backup(places) if self.forgotten & 1 << slot == 0 => Some(places),
            _ => None,
        }
    }

    /// All backups that exist, with their places.
    pub(crate) fn backups(&self) -> impl Iterator<Item = (u8, Places)> + '_ {
        (0..u8::try_from(SLOTS).expect("few")).filter_map(|s| Some((s, self.backup(s)?)))
    }

    /// Every existing backup leads to what is there, but for what was bad from the beginning.
    pub(crate) fn backups_are_whole(&self) -> bool {
        self.backups().all(|(_, places)| bits(places & !self.bad).all(|p| self.readable(p)))
    }

    /// All places of packs that are there.
    pub(crate) fn stored(&self) -> Places {
        bits(self.packs.into()).fold(0, |all, pack| all | places_of(pack))
    }

    /// Takes the key that the holder of a lease may still create, unless it is taken.
    pub(crate) fn fence(&mut self, lease: u8) {
        match self.keys[usize::from(lease)] {
            Key::Nothing => {}
            Key::Manifest(slot) => {
                let there = &mut self.manifests[usize::from(slot)];
                if *there == Manifest::Absent {
                    *there = Manifest::Fence;
                }
            }
            Key::Condemned(generation) => {
                let there = &mut self.gens[usize::from(generation)].condemned;
                if *there == Condemned::Absent {
                    *there = Condemned::Fence;
                }
            }
        }
    }

    /// Whether a lease is there.
    pub(crate) fn has_lease(&self, lease: u8) -> bool {
        self.leases & 1 << lease != 0
    }

    /// What was promised is there.
    pub(crate) fn promises_are_kept(&self) -> bool {
        bits(self.owed.into()).all(|slot| self.backup(slot).is_some())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packs: Vec<u8> = bits(self.packs.into()).collect();
        write!(f, "packs {packs:?}")?;
        for (slot, manifest) in self.manifests.iter().enumerate() {
            let gone = if self.forgotten & 1 << slot == 0 { "" } else { " forgotten" };
            match manifest {
                Manifest::Absent if gone.is_empty() => {}
                Manifest::Absent => write!(f, ", manifest {slot} gone,{gone}")?,
                Manifest::Fence => write!(f, ", manifest {slot} fence")?,
                Manifest::Backup(places) => {
                    let places: Vec<String> =
                        bits(*places).map(|p| format!("{}.{}", p / ENTRIES, p % ENTRIES)).collect();
                    write!(f, ", manifest {slot} [{}]{gone}", places.join(" "))?;
                }
            }
        }
        for (pack, generation) in self.stubs.iter().enumerate().filter(|(_, g)| **g != 0) {
            write!(f, ", stub {pack} of gc {}", generation - 1)?;
        }
        for (g, generation) in self.gens.iter().enumerate() {
            let Generation { condemned, list, blockers, verdict } = generation;
            match condemned {
                Condemned::Absent => {}
                Condemned::Fence => write!(f, ", gc {g} fenced")?,
                Condemned::List => {
                    let dead: Vec<u8> = bits(list.dead.into()).collect();
                    let copied: Vec<u8> = bits(list.rewritten().into()).collect();
                    write!(f, ", gc {g} dead {dead:?} copied {copied:?}")?;
                    write!(f, " forgotten {:?}", bits(list.forgotten.into()).collect::<Vec<_>>())?;
                }
            }
            if let Some(blockers) = blockers {
                write!(f, ", gc {g} blockers {:?}", bits((*blockers).into()).collect::<Vec<_>>())?;
            }
            if let Some(dead) = verdict {
                write!(f, ", gc {g} verdict {:?}", bits((*dead).into()).collect::<Vec<_>>())?;
            }
        }
        if self.damaged != 0 {
            write!(f, ", records of {:?}", bits(self.damaged).collect::<Vec<_>>())?;
        }
        write!(f, ", leases {:?}", bits(self.leases.into()).collect::<Vec<_>>())
    }
}
