//! Backups that keep their place in the order of their volume, and their times: those that were made
//! before, and are written down again.
//!
//! One is another attempt of a backup that is committed already: the same backup, with a map that
//! leads to other places. The damaged attempt is its parent: confirmed under the lease, it keeps all that is taken over
//! from it. The manifest keeps its place in the order, its times and its own parent; only attempt
//! and map are others. Of two that do this at once one commits, and the other finds that it did.

use super::{Writer, WriterOptions, attempts_of, role};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::names::AttemptName;
use crate::protocol::LeaseOptions;
use crate::protocol::lease::LeaseKeeper;
use crate::protocol::reader::backup_at;
use crate::repository::{NewestSeen, Repository};
use futures::future::BoxFuture;
use std::sync::Arc;

impl Writer {
    /// As [`Writer::begin`], for a manifest that says itself where it is in the order.
    pub(crate) async fn begin_in_its_place(
        repo: &Arc<Repository>,
        options: WriterOptions,
    ) -> Result<Self> {
        let mut writer = Self::begin(repo, options).await?;
        writer.in_its_place = true;
        Ok(writer)
    }

    /// Steps 1 to 3 for the attempt after `of` and after all that were fenced. `None`: it was
    /// forgotten, or there is a later attempt of it.
    pub(crate) fn begin_again<'a>(
        repo: &'a Arc<Repository>,
        of: &'a Manifest,
        lease: LeaseOptions,
    ) -> BoxFuture<'a, Result<Option<Self>>> {
        Box::pin(async move {
            let (made, forgotten) = attempts_of(repo, &of.volume, &of.backup_id).await?;
            if forgotten.contains(&of.name()) {
                return Ok(None);
            }
            // what was forgotten stays so, whatever is committed there
            let mut last = forgotten.iter().map(|name| name.attempt).fold(of.attempt, u32::max);
            for name in made.iter().filter(|name| name.attempt > of.attempt) {
                if Box::pin(backup_at(repo, name)).await?.is_some() {
                    return Ok(None);
                }
                last = last.max(name.attempt);
            }
            let attempt = last.checked_add(1).ok_or_else(|| {
                let context = format!("make backup {} whole", of.name());
                Error::new(ErrorKind::Corrupt, context, "no attempt is left")
            })?;
            let options = WriterOptions {
                volume: of.volume.clone(),
                backup_id: of.backup_id.clone(),
                parents: vec![of.clone()],
                after: NewestSeen::default(),
                lease,
            };
            let name = AttemptName { attempt, ..of.name() };
            let record = options.lease.lease(role(name, Some(of)));
            let keeper = LeaseKeeper::create(repo, record).await?; // 1
            let mut writer = Self::under(repo, options, attempt, None, keeper);
            writer.in_its_place = true;
            match writer.look_around().await {
                Ok(()) if writer.parent.is_some() => Ok(Some(writer)),
                Ok(()) => {
                    writer.abandon().await;
                    Ok(None)
                }
                Err(e) => {
                    writer.abandon().await;
                    Err(e)
                }
            }
        })
    }
}
