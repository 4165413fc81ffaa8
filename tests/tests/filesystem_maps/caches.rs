//! A disk and its partitions have a page cache each. Somebody has the disk open, so that its cache
//! stays, and a partition is written to: the disk's cache is of yesterday then, and nothing of it
//! may get into a backup, neither into the map nor into the data.

use crate::lvm::on_device;
use crate::stage::{BACKUP, MIB, Stage, text};
use memmap2::MmapOptions;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tests::{Filesystem, LoopDevice, Mount, Mover, TreeListing, require_root, run_ok};

/// Where the only partition begins.
const START: u64 = MIB;
/// Where there is data that is in no file, from the start of the partition: the second logical
/// volume, behind the metadata and the first one; or what is behind a swap space.
const PLAIN: std::ops::Range<u64> = 11 * MIB..31 * MIB;
const SWAP_KIB: &str = "8192";

/// A disk with one partition; gives the partition back first.
struct Disk {
    device: LoopDevice,
}

impl Disk {
    fn attach(image: &Path) -> Self {
        let device = LoopDevice::attach(image);
        let sectors = |bytes: u64| (bytes / 512).to_string();
        let bytes = device.size_bytes() - 2 * MIB;
        let path = text(device.path());
        // by hand: this need not be a kernel that reads partition tables
        run_ok("addpart", [path.as_str(), "1", &sectors(START), &sectors(bytes)]);
        Self { device }
    }

    fn path(&self) -> &Path {
        self.device.path()
    }

    fn partition(&self) -> PathBuf {
        format!("{}p1", self.path().display()).into()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that another thread starts has the partition open until it runs its program.
        // What is left would meet the next user of the loop device.
        let end = Instant::now() + Duration::from_secs(30);
        while !tests::run("delpart", [&*text(self.path()), "1"]).status.success() {
            if Instant::now() > end {
                assert!(std::thread::panicking(), "{} stays", self.partition().display());
                break;
            }
        }
    }
}

/// What a partition has before the first backup, and after it.
#[derive(Debug, Clone, Copy)]
enum Content {
    FileSystem(Filesystem),
    /// Gets smaller, and data behind it.
    Swap,
    /// Gets another logical volume.
    Lvm,
}

impl Content {
    const ALL: [Self; 5] = [
        Self::FileSystem(Filesystem::Ext4),
        Self::FileSystem(Filesystem::Xfs),
        Self::FileSystem(Filesystem::Btrfs),
        Self::Swap,
        Self::Lvm,
    ];

    /// As a partition table calls it.
    fn type_code(self) -> &'static str {
        match self {
            Self::FileSystem(_) => "8300",
            Self::Swap => "8200",
            Self::Lvm => "8e00",
        }
    }

    fn make(self, stage: &Stage, partition: &Path) {
        let path = text(partition);
        match self {
            Self::FileSystem(kind) => kind.make(partition),
            Self::Swap => drop(run_ok("mkswap", [path])),
            Self::Lvm => {
                on_device(stage, partition, "pvcreate", &["-ff", &path]);
                on_device(stage, partition, "vgcreate", &["-s", "1m", "vg", &path]);
                lvcreate(stage, partition, "one", "10");
            }
        }
    }

    /// Writes 60 MB, or what there is room for.
    fn write(self, stage: &mut Stage, partition: &Path) -> Option<TreeListing> {
        let kind = match self {
            Self::FileSystem(kind) => kind,
            Self::Swap => {
                run_ok("mkswap", [&text(partition), SWAP_KIB]);
                write_plain(stage, partition);
                return None;
            }
            Self::Lvm => {
                lvcreate(stage, partition, "two", "20");
                write_plain(stage, partition);
                return None;
            }
        };
        let mount = Mount::new(partition, &stage.path("live"), kind.name(), "");
        fs::write(mount.path().join("file"), stage.rng.bytes(60_000_000)).unwrap();
        Some(TreeListing::of(mount.path()))
    }

    fn check(self, stage: &Stage, disk: &Path, written: Option<&TreeListing>, restored: &Path) {
        let (Self::FileSystem(kind), Some(written)) = (self, written) else {
            let [one, other] = [disk, restored].map(|path| {
                let mut bytes = vec![0; (PLAIN.end - PLAIN.start) as usize];
                File::open(path).unwrap().read_exact_at(&mut bytes, START + PLAIN.start).unwrap();
                bytes
            });
            assert!(one == other && one.iter().any(|byte| *byte != 0), "{self:?}");
            return;
        };
        let restored = Disk::attach(restored);
        kind.check(&restored.partition());
        let options = kind.read_only_options();
        let at = stage.path("restored");
        let mount = Mount::new(&restored.partition(), &at, kind.name(), options);
        written.expect_same(&TreeListing::of(mount.path()));
    }
}

