//! Walks everything that the manifests reach, and notes each reference.

use super::refs::Refs;
use super::{Check, FindingKind, Findings, is_damage};
use crate::check::damage::Damage;
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::EntryAddr;
use crate::format::names::pack_key;
use crate::map::{PageAt, Visited, Visitor, VolumeMap, reach};
use crate::repository::{ATTACHMENTS, Repository};
use crate::units::{ChunkNo, ChunkRef, Location};

impl Check {
    pub(super) async fn mark(&mut self) -> Result<()> {
        let mut maps = Vec::with_capacity(self.inventory.backups.len());
        let mut kept = Vec::with_capacity(maps.capacity());
        for manifest in std::mem::take(&mut self.inventory.backups) {
            match VolumeMap::all_of(&self.repo, &manifest) {
                Ok(all) => {
                    maps.extend(all);
                    kept.push(manifest);
                }
                Err(e) if is_damage(&e) => {
                    let name = manifest.name();
                    self.findings.add(FindingKind::Manifest, name.manifest_key(), e.to_string());
                    self.inventory.unreadable.push(name);
                }
                Err(e) => return Err(e),
            }
        }
        self.inventory.backups = kept;
        let (repo, pages) = (&self.repo, Visited::default());
        let (refs, damage, findings) = (&mut self.refs, &mut self.damage, &mut self.findings);
        let mut marker = Marker { repo, maps: &maps, pages, refs, damage, findings };
        self.pages = reach(repo, &maps, self.limits, &mut marker).await?.pages;
        Ok(())
    }

    /// That the feature is there which keeps attachments from collectors that do not know them.
    pub(super) async fn look_for_features(&mut self) -> Result<()> {
        if self.inventory.backups.iter().all(|backup| backup.attachments.is_empty()) {
            return Ok(());
        }
        match self.repo.has_feature(ATTACHMENTS.name).await {
            Ok(there) => self.lacks_attachments = !there,
            // one that is damaged is a record that was looked at
            Err(e) if is_damage(&e) => {}
            Err(e) => return Err(e),
        }
        if self.lacks_attachments {
            let key = ATTACHMENTS.full_name()?.key();
            let what = "it is gone, and backups have attachments, which a collection by a program that does not know them would delete";
            self.findings.add(FindingKind::Record, key, what);
        }
        Ok(())
    }
}

struct Marker<'a> {
    repo: &'a Repository,
    maps: &'a [VolumeMap],
    /// Pages that were met. What is shared by maps of other sizes may be right in one of them only.
    pages: Visited,
    refs: &'a mut Refs,
    damage: &'a mut Damage,
    findings: &'a mut Findings,
}

impl Visitor for Marker<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        // what is impossible is not read either: `unreadable` says so
        let _ = self.refs.name_page(&at.page.location, at.page.id.as_bytes());
        Ok(self.pages.insert(at.key(self.maps)))
    }

    fn chunk(&mut self, leaf: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        let ChunkRef { id, location: at } = chunk;
        let params = self.repo.params();
        let len = self.maps[leaf.map as usize].geometry().len(ChunkNo(number));
        let named = EntryAddr::from(at)
            .check_chunk(at.index, params.chunk, params.entry_chunks)
            .and_then(|()| self.refs.name_chunk(at, id.as_bytes(), len));
        // a page that was authentic and says what cannot be
        if let Err(e) = named
            && self.damage.add_wrong(at, id.as_bytes())
        {
            self.findings.add(FindingKind::Pack, pack_key(&at.pack), e.to_string());
        }
        Ok(())
    }

    fn unreadable(&mut self, at: &PageAt, error: Error) -> Result<()> {
        if !is_damage(&error) {
            return Err(error);
        }
        let Location { pack, entry, .. } = at.page.location;
        // where it is damaged may be behind a stub: what is lost is what this reference names
        let fresh = self.damage.pages.insert((pack, entry));
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
