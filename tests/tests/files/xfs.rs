//! XFS, against the kernel's view where a kernel mounts it, and against xfsprogs.

use super::Form;
use super::content::walk;
use super::tree::{self, attribute, entries, fill, random, read};
use mover_fsmap::ReadAt;
use mover_fsmap::files::{FileKind, FileName, open};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use tests::{LoopDevice, Mount, Rng, run_ok, work_dir};

pub(crate) const PLAIN: Form =
    Form { name: "xfs", program: "mkfs.xfs", options: &[], mounted: "defaults", dirty: false };

const FORMS: [Form; 9] = [
    PLAIN,
    Form { name: "xfs-small-blocks", options: &["-b", "size=1024"], ..PLAIN },
    Form { name: "xfs-directories", options: &["-b", "size=2048", "-n", "size=8192"], ..PLAIN },
    Form { name: "xfs-long-directories", options: &["-n", "size=65536"], ..PLAIN },
    Form { name: "xfs-counts", options: &["-i", "nrext64=1"], ..PLAIN },
    Form { name: "xfs-large-inodes", options: &["-i", "size=2048"], ..PLAIN },
    Form { name: "xfs-no-sparse-inodes", options: &["-i", "sparse=0"], ..PLAIN },
    Form { name: "xfs-sectors", options: &["-s", "size=4096", "-m", "rmapbt=1"], ..PLAIN },
    Form { name: "xfs-groups", options: &["--unsupported", "-d", "agcount=16"], ..PLAIN },
];

/// Of names in one directory.
const MANY: usize = 10_000;

/// An image, read as a backup is.
struct Image(File);

impl Image {
    fn open(path: &Path) -> (Self, u64) {
        let file = File::open(path).unwrap();
        let bytes = file.metadata().unwrap().len();
        (Self(file), bytes)
    }
}

impl ReadAt for Image {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

/// A file system, where it is mounted, and a place for copies.
struct Ground {
    directory: tempfile::TempDir,
    image: PathBuf,
}

impl Ground {
    /// `None`, and said so, without root.
    fn new(form: &Form) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            tests::skip("files: file systems are mounted by root");
            return None;
        }
        let directory = work_dir(&format!("files-{}", form.name));
        let image = directory.path().join("image");
        form.make(&image);
        Some(Self { directory, image })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Fills it, and unmounts it.
    fn filled(form: &Form) -> Option<Self> {
        let ground = Self::new(form)?;
        let device = LoopDevice::attach(&ground.image);
        let mounted = Mount::new(device.path(), &ground.path("live"), "xfs", form.mounted);
        fill(mounted.path(), "xfs");
        more(mounted.path());
        Some(ground)
    }

    /// Each name, byte and attribute is as the kernel shows it when it mounts a copy.
    fn expect_as_the_kernel_shows(&self, image: &Path, about: &str) -> usize {
        let (volume, bytes) = Image::open(image);
        let got = read(&volume, bytes);
        let copy = self.path("kernels");
        run_ok("cp", ["--sparse=always".as_ref(), image.as_os_str(), copy.as_os_str()]);
        let device = LoopDevice::attach(&copy);
        let mounted = Mount::new(device.path(), &self.path("mount"), "xfs", "nouuid");
        tree::same(about, &entries(mounted.path()), &got);
        drop(mounted);
        drop(device);
        fs::remove_file(copy).unwrap();
        got.len()
    }
}

/// Leaves a device as it is at this moment, as a crash would; what was committed is in its log.
pub(crate) fn stop(kind: &str, mount: &Mount) {
    if kind == "xfs" {
        run_ok("xfs_io", ["-x", "-c", "shutdown -f", mount.path().to_str().unwrap()]);
    }
}