fn write_plain(stage: &mut Stage, partition: &Path) {
    let file = OpenOptions::new().write(true).open(partition).unwrap();
    let noise = stage.rng.bytes((PLAIN.end - PLAIN.start) as usize);
    file.write_all_at(&noise, PLAIN.start).unwrap();
    file.sync_all().unwrap();
}

fn lvcreate(stage: &Stage, partition: &Path, name: &str, extents: &str) {
    let line = ["-an", "-Zn", "-Wn", "-l", extents, "-n", name, "vg"];
    on_device(stage, partition, "lvcreate", &line);
}

fn make_disk(stage: &Stage, content: Content, bytes: u64) -> PathBuf {
    let image = stage.path("disk");
    File::create(&image).unwrap().set_len(bytes).unwrap();
    let last = (bytes - MIB) / 512 - 1;
    let (place, code) = (format!("1:{}:{last}", START / 512), content.type_code());
    run_ok("sgdisk", ["-a", "1", "-n", &place, "-t", &format!("1:{code}"), &text(&image)]);
    image
}

/// Fills the cache of a device, and holds it.
fn hold(path: &Path) -> File {
    let mut file = File::open(path).unwrap();
    let mut bytes = vec![0; MIB as usize];
    while file.read(&mut bytes).unwrap() > 0 {}
    file
}

fn backup(mover: &Mover, direct: &str, disk: &Path) -> serde_json::Value {
    let more = ["--require", "allocated", "--fail-on-degraded", "--volume", "v"];
    let last = ["--direct-io", direct, &text(disk)];
    mover.ok(BACKUP.iter().copied().chain(more).chain(last)).summary()
}

#[test]
fn a_partition_that_is_written_beside_a_disk_that_is_open_is_backed_up_as_it_is() {
    require_root!();
    for (content, direct) in
        Content::ALL.into_iter().flat_map(|content| [(content, "auto"), (content, "never")])
    {
        println!("{content:?} {direct}");
        let mut stage = Stage::new(Filesystem::Ext4, 90);
        let image = make_disk(&stage, content, 402 * MIB);
        let disk = Disk::attach(&image);
        content.make(&stage, &disk.partition());
        let _held = hold(disk.path());
        let mover = stage.repository();
        backup(&mover, direct, disk.path());
        let written = content.write(&mut stage, &disk.partition());
        let done = backup(&mover, direct, disk.path());
        assert_eq!(done["kind"], "allocated", "{done}");
        let target = stage.path("target");
        mover.ok(["restore", "v@latest", &text(&target), "--verify"]);
        content.check(&stage, &image, written.as_ref(), &target);
    }
}

/// The same below a loop device that reads the disk through the disk's cache.
#[test]
fn a_loop_device_over_a_disk_shows_what_is_on_the_disk() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 91);
    let content = Content::FileSystem(Filesystem::Ext4);
    let image = make_disk(&stage, content, 202 * MIB);
    let disk = Disk::attach(&image);
    content.make(&stage, &disk.partition());
    let _held = hold(disk.path());
    let above = LoopDevice::attach_cached(disk.path());
    let mover = stage.repository();
    backup(&mover, "auto", above.path());
    let written = content.write(&mut stage, &disk.partition());
    backup(&mover, "auto", above.path());
    let target = stage.path("target");
    mover.ok(["restore", "v@latest", &text(&target), "--verify"]);
    content.check(&stage, &image, written.as_ref(), &target);
}

