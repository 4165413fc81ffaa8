//! Locking what a backup needs, where its store is to lock what is written.
//!
//! Before the manifest is created, all that it refers to is locked as long as it will be: otherwise there would be a backup
//! that looks locked and is not. What the writer names (its own packs, and those it reuses) and what every restore needs is
//! always done then; what is inherited too, unless that was left to the next collection.

use super::Writer;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::ids::{PackId, PageId};
use crate::map::{ReadLimits, VolumeMap};
use crate::protocol::retain::{Extended, Needs, retain_base, retain_packs};
use crate::repository::Repository;
use crate::store::{Inherited, RetainPolicy, Retained};

impl Writer {
    /// Locks all that `manifest` is going to need, as the store's policy says; nothing without one. [`Writer::commit`] does it
    /// where it was not done. Unlike that, this may be dropped at any time. What is gone is for the commit to find.
    pub async fn lock(
        &mut self,
        manifest: &Manifest,
        own_packs: &[PackId],
        reused_packs: &[PackId],
    ) -> Result<()> {
        if self.repo.store().retain_policy().is_some()
            && self.confirm_packs(reused_packs).await?.is_empty()
        {
            self.lock_needs(manifest, own_packs, reused_packs).await?;
        }
        Ok(())
    }

    /// False: something is gone, and so is the lease that protected it.
    pub(super) async fn lock_needs(
        &mut self,
        manifest: &Manifest,
        own_packs: &[PackId],
        reused_packs: &[PackId],
    ) -> Result<bool> {
        let Some(policy) = self.repo.store().retain_policy() else { return Ok(true) };
        let root = manifest.map.root.map(|root| root.id);
        if self.locked == Some(root) {
            return Ok(true);
        }
        let named = own_packs.iter().chain(reused_packs).chain(&self.carried);
        match lock_all(&self.repo, policy, manifest, named).await {
            Ok(Extended { objects, extended }) => {
                tracing::info!("{objects} objects are locked, {extended} longer than before");
                self.locked = Some(root);
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::Missing && !self.lease.is_present().await? => {
                tracing::info!("not locked, and the lease is gone: {e}");
                Ok(false)
            }
            Err(e) => Err(e.within(format!("lock backup {}", manifest.name()))),
        }
    }

    /// Locks a backup that is committed, and all that it needs: of a run that was started twice. Which packs it stored or reused
    /// nobody knows any more, so its whole map is read.
    pub async fn lock_committed(&mut self, manifest: &Manifest) -> Result<()> {
        let Some(policy) = self.repo.store().retain_policy() else { return Ok(()) };
        let whole = RetainPolicy { inherited: Inherited::Now, ..policy };
        let done = lock_all(&self.repo, whole, manifest, std::iter::empty()).await;
        done.map_err(|e| e.within(format!("lock backup {}", manifest.name())))?;
        self.lock_manifest(manifest).await
    }

    /// Of a new one this only looks whether the store did as it was asked.
    pub(super) async fn lock_manifest(&self, manifest: &Manifest) -> Result<()> {
        let Some(policy) = self.repo.store().retain_policy() else { return Ok(()) };
        let key = manifest.name().manifest_key();
        match self.repo.store().retain(&key, policy.retention).await? {
            Retained::Before | Retained::Now => Ok(()),
            Retained::Absent => {
                let context = format!("lock backup {}", manifest.name());
                Err(Error::new(ErrorKind::Unavailable, context, "its manifest is gone")
                    .hint("run it again"))
            }
        }
    }
}

async fn lock_all(
    repo: &Repository,
    policy: RetainPolicy,
    manifest: &Manifest,
    named: impl Iterator<Item = &PackId>,
) -> Result<Extended> {
    let mut needs = Needs::new(repo);
    for pack in named {
        needs.add(*pack, policy.retention);
    }
    if policy.inherited == Inherited::Now {
        let map = VolumeMap::of(repo, manifest)?;
        needs.add_map(repo, map, ReadLimits::default(), policy.retention).await?;
    }
    let mut done = retain_packs(repo, needs, &mut Err).await?;
    done.add(retain_base(repo, policy.retention).await?);
    Ok(done)
}

/// The map whose packs were locked: `None` inside for one of nothing but zeros.
pub(super) type LockedMap = Option<Option<PageId>>;
