//! Steps 2 and 3 of a writer: what it finds once its lease is there, and may rely upon from then on.

use super::{Writer, role};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::reader::{Confirmed, confirm};
use crate::repository::condemned::{read_condemned, read_damaged};

/// What a writer is refused for where it does not know what it must.
pub(super) const BACK_UP: &str = "back up into";

impl Writer {
    /// Asks whether the store holds create-once, under a lease that is new to this process. Without
    /// it two runs could both believe that they have committed; the backup of one that runs alone
    /// is good.
    pub(super) async fn probe_create_once(&mut self) -> Result<()> {
        let warning = match self.lease.probe_create_once().await {
            Ok(found) => found.warning(self.repo.store()),
            // no reason to store nothing: what is needed of the store is asked for next
            Err(e) if e.kind() == ErrorKind::Unavailable => {
                let e = e.without_hint();
                tracing::debug!(error = %e, "create-once was not found out");
                let url = self.repo.store().url();
                Some(format!(
                    "{url} did not say whether it refuses to create what exists: let no two backups of one volume run \
                     here at the same time until a backup ends without this line"
                ))
            }
            Err(e) => return Err(e),
        };
        let new = warning.filter(|warning| !self.warnings.contains(warning));
        self.warnings.extend(new);
        Ok(())
    }

    /// Steps 2 and 3: what may be relied upon, seen after the lease was there.
    pub(super) async fn look_around(&mut self) -> Result<()> {
        self.repo.refuse_unknown_to_write(BACK_UP).await?;
        self.probe_create_once().await?;
        self.choose_parent().await?; // 2
        self.read_lists().await // 3
    }

    async fn choose_parent(&mut self) -> Result<()> {
        self.parent = None;
        let mut first = true;
        while let Some(candidate) = self.candidates.pop_front() {
            if candidate.volume != self.volume {
                let detail = format!("{} is of another volume", candidate.name());
                return Err(Error::new(ErrorKind::Usage, "choose a parent", detail));
            }
            if !std::mem::take(&mut first) {
                // for whoever looks at the lease; what counts is that it was there before the next
                // line
                self.lease.update(role(self.name(), Some(&candidate))).await?;
            }
            match confirm(&self.repo, &candidate.name()).await? {
                Confirmed::Present => {
                    self.parent = Some(candidate);
                    return Ok(());
                }
                Confirmed::Forgotten => tracing::info!("parent {} was forgotten", candidate.name()),
                Confirmed::Absent => tracing::info!("parent {} is gone", candidate.name()),
            }
        }
        if !first {
            self.lease.update(role(self.name(), None)).await?;
        }
        Ok(())
    }

    pub(super) async fn read_lists(&mut self) -> Result<()> {
        let (condemned, damaged) =
            futures::try_join!(read_condemned(&self.repo), read_damaged(&self.repo))?;
        self.condemned = condemned;
        let (damaged, warnings) = damaged;
        self.damaged = damaged;
        self.warnings.extend(warnings);
        Ok(())
    }
}