/// Somebody has a partition open while its disk is restored: what is read of the partition then is
/// what was restored.
#[test]
fn a_partition_that_is_open_shows_what_was_restored_onto_its_disk() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 93);
    let image = make_disk(&stage, Content::Swap, 40 * MIB);
    let disk = Disk::attach(&image);
    write_plain(&mut stage, &disk.partition());
    let whole = |path: &Path| fs::read(path).unwrap();
    let backed_up = whole(&disk.partition());
    let mover = stage.repository();
    let path = text(disk.path());
    mover.ok(["backup", &path, "--volume", "v"]);
    write_plain(&mut stage, &disk.partition());
    let held = hold(&disk.partition());
    assert!(whole(&disk.partition()) != backed_up);
    let line = ["restore", "v@latest", &path, "--force", "--verify", "--json"];
    let warnings = || mover.ok(line).summary()["warnings"].to_string();
    assert_eq!(warnings(), "[]");
    assert!(whole(&disk.partition()) == backed_up, "the partition's cache is old");
    let mapped = MmapOptions::new().len(1 << 20).populate().map_raw_read_only(&held).unwrap();
    let told = warnings();
    assert!(told.contains("p1 cannot be emptied") && told.contains("pages stay"), "{told}");
    drop(mapped);
}

/// A volume that ends within a block is compared with a larger disk. Its last bytes are read
/// through the disk's cache, and are of the disk nevertheless.
#[test]
fn the_odd_end_of_a_volume_is_compared_with_what_is_on_the_disk() {
    require_root!();
    let mut stage = Stage::new(Filesystem::Ext4, 94);
    let image = make_disk(&stage, Content::Swap, 40 * MIB);
    let disk = Disk::attach(&image);
    let held = hold(disk.path());
    write_plain(&mut stage, &disk.partition());
    let odd = (START + PLAIN.start + 5 * MIB + 77) as usize;
    let on_disk = fs::read(&image).unwrap()[..odd].to_vec();
    let mut cached = [1; 77];
    let at = (odd - cached.len()) as u64;
    held.read_exact_at(&mut cached, at).unwrap();
    assert!(cached == [0; 77] && !on_disk.ends_with(&cached), "the cache is of before");
    let volume = stage.path("odd");
    fs::write(&volume, on_disk).unwrap();
    let mover = stage.repository();
    mover.ok(["backup", &text(&volume), "--volume", "v"]);
    let path = text(disk.path());
    let line = ["verify", "v@latest", "--device", &path, "--direct-io", "always", "--json"];
    let warnings = || mover.ok(line).summary()["warnings"].to_string();
    assert_eq!(warnings(), "[]");
    let mapped = MmapOptions::new().len(1 << 20).populate().map_raw_read_only(&held).unwrap();
    let told = warnings();
    assert!(told.contains("may be older") && told.contains("pages stay"), "{told}");
    drop(mapped);
}

/// What a process has mapped into its memory cannot be dropped from the cache.
#[test]
fn a_cache_that_cannot_be_emptied_makes_the_backup_degraded() {
    require_root!();
    let stage = Stage::new(Filesystem::Ext4, 92);
    let content = Content::FileSystem(Filesystem::Ext4);
    let image = make_disk(&stage, content, 202 * MIB);
    let disk = Disk::attach(&image);
    content.make(&stage, &disk.partition());
    let mover = stage.repository();
    let held = hold(disk.path());
    let mapped = MmapOptions::new().len(1 << 20).populate().map_raw_read_only(&held).unwrap();
    let line = BACKUP.iter().copied().chain(["--volume", "v", "--direct-io"]);
    let disk = text(disk.path());
    let with = |direct| mover.ok(line.clone().chain([direct, disk.as_str()])).summary();
    let degraded = with("never")["degraded"].to_string();
    assert!(degraded.contains("page cache") && degraded.contains("pages stay"), "{degraded}");
    assert_eq!(with("auto")["degraded"].to_string(), "[]");
    drop(mapped);
    assert_eq!(with("never")["degraded"].to_string(), "[]");
}
