//! Whether a volume is still what it was some time ago: as far as the kernel can tell. Two equal
//! texts say that nothing was written to it in between through this kernel; where that cannot be
//! known there is no text.
//!
//! One text is for another process, which goes on with a backup of a device that nobody called a
//! snapshot: a doubt makes it differ. One is for the run that reads: it differs only if the volume
//! itself was written to.
//!
//! | source | what tells | within one run |
//! |---|---|---|
//! | regular file | device, inode, size, times of last change of its data and of itself | its data alone |
//! | loop device | the same of the file behind it, and which part of it the device shows | its data alone; without the file, the counters |
//! | other block device | this boot, the device's sequence number (never used twice in a boot), its counters of sectors written and discarded | the counters |
//! | partition | as its disk, and the counters of both | its own counters |
//!
//! Writes are not counted by their number: mapped devices count a flush, too.
//!
//! What is written past the device (by another machine, or to what a mapped device is built of) is
//! not seen.

use super::geometry::{DeviceNo, Identity};
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Fields of `stat`, see the kernel's Documentation/block/stat.rst: write sectors, discard sectors.
const WRITE_FIELDS: [usize; 2] = [6, 13];

/// The state of what is open; `meta` is of its descriptor.
pub(super) fn state_of(identity: Identity, meta: &Metadata) -> Option<String> {
    match identity {
        Identity::File { .. } => Some(file_state(meta)),
        Identity::Remote => None,
        Identity::Block(no) => {
            let boot = read("/proc/sys/kernel/random/boot_id".as_ref())?;
            block_state(&directory(no), no, &boot)
        }
    }
}

/// What a run compares with itself.
pub(super) fn written_of(identity: Identity, meta: &Metadata) -> Option<String> {
    match identity {
        Identity::File { .. } => Some(data_state(meta)),
        Identity::Remote => None,
        Identity::Block(no) => block_written(&directory(no)),
    }
}

fn directory(no: DeviceNo) -> PathBuf {
    Path::new("/sys/dev/block").join(no.to_string())
}

fn file_state(meta: &Metadata) -> String {
    let data = data_state(meta);
    format!("{data}, itself {}.{:09}", meta.ctime(), meta.ctime_nsec())
}

/// Not when the file itself was changed: a new name, owner or label writes no data.
fn data_state(meta: &Metadata) -> String {
    format!(
        "file {}:{} {} bytes, data {}.{:09}",
        meta.dev(),
        meta.ino(),
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec()
    )
}

/// `here`: the device's directory in `/sys`.
fn block_state(here: &Path, no: DeviceNo, boot: &str) -> Option<String> {
    // of a partition: the disk's
    let disk = if here.join("partition").exists() { here.join("..") } else { here.to_owned() };
    if disk.join("loop").exists() {
        let meta = backing_file(&disk)?;
        let part = [
            read(&disk.join("loop/offset"))?,
            read(&disk.join("loop/sizelimit"))?,
            read(&here.join("start")).unwrap_or_default(),
        ];
        return Some(format!("loop [{}] {}", part.join(" "), file_state(&meta)));
    }
    if read(&disk.join("queue/iostats"))? != "1" {
        return None;
    }
    let sequence = read(&disk.join("diskseq"))?;
    let written = written(&here.join("stat"))?;
    let mut state = format!("block {no} boot {boot} sequence {sequence} written {written}");
    if disk != here {
        // what is written to a partition by way of its whole disk is counted there alone
        state += &format!(", disk {}", self::written(&disk.join("stat"))?);
    }
    Some(state)
}

/// `here`: the device's directory in `/sys`.
fn block_written(here: &Path) -> Option<String> {
    // what is written to one partition changes the disk's file, and its counters
    let partition = here.join("partition").exists();
    if let (false, Some(file)) = (partition, backing_file(here)) {
        return Some(data_state(&file));
    }
    let disk = if partition { here.join("..") } else { here.to_owned() };
    (read(&disk.join("queue/iostats"))? == "1").then(|| written(&here.join("stat")))?
}

/// Of a loop device, if it still has the name that it had.
fn backing_file(disk: &Path) -> Option<Metadata> {
    let backing = std::fs::read(disk.join("loop/backing_file")).ok()?;
    let backing = backing.strip_suffix(b"\n").unwrap_or(&backing).to_vec();
    let meta = std::fs::metadata(PathBuf::from(std::ffi::OsString::from_vec(backing))).ok()?;
    matches!(Identity::of(&meta)?, Identity::File { .. }).then_some(meta)
}