/// Forms that only XFS has: directories of all lengths, attributes of all kinds, links in blocks,
/// files whose extents are a tree.
fn more(root: &Path) {
    let mut rng = Rng::seeded(0xf5);
    // within an inode, in a block, with hashes in one block of their own, in many
    for count in [1, 8, 40, 400, MANY] {
        let directory = root.join(format!("names-{count}"));
        fs::create_dir(&directory).unwrap();
        for n in 0..count {
            let len = if n % 100 == 7 { 240 } else { n % 30 };
            let name = format!("{n}-{}", "n".repeat(len));
            File::create(directory.join(name)).unwrap();
        }
    }
    // a directory in pieces: its blocks come between those of files
    let directory = root.join("in-pieces");
    fs::create_dir(&directory).unwrap();
    for n in 0..3000 {
        let path = directory.join(format!("{n}-{}", "n".repeat(200)));
        fs::write(&path, random(&mut rng, 100)).unwrap();
        if n % 20 == 0 {
            File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    for n in (0..3000).filter(|n| n % 7 < 3) {
        fs::remove_file(directory.join(format!("{n}-{}", "n".repeat(200)))).unwrap();
    }
    for len in [335, 336, 337, 511, 967, 968, 969, 1000, 1023] {
        symlink("y".repeat(len), root.join(format!("link-{len}"))).unwrap();
    }
    let comb = File::create(root.join("comb")).unwrap();
    for n in 0..3000 {
        comb.write_all_at(&random(&mut rng, 100), n * 8192).unwrap();
    }
    let dressed = |name: &str, values: &mut dyn Iterator<Item = (String, usize)>, rng: &mut Rng| {
        let path = root.join(name);
        File::create(&path).unwrap();
        for (name, len) in values {
            attribute(&path, &name, &random(rng, len));
        }
    };
    let numbered = |count: usize, len: usize| (0..count).map(move |n| (format!("user.{n}"), len));
    dressed("dressed-1", &mut numbered(1, 20), &mut rng);
    dressed("dressed-20", &mut numbered(20, 50), &mut rng);
    dressed("dressed-400", &mut numbered(400, 60), &mut rng);
    dressed("dressed-2000", &mut numbered(2000, 90), &mut rng);
    dressed("dressed-long", &mut numbered(5, 50_000), &mut rng);
    dressed("dressed-longest", &mut numbered(1, 65_536), &mut rng);
}

#[test]
fn all_forms_are_read_as_the_kernel_shows_them() {
    for form in FORMS {
        let Some(ground) = Ground::filled(&form) else { return };
        let names = ground.expect_as_the_kernel_shows(&ground.image, form.name);
        assert!(names > MANY + 2000, "{}: {names} names", form.name);
    }
}

/// Version 4, which not every kernel mounts: made and filled by xfsprogs.
#[test]
fn version_4_is_read() {
    for options in [&["-n", "ftype=0"][..], &["-b", "size=512"], &["-n", "size=16384"]] {
        let directory = work_dir("files-xfs-4");
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (image, source, proto) = (path("image"), path("source"), path("proto"));
        let bytes = Rng::seeded(4).bytes(100_000);
        fs::write(&source, &bytes).unwrap();
        let long = "y".repeat(700);
        let mut lines = format!(
            "/dev/null\n0 0\nd--755 0 0\nfile -u-644 5 70000 {source}\nnull c--666 0 0 1 3\n\
             short l--777 0 0 target\nlong l--777 0 0 {long}\n"
        );
        for (name, count) in [("few", 3), ("some", 30), ("many", MANY)] {
            lines += &format!("{name} d--755 0 0\n");
            for n in 0..count {
                lines += &format!("a-name-that-is-not-short-{n} p--600 0 0\n");
            }
            lines += "$\n";
        }
        fs::write(&proto, lines + "$\n").unwrap();
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        run_ok("mkfs.xfs", [&["-q", "-m", "crc=0"], options, &["-p", &proto, &image]].concat());
        let number = {
            let (volume, len) = Image::open(image.as_ref());
            let files = open(&volume, len).unwrap();
            let number = files.find(files.root(), b"file").unwrap().unwrap();
            assert_eq!(files.attributes(number).unwrap(), [], "none yet");
            number.0
        };
        let lens = [0, 10, 1000, 3000, 9000];
        for len in lens {
            let set = format!("attr_set -u -n long-{len} -v {len}");
            run_ok("xfs_db", ["-x", "-c", &format!("inode {number}"), "-c", &set, &image]);
        }
        let (volume, len) = Image::open(image.as_ref());
        let all = read(&volume, len);
        assert_eq!(all.len(), 7 + 33 + MANY, "{options:?}");
        let file = &all[&b"file"[..]];
        assert_eq!(file.content, blake3::hash(&bytes).as_bytes(), "{options:?}");
        let found: Vec<usize> = file.attributes.values().map(Vec::len).collect();
        assert_eq!(found, [0, 10, 1000, 3000, 9000], "{options:?}: {:?}", file.attributes.keys());
        assert_eq!(all[&b"short"[..]].content, b"target");
        assert_eq!(all[&b"long"[..]].content, long.as_bytes());
        assert_eq!((all[&b"null"[..]].kind, all[&b"file"[..]].links), ('c', 1));
    }
}

/// A kind of metadata: what it begins with, from which byte on, and where it has its checksum and
/// its owner.
struct Kind {
    name: &'static str,
    magic: (usize, &'static [u8]),
    crc: usize,
    owner: usize,
}

const KINDS: [Kind; 8] = [
    Kind { name: "inode", magic: (0, b"IN"), crc: 100, owner: 152 },
    Kind { name: "names in a block", magic: (0, b"XDB3"), crc: 4, owner: 40 },
    Kind { name: "names", magic: (0, b"XDD3"), crc: 4, owner: 40 },
    Kind { name: "extents", magic: (0, b"BMA3"), crc: 64, owner: 56 },
    Kind { name: "attributes", magic: (8, b"\x3b\xee"), crc: 12, owner: 48 },
    Kind { name: "a tree of attributes", magic: (8, b"\x3e\xbe"), crc: 12, owner: 48 },
    Kind { name: "an attribute", magic: (0, b"XARM"), crc: 12, owner: 32 },
    Kind { name: "a link", magic: (0, b"XSLM"), crc: 12, owner: 32 },
];

/// A piece of metadata: where it is, how long, its kind, and whose.
struct Place {
    at: u64,
    len: usize,
    kind: &'static Kind,
    owner: u64,
}

/// All that there is, and some that was.
fn places(image: &Path) -> Vec<Place> {
    let bytes = fs::read(image).unwrap();
    let be = |at: usize| u64::from(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()));
    let block = be(4) as usize;
    let directory = block << bytes[192];
    let inode = usize::from(u16::from_be_bytes([bytes[104], bytes[105]]));
    let mut places = Vec::new();
    for at in (0..bytes.len()).step_by(512) {
        for kind in &KINDS {
            let (from, magic) = kind.magic;
            let len = match kind.name {
                "inode" => inode,
                name if name.starts_with("names") => directory,
                _ => block,
            };
            if !bytes[at + from..].starts_with(magic) || at % len.min(block) != 0 {
                continue;
            }
            let owner = be(at + kind.owner) << 32 | be(at + kind.owner + 4);
            // an inode that nobody uses has no mode
            if kind.name != "inode" || bytes[at + 2..at + 4] != [0; 2] {
                places.push(Place { at: at as u64, len, kind, owner });
            }
        }
    }
    places
}

/// Files of which anything cannot be read, with what is said of it.
fn failing(volume: &dyn ReadAt, bytes: u64) -> Vec<(u64, String)> {
    let files = open(volume, bytes).unwrap();
    let (mut failing, mut left) = (Vec::new(), vec![files.root()]);
    while let Some(directory) = left.pop() {
        let names = match files.names(directory) {
            Ok(names) => names,
            Err(why) => {
                failing.push((directory.0, why.to_string()));
                continue;
            }
        };
        for FileName { id, .. } in names {
            let read = || -> Result<FileKind, mover_fsmap::Refusal> {
                let node = files.node(id)?;
                files.attributes(id)?;
                match node.kind {
                    FileKind::File => drop(files.content(id)?),
                    FileKind::Symlink => drop(files.target(id)?),
                    _ => {}
                }
                Ok(node.kind)
            };
            match read() {
                Ok(FileKind::Directory) => left.push(id),
                Ok(_) => {}
                Err(why) => failing.push((id.0, why.to_string())),
            }
        }
    }
    failing
}

/// A checksum that does not fit fails what it is of, by its number, and nothing else.
#[test]
fn a_wrong_checksum_is_of_its_own_file() {
    let form = Form { name: "xfs-damaged", options: &["-b", "size=1024"], ..PLAIN };
    let Some(ground) = Ground::filled(&form) else { return };
    let places = places(&ground.image);
    let (volume, bytes) = Image::open(&ground.image);
    assert_eq!(failing(&volume, bytes), []);
    let file = File::options().write(true).open(&ground.image).unwrap();
    let mut rng = Rng::new(0xc5c);
    for kind in &KINDS {
        let mut of_kind: Vec<&Place> = places.iter().filter(|p| p.kind.name == kind.name).collect();
        rng.shuffle(&mut of_kind);
        let mut hits = 0;
        // some are left over, and nobody reads them
        for place in of_kind.into_iter().take(40) {
            let at = place.at + 200 + rng.below(place.len as u64 - 200);
            let mut byte = [0];
            file.sync_all().unwrap();
            volume.0.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            let failing = failing(&volume, bytes);
            file.write_all_at(&byte, at).unwrap();
            for (number, why) in &failing {
                assert_eq!(*number, place.owner, "{}: {why}", kind.name);
                let own = format!("inode {number}: the checksum of ");
                let own = why.contains(&own) || why.contains(&format!("inode {number}: its check"));
                assert!(own, "{}: {why}", kind.name);
            }
            assert!(failing.len() <= 6, "a file and its hard links: {failing:?}");
            hits += usize::from(!failing.is_empty());
            if hits == 3 {
                break;
            }
        }
        assert!(hits > 0, "{}: none was hit", kind.name);
    }
}

/// CRC-32C, by its definition.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    };
    !bytes.iter().fold(!0, step)
}

/// Whatever stands in metadata, with checksums that fit: reading it ends, and never panics.
#[test]
fn rubbish_with_sound_checksums_is_read_to_an_end() {
    const ROUNDS: u64 = 300;
    let form = Form { name: "xfs-rubbish", options: &["-b", "size=1024"], ..PLAIN };
    let Some(ground) = Ground::new(&form) else { return };
    {
        let device = LoopDevice::attach(&ground.image);
        let mounted = Mount::new(device.path(), &ground.path("live"), "xfs", form.mounted);
        fill(mounted.path(), "xfs");
        let path = mounted.path().join("dressed");
        File::create(&path).unwrap();
        let mut rng = Rng::seeded(1);
        for n in 0..200 {
            attribute(&path, &format!("user.{n}"), &random(&mut rng, 40));
        }
    }
    let places = places(&ground.image);
    let (volume, bytes) = Image::open(&ground.image);
    let file = File::options().write(true).open(&ground.image).unwrap();
    let mut rng = Rng::new(0xba5e);
    let mut walked = 0;
    for _ in 0..ROUNDS {
        let mut before = Vec::new();
        for _ in 0..=rng.below(4) {
            // of each kind as often, though most are inodes
            let kind = &KINDS[rng.below(KINDS.len() as u64) as usize];
            let of_kind: Vec<&Place> = places.iter().filter(|p| p.kind.name == kind.name).collect();
            let Some(place) = of_kind.get(rng.below(of_kind.len().max(1) as u64) as usize) else {
                continue;
            };
            let mut block = vec![0; place.len];
            volume.0.read_exact_at(&mut block, place.at).unwrap();
            before.push((place.at, block.clone()));
            for _ in 0..=rng.below(4) {
                let most = if rng.once_in(2) { 256 } else { place.len as u64 };
                let at = rng.below(most) as usize;
                block[at] = match rng.below(4) {
                    0 => 0,
                    1 => 0xff,
                    _ => rng.next_u64() as u8,
                };
            }
            block[kind.crc..kind.crc + 4].fill(0);
            let sum = crc32c(&block);
            block[kind.crc..kind.crc + 4].copy_from_slice(&sum.to_le_bytes());
            file.write_all_at(&block, place.at).unwrap();
        }
        walked += walk(&volume, bytes);
        for (at, block) in before.into_iter().rev() {
            file.write_all_at(&block, at).unwrap();
        }
    }
    assert!(walked > ROUNDS * 100, "only {walked} files were seen in all");
    assert_eq!(failing(&volume, bytes), [], "all is as it was");
}

/// A log that wants to be replayed is no log to read past.
#[test]
fn a_volume_that_was_mounted_is_refused_with_the_next_step() {
    let Some(ground) = Ground::new(&PLAIN) else { return };
    let stopped = ground.path("stopped");
    {
        let device = LoopDevice::attach(&ground.image);
        let mounted = Mount::new(device.path(), &ground.path("live"), "xfs", PLAIN.mounted);
        fs::write(mounted.path().join("file"), "late").unwrap();
        stop("xfs", &mounted);
        run_ok("cp", ["--sparse=always".as_ref(), ground.image.as_os_str(), stopped.as_os_str()]);
    }
    let (volume, bytes) = Image::open(&stopped);
    let refusal = open(&volume, bytes).err().expect("a refusal").to_string();
    assert!(refusal.contains("its log") && refusal.contains("mount"), "{refusal}");
}
