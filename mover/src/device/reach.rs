//! Whether a path leads into a directory, by whatever way: another mount of its file system, a bind
//! mount of a part of it, a hard link to one of its files, a loop device over one.
//!
//! Names do not tell: only device and inode numbers do. Reading all of a large directory takes
//! time, so that it is done only where a cheaper look leaves a doubt: another mount of the same
//! file system, or a file that has several names.

use super::geometry::Identity;
use super::mounts;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Whether writing to what is at `path`, or will be made there, would write into `directory`.
pub(crate) fn leads_into(path: &Path, directory: &Path) -> io::Result<bool> {
    let directory = directory.canonicalize()?;
    if is_below(path, &directory)? {
        return Ok(true);
    }
    let Some(identity) = Identity::of_path(path) else { return Ok(false) };
    for backing in mounts::files_below(identity) {
        // the file behind a loop device may be of another container
        if backing.exists() && is_below(&backing, &directory)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `directory`: without links.
fn is_below(path: &Path, directory: &Path) -> io::Result<bool> {
    let Some(path) = resolved(path) else { return Ok(false) };
    if path.starts_with(directory) {
        return Ok(true);
    }
    let top = fs::metadata(directory)?;
    if let Ok(meta) = fs::metadata(&path)
        && meta.is_file()
        && meta.nlink() > 1
        && meta.dev() == top.dev()
        && find(directory, &mut |entry| is(entry, &meta), &|_| true)?
    {
        return Ok(true);
    }
    let above: Vec<(u64, u64)> =
        path.ancestors().skip(1).filter_map(|dir| fs::metadata(dir).ok()).map(number).collect();
    if above.contains(&number(top.clone())) {
        return Ok(true);
    }
    let parent = path.parent().unwrap_or(&path);
    if !above.iter().any(|(dev, _)| *dev == top.dev()) || same_mount(parent, directory) {
        return Ok(false);
    }
    let is_above = |entry: &fs::DirEntry| {
        let inode = above.iter().any(|(_, ino)| *ino == entry.ino());
        inode && entry.metadata().is_ok_and(|meta| meta.is_dir() && above.contains(&number(meta)))
    };
    // a directory of two links has no directories: `.` and its own name are all
    find(directory, &mut |entry| is_above(entry), &|meta| meta.nlink() != 2)
}

fn number(meta: Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn is(entry: &fs::DirEntry, file: &Metadata) -> bool {
    entry.ino() == file.ino()
        && entry.metadata().is_ok_and(|meta| number(meta) == (file.dev(), file.ino()))
}

/// Whether something below a directory is what is looked for. Goes into no directory that is not
/// worth it; what vanishes meanwhile is not there.
fn find(
    directory: &Path,
    wanted: &mut dyn FnMut(&fs::DirEntry) -> bool,
    worth: &dyn Fn(&Metadata) -> bool,
) -> io::Result<bool> {
    let mut todo = vec![directory.to_owned()];
    while let Some(directory) = todo.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = entry?;
            if wanted(&entry) {
                return Ok(true);
            }
            if entry.file_type()?.is_dir() && entry.metadata().is_ok_and(|meta| worth(&meta)) {
                todo.push(entry.path());
            }
        }
    }
    Ok(false)
}

/// Whether two directories are seen through one mount, where names without links do tell. `false`
/// where the kernel does not say.
fn same_mount(a: &Path, b: &Path) -> bool {
    let mount = |path: &Path| {
        let told = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        (told.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(told.stx_mnt_id)
    };
    mount(a).is_some_and(|a| mount(b) == Some(a))
}

/// What a path names, symbolic links followed; of a file that does not exist yet, where it will be.
fn resolved(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Some(parent.canonicalize().ok()?.join(path.file_name()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_links_into_a_directory_are_seen() {
        let top = tempfile::tempdir().unwrap();
        let (inside, outside) = (top.path().join("in"), top.path().join("out"));
        fs::create_dir_all(inside.join("packs/ab")).unwrap();
        fs::create_dir(&outside).unwrap();
        let pack = inside.join("packs/ab/pack");
        fs::write(&pack, [1]).unwrap();
        fs::write(outside.join("file"), [1]).unwrap();
        fs::hard_link(outside.join("file"), outside.join("other")).unwrap();
        fs::hard_link(&pack, outside.join("hard")).unwrap();
        std::os::unix::fs::symlink(&pack, outside.join("soft")).unwrap();
        std::os::unix::fs::symlink(inside.join("packs"), outside.join("link")).unwrap();
        let into = |path: &Path| leads_into(path, &inside).unwrap();
        for path in ["hard", "soft", "link/ab/new", "link/ab/pack", "../in/new"] {
            assert!(into(&outside.join(path)), "{path}");
        }
        for path in ["file", "other", "new", "no/such/directory", "../inner"] {
            assert!(!into(&outside.join(path)), "{path}");
        }
        assert!(into(&pack) && into(&inside.join("new")));
    }
}
