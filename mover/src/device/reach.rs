//! Whether a path leads into a repository's directory, by whatever way: another mount of its file
//! system, a bind mount of a part of it, a link to one of its directories, a hard link to one of its
//! files, a loop device over one.
//!
//! Names do not tell: only device and inode numbers do. Reading all of a large directory takes
//! time, so that it is done only where a cheaper look leaves a doubt: another mount of the same
//! file system, or a file that has several names. It is done only in the repository's own
//! directories: each may be a link or a mount, and what is beside them is somebody else's.

use super::geometry::Identity;
use super::mounts;
use chunkstore::names::PREFIXES;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What file systems and their servers put into directories by themselves, for root alone.
const NOT_OURS: [&str; 2] = ["lost+found", ".snapshot"];

/// Whether writing to what is at `path`, or will be made there, would write into the repository in
/// `directory`.
pub(crate) fn leads_into(path: &Path, directory: &Path) -> io::Result<bool> {
    let places = places_of(directory)?;
    if is_in(path, &places)? {
        return Ok(true);
    }
    let Some(identity) = Identity::of_path(path) else { return Ok(false) };
    for backing in mounts::files_below(identity) {
        // the file behind a loop device may be of another container
        if backing.exists() && is_in(&backing, &places)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A directory of a repository: its root, or what one of its prefixes leads to.
struct Place {
    /// Without links.
    path: PathBuf,
    dev: u64,
    ino: u64,
    /// Of the root, only what is directly in it is the repository's.
    is_root: bool,
}

fn places_of(directory: &Path) -> io::Result<Vec<Place>> {
    let place = |path: &Path, is_root| -> io::Result<Place> {
        let path = path.canonicalize()?;
        let (dev, ino) = number(fs::metadata(&path)?);
        Ok(Place { path, dev, ino, is_root })
    };
    let mut places = vec![place(directory, true)?];
    for prefix in PREFIXES {
        match place(&directory.join(prefix.trim_end_matches('/')), false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => places.push(found?),
        }
    }
    Ok(places)
}

fn is_in(path: &Path, places: &[Place]) -> io::Result<bool> {
    let Some(path) = resolved(path) else { return Ok(false) };
    let above: Vec<(u64, u64)> =
        path.ancestors().skip(1).filter_map(|dir| fs::metadata(dir).ok()).map(number).collect();
    if places.iter().any(|p| path.starts_with(&p.path) || above.contains(&(p.dev, p.ino))) {
        return Ok(true);
    }
    let parent = path.parent().unwrap_or(&path);
    // a file may be mounted, too
    let file = fs::metadata(&path)
        .ok()
        .filter(|meta| meta.is_file() && (meta.nlink() > 1 || !same_mount(&path, parent)));
    for place in places {
        if let Some(file) = file.as_ref().filter(|file| file.dev() == place.dev)
            && find(place, &mut |entry| is(entry, file), &|_| true)?
        {
            return Ok(true);
        }
        let may_be_seen = above.iter().any(|(dev, _)| *dev == place.dev);
        if place.is_root || !may_be_seen || same_mount(parent, &place.path) {
            continue;
        }
        let is_above = |entry: &fs::DirEntry| {
            let inode = above.iter().any(|(_, ino)| *ino == entry.ino());
            inode
                && entry.metadata().is_ok_and(|meta| meta.is_dir() && above.contains(&number(meta)))
        };
        // a directory of two links has no directories: `.` and its own name are all
        if find(place, &mut |entry| is_above(entry), &|meta| meta.nlink() != 2)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn number(meta: Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn is(entry: &fs::DirEntry, file: &Metadata) -> bool {
    entry.ino() == file.ino()
        && entry.metadata().is_ok_and(|meta| number(meta) == (file.dev(), file.ino()))
}

/// Whether something of the repository in a place is what is looked for. Goes into no directory that
/// is not worth it; what vanishes meanwhile is not there.
fn find(
    place: &Place,
    wanted: &mut dyn FnMut(&fs::DirEntry) -> bool,
    worth: &dyn Fn(&Metadata) -> bool,
) -> io::Result<bool> {
    let mut todo = vec![place.path.clone()];
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
            let enter = !place.is_root
                && !NOT_OURS.iter().any(|name| entry.file_name() == *name)
                && entry.file_type()?.is_dir();
            if enter && entry.metadata().is_ok_and(|meta| worth(&meta)) {
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

    #[test]
    fn a_prefix_that_is_a_link_leads_to_the_repository() {
        let top = tempfile::tempdir().unwrap();
        let (inside, big) = (top.path().join("in"), top.path().join("big"));
        fs::create_dir_all(big.join("packs/ab")).unwrap();
        fs::create_dir(&inside).unwrap();
        std::os::unix::fs::symlink(big.join("packs"), inside.join("packs")).unwrap();
        let pack = big.join("packs/ab/pack");
        fs::write(&pack, [1]).unwrap();
        fs::write(inside.join("format"), [1]).unwrap();
        for (from, to) in [(&pack, "hard"), (&inside.join("format"), "format")] {
            fs::hard_link(from, big.join(to)).unwrap();
        }
        let into = |path: &Path| leads_into(path, &inside).unwrap();
        for path in ["packs/ab/pack", "packs/ab/new", "packs/new", "hard", "format"] {
            assert!(into(&big.join(path)), "{path}");
        }
        assert!(!into(&big.join("new")) && !into(&big.join("packs-2")));
    }

    #[test]
    fn what_is_beside_the_repositorys_directories_is_not_entered() {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("in");
        for dir in ["packs/lost+found", "lost+found", "photos/2020"] {
            fs::create_dir_all(inside.join(dir)).unwrap();
            fs::write(inside.join(dir).join("file"), [1]).unwrap();
        }
        fs::write(inside.join("packs/pack"), [1]).unwrap();
        let places = places_of(&inside).unwrap();
        let mut seen = Vec::new();
        for place in &places {
            let mut note = |entry: &fs::DirEntry| {
                seen.push(entry.path().strip_prefix(&places[0].path).unwrap().to_owned());
                false
            };
            assert!(!find(place, &mut note, &|_| true).unwrap());
        }
        seen.sort_unstable();
        let expected = ["lost+found", "packs", "packs/lost+found", "packs/pack", "photos"];
        assert_eq!(seen, expected.map(PathBuf::from));
    }
}
