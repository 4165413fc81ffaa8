//! Copies and archives of a file system that is made up: whatever it is asked for, a test may do
//! something meanwhile.

mod changes;

use super::*;
use crate::run::RunContext;
use chunkstore::ErrorKind;
use mover_fsmap::Layout;
use mover_fsmap::files::Place;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ROOT: u64 = 2;
/// All bytes of the volume.
const BYTES: [u8; 16] = *b"0123456789abcdef";

/// What happens when the content of a file is asked for.
type Meanwhile = Box<dyn FnMut(FileId)>;

#[derive(Default)]
struct Made {
    nodes: BTreeMap<u64, FileNode>,
    names: BTreeMap<u64, Vec<FileName>>,
    pieces: BTreeMap<u64, Vec<Piece>>,
    attributes: BTreeMap<u64, Vec<Attribute>>,
    meanwhile: RefCell<Option<Meanwhile>>,
}

impl Made {
    fn new() -> Self {
        let mut made = Self::default();
        made.node(ROOT, FileKind::Directory);
        made.names.insert(ROOT, Vec::new());
        made
    }

    fn node(&mut self, id: u64, kind: FileKind) -> &mut FileNode {
        let time = FileTime { seconds: 1_000_000_000, nanoseconds: 7 };
        let node = FileNode {
            id: FileId(id),
            kind,
            mode: if kind == FileKind::Directory { 0o755 } else { 0o640 },
            uid: 0,
            gid: 0,
            links: 1,
            size_bytes: 0,
            stored_bytes: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        };
        self.nodes.insert(id, node);
        self.nodes.get_mut(&id).unwrap()
    }

    fn name(&mut self, directory: u64, name: &str, id: u64) {
        let entry = FileName { name: name.into(), id: FileId(id) };
        self.names.entry(directory).or_default().push(entry);
    }

    /// A file with bytes of the volume.
    fn file(&mut self, name: &str, id: u64, from: u64, len: u64) {
        self.node(id, FileKind::File).size_bytes = len;
        self.pieces.insert(id, vec![Piece { range: 0..len, place: Place::Volume(from) }]);
        self.name(ROOT, name, id);
    }

    fn meanwhile(&self, what: impl FnMut(FileId) + 'static) {
        *self.meanwhile.borrow_mut() = Some(Box::new(what));
    }
}

impl Files for &Made {
    fn kind(&self) -> &'static str {
        "made"
    }

    fn root(&self) -> FileId {
        FileId(ROOT)
    }

    fn node(&self, id: FileId) -> Result<FileNode, Refusal> {
        self.nodes.get(&id.0).cloned().ok_or(Refusal::Unknown)
    }

    fn expect(&self, _ids: &[FileId]) {}

    fn names(&self, directory: FileId) -> Result<Vec<FileName>, Refusal> {
        self.names.get(&directory.0).cloned().ok_or(Refusal::Unknown)
    }

    fn content(&self, file: FileId) -> Result<Vec<Piece>, Refusal> {
        if let Some(meanwhile) = &mut *self.meanwhile.borrow_mut() {
            meanwhile(file);
        }
        self.pieces.get(&file.0).cloned().ok_or(Refusal::Unknown)
    }

    fn target(&self, _link: FileId) -> Result<Vec<u8>, Refusal> {
        Ok(b"nowhere".to_vec())
    }

    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>, Refusal> {
        Ok(self.attributes.get(&file.0).cloned().unwrap_or_default())
    }
}

