//! Files that are kept with a backup: looked at and opened before anything is moved.

use crate::ingest::attach::AttachmentInput;
use crate::ingest::pass::Input;
use crate::volume::device::{DeviceKind, DirectIo, Source, SourceOptions};
use crate::volume::io::EngineChoice;
use chunkstore::limits::{ATTACHMENT_BYTES_MAX, ATTACHMENTS_MAX};
use chunkstore::{AttachmentName, Error, ErrorKind, Manifest, Result};
use std::path::{Path, PathBuf};

/// A file that is to be kept with a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentSource {
    /// Its name there.
    pub name: AttachmentName,
    /// A regular file.
    pub path: PathBuf,
}

/// An opened one.
pub(super) struct Attached {
    name: AttachmentName,
    path: PathBuf,
    size_bytes: u64,
    /// `None` if it is empty.
    source: Option<Source>,
    /// What tells whether it is written to meanwhile.
    written: Option<String>,
}

/// Refuses more than a backup may have, names that stand twice, and what is no file of a possible
/// size.
pub fn check_attachments(sources: &[AttachmentSource]) -> Result<()> {
    let refused = |what: String| Err(Error::new(ErrorKind::Usage, "attach files", what));
    if sources.len() > ATTACHMENTS_MAX as usize {
        return refused(format!("{} are more than {ATTACHMENTS_MAX}", sources.len()));
    }
    let mut names: Vec<&AttachmentName> = sources.iter().map(|source| &source.name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return refused(format!("the name {} stands twice", twice[0]));
    }
    sources.iter().try_for_each(|source| size_of(source).map(drop))
}

fn size_of(AttachmentSource { name, path }: &AttachmentSource) -> Result<u64> {
    let context = || format!("attach {} as {name}", path.display());
    let meta = std::fs::metadata(path).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Device,
        };
        Error::caused(kind, context(), e)
    })?;
    let what = if !meta.is_file() {
        "it is no regular file".to_owned()
    } else if meta.len() > ATTACHMENT_BYTES_MAX {
        format!("it has {} bytes, and {ATTACHMENT_BYTES_MAX} are possible", meta.len())
    } else {
        return Ok(meta.len());
    };
    Err(Error::new(ErrorKind::Usage, context(), what))
}

/// Opens all of them, ascending by name.
pub(super) fn open(sources: &[AttachmentSource]) -> Result<Vec<Attached>> {
    check_attachments(sources)?;
    let mut opened = sources.iter().map(Attached::open).collect::<Result<Vec<_>>>()?;
    opened.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(opened)
}

impl Attached {
    fn open(of: &AttachmentSource) -> Result<Self> {
        let AttachmentSource { name, path } = of.clone();
        let size_bytes = size_of(of)?;
        let source = match size_bytes {
            0 => None,
            _ => Some(Self::source(&name, &path, size_bytes)?),
        };
        let written = source.as_ref().and_then(Source::written);
        Ok(Self { name, path, size_bytes, source, written })
    }

    fn source(name: &AttachmentName, path: &Path, size_bytes: u64) -> Result<Source> {
        // a path with a directory is never taken for the address of an export
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let source = Source::open(&path, SourceOptions { direct: DirectIo::Never })?;
        if source.kind() != DeviceKind::File || source.size_bytes() != size_bytes {
            return Err(changed(name, &path));
        }
        Ok(source)
    }

    pub(super) fn input(&self) -> AttachmentInput<'_> {
        let input = |source| Input::Device { source, engine: EngineChoice::Blocking };
        let input = self.source.as_ref().map(input);
        AttachmentInput { name: &self.name, size_bytes: self.size_bytes, input }
    }

    /// That somebody wrote to it since it was opened: it may hold what never was there at one time.
    pub(super) fn refuse_written(&self) -> Result<()> {
        let now = self.source.as_ref().and_then(Source::written);
        match &self.written {
            Some(before) if now.as_ref() != Some(before) => Err(changed(&self.name, &self.path)),
            _ => Ok(()),
        }
    }
}

fn changed(name: &AttachmentName, path: &Path) -> Error {
    let context = format!("attach {} as {name}", path.display());
    Error::new(ErrorKind::Device, context, "it was written to while it was read")
        .hint("run it again when nobody writes to the file")
}

/// That a backup which is there already has the same attachments, by name. Gives what to say where
/// one of them has another size: it is as the first run found it.
pub(super) fn check_there(attached: &[Attached], there: &Manifest) -> Result<Vec<String>> {
    let names = there.attachments.iter().map(|attachment| &attachment.name);
    if !names.clone().eq(attached.iter().map(|attached| &attached.name)) {
        let has = names.map(AttachmentName::as_str).collect::<Vec<_>>().join(", ");
        let has = if has.is_empty() { "none".to_owned() } else { has };
        let context = format!("attach files to backup {}", there.name());
        let what = format!("it was committed before, with other attachments: {has}");
        return Err(
            Error::new(ErrorKind::AlreadyExists, context, what).hint("use another backup id")
        );
    }
    let both = attached.iter().zip(&there.attachments);
    let other = both.filter(|(now, then)| now.size_bytes != then.size_bytes);
    let say = |(now, then): (&Attached, &chunkstore::format::Attachment)| {
        format!(
            "attachment {} was stored before with {} bytes; {} has {} now, and is not stored",
            now.name,
            then.size_bytes,
            now.path.display(),
            now.size_bytes
        )
    };
    Ok(other.map(say).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn source(name: &str, path: &Path) -> AttachmentSource {
        AttachmentSource { name: AttachmentName::new(name).unwrap(), path: path.to_owned() }
    }

    fn refusal(sources: &[AttachmentSource]) -> (ErrorKind, String) {
        let e = check_attachments(sources).unwrap_err();
        (e.kind(), e.to_string())
    }

    #[test]
    fn what_cannot_be_attached_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (small, large) = (dir.path().join("small"), dir.path().join("large"));
        std::fs::write(&small, "x").unwrap();
        File::create(&large).unwrap().set_len(ATTACHMENT_BYTES_MAX).unwrap();
        check_attachments(&[source("b", &small), source("a", &large)]).unwrap();
        let twice = refusal(&[source("b", &small), source("a", &small), source("b", &large)]);
        assert!(twice.0 == ErrorKind::Usage && twice.1.contains("b stands twice"), "{twice:?}");
        File::options()
            .write(true)
            .open(&large)
            .unwrap()
            .set_len(ATTACHMENT_BYTES_MAX + 1)
            .unwrap();
        assert_eq!(refusal(&[source("a", &large)]).0, ErrorKind::Usage);
        assert_eq!(refusal(&[source("a", dir.path())]).0, ErrorKind::Usage);
        assert_eq!(refusal(&[source("a", &dir.path().join("none"))]).0, ErrorKind::NotFound);
        let many =
            |n: u32| -> Vec<_> { (0..n).map(|i| source(&format!("n{i}"), &small)).collect() };
        check_attachments(&many(ATTACHMENTS_MAX)).unwrap();
        assert_eq!(refusal(&many(ATTACHMENTS_MAX + 1)).0, ErrorKind::Usage);
    }

    #[test]
    fn a_file_that_is_written_to_meanwhile_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let opened = open(&[source("a", &path)]).unwrap();
        opened[0].refuse_written().unwrap();
        std::fs::write(&path, "two and more").unwrap();
        assert_eq!(opened[0].refuse_written().unwrap_err().kind(), ErrorKind::Device);
    }
}
