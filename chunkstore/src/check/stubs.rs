//! Packs that something refers to and that are not there: their stubs say where it went, or it is
//! lost.

use super::unreadable::Reference;
use super::{Check, FindingKind, is_damage, twice};
use crate::error::{ErrorKind, Result};
use crate::fetch::{PackFrame, read_frame};
use crate::format::names::pack_key;
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::limits::STUB_HOPS_MAX;
use crate::seal::Opener;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Looks for a pack and its stub before it is lost.
const LOOKS: usize = 2;

impl Check {
    /// Follows chains of stubs to packs that are there. Those are to be checked again if they were.
    pub(super) async fn follow_stubs(&mut self) -> Result<()> {
        for _ in 0..STUB_HOPS_MAX {
            let gone = std::mem::take(&mut self.gone);
            if gone.is_empty() {
                return Ok(());
            }
            let mut next = BTreeSet::new();
            for pack in gone {
                next.extend(self.follow_stub(pack).await?);
            }
            self.gone = next;
        }
        for pack in std::mem::take(&mut self.gone) {
            self.lose_pack(pack, format!("after {STUB_HOPS_MAX} stubs there is still no pack"));
        }
        Ok(())
    }

    /// Gives packs that are gone too, and that more leads to than before.
    async fn follow_stub(&mut self, pack: PackId) -> Result<Vec<PackId>> {
        let mut found = twice(|| self.repo.read_stub(&pack)).await;
        for _ in 0..LOOKS {
            if !matches!(found, Ok(None)) {
                break;
            }
            if self.repo.store().head(&pack_key(&pack)).await?.is_some() {
                // put since packs were listed, by whoever restored the object
                return Ok(Vec::new());
            }
            found = twice(|| self.repo.read_stub(&pack)).await;
        }
        let stub = match found {
            Ok(Some(stub)) => stub,
            Ok(None) => {
                self.lose_pack(pack, "it does not exist, and no stub says where it went".into());
                return Ok(Vec::new());
            }
            Err(e) if is_damage(&e) => {
                self.lose_pack(pack, format!("it does not exist, and its stub is damaged: {e}"));
                return Ok(Vec::new());
            }
            Err(e) => return Err(e),
        };
        self.rewritten.insert(pack);
        let mut absent = Vec::new();
        for (entry, index) in self.refs.places(&pack) {
            let Some(to) = stub.find(entry, index) else {
                self.lose_place(pack, entry, index);
                continue;
            };
            match self.refs.reach_through_stub((pack, entry, index), to) {
                Ok(false) => {}
                Ok(true) if self.inventory.packs.contains_key(&to.pack) => {
                    self.again.insert(to.pack);
                }
                Ok(true) => absent.push(to.pack),
                Err(e) => {
                    self.findings.add(FindingKind::Stub, pack_key(&pack), e.to_string());
                    self.damage.places.insert((pack, entry, index));
                }
            }
        }
        absent.sort_unstable();
        absent.dedup();
        Ok(absent)
    }

    fn lose_pack(&mut self, pack: PackId, why: String) {
        if self.lost.insert(pack) {
            self.findings.add(FindingKind::Pack, pack_key(&pack), why);
        }
        self.damage.entries.insert(pack, None);
    }

    fn lose_place(&mut self, pack: PackId, entry: u32, index: u16) {
        if self.lost.insert(pack) {
            let what = format!("its stub does not say where chunk {index} of entry {entry} went");
            self.findings.add(FindingKind::Stub, pack_key(&pack), what);
        }
        self.damage.places.insert((pack, entry, index));
    }

    /// Holds the places that stubs lead to against all who refer to them: only they know which chunk
    /// each is. Only packs with readable directories are asked.
    pub(super) async fn check_behind_stubs(&mut self) -> Result<()> {
        let asked = |pack: &&PackId| {
            self.inventory.packs.contains_key(*pack) && !self.unreadable_directories.contains(*pack)
        };
        let behind = self.refs.packs_behind_stubs().filter(asked).copied().collect();
        for group in self.groups(&behind) {
            let references = self.references(&group).await?;
            let odd = self.not_listed(&references).await?;
            let bad = self.unreadable(&odd).await?;
            let packs: BTreeSet<PackId> =
                bad.iter().map(|(reference, _)| reference.at.pack).collect();
            for pack in packs {
                let what = "a forwarding stub leads to another chunk in it than backups refer to";
                self.findings.add(FindingKind::Pack, pack_key(&pack), what);
            }
            self.lose_references(&references, bad);
        }
        Ok(())
    }

    /// Those of ascending references that directories do not list so.
    async fn not_listed(&self, references: &[Reference]) -> Result<Vec<Reference>> {
        let mut opener = Opener::new(Arc::clone(self.repo.keys()))?;
        let mut odd = Vec::new();
        for of_pack in references.chunk_by(|a, b| a.at.pack == b.at.pack) {
            let pack = of_pack[0].at.pack;
            let Some(size) = self.inventory.packs.get(&pack) else { continue };
            match read_frame(&self.repo, &mut opener, &pack, *size).await {
                Ok(frame) => odd.extend(of_pack.iter().filter(|r| !lists(&frame, r)).copied()),
                // a collection was faster: it has moved what lives
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                // it was right a moment ago: the entries themselves tell
                Err(e) if is_damage(&e) => odd.extend(of_pack),
                Err(e) => return Err(e),
            }
        }
        Ok(odd)
    }

    /// What leads through stubs to damage is damaged where it is referred to.
    pub(super) async fn carry_back(&mut self) -> Result<()> {
        if self.damage.is_empty() {
            return Ok(());
        }
        for _ in 0..STUB_HOPS_MAX {
            let before = self.damage.size();
            for pack in self.rewritten.clone() {
                let Some(stub) = self.repo.read_stub(&pack).await? else { continue };
                self.carry_back_through(&stub);
            }
            if self.damage.size() == before {
                break;
            }
        }
        Ok(())
    }

    fn carry_back_through(&mut self, stub: &Stub) {
        let pack = *stub.pack();
        for ((entry, index), to) in stub.relocations() {
            if self.refs.contains(&pack, *entry, *index) {
                self.damage.carry_back((pack, *entry, *index), to);
            }
        }
    }
}

/// Whether a pack's directory has what a reference names where the reference says.
fn lists(frame: &PackFrame, reference: &Reference) -> bool {
    let at = &reference.at;
    frame.header.kind.entries() == reference.kind()
        && frame.directory.get(at.entry as usize).is_some_and(|entry| {
            (entry.offset, entry.stored_len) == (at.offset, at.stored_len)
                && entry.ids.get(usize::from(at.index)) == Some(&reference.id)
        })
}