fn on<T>(made: &Made, work: impl FnOnce(&OpenFiles<'_>) -> T) -> T {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (progress, cancel) = (Progress::new(), Cancel::new());
    let run = RunContext { rt: rt.handle(), cancel: &cancel, progress: &progress };
    let layout = Layout::of(0..BYTES.len() as u64);
    work(&OpenFiles { files: Box::new(made), volume: &&BYTES[..], layout: &layout, run })
}

const PLAIN: FilesCopyOptions = FilesCopyOptions { force: false, privileged: false, owners: false };
const FORCE: FilesCopyOptions = FilesCopyOptions { force: true, ..PLAIN };

fn sources(open: &OpenFiles<'_>, paths: &[&str]) -> Vec<Found> {
    paths.iter().map(|path| resolve(open, path.as_bytes(), false).unwrap()).collect()
}

/// Copies all that there is.
fn copied(made: &Made, to: &Path, options: FilesCopyOptions) -> Result<FilesSummary> {
    on(made, |open| copy_files(open, &sources(open, &["/"]), to, options))
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What cannot be copied takes nothing away.
#[test]
fn a_file_stays_until_the_one_for_its_place_is_there() {
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    made.file("sound", 11, 4, 4);
    made.file("unreadable", 12, 100, 4);
    made.node(13, FileKind::File);
    made.name(ROOT, "without content", 13);
    for name in ["sound", "unreadable", "without content"] {
        fs::write(target.path().join(name), "mine").unwrap();
    }
    let done = copied(&made, target.path(), FORCE).unwrap();
    assert_eq!((done.files, done.left_out.damaged_files), (1, 2));
    assert_eq!(names(target.path()), ["sound", "unreadable", "without content"]);
    let read = |name: &str| fs::read(target.path().join(name)).unwrap();
    assert_eq!(read("sound"), b"4567");
    assert_eq!(read("unreadable"), b"mine");
    assert_eq!(read("without content"), b"mine");
}

/// Neither is it replaced, nor does it go with what could not be copied.
#[test]
fn what_somebody_makes_meanwhile_stays() {
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    made.file("file", 11, 100, 4);
    let path = target.path().join("file");
    let theirs = path.clone();
    // Its content is asked for once to read ahead, and then to copy it: it was not there before.
    let mut asked = 0;
    made.meanwhile(move |_| {
        asked += 1;
        if asked % 2 == 0 {
            fs::write(&theirs, "theirs").unwrap();
        }
    });
    let done = copied(&made, target.path(), PLAIN).unwrap();
    assert_eq!(done.left_out.damaged_files, 1);
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    fs::remove_file(&path).unwrap();

    made.pieces.insert(11, vec![Piece { range: 0..4, place: Place::Volume(0) }]);
    let e = copied(&made, target.path(), PLAIN).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    assert_eq!(names(target.path()), ["file"]);
}

/// A copy that is killed leaves none that looks whole.
#[test]
fn a_file_has_its_name_once_it_is_whole() {
    struct Watched<'a>(&'a Path);
    impl ReadAt for Watched<'_> {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
            let names = names(self.0);
            assert!(names.len() == 1 && names[0].starts_with(".mover-"), "{names:?}");
            (&BYTES[..]).read_at(buffer, offset)
        }
    }
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    made.file("file", 11, 0, 4);
    on(&made, |open| {
        let files = Box::new(&made);
        let watched = Watched(target.path());
        let open = OpenFiles { files, volume: &watched, layout: open.layout, run: open.run };
        copy_files(&open, &sources(&open, &["/"]), target.path(), PLAIN).unwrap()
    });
    assert_eq!(names(target.path()), ["file"]);
}

#[test]
fn names_of_one_file_are_one_file_again() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    made.file("a", 11, 0, 4);
    made.nodes.get_mut(&11).unwrap().links = 2;
    made.name(ROOT, "b", 11);
    made.node(12, FileKind::Fifo);
    made.name(ROOT, "pipe", 12);
    made.node(13, FileKind::Symlink);
    made.name(ROOT, "link", 13);
    // over nothing, and over what the first one has made
    for options in [PLAIN, FORCE] {
        let done = copied(&made, target.path(), options).unwrap();
        assert_eq!((done.files, done.hard_links, done.symlinks, done.specials), (1, 1, 1, 1));
        assert_eq!(names(target.path()), ["a", "b", "link", "pipe"]);
        let of = |name: &str| fs::symlink_metadata(target.path().join(name)).unwrap();
        assert_eq!((of("a").ino(), of("a").nlink()), (of("b").ino(), 2));
        assert!(of("pipe").file_type().is_fifo() && of("link").is_symlink());
        for name in ["a", "b", "link", "pipe"] {
            assert_eq!((of(name).mtime(), of(name).mtime_nsec()), (1_000_000_000, 7), "{name}");
        }
        assert_eq!((of("a").mode() & 0o7777, of("pipe").mode() & 0o7777), (0o640, 0o640));
    }
}

/// One of them would be lost, or have the other's bytes.
#[test]
fn two_sources_of_one_name_are_refused() {
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    made.file("same", 11, 0, 4);
    made.node(12, FileKind::Directory);
    made.name(ROOT, "below", 12);
    made.name(12, "same", 11);
    on(&made, |open| {
        let both = sources(open, &["/same", "/below/same"]);
        let e = copy_files(open, &both, target.path(), FORCE).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
        let mut archive = Vec::new();
        let e = write_tar(open, &both, &mut archive, PLAIN).unwrap_err();
        assert_eq!((e.kind(), archive.len()), (ErrorKind::Usage, 0), "{e}");
    });
    assert!(names(target.path()).is_empty());
}

#[test]
fn a_name_is_no_link_of_what_somebody_put_there() {
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    made.file("a", 11, 0, 4);
    made.file("b", 12, 4, 4);
    for name in ["c", "d"] {
        made.name(ROOT, name, 11);
    }
    made.nodes.get_mut(&11).unwrap().links = 3;
    let first = target.path().join("a");
    made.meanwhile(move |id| {
        if id == FileId(12) && first.exists() {
            fs::remove_file(&first).unwrap();
            fs::write(&first, "theirs").unwrap();
        }
    });
    // content is asked for ahead of all copying, and for a copy
    let done = copied(&made, target.path(), PLAIN).unwrap();
    assert_eq!((done.files, done.hard_links), (3, 1));
    for (name, bytes) in [("a", &b"theirs"[..]), ("b", b"4567"), ("c", b"0123"), ("d", b"0123")] {
        assert_eq!(fs::read(target.path().join(name)).unwrap(), bytes, "{name}");
    }
}

