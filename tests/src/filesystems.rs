//! Filesystems on devices: made, filled with real files, listed to the last byte, checked by their
//! own tools.

use crate::devices::{run, run_ok};
use crate::random::Rng;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What a volume is formatted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// ext4
    Ext4,
    /// XFS; at least 300 MiB, as its mkfs demands.
    Xfs,
    /// btrfs; at least 128 MiB.
    Btrfs,
}

impl Filesystem {
    /// As `mount -t` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Formats a device or an image file.
    pub fn make(self, device: &Path) {
        let (program, quiet) = match self {
            Self::Ext4 => ("mkfs.ext4", "-q"),
            Self::Xfs => ("mkfs.xfs", "-q"),
            Self::Btrfs => ("mkfs.btrfs", "-q"),
        };
        run_ok(program, [OsStr::new(quiet), device.as_os_str()]);
    }

    /// Options that mount a restored copy, read-only, beside a filesystem of the same UUID.
    pub fn read_only_options(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Btrfs => "ro",
            Self::Xfs => "ro,nouuid",
        }
    }

    /// Checks an unmounted filesystem with its own tool, which changes nothing; panics on any
    /// finding.
    pub fn check(self, device: &Path) {
        let args: &[&str] = match self {
            Self::Ext4 => &["e2fsck", "-f", "-n"],
            Self::Xfs => &["xfs_repair", "-n"],
            Self::Btrfs => &["btrfs", "check", "--readonly", "--check-data-csum"],
        };
        let rest = args[1..].iter().map(OsStr::new).chain([device.as_os_str()]);
        let output = run(args[0], rest);
        assert!(
            output.status.success(),
            "{args:?} {}: {}\n{}{}",
            device.display(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// One file, directory or link of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// File type and permissions.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Size in bytes; 0 for a directory, whose size is the filesystem's own affair.
    pub bytes: u64,
    /// BLAKE3 of a file's content or of a link's target.
    pub content: Option<blake3::Hash>,
}

/// Everything below a directory, by relative path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeListing(pub BTreeMap<PathBuf, TreeEntry>);

impl TreeListing {
    /// Reads every file.
    pub fn of(root: &Path) -> Self {
        let mut listing = Self::default();
        listing.add(root, Path::new(""));
        listing
    }

    fn add(&mut self, root: &Path, relative: &Path) {
        let path = root.join(relative);
        let meta = fs::symlink_metadata(&path).expect("read the metadata");
        let content = if meta.is_file() {
            let mut hasher = blake3::Hasher::new();
            let file = fs::File::open(&path).expect("open a file");
            hasher.update_reader(file).expect("read a file");
            Some(hasher.finalize())
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).expect("read a link");
            Some(blake3::hash(target.as_os_str().as_encoded_bytes()))
        } else {
            None
        };
        let entry = TreeEntry {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            modified: (meta.mtime(), meta.mtime_nsec()),
            bytes: if meta.is_dir() { 0 } else { meta.len() },
            content,
        };
        self.0.insert(relative.to_owned(), entry);
        if meta.is_dir() {
            for entry in fs::read_dir(&path).expect("read a directory") {
                let name = entry.expect("read a directory").file_name();
                self.add(root, &relative.join(name));
            }
        }
    }

    /// Panics, naming the first few differences, unless both are the same.
    pub fn expect_same(&self, other: &Self) {
        let differing: Vec<&PathBuf> = self
            .0
            .keys()
            .chain(other.0.keys())
            .filter(|path| self.0.get(*path) != other.0.get(*path))
            .take(5)
            .collect();
        assert!(differing.is_empty(), "trees differ, first in {differing:?}");
    }
}

/// Copies real files of the system into `directory` until about `bytes` are there, chosen and
/// ordered by `rng`; gives their paths.
pub(crate) fn copy_real_files(directory: &Path, bytes: u64, rng: &mut Rng) -> Vec<PathBuf> {
    let files = system_files();
    assert!(files.len() > 100, "there are real files below /usr");
    fs::create_dir_all(directory).expect("make a directory");
    let mut copied = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let pick = usize::try_from(rng.below(files.len() as u64)).expect("an index fits");
        let (source, len) = &files[pick];
        if *len > left {
            left = left.saturating_sub(left / 4 + 1);
            continue;
        }
        // A few files a directory, as trees are.
        let below = directory.join(format!("d{:02}", copied.len() % 23));
        fs::create_dir_all(&below).expect("make a directory");
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let target = below.join(format!("{:05}-{name}", copied.len()));
        fs::copy(source, &target).expect("copy a real file");
        left = left.saturating_sub((*len).max(512));
        copied.push(target);
    }
    copied
}

/// Readable regular files below /usr of at most 8 MiB, in the order of their names, with their
/// sizes.
fn system_files() -> &'static [(PathBuf, u64)] {
    static FILES: OnceLock<Vec<(PathBuf, u64)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut files = Vec::new();
        let mut directories =
            vec![PathBuf::from("/usr/bin"), "/usr/lib".into(), "/usr/share".into()];
        while let Some(directory) = directories.pop() {
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            for entry in entries.flatten() {
                let Ok(meta) = entry.path().symlink_metadata() else { continue };
                if meta.is_dir() {
                    directories.push(entry.path());
                } else if meta.is_file() && (1..=8 << 20).contains(&meta.len()) {
                    files.push((entry.path(), meta.len()));
                }
            }
        }
        files.sort();
        files
    })
}
