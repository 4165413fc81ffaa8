//! Where repositories and restored volumes are, and that nothing of them stays.

use super::child;
use super::operation::{Operation, Request};
use crate::stop::Stop;
use crate::{failed, note};
use chunkstore::{Error, ErrorKind, Result, random_bytes};
use mover_engine::volume::device::{DirectIo, Target, TargetOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PREFIX: &str = "mover-bench-";

/// A directory for everything that the harness makes; it goes when it is dropped.
pub(crate) fn work_dir(parent: Option<&Path>) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    match parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    }
    .map_err(|e| failed("make a work directory", e))
}

/// Where repositories go.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Directory(PathBuf),
    /// A URL of another kind, without a slash at its end.
    Remote(String),
}

impl Place {
    /// A path, a `file:` URL, or another URL.
    pub(crate) fn parse(text: &str) -> Self {
        match text.split_once("://") {
            Some(("file", path)) => Self::Directory(path.into()),
            Some(_) => Self::Remote(text.trim_end_matches('/').to_owned()),
            None => Self::Directory(text.into()),
        }
    }

    /// A place of its own for a repository.
    pub(crate) fn fresh(&self) -> Result<Fresh> {
        match self {
            Self::Directory(parent) => work_dir(Some(parent)).map(Fresh::Directory),
            Self::Remote(url) => {
                let name = hex::encode(random_bytes::<8>());
                Ok(Fresh::Remote { url: format!("{url}/{PREFIX}{name}"), remove: None })
            }
        }
    }
}

/// A repository that goes when it is dropped.
#[derive(Debug)]
pub(crate) enum Fresh {
    Directory(TempDir),
    Remote { url: String, remove: Option<Box<Request>> },
}

impl Fresh {
    pub(crate) fn url(&self) -> Result<String> {
        match self {
            Self::Remote { url, .. } => Ok(url.clone()),
            Self::Directory(dir) => dir.path().to_str().map(str::to_owned).ok_or_else(|| {
                let what = format!("use {}", dir.path().display());
                Error::new(ErrorKind::Usage, what, "its path is not valid UTF-8")
            }),
        }
    }

    pub(crate) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(dir) => Some(dir.path()),
            Self::Remote { .. } => None,
        }
    }

    /// What is needed to remove it once there is something.
    pub(crate) fn will_hold(&mut self, request: &Request) {
        if let Self::Remote { remove, .. } = self {
            let operation = Operation::Remove;
            *remove = Some(Box::new(Request { operation, ..request.clone() }));
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Self::Remote { url, remove: Some(request) } = self else { return };
        // also after a signal: a repository that stays costs money
        if let Err(e) = child::run(request, &Stop::default()) {
            note(&format!("warning: remove {url} by hand: {e}"));
        }
    }
}

/// Bytes of all files below a directory.
pub(crate) fn bytes_below(dir: &Path) -> Result<u64> {
    let what = |e| failed(format!("add up the files of {}", dir.display()), e);
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).map_err(what)? {
        let entry = entry.map_err(what)?;
        let meta = entry.metadata().map_err(what)?;
        sum += if meta.is_dir() { bytes_below(&entry.path())? } else { meta.len() };
    }
    Ok(sum)
}

/// What is restored to. A file that was not there before is removed after each restore.
#[derive(Debug)]
pub(crate) struct RestorePlace {
    path: PathBuf,
    is_own_file: bool,
    /// What is on it may be overwritten: its user said so, or the harness wrote it.
    force: bool,
    /// Never to be written.
    sources: Vec<PathBuf>,
}

impl RestorePlace {
    /// Looks whether `path` may be written, before hours are spent on a backup.
    pub(crate) fn check(
        path: &Path,
        force: bool,
        volume_bytes: u64,
        sources: Vec<PathBuf>,
    ) -> Result<Self> {
        let this = |is_own_file| Self { path: path.to_owned(), is_own_file, force, sources };
        let Ok(meta) = std::fs::metadata(path) else {
            return Ok(this(true));
        };
        if !force && !meta.file_type().is_block_device() {
            let what = format!("restore to {}", path.display());
            return Err(Error::new(ErrorKind::Usage, what, "it exists")
                .hint("name another file, or use --force to lose what is in it"));
        }
        let this = this(false);
        let options = TargetOptions {
            size_bytes: volume_bytes,
            force,
            direct: DirectIo::Auto,
            must_exist: false,
            source_paths: this.sources.clone(),
        };
        // it writes nothing to a device, and makes a file no shorter
        drop(Target::open(path, &options)?);
        Ok(this)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn operation(&self) -> Operation {
        Operation::Restore {
            target: self.path.clone(),
            force: self.force,
            sources: self.sources.clone(),
        }
    }

    /// After a restore: the next one finds its place as this one did.
    pub(crate) fn clear(&mut self) -> Result<()> {
        // what is on a device now is the harness's own
        self.force = true;
        if !self.is_own_file {
            return Ok(());
        }
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(failed(format!("remove {}", self.path.display()), e))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for RestorePlace {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            note(&format!("warning: {e}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_go_when_they_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::parse(dir.path().to_str().unwrap());
        let fresh = place.fresh().unwrap();
        let path = fresh.directory().unwrap().to_owned();
        std::fs::create_dir(path.join("packs")).unwrap();
        std::fs::write(path.join("packs/one"), [0; 300]).unwrap();
        std::fs::write(path.join("format"), [0; 50]).unwrap();
        assert_eq!(bytes_below(&path).unwrap(), 350);
        drop(fresh);
        assert!(!path.exists() && dir.path().exists());
    }

    #[test]
    fn places_of_all_kinds() {
        let is = |text: &str| match Place::parse(text) {
            Place::Directory(path) => path.display().to_string(),
            Place::Remote(url) => url,
        };
        for (text, place) in
            [("file:///a/b", "/a/b"), ("a/b", "a/b"), ("s3://bucket/prefix/", "s3://bucket/prefix")]
        {
            assert_eq!(is(text), place);
        }
        let fresh = Place::parse("s3://bucket").fresh().unwrap();
        assert!(fresh.url().unwrap().starts_with("s3://bucket/mover-bench-"));
    }

    #[test]
    fn a_target_that_holds_something_or_is_the_source_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (source, other) = (dir.path().join("source"), dir.path().join("other"));
        std::fs::write(&source, [1; 8192]).unwrap();
        std::fs::write(&other, [2; 8192]).unwrap();
        let check =
            |path: &Path, force| RestorePlace::check(path, force, 8192, vec![source.clone()]);
        assert_eq!(check(&other, false).unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(check(&source, true).unwrap_err().kind(), ErrorKind::Usage);
        let link = dir.path().join("link");
        std::fs::hard_link(&source, &link).unwrap();
        check(&link, true).unwrap_err();
        drop(check(&other, true).unwrap());
        // a file that the user has stays, one that the harness made goes
        assert_eq!(std::fs::read(&other).unwrap(), [2; 8192]);
        let made = dir.path().join("made");
        let place = check(&made, false).unwrap();
        std::fs::write(&made, [3; 10]).unwrap();
        drop(place);
        assert!(!made.exists() && source.exists());
    }
}
