//! XFS, against the kernel's view where a kernel mounts it, and against xfsprogs.

mod damage;

use super::Form;
use super::tree::{self, attribute, entries, fill, random, read};
use mover_fsmap::ReadAt;
use mover_fsmap::files::open;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, ioctl_ficlone, makedev, mknodat};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use tests::{LoopDevice, Mount, Rng, run_ok, work_dir};

pub(crate) const PLAIN: Form =
    Form { name: "xfs", program: "mkfs.xfs", options: &[], mounted: "defaults", dirty: true };

const FORMS: [Form; 10] = [
    PLAIN,
    Form { name: "xfs-clean", dirty: false, ..PLAIN },
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

    /// Fills it, and leaves it as a crash or an unmount does.
    fn filled(form: &Form) -> Option<Self> {
        let ground = Self::new(form)?;
        let device = LoopDevice::attach(&ground.image);
        let mounted = Mount::new(device.path(), &ground.path("live"), "xfs", form.mounted);
        fill(mounted.path(), "xfs");
        more(mounted.path());
        run_ok("sync", ["-f", mounted.path().to_str().unwrap()]);
        late(mounted.path());
        if form.dirty {
            stop("xfs", &mounted);
        }
        drop(mounted);
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

/// Changes that only the log has: of each form of directory and of attributes, in both directions.
fn late(root: &Path) {
    let mut rng = Rng::seeded(0x1a7e);
    for count in [8, 40, 400, MANY] {
        let directory = root.join(format!("names-{count}"));
        for n in 0..(count / 3).min(200) {
            let len = if n % 100 == 7 { 240 } else { n % 30 };
            let name = directory.join(format!("{n}-{}", "n".repeat(len)));
            match n % 3 {
                0 => fs::remove_file(&name).unwrap(),
                1 => fs::rename(&name, root.join(format!("moved-{count}-{n}"))).unwrap(),
                _ => fs::write(&name, random(&mut rng, 10 * n)).unwrap(),
            }
        }
    }
    fs::remove_dir_all(root.join("in-pieces")).unwrap();
    // where inodes and names were, there are others now
    let directory = root.join("again");
    fs::create_dir(&directory).unwrap();
    for n in 0..500 {
        let path = directory.join(format!("{n}-{}", "m".repeat(n % 200)));
        fs::write(&path, random(&mut rng, n)).unwrap();
        if n % 4 == 0 {
            symlink("z".repeat(2 * n + 1), directory.join(format!("link-{n}"))).unwrap();
            attribute(&path, "user.late", &random(&mut rng, 8 * n));
        }
        if n % 5 == 0 {
            fs::remove_file(path).unwrap();
        }
    }
    for n in (0..2000).step_by(3) {
        let (path, name) = (root.join("dressed-2000"), format!("user.{n}"));
        rustix::fs::removexattr(path, name).unwrap();
    }
    let comb = File::options().write(true).open(root.join("comb")).unwrap();
    for n in 3000..4000 {
        comb.write_all_at(b"late", n * 8192).unwrap();
    }
    comb.sync_all().unwrap();
}

#[test]
fn all_forms_are_read_as_the_kernel_shows_them() {
    for form in FORMS {
        let Some(ground) = Ground::filled(&form) else { return };
        let names = ground.expect_as_the_kernel_shows(&ground.image, form.name);
        assert!(names > MANY + 1000, "{}: {names} names", form.name);
    }
}

/// Cut off at any moment while it is written to, again and again, with a log that goes round.
#[test]
fn what_a_writer_leaves_is_read_as_the_kernel_recovers_it() {
    for options in [&[][..], &["--unsupported", "-b", "size=1024", "-l", "size=10m"]] {
        let form = Form { name: "xfs-cut", options: &[], ..PLAIN };
        let Some(ground) = Ground::new(&form) else { return };
        let image = ground.image.to_str().unwrap();
        run_ok("mkfs.xfs", [&["-q", "-f"], options, &[image]].concat());
        let mut rng = Rng::new(0xc07);
        let device = LoopDevice::attach(&ground.image);
        for round in 0..5 {
            // the writer opens whatever has a name, and devices among that are no more than names
            let mounted = Mount::new(device.path(), &ground.path("live"), "xfs", "nodev");
            let root = mounted.path().to_owned();
            let mut writer_rng = rng.fork();
            let most = 200 + rng.below(6000);
            let (so_many, done) = mpsc::channel();
            let writer = std::thread::spawn(move || {
                write_until_cut(&root, &mut writer_rng, (most, so_many))
            });
            done.recv().unwrap();
            // without what is only in memory
            run_ok("xfs_io", ["-x", "-c", "shutdown", mounted.path().to_str().unwrap()]);
            let done = writer.join().unwrap();
            drop(mounted);
            let about = format!("{options:?}, round {round}, {done} changes");
            let names = ground.expect_as_the_kernel_shows(&ground.image, &about);
            println!("{about}: {names} names");
        }
    }
}

/// Makes, fills, renames, dresses and removes files until nothing can be written any more; how
/// often. It is told when that was done so many times.
fn write_until_cut(root: &Path, rng: &mut Rng, (most, so_many): (u64, Sender<()>)) -> u64 {
    let mut done = 0;
    loop {
        let name = |rng: &mut Rng| {
            let directory = root.join(format!("{}", rng.below(20)));
            let n = rng.below(500) as usize;
            (directory.clone(), directory.join(format!("{n}-{}", "n".repeat(n % 220))))
        };
        let ((directory, path), (_, other)) = (name(rng), name(rng));
        let result = match rng.below(14) {
            0..5 => fs::create_dir_all(&directory).and_then(|()| {
                let most = 1 << rng.below(17);
                let len = rng.below(most) as usize;
                fs::write(&path, random(rng, len))
            }),
            5 => fs::remove_file(&path),
            6 => fs::rename(&path, &other),
            7 => fs::hard_link(&path, &other),
            8 => symlink("l".repeat(1 + rng.below(1000) as usize), &other),
            9 => {
                let len = rng.below(3000) as usize;
                let value = random(rng, len);
                let name = format!("user.{}", rng.below(50));
                let set = rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty());
                set.map_err(io::Error::from)
            }
            12 => {
                // of numbers that are kept for experiments
                let device = makedev(240 + rng.below(15) as u32, rng.below(1 << 18) as u32);
                let kind = FileType::CharacterDevice;
                mknodat(CWD, &other, kind, Mode::from(0o600), device).map_err(io::Error::from)
            }
            13 => File::open(&path).and_then(|from| {
                let to = File::create(&other)?;
                ioctl_ficlone(&to, &from)?;
                to.write_all_at(b"its own", rng.below(1 << 16))
            }),
            10 if rng.once_in(20) => fs::remove_dir_all(&directory),
            10 => File::open(&path).and_then(|file| file.sync_all()),
            _ => File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.write_all_at(b"more", rng.below(1 << 20))),
        };
        done += u64::from(result.is_ok());
        if done == most {
            let _ = so_many.send(());
        }
        // how a file system answers that was shut down
        if result.is_err_and(|error| error.raw_os_error() == Some(5)) {
            return done;
        }
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
        let lens = [10, 1000, 3000, 9000];
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
        let wanted = [10, 1000, 3000, 9000];
        assert_eq!(found, wanted, "{options:?}: {:?}", file.attributes.keys());
        assert_eq!(all[&b"short"[..]].content, b"target");
        assert_eq!(all[&b"long"[..]].content, long.as_bytes());
        assert_eq!((all[&b"null"[..]].kind, all[&b"file"[..]].links), ('c', 1));
    }
}
