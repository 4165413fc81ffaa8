//! Files that are kept with a backup: looked at and opened before anything is moved.

mod copied;

use crate::ingest::attach::AttachmentInput;
use crate::ingest::pass::Input;
use crate::volume::device::{DeviceKind, DirectIo, Source, SourceOptions};
use crate::volume::io::EngineChoice;
use chunkstore::limits::ATTACHMENTS_MAX;
use chunkstore::{AttachmentName, Error, ErrorKind, Manifest, Result};
use copied::{Copied, Parts, changed};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A file that is to be kept with a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentSource {
    /// Its name there.
    pub name: AttachmentName,
    /// A regular file, or a directory: its files, in the order of their names, are one attachment.
    pub path: PathBuf,
    /// BLAKE3 of all its bytes: others are refused before the volume is read.
    pub digest: Option<[u8; 32]>,
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
    /// A copy that nobody else has, where it was copied: it is read by its descriptor.
    _copy: Option<File>,
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
    sources.iter().try_for_each(|source| parts_of(source).map(drop))
}

fn context_of(of: &AttachmentSource) -> String {
    format!("attach {} as {}", of.path.display(), of.name)
}

fn parts_of(of: &AttachmentSource) -> Result<Parts> {
    Parts::of(&of.path, &|| context_of(of))
}

/// Opens all of them, ascending by name. What has to be copied goes to `temporary`.
pub(super) fn open(
    sources: &[AttachmentSource],
    temporary: Option<&Path>,
) -> Result<Vec<Attached>> {
    check_attachments(sources)?;
    let open = |source| Attached::open(source, temporary);
    let mut opened = sources.iter().map(open).collect::<Result<Vec<_>>>()?;
    opened.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(opened)
}

impl Attached {
    fn open(of: &AttachmentSource, temporary: Option<&Path>) -> Result<Self> {
        let AttachmentSource { name, path, digest } = of.clone();
        let parts = parts_of(of)?;
        let copy = match digest.is_some() || path.is_dir() {
            true => Some(Self::copy(of, &parts, temporary)?),
            false => None,
        };
        let size_bytes = parts.size_bytes();
        let from = copy.as_ref().map(|copy| format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let from = from.map_or_else(|| path.clone(), PathBuf::from);
        let source = match size_bytes {
            0 => None,
            _ => Some(Self::source(of, &from, size_bytes)?),
        };
        let written = source.as_ref().and_then(Source::written);
        Ok(Self { name, path, size_bytes, source, written, _copy: copy })
    }

    /// A copy of the bytes, which are the ones that were asked for.
    fn copy(of: &AttachmentSource, parts: &Parts, temporary: Option<&Path>) -> Result<File> {
        let context = || context_of(of);
        let Copied { file, size_bytes, digest } = parts.copy(temporary, &context)?;
        if let Some(wanted) = of.digest.filter(|wanted| *wanted != digest) {
            let (wanted, found) = (hex::encode(wanted), hex::encode(digest));
            let what = format!("its bytes are blake3:{found}, and blake3:{wanted} was asked for");
            return Err(Error::new(ErrorKind::Usage, context(), what).hint(
                "somebody changed it, or it is another file: look at it before it is attached",
            ));
        }
        if parts.size_bytes() != size_bytes || parts_of(of)? != *parts {
            return Err(changed(context(), &of.path));
        }
        Ok(file)
    }

    fn source(of: &AttachmentSource, path: &Path, size_bytes: u64) -> Result<Source> {
        // a path with a directory is never taken for the address of an export
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let source = Source::open(&path, SourceOptions { direct: DirectIo::Never })?;
        if source.kind() != DeviceKind::File || source.size_bytes() != size_bytes {
            return Err(changed(context_of(of), &path));
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
            Some(before) if now.as_ref() != Some(before) => {
                let context = format!("attach {} as {}", self.path.display(), self.name);
                Err(changed(context, &self.path))
            }
            _ => Ok(()),
        }
    }
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
    use chunkstore::limits::ATTACHMENT_BYTES_MAX;
    use std::os::unix::fs::symlink;

    fn source(name: &str, path: &Path) -> AttachmentSource {
        let name = AttachmentName::new(name).unwrap();
        AttachmentSource { name, path: path.to_owned(), digest: None }
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
        let opened = open(&[source("a", &path)], None).unwrap();
        opened[0].refuse_written().unwrap();
        std::fs::write(&path, "two and more").unwrap();
        assert_eq!(opened[0].refuse_written().unwrap_err().kind(), ErrorKind::Device);
    }

    fn bytes(attached: &Attached) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(attached.size_bytes).unwrap()];
        attached.source.as_ref().unwrap().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// As the kubelet mounts a Secret: links, to a directory whose name begins with a dot.
    #[test]
    fn the_files_of_a_directory_are_one_attachment() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("objects");
        std::fs::create_dir_all(at.join("..2026")).unwrap();
        symlink("..2026", at.join("..data")).unwrap();
        for (name, text) in [("part-1", "one "), ("part-2", ""), ("part-10", "ten ")] {
            std::fs::write(at.join("..2026").join(name), text).unwrap();
            symlink(format!("..data/{name}"), at.join(name)).unwrap();
        }
        let whole = source("a", &at);
        assert!(open(std::slice::from_ref(&whole), None).is_err(), "it has to lie somewhere");
        let opened = open(std::slice::from_ref(&whole), Some(dir.path())).unwrap();
        assert_eq!(bytes(&opened[0]), b"one ten ");
        // what others write to the files meanwhile is not what is stored
        std::fs::write(at.join("part-1"), "two ").unwrap();
        assert_eq!(bytes(&opened[0]), b"one ten ");
        opened[0].refuse_written().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the copy has no name");
        let below = at.join("below");
        std::fs::create_dir(&below).unwrap();
        let (kind, why) = refusal(std::slice::from_ref(&whole));
        assert!(kind == ErrorKind::Usage && why.contains("below is no regular file"), "{why}");
        assert!(refusal(&[source("a", &below)]).1.contains("has no files"));
    }

    #[test]
    fn bytes_of_another_digest_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let digest = Some(*blake3::hash(b"one").as_bytes());
        let wanted = AttachmentSource { digest, ..source("a", &path) };
        let opened = open(std::slice::from_ref(&wanted), Some(dir.path())).unwrap();
        assert_eq!(bytes(&opened[0]), b"one");
        std::fs::write(&path, "two").unwrap();
        let why = open(std::slice::from_ref(&wanted), Some(dir.path())).err().unwrap();
        assert_eq!(why.kind(), ErrorKind::Usage);
        assert!(why.to_string().contains("was asked for"), "{why}");
    }
}
