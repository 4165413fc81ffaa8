//! Files of backups, against the kernel's own view of the same bytes: file systems that the kernel
//! made and filled, left as they are while they are mounted, so that their journals want replaying.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed
#![allow(clippy::cast_possible_truncation)] // places in an image of some MiB

mod commands;
mod content;
mod damage;
mod fat;
mod lvm;
mod mount;
mod ntfs;
mod tree;
mod xfs;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use tests::{LoopDevice, Mount, Mover, run_ok, work_dir};
use tree::{entries, fill};

/// A file system, how it is made and how it is mounted.
struct Form {
    name: &'static str,
    program: &'static str,
    options: &'static [&'static str],
    mounted: &'static str,
    /// It is left mounted; without a journal it must not be.
    dirty: bool,
}

const PLAIN: Form =
    Form { name: "ext4", program: "mkfs.ext4", options: &[], mounted: "defaults", dirty: true };

const FORMS: [Form; 10] = [
    PLAIN,
    Form { name: "clean", dirty: false, ..PLAIN },
    Form { name: "small-blocks", options: &["-b", "1024"], ..PLAIN },
    Form { name: "inline", options: &["-O", "inline_data", "-I", "512"], ..PLAIN },
    Form { name: "no-checksums", options: &["-O", "^metadata_csum,^64bit"], ..PLAIN },
    Form { name: "large-attributes", options: &["-O", "ea_inode"], ..PLAIN },
    Form { name: "data-journal", mounted: "data=journal", ..PLAIN },
    Form { name: "ext3", program: "mkfs.ext3", ..PLAIN },
    Form { name: "ext2", program: "mkfs.ext2", dirty: false, ..PLAIN },
    xfs::PLAIN,
];

impl Form {
    fn kind(&self) -> &'static str {
        self.program.strip_prefix("mkfs.").unwrap()
    }

    /// An image of a file system without a file.
    fn make(&self, image: &Path) {
        // mkfs.xfs wants more
        let bytes = if self.kind() == "xfs" { 400 << 20 } else { 96 << 20 };
        fs::File::create(image).unwrap().set_len(bytes).unwrap();
        let options = self.options.iter().map(OsStr::new);
        run_ok(self.program, options.chain([OsStr::new("-q"), image.as_os_str()]));
    }
}

/// A volume, its backup, and what the kernel says of it.
struct Stage {
    directory: tempfile::TempDir,
    mover: Mover,
    image: PathBuf,
}

impl Stage {
    /// `None`, and said so, without root.
    fn new(form: &Form) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            tests::skip("files: file systems are mounted by root");
            return None;
        }
        let directory = work_dir(&format!("files-{}", form.name));
        let path = |name: &str| directory.path().join(name);
        let live = path("live");
        form.make(&live);
        let image = path("image");
        let device = LoopDevice::attach(&live);
        let kind = form.kind();
        let mounted = Mount::new(device.path(), &path("live-mount"), kind, form.mounted);
        fill(mounted.path(), kind);
        if form.dirty {
            xfs::stop(kind, &mounted);
            run_ok("cp", [&live, &image]);
            drop(mounted);
        } else {
            drop(mounted);
            run_ok("cp", [&live, &image]);
        }
        drop(device);
        if kind != "xfs" {
            // of the superblock's features the one that says so
            let wants_replay = fs::read(&image).unwrap()[1024 + 0x60] & 4 != 0;
            assert_eq!(wants_replay, form.dirty, "{}: its journal wants a replay", form.name);
        }
        let key = path("key");
        let url = format!("file://{}", path("repository").display());
        let mover = Mover::new().env("MOVER_REPO", url).env("MOVER_KEY_FILE", &key);
        mover.ok(["init", "--quiet", "--new-key-file", key.to_str().unwrap()]);
        mover.ok(["backup", image.to_str().unwrap(), "--volume", "db", "--quiet"]);
        Some(Self { directory, mover, image })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Shows the volume as the kernel mounts it.
    fn kernels(&self, see: impl FnOnce(&Path)) {
        let copy = self.path("kernels");
        run_ok("cp", [&self.image, &copy]);
        let device = LoopDevice::attach(&copy);
        let mounted = Mount::new(device.path(), &self.path("kernels-mount"), "auto", "defaults");
        see(mounted.path());
        drop(mounted);
        drop(device);
        fs::remove_file(copy).unwrap();
    }

    /// A file system of the same form, mounted at `room`: no other has room for the longest
    /// attributes.
    fn room(&self, form: &Form) -> (Mount, LoopDevice) {
        let image = self.path("room-image");
        form.make(&image);
        let device = LoopDevice::attach(&image);
        (Mount::new(device.path(), &self.path("room"), "auto", "defaults"), device)
    }

    fn copied(&self, to: &str, more: &[&str]) -> PathBuf {
        let target = self.path(to);
        fs::create_dir(&target).unwrap();
        let line = ["cp", "db@latest", "/", target.to_str().unwrap()];
        self.mover.ok([&line[..], more].concat());
        target
    }
}

/// Everything that a copy keeps is as the kernel sees it: on each kind of file system.
#[test]
fn copies_are_what_the_kernel_shows() {
    for form in FORMS {
        let Some(stage) = Stage::new(&form) else { return };
        let room = stage.room(&form);
        let copy = stage.copied("room/copy", &["--privileged"]);
        stage.kernels(|mounted| {
            let (wanted, got) = (entries(mounted), entries(&copy));
            assert!(wanted.len() > 500, "{}: {} entries", form.name, wanted.len());
            tree::same(form.name, &wanted, &got);
        });
        drop(room);
    }
}

/// An archive, unpacked by GNU tar, is the same once more.
#[test]
fn archives_are_what_the_kernel_shows() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let archive = stage.path("all.tar");
    let mut command = stage.mover.command(["cp", "db@latest", "/", "--tar", "--privileged"]);
    let status = command.stdout(fs::File::create(&archive).unwrap()).status().unwrap();
    assert!(status.success(), "{status}");
    let target = stage.path("unpacked");
    fs::create_dir(&target).unwrap();
    let line = ["--extract", "--preserve-permissions", "--numeric-owner", "--xattrs"];
    let more = ["--xattrs-include=*", "--file", archive.to_str().unwrap(), "--directory"];
    run_ok("tar", [&line[..], &more, &[target.to_str().unwrap()]].concat());
    stage.kernels(|mounted| {
        let mut wanted = entries(mounted);
        // an archive has no sockets
        wanted.retain(|_, entry| entry.kind != 's');
        tree::same("archive", &wanted, &entries(&target));
    });
}
