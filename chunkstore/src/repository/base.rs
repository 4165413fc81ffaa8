//! The objects that lie below no prefix: `format`, its second copy, and the text for people.
//!
//! Either copy opens the repository. They are the same bytes, so one is brought back by copying the
//! other. `format` is what makes a repository; whoever made it writes the other two right after.

use super::{RECORD_OVERHEAD, Repository};
use crate::advice::Advice;
use crate::error::{ErrorKind, Result};
use crate::format::names::{FORMAT_COPY_KEY, FORMAT_KEY, README_KEY};
use crate::limits::FORMAT_VERSION;
use crate::store::{Created, Store};
use bytes::Bytes;

/// The document that describes every stored byte.
const DOCUMENT: &str = include_str!("../../../docs/format.md");
/// Largest text that is read back: later versions may say more.
const README_BYTES_MAX: u64 = 16 << 20;

/// One of the objects that lie below no prefix and is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseProblem {
    /// Its key.
    pub key: &'static str,
    /// What is wrong with it.
    pub detail: String,
}

/// `format`, or its copy where that is gone.
pub(super) async fn either_copy(store: &Store) -> Result<Option<(&'static str, Bytes)>> {
    let mut first = None;
    for key in [FORMAT_KEY, FORMAT_COPY_KEY] {
        match store.get_opt_at_most(key, RECORD_OVERHEAD).await {
            Ok(Some(bytes)) => return Ok(Some((key, bytes))),
            Ok(None) => {}
            // too long for what it is
            Err(e) if e.kind() == ErrorKind::Corrupt && key == FORMAT_KEY => first = Some(e),
            Err(e) => return Err(e),
        }
    }
    first.map_or(Ok(None), Err)
}

/// The second copy, if it is there and another than what was read.
pub(super) async fn other_copy(store: &Store, read: &Bytes) -> Option<Bytes> {
    let copy = store.get_opt_at_most(FORMAT_COPY_KEY, RECORD_OVERHEAD).await.ok()??;
    (copy != *read).then_some(copy)
}

impl Repository {
    /// What of `format`, its copy and the text for people is gone or changed. What seems so is
    /// looked at a second time: one wrong answer of the store is no damage.
    pub async fn check_base(&self) -> Result<Vec<BaseProblem>> {
        let mut problems = self.look_at_base().await?;
        if !problems.is_empty() {
            let again = self.look_at_base().await?;
            problems.retain(|problem| again.contains(problem));
        }
        Ok(problems)
    }

    async fn look_at_base(&self) -> Result<Vec<BaseProblem>> {
        let mut problems = Vec::new();
        for key in [FORMAT_KEY, FORMAT_COPY_KEY] {
            let detail = match self.store().get_opt_at_most(key, RECORD_OVERHEAD).await {
                Ok(Some(bytes)) if bytes == self.format => continue,
                Ok(Some(_)) => "it is not what the repository was opened with".to_owned(),
                Ok(None) => "it is gone".to_owned(),
                Err(e) if e.kind() == ErrorKind::Corrupt => e.to_string(),
                Err(e) => return Err(e),
            };
            problems.push(BaseProblem { key, detail });
        }
        if self.store().head(README_KEY).await?.is_none() {
            problems.push(BaseProblem { key: README_KEY, detail: "it is gone".to_owned() });
        }
        Ok(problems)
    }

    /// Writes those of the base objects again that are gone or changed. Only to be asked by a
    /// program that has opened the repository, so what it writes was found to be good. Gives the
    /// keys of what it wrote.
    pub async fn repair_base(&self) -> Result<Vec<&'static str>> {
        let mut written = Vec::new();
        for BaseProblem { key, .. } in self.check_base().await? {
            let bytes = match key {
                README_KEY => self.readme(),
                _ => self.format.clone(),
            };
            self.store().put(key, bytes).await?;
            written.push(key);
        }
        Ok(written)
    }

    /// What [`init`](Self::init) writes once `format` is there. A repository without it is whole:
    /// what fails is said, and a repair writes it later.
    pub(super) async fn write_rest_of_base(&self) {
        for (key, bytes) in [(FORMAT_COPY_KEY, self.format.clone()), (README_KEY, self.readme())] {
            match self.store().create(key, bytes).await {
                Ok(Created::Now | Created::Ours) => {}
                Ok(Created::Taken(_)) => {
                    tracing::warn!("{key} was in {} before the repository", self.store().url());
                }
                Err(e) => tracing::warn!("a check with repair writes it later: {e}"),
            }
        }
    }

    fn readme(&self) -> Bytes {
        let id = self.id();
        let made = self.params.created.format("%Y-%m-%d");
        let encryption = self.params.encryption;
        let by = &self.params.created_by;
        let restore = Advice::ListAndRestore.words();
        Bytes::from(format!(
            "This directory or bucket prefix is a repository of backups, made by `mover`.\n\
             \n\
             repository id   {id}\n\
             format version  {FORMAT_VERSION}\n\
             encryption      {encryption}\n\
             made            {made} by {by}\n\
             \n\
             It holds backups of block devices: Kubernetes volumes, disks, images. Please leave every object as it\n\
             is: nothing in here can be missed, and no name may change.\n\
             \n\
             To restore with the program, with URL for the place of this repository:\n\
             \n\
             {restore}\n\
             \n\
             An encrypted repository needs its key file or passphrase. Nobody can read it without; no copy of a key\n\
             is in here in the clear.\n\
             \n\
             To restore without the program, by hand or with one of your own: all that is needed is below. It is the\n\
             whole description of the format, as it was when this repository was made. Section 14 walks through a\n\
             restore.\n\
             \n\
             ----------------------------------------------------------------------------------------------------\n\
             \n\
             {DOCUMENT}"
        ))
    }

    /// The text for people as it is stored, if it is there.
    pub async fn read_readme(&self) -> Result<Option<String>> {
        let bytes = self.store().get_opt_at_most(README_KEY, README_BYTES_MAX).await?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests;
