//! The journal of a live restore: which backup, which target, which hold, and how far it is.
//!
//! The file stays when all is there. Whoever starts the same command again then serves the target
//! as it is, and nothing of the backup ever lands on it.

use crate::live::{JournalFile, JournalTerms, Replayed};
use crate::ops::below::BelowIdentity;
use crate::volume::device::Target;
use chunkstore::format::names::AttemptName;
use chunkstore::{
    Advice, BackupId, Error, ErrorKind, LeaseId, Manifest, RepositoryId, Result, Setting,
    VolumeName, random_bytes,
};
use std::io;
use std::path::Path;

/// A target of which nothing is known that stays.
const NO_NAME: &str = "none";

/// A journal that is open, and ours alone.
#[derive(Debug)]
pub struct LiveJournal {
    file: JournalFile,
    read: Replayed,
    identity: BelowIdentity,
    hold: LeaseId,
    backup: AttemptName,
}

impl LiveJournal {
    /// Opens the journal at a path, if there is one.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                let context = format!("look for journal {}", path.display());
                return Err(Error::caused(ErrorKind::Device, context, e));
            }
        }
        let (file, read) = JournalFile::open(path)?;
        let identity = BelowIdentity::from_bytes(&read.terms.identity);
        Ok(Some(Self::of(file, read, identity)?))
    }

    fn of(file: JournalFile, read: Replayed, identity: BelowIdentity) -> Result<Self> {
        let other = || {
            let context = format!("read journal {}", file.path().display());
            Error::new(ErrorKind::Usage, context, "it is not of a live restore")
                .hint(format!("name another file with {}", Setting("journal")))
        };
        let value = |word| Some(identity.value(word)).filter(|value| *value != "?");
        let hold = value("hold").and_then(|id| LeaseId::from_hex(id).ok()).ok_or_else(other)?;
        let backup = AttemptName {
            volume: VolumeName::new(identity.value("volume")).map_err(|_| other())?,
            backup_id: BackupId::new(identity.value("backup")).map_err(|_| other())?,
            attempt: value("attempt").and_then(|n| n.parse().ok()).ok_or_else(other)?,
        };
        Ok(Self { file, read, identity, hold, backup })
    }

    /// Makes the journal of a live restore of which nothing is done.
    pub(super) fn create(
        path: &Path,
        (repository, manifest, chunk_bytes): (&RepositoryId, &Manifest, u32),
        target: &Target,
    ) -> Result<Self> {
        let identity = BelowIdentity::of(repository, manifest, chunk_bytes)
            .with("target", &target.stable_name().as_deref().unwrap_or(NO_NAME))
            .with("hold", &LeaseId::random());
        let terms = JournalTerms {
            chunk_bytes,
            size_bytes: target.size_bytes(),
            token: random_bytes(),
            identity: identity.as_bytes().to_vec(),
        };
        let (file, read) = JournalFile::create(path, terms)?;
        Self::of(file, read, identity)
    }

    /// For the volume.
    pub(super) fn into_parts(self) -> (JournalFile, Replayed) {
        (self.file, self.read)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The backup that it restores.
    pub fn backup(&self) -> &AttemptName {
        &self.backup
    }

    /// The hold that it may have on that.
    pub fn hold(&self) -> &LeaseId {
        &self.hold
    }

    /// All is on the target; nothing of the backup is needed any more.
    pub fn is_complete(&self) -> bool {
        self.read.done.ones() == self.read.done.chunks()
    }

    /// Bytes of the volume that it is of.
    pub fn size_bytes(&self) -> u64 {
        self.read.terms.size_bytes
    }

    /// Refuses another repository.
    pub fn check_repository(&self, repository: &RepositoryId) -> Result<()> {
        let (is, should) = (repository.to_hex(), self.identity.value("repository"));
        if is == should {
            return Ok(());
        }
        Err(self
            .refused(&format!("it is of {}, and this is repository {is}", self.identity.shown())))
    }

    /// Refuses another backup, and another form of it.
    pub(super) fn check_backup(&self, manifest: &Manifest, chunk_bytes: u32) -> Result<()> {
        let same = (manifest.volume == self.backup.volume)
            && manifest.backup_id == self.backup.backup_id
            && manifest.size_bytes.to_string() == self.identity.value("size_bytes")
            && chunk_bytes == self.read.terms.chunk_bytes;
        if same {
            Ok(())
        } else {
            Err(self.refused(&format!("it is of {}", self.identity.shown())))
        }
    }

    /// Refuses another target, and one of which it cannot be known, unless somebody knows it.
    pub(super) fn check_target(&self, target: &Target, is_confirmed: bool) -> Result<()> {
        let (then, now) = (self.identity.value("target"), target.stable_name());
        let place = target.path().display();
        match now.as_deref() {
            Some(now) if now == then => Ok(()),
            Some(now) if then != NO_NAME => {
                Err(self.refused(&format!("it is of another target, {then}, and {place} is {now}")))
            }
            _ if is_confirmed => Ok(()),
            _ => Err(self
                .refused(&format!(
                    "nothing on {place} that stays says whether it is the same target"
                ))
                .hint(format!(
                    "if it is the target of this journal, add {}",
                    Setting("same-target")
                ))),
        }
    }

    fn refused(&self, what: &str) -> Error {
        let context = format!("go on with journal {}", self.path().display());
        Error::new(ErrorKind::Usage, context, what).hint(format!(
            "name the backup and the target that it is of, or another {}; to begin anew, {}",
            Setting("journal"),
            Advice::EndHold.words()
        ))
    }
}
