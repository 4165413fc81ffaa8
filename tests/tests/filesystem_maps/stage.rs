//! What all kinds share: images that are made, filled, copied, spoilt where their maps leave
//! something out, and looked at again.

use mover_fsmap::{Limits, ReadAt, Refusal, UsedSpace, used_space};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::{Filesystem, LoopDevice, Mount, Mover, Rng, TreeListing, run, run_ok, volume_dir};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const LIMITS: Limits = Limits { granule_bytes: 4 << 10, ranges_max: 1 << 20 };

pub(crate) struct Stage {
    directory: tempfile::TempDir,
    pub(crate) kind: Filesystem,
    pub(crate) rng: Rng,
}

impl Stage {
    pub(crate) fn new(kind: Filesystem, seed: u64) -> Self {
        Self { directory: volume_dir(kind.name()), kind, rng: Rng::new(seed) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// An image of a file system; `None` if its mkfs does not know the arguments.
    pub(crate) fn try_make(&self, arguments: &[&str], bytes: u64) -> Option<PathBuf> {
        let image = self.path("image");
        File::create(&image).unwrap().set_len(bytes).unwrap();
        let (program, force) = match self.kind {
            Filesystem::Ext4 => ("mkfs.ext4", "-F"),
            Filesystem::Xfs => ("mkfs.xfs", "-f"),
            Filesystem::Btrfs => ("mkfs.btrfs", "-f"),
        };
        let mut all: Vec<&str> = vec!["-q", force];
        all.extend(arguments);
        let path = text(&image);
        all.push(&path);
        let made = run(program, all);
        if !made.status.success() {
            println!("{program} {arguments:?}: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        made.status.success().then_some(image)
    }

    pub(crate) fn make(&self, arguments: &[&str], bytes: u64) -> PathBuf {
        self.try_make(arguments, bytes).expect("mkfs knows its arguments")
    }

    /// Mounts one at `live`, for writing.
    pub(crate) fn mount(&self, device: &LoopDevice) -> Mount {
        // By itself btrfs commits every 30 s, after which nothing is in its log: a slow machine meets that.
        let options = if self.kind == Filesystem::Btrfs { "commit=300" } else { "" };
        Mount::new(device.path(), &self.path("live"), self.kind.name(), options)
    }

    /// Files of all sizes, of which some go again; the newest metadata is committed to the journal
    /// and nowhere else.
    pub(crate) fn churn(&mut self, root: &Path) {
        for round in 0..3 {
            for n in 0..60 {
                let directory = root.join(format!("{}", n % 7));
                fs::create_dir_all(&directory).unwrap();
                let name = directory.join(format!("{round}-{n}"));
                let len = self.rng.below(1 << (3 + n % 16)) as usize;
                fs::write(&name, self.rng.bytes(len)).unwrap();
                if self.rng.once_in(3) {
                    fs::remove_file(&name).unwrap();
                }
            }
            let committed = File::create(root.join(format!("committed-{round}"))).unwrap();
            committed.write_all_at(&self.rng.bytes(300_000), 0).unwrap();
            committed.sync_all().unwrap();
        }
    }

    /// Mounts a copy, which replays its journal, and lists it.
    pub(crate) fn listing(&self, image: &Path) -> TreeListing {
        let device = LoopDevice::attach(image);
        let mount = Mount::new(device.path(), &self.path("mount"), self.kind.name(), "");
        TreeListing::of(mount.path())
    }

    /// The map of an image, tried on a copy of it.
    pub(crate) fn expect_right(&mut self, image: &Path, what: &str) -> UsedSpace {
        let found = map(image).unwrap_or_else(|refusal| panic!("{what}: {refusal}"));
        assert_eq!(found.kind, self.kind.name(), "{what}");
        let (whole, spoilt) = (self.path("whole"), self.path("spoilt"));
        copy(image, &whole);
        copy(image, &spoilt);
        let bytes = spoil(&spoilt, &found, &mut self.rng);
        // the map is no toy: what it leaves out is what is free, small pieces apart
        let free = found.free_bytes;
        let enough = bytes > 10 * MIB && bytes + free / 10 + MIB > free;
        assert!(enough, "{what}: {bytes} bytes are left out, {free} are free: {found:?}");
        let expected = self.listing(&whole);
        assert!(expected.0.len() > 50, "{what}");
        expected.expect_same(&self.listing(&spoilt));
        for image in [&whole, &spoilt] {
            self.kind.check(image);
        }
        found
    }

    /// Backs snapshots up by their maps, each spoilt where that does not matter, and restores them
    /// over noise.
    pub(crate) fn expect_backups_right(&mut self, mover: &Mover, snapshot: &Path) {
        for name in ["one", "two"] {
            let target = self.restored(mover, snapshot, name);
            let whole = self.path("whole");
            copy(snapshot, &whole);
            self.listing(&whole).expect_same(&self.listing(&target));
            self.kind.check(&target);
        }
    }

    /// What a backup of that name by its map is restored to, over noise. The snapshot is spoilt
    /// before.
    pub(crate) fn restored(&mut self, mover: &Mover, snapshot: &Path, name: &str) -> PathBuf {
        let target = self.path("target");
        let bytes = fs::metadata(snapshot).unwrap().len();
        // what free blocks hold does not matter
        let used = map(snapshot).unwrap();
        spoil(snapshot, &used, &mut self.rng);
        let device = LoopDevice::attach(snapshot);
        let device = text(device.path());
        let more = ["--volume", "v", "--snapshot", name, &device];
        let done = mover.ok(BACKUP.iter().copied().chain(more)).text();
        assert!(
            done.contains("\"kind\":\"allocated\"") && done.contains("\"degraded\":[]"),
            "{done}"
        );
        assert!(done.contains("\"origin\":\"filesystem\""), "{done}");
        let noise = File::create(&target).unwrap();
        let piece = self.rng.bytes(MIB as usize);
        (0..bytes.div_ceil(MIB)).for_each(|at| noise.write_all_at(&piece, at * MIB).unwrap());
        noise.set_len(bytes).unwrap();
        mover.ok(["restore", "v@latest", &text(&target), "--force"]);
        target
    }

    /// A new repository, for which all chunks are audited.
    pub(crate) fn repository(&self) -> Mover {
        let repository = format!("file://{}", text(&self.path("repository")));
        let mover = Mover::new().env("MOVER_REPO", repository).env("MOVER_AUDIT", "all");
        mover.ok(["init", "--encryption", "none"]);
        mover
    }
}

pub(crate) const BACKUP: [&str; 4] = ["backup", "--allocated-from", "filesystem", "--json"];

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// An image file: it has one cache, so that there is nothing to mind.
pub(crate) struct Image(File);

impl Image {
    pub(crate) fn open(path: &Path) -> Self {
        Self(File::open(path).unwrap())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }
}

impl ReadAt for Image {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

pub(crate) fn map(image: &Path) -> Result<UsedSpace, Refusal> {
    let image = Image::open(image);
    used_space(&image, image.bytes(), LIMITS)
}

/// The same of bytes; the text of a refusal.
pub(crate) fn map_of(bytes: &[u8]) -> Result<UsedSpace, String> {
    used_space(&bytes, bytes.len() as u64, LIMITS).map_err(|refusal| refusal.to_string())
}

/// Expects bytes at a place of a good volume to be refused.
pub(crate) fn expect_refused(good: &[u8], at: usize, value: &[u8], expected: &str) {
    let mut bytes = good.to_vec();
    bytes[at..at + value.len()].copy_from_slice(value);
    assert!(bytes != good, "{at}: {value:?} is there already");
    let refusal = map_of(&bytes).expect_err(expected);
    assert!(refusal.contains(expected), "{at} {value:?}: {refusal}");
}

/// Puts noise into some places of a good volume, each with its length: it is refused or mapped, and
/// never a panic or a loop.
pub(crate) fn expect_no_panic(good: &[u8], places: &[(usize, usize)], rng: &mut Rng) {
    let mut bytes = good.to_vec();
    let mut refused = 0;
    for _ in 0..1000 {
        let (at, len) = places[rng.below(places.len() as u64) as usize];
        let from = at + rng.below(len as u64) as usize;
        let to = (from + 1 + rng.below(8) as usize).min(at + len);
        rng.fill(&mut bytes[from..to]);
        refused += u32::from(map_of(&bytes).is_err());
        bytes[at..at + len].copy_from_slice(&good[at..at + len]);
    }
    assert!(refused > 10, "{refused} of 1000");
}

pub(crate) fn copy(from: &Path, to: &Path) {
    run_ok("cp", ["--sparse=always", &text(from), &text(to)]);
}

/// Overwrites what the map leaves out: a restore would leave zeros there; noise is found by more.
pub(crate) fn spoil(image: &Path, used: &UsedSpace, rng: &mut Rng) -> u64 {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    let end = file.metadata().unwrap().len();
    let (mut at, mut spoilt) = (0, 0);
    let noise = rng.bytes(1 << 20);
    let last = std::iter::once(end..end);
    for range in used.used.iter().chain(last) {
        while at < range.start {
            let len = (range.start - at).min(noise.len() as u64);
            file.write_all_at(&noise[..len as usize], at).unwrap();
            at += len;
            spoilt += len;
        }
        at = at.max(range.end);
    }
    spoilt
}

/// CRC-32C, as all of them keep it.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    };
    !bytes.iter().fold(!0, step)
}