/// An archive of all, of a run that is stopped when `at` is asked for its content.
fn archived_until(made: &Made, at: u64) -> (Vec<u8>, Result<FilesSummary>) {
    on(made, |open| {
        let cancel = Arc::clone(open.run.cancel);
        made.meanwhile(move |id| {
            if id == FileId(at) {
                cancel.request();
            }
        });
        let mut archive = Vec::new();
        let done = write_tar(open, &sources(open, &["/a", "/b"]), &mut archive, PLAIN);
        (archive, done)
    })
}

/// No reader takes it for a whole one.
#[test]
fn an_archive_that_is_not_whole_has_no_end() {
    let mut made = Made::new();
    made.file("a", 11, 0, 4);
    made.file("b", 12, 4, 4);
    let (whole, done) = archived_until(&made, 99);
    assert_eq!(done.unwrap().files, 2);
    assert!(whole.ends_with(&[0; 1024]));
    let (broken, done) = archived_until(&made, 12);
    done.unwrap_err();
    let entries = broken.strip_suffix(&[0xff; 512]).unwrap();
    assert!(!entries.is_empty() && whole.starts_with(entries));
    // in the middle of an entry there is no end anyway
    struct Stopping<'a>(&'a Cancel);
    impl ReadAt for Stopping<'_> {
        fn read_at(&self, buffer: &mut [u8], _offset: u64) -> std::io::Result<()> {
            self.0.request();
            buffer.fill(b'x');
            Ok(())
        }
    }
    let mut archive = Vec::new();
    let mut long = Made::new();
    long.file("a", 11, 0, 3 << 20);
    on(&long, |open| {
        let volume = Stopping(open.run.cancel);
        let files = Box::new(&long);
        let open = OpenFiles { files, volume: &volume, layout: open.layout, run: open.run };
        let found = [Found { path: b"/a".to_vec(), node: long.nodes[&11].clone() }];
        write_tar(&open, &found, &mut archive, PLAIN).unwrap_err();
    });
    assert!(archive.len() > 1024 && archive.len() < 3 << 20, "{}", archive.len());
}

#[test]
fn directories_are_400_deep_at_most() {
    let target = tempfile::tempdir().unwrap();
    let mut made = Made::new();
    let mut above = ROOT;
    for id in 10..420 {
        made.node(id, FileKind::Directory);
        made.name(above, "d", id);
        above = id;
    }
    made.names.insert(above, Vec::new());
    on(&made, |open| {
        let found = sources(open, &["/d"]);
        let archived = write_tar(open, &found, &mut std::io::sink(), PLAIN).unwrap();
        let copied = copy_files(open, &found, target.path(), PLAIN).unwrap();
        for done in [archived, copied] {
            assert_eq!((done.directories, done.left_out.damaged_files), (400, 1));
            assert!(done.left_out.damaged[0].contains("too deep"), "{:?}", done.left_out.damaged);
        }
    });
}

/// A list in the form of the kernel: owner, a user, group, mask, others.
fn list(user: u32) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, may, id) in
        [(1, 7, none), (2, 7, user), (4, 5, none), (0x10, 7, none), (0x20, 0, none)]
    {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(may));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// Whom a directory lets in to what is made in it.
#[test]
fn a_copy_has_the_access_lists_of_its_original_and_no_others() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let target = tempfile::tempdir().unwrap();
    if setxattr(target.path(), DEFAULT, &list(1234), XattrFlags::empty()).is_err() {
        return;
    }
    let mut made = Made::new();
    made.file("plain", 11, 0, 4);
    made.file("listed", 12, 0, 4);
    let own = Attribute { name: ACCESS.into(), value: list(77) };
    made.attributes.insert(12, vec![own]);
    made.nodes.get_mut(&12).unwrap().mode = 0o770;
    made.node(13, FileKind::Fifo);
    made.name(ROOT, "pipe", 13);
    made.node(14, FileKind::Directory);
    made.name(ROOT, "directory", 14);
    made.names.insert(14, Vec::new());
    copied(&made, target.path(), PLAIN).unwrap();
    let of = |name: &str, list: &str| {
        let mut bytes = [0; 256];
        let len = getxattr(target.path().join(name), list, &mut bytes[..]).ok()?;
        Some(bytes[..len].to_vec())
    };
    for name in ["plain", "pipe", "directory"] {
        assert_eq!((of(name, ACCESS), of(name, DEFAULT)), (None, None), "{name}");
    }
    assert_eq!(of("listed", ACCESS), Some(list(77)));
}
