//! Walks everything that the manifests reach, and notes each reference.

use super::refs::Refs;
use super::{Check, FindingKind, Findings, is_damage};
use crate::check::damage::Damage;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::pack_key;
use crate::map::{PageAt, Visitor, VolumeMap, reach};
use crate::units::{ChunkRef, Location};

impl Check {
    pub(super) async fn mark(&mut self) -> Result<()> {
        let mut maps = Vec::with_capacity(self.inventory.backups.len());
        let mut kept = Vec::with_capacity(maps.capacity());
        for manifest in std::mem::take(&mut self.inventory.backups) {
            match VolumeMap::of(&self.repo, &manifest) {
                Ok(map) => {
                    maps.push(map);
                    kept.push(manifest);
                }
                Err(e) if is_damage(&e) => {
                    let name = manifest.name();
                    self.findings.see(&e);
                    self.findings.add(FindingKind::Manifest, name.manifest_key(), e.to_string());
                    self.inventory.unreadable.push(name);
                }
                Err(e) => return Err(e),
            }
        }
        self.inventory.backups = kept;
        let (refs, damage, findings) = (&mut self.refs, &mut self.damage, &mut self.findings);
        let mut marker = Marker { refs, damage, findings };
        self.pages = reach(&self.repo, &maps, self.limits, &mut marker).await?.pages;
        Ok(())
    }
}

struct Marker<'a> {
    refs: &'a mut Refs,
    damage: &'a mut Damage,
    findings: &'a mut Findings,
}

impl Marker<'_> {
    /// True: this is the first reference to it, and it leads somewhere.
    fn meet(&mut self, at: &Location, id: &[u8; 32]) -> bool {
        match self.refs.name(at, id) {
            Ok(fresh) => fresh,
            Err(e) => {
                // a page that was authentic and says what cannot be
                if self.damage.places.insert((at.pack, at.entry, at.index)) {
                    self.findings.add(FindingKind::Pack, pack_key(&at.pack), e.to_string());
                }
                false
            }
        }
    }
}

impl Visitor for Marker<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        Ok(self.meet(&at.page.location, at.page.id.as_bytes()))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.meet(&chunk.location, chunk.id.as_bytes());
        Ok(())
    }

    fn unreadable(&mut self, at: &PageAt, error: Error) -> Result<()> {
        if !is_damage(&error) {
            return Err(error);
        }
        self.findings.see(&error);
        let Location { pack, entry, index, .. } = at.page.location;
        // where it is damaged may be behind a stub: what is lost is what this reference names
        let fresh = self.damage.places.insert((pack, entry, index));
        // of a pack that is gone the stubs, or that there is none, say more
        if fresh && error.kind() != ErrorKind::Missing {
            self.findings.add(
                FindingKind::Pack,
                pack_key(&pack),
                format!("entry {entry}: {error}"),
            );
        }
        Ok(())
    }
}
