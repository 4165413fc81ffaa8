//! What names a target over restarts, whatever is written to it: the disk's own name, or a file's
//! number and birth. Not what is on it: a guest makes file systems.
//!
//! | target | name |
//! |---|---|
//! | regular file | inode and time of birth |
//! | loop device | the file behind it, and where in it the device begins |
//! | mapped device | its `dm/uuid` |
//! | partition | its disk's name, and where on it the partition begins |
//! | other disk | its `wwid`, else its serial number |
//!
//! A copy of a file is another file, and a clone of a disk another disk. A disk that was rolled back
//! has the name that it had.

use super::geometry::Identity;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The name, if there is one.
pub(super) fn name_of(identity: Identity, file: &File) -> Option<String> {
    match identity {
        Identity::File { .. } => file_name(file, c""),
        Identity::Remote => None,
        Identity::Block(no) => disk_name(&Path::new("/sys/dev/block").join(no.to_string())),
    }
}

fn file_name(at: impl AsFd, path: &std::ffi::CStr) -> Option<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(at, path, AtFlags::EMPTY_PATH, wanted).ok()?;
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth = stat.stx_btime;
    has_birth.then(|| format!("file:{}:{}.{:09}", stat.stx_ino, birth.tv_sec, birth.tv_nsec))
}

fn disk_name(directory: &Path) -> Option<String> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        let text: String =
            text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        (!text.is_empty()).then_some(text)
    };
    if let Some(start) =
        read(directory.join("start")).filter(|_| directory.join("partition").exists())
    {
        // `..` of the link's end is the disk
        let disk = std::fs::canonicalize(directory).ok()?;
        let of = disk_name(disk.parent()?)?;
        return Some(format!("{of}, partition at sector {start}"));
    }
    if let Some(behind) = read(directory.join("loop/backing_file")) {
        let offset = read(directory.join("loop/offset")).unwrap_or_default();
        let file = File::open(&behind).ok()?;
        return Some(format!("loop at {offset} of {}", file_name(&file, c"")?));
    }
    if let Some(uuid) = read(directory.join("dm/uuid")) {
        return Some(format!("dm:{uuid}"));
    }
    let named = ["wwid", "device/wwid", "serial", "device/serial"];
    named.iter().find_map(|name| Some(format!("{name}:{}", read(directory.join(name))?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_has_one_name_and_its_copy_another() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "x").unwrap();
        let name = |path: &Path| {
            let file = File::open(path).unwrap();
            let meta = file.metadata().unwrap();
            name_of(Identity::File { dev: meta.dev(), ino: meta.ino() }, &file)
        };
        let first = name(&one);
        assert!(first.is_some(), "no time of birth here");
        std::fs::write(&one, "other content").unwrap();
        std::fs::rename(&one, dir.path().join("moved")).unwrap();
        assert_eq!(name(&dir.path().join("moved")), first);
        std::fs::copy(dir.path().join("moved"), &two).unwrap();
        assert_ne!(name(&two), first);
        assert_eq!(name_of(Identity::Remote, &File::open(&two).unwrap()), None);
    }
}
