//! Locking what a backup needs, where its store is to lock what is written.
//!
//! Before the manifest is created, all that it refers to is locked as long as it will be: otherwise
//! there would be a backup that looks locked and is not. What the writer names (its own packs, and
//! those it reuses) and what every restore needs is always done then; what is inherited too, unless
//! that was left to the next collection.

use super::Writer;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::ids::{PackId, PageId};
use crate::map::{ReadLimits, VolumeMap};
use crate::protocol::retain::{Extended, Needs, retain_base, retain_packs};
use crate::repository::Repository;
use crate::store::{Inherited, RetainPolicy, Retained};
use futures::future::BoxFuture;

impl Writer {
    /// Locks all that `manifest` is going to need, as the store's policy says; nothing without one.
    /// [`Writer::commit`] does it where it was not done. Unlike that, this may be dropped at any
    /// time. What is gone is for the commit to find.
    pub fn lock<'a>(
        &'a mut self,
        manifest: &'a Manifest,
        own_packs: &'a [PackId],
        reused_packs: &'a [PackId],
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if self.repo.store().retain_policy().is_some()
                && self.confirm_packs(reused_packs).await?.is_empty()
            {
                self.lock_needs(manifest, own_packs, reused_packs).await?;
            }
            Ok(())
        })
    }

    /// False: something is gone, and so is the lease that protected it.
    pub(super) async fn lock_needs(
        &mut self,
        manifest: &Manifest,
        own_packs: &[PackId],
        reused_packs: &[PackId],
    ) -> Result<bool> {
        let Some(policy) = self.repo.store().retain_policy() else { return Ok(true) };
        let roots = locked_roots(manifest);
        if self.locked.as_ref() == Some(&roots) {
            return Ok(true);
        }
        let named = own_packs.iter().chain(reused_packs).chain(&self.carried);
        match lock_all(&self.repo, policy, manifest, named).await {
            Ok(Extended { objects, extended }) => {
                tracing::info!("{objects} objects are locked, {extended} longer than before");
                self.locked = Some(roots);
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::Missing && self.lease.look().await?.is_none() => {
                tracing::info!("not locked, and the lease is gone: {e}");
                Ok(false)
            }
            Err(e) => Err(e.within(format!("lock backup {}", manifest.name()))),
        }
    }

    /// Locks a backup that is committed, and all that it needs: of a run that was started twice.
    /// Which packs it stored or reused nobody knows any more, so its whole map is read.
    pub fn lock_committed<'a>(&'a mut self, manifest: &'a Manifest) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(policy) = self.repo.store().retain_policy() else { return Ok(()) };
            let whole = RetainPolicy { inherited: Inherited::Now, ..policy };
            let done = lock_all(&self.repo, whole, manifest, std::iter::empty()).await;
            done.map_err(|e| e.within(format!("lock backup {}", manifest.name())))?;
            self.lock_manifest(manifest).await
        })
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
    let mut needs = Needs::new();
    for pack in named {
        needs.add(*pack, policy.retention);
    }
    if policy.inherited == Inherited::Now {
        for map in VolumeMap::all_of(repo, manifest)? {
            needs.add_map(repo, map, ReadLimits::default(), policy.retention, &mut Err).await?;
        }
    }
    let mut done = retain_packs(repo, needs, &mut Err).await?;
    done.add(retain_base(repo, policy.retention).await?);
    Ok(done)
}

/// The maps whose packs were locked, by their roots: `None` inside for one of nothing but zeros.
pub(super) type LockedMaps = Option<Vec<Option<PageId>>>;

fn locked_roots(manifest: &Manifest) -> Vec<Option<PageId>> {
    manifest.roots().into_iter().map(|root| root.map(|root| root.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::names::pack_key;
    use crate::protocol::{Commit, LeaseOptions, WriterOptions};
    use crate::repository::NewestSeen;
    use crate::store::{RetainMode, Retention};
    use crate::testkit::repositories::*;
    use chrono::{DateTime, Utc};
    use std::sync::Arc;

    fn until(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    async fn begin(repo: &Arc<Repository>) -> Writer {
        let lease = LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "here".into() };
        let (volume, backup_id) = (volume("v"), backup_id("b"));
        let (parents, after) = (Vec::new(), NewestSeen::default());
        let options = WriterOptions { volume, backup_id, parents, after, lease };
        Writer::begin(repo, options).await.unwrap()
    }

    async fn put_pack(repo: &Repository, n: u8) -> PackId {
        let pack = PackId::from_bytes([n; 32]);
        repo.store().put(&pack_key(&pack), "a pack").await.unwrap();
        pack
    }

    #[tokio::test]
    async fn what_is_stored_again_is_locked_though_the_map_is_the_same() {
        let retention = Retention::new(RetainMode::Governance, until("2030-01-01T00:00:00Z"));
        let policy = RetainPolicy { retention, inherited: Inherited::Later };
        let (repo, server) = locking_repository(policy).await;
        let made = manifest("v", "b", 1);
        let mut writer = begin(&repo).await;
        let first = put_pack(&repo, 3).await;
        writer.lock(&made, &[first], &[]).await.unwrap();
        assert_eq!(server.lock_of(&pack_key(&first)), Some(retention));
        // what it would have reused is gone, and stored again in another pack
        let gone = PackId::from_bytes([9; 32]);
        let again = writer.commit(made.clone(), &[first], &[gone]).await.unwrap();
        assert_eq!(again, Commit::StoreAgain { missing: vec![gone] });
        let second = put_pack(&repo, 4).await;
        let done = writer.commit(made.clone(), &[first, second], &[]).await.unwrap();
        assert!(matches!(done, Commit::Done(_)), "{done:?}");
        assert_eq!(server.lock_of(&pack_key(&second)), Some(retention));
        let key = made.name().manifest_key();
        assert_eq!(server.lock_of(&key), Some(retention), "and looked at in the end");
    }

    #[tokio::test]
    async fn what_is_made_anew_after_a_fence_is_locked_too() {
        let retention = Retention::new(RetainMode::Governance, until("2030-01-01T00:00:00Z"));
        let policy = RetainPolicy { retention, inherited: Inherited::Later };
        let (repo, server) = locking_repository(policy).await;
        let mut made = manifest("v", "b", 1);
        let mut writer = begin(&repo).await;
        let first = put_pack(&repo, 3).await;
        writer.lock(&made, &[first], &[]).await.unwrap();
        // fenced, and what it has uploaded is gone
        put_fence(&repo, &made).await;
        repo.store().delete(&pack_key(&first)).await.unwrap();
        let anew = writer.commit(made.clone(), &[first], &[]).await.unwrap();
        assert!(matches!(anew, Commit::Restart { .. }), "{anew:?}");
        let second = put_pack(&repo, 4).await;
        made.attempt = writer.attempt();
        let done = writer.commit(made, &[second], &[]).await.unwrap();
        assert!(matches!(done, Commit::Done(_)), "{done:?}");
        assert_eq!(server.lock_of(&pack_key(&second)), Some(retention));
    }
}