fn written(stat: &Path) -> Option<String> {
    let stat = read(stat)?;
    let fields: Vec<&str> = stat.split_whitespace().collect();
    let counted = WRITE_FIELDS.iter().map(|i| fields.get(*i).copied()).collect::<Option<Vec<_>>>();
    Some(counted?.join(" "))
}

fn read(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const STAT: &str = "1 2 3 4 50 6 70 8 9 10 11 120 13 140 15 16 17\n";

    /// A directory as `/sys/dev/block` has one for each device.
    fn device(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn state(dir: &Path) -> Option<String> {
        block_state(dir, DeviceNo { major: 8, minor: 1 }, "b")
    }

    #[test]
    fn a_device_is_known_by_its_sequence_and_what_was_written_to_it() {
        let facts = [("diskseq", "7\n"), ("stat", STAT), ("queue/iostats", "1\n")];
        let dir = device(&facts);
        let before = state(dir.path()).unwrap();
        assert_eq!(before, "block 8:1 boot b sequence 7 written 70 140");
        // flushes count as writes, of no sectors
        let reads_only = STAT.replacen("1 2 3 4 50", "9 9 9 9 51", 1);
        fs::write(dir.path().join("stat"), reads_only).unwrap();
        assert_eq!(state(dir.path()).as_ref(), Some(&before));
        for (file, text) in [("stat", STAT.replace("140", "141")), ("diskseq", "8".into())] {
            let dir = device(&facts);
            fs::write(dir.path().join(file), text).unwrap();
            assert_ne!(state(dir.path()).unwrap(), before, "{file}");
        }
    }

    #[test]
    fn a_device_that_does_not_count_is_not_known() {
        for missing in ["diskseq", "stat", "queue/iostats"] {
            let facts = [("diskseq", "7\n"), ("stat", STAT), ("queue/iostats", "1\n")];
            let dir = device(&facts.map(|(f, t)| if f == missing { ("x", t) } else { (f, t) }));
            assert_eq!(state(dir.path()), None, "{missing}");
        }
        let old = device(&[("diskseq", "7"), ("stat", "1 2 3 4 5 6 7"), ("queue/iostats", "1")]);
        assert_eq!(state(old.path()), None, "a kernel that counts no discards");
        let off = device(&[("diskseq", "7"), ("stat", STAT), ("queue/iostats", "0")]);
        assert_eq!(state(off.path()), None);
    }

    #[test]
    fn a_partition_has_its_own_counters_and_those_of_its_disk() {
        let disk = device(&[
            ("diskseq", "7\n"),
            ("stat", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"),
            ("queue/iostats", "1\n"),
            ("p1/partition", "1\n"),
            ("p1/stat", STAT),
        ]);
        let found = state(&disk.path().join("p1")).unwrap();
        assert_eq!(found, "block 8:1 boot b sequence 7 written 70 140, disk 0 0");
        // by way of the whole disk; or to another partition, which is nothing to this one
        let own = block_written(&disk.path().join("p1"));
        assert_eq!(own.as_deref(), Some("70 140"));
        fs::write(disk.path().join("stat"), STAT).unwrap();
        assert_ne!(state(&disk.path().join("p1")).unwrap(), found);
        assert_eq!(block_written(&disk.path().join("p1")), own);
    }

    #[test]
    fn a_loop_device_is_known_by_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = format!("{}\n", file.path().display());
        let dir = device(&[
            ("loop/backing_file", &backing),
            ("loop/offset", "0\n"),
            ("loop/sizelimit", "0\n"),
        ]);
        let before = state(dir.path()).unwrap();
        assert_eq!(state(dir.path()).as_ref(), Some(&before));
        fs::write(dir.path().join("loop/offset"), "512\n").unwrap();
        assert_ne!(state(dir.path()).unwrap(), before);
        fs::write(dir.path().join("loop/offset"), "0\n").unwrap();
        let data = block_written(dir.path()).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(block_written(dir.path()).as_ref(), Some(&data));
        fs::write(file.path(), "x").unwrap();
        assert_ne!(state(dir.path()).unwrap(), before);
        assert_ne!(block_written(dir.path()).unwrap(), data);
        fs::write(dir.path().join("loop/backing_file"), "/nowhere (deleted)\n").unwrap();
        assert_eq!(state(dir.path()), None);
    }
}
