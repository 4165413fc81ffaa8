//! Whether a path leads into a repository's directory, by whatever way: another mount of its file
//! system, a bind mount of a part of it, a link to one of its directories, a hard link to one of its
//! files, a loop device over one.
//!
//! Names do not tell: only device and inode numbers do. Each directory of a repository may be a link
//! or a mount, and what is beside them is somebody else's. So the directories that hold directories
//! are read for links: they have an entry for each of 256 packs' prefixes, for each volume and each
//! backup, as many as a listing of backups has. Those that hold objects may have millions of entries
//! and are read only where a cheaper look leaves a doubt: another mount of the same file system, or
//! a file that has several names. An object that is itself a symbolic link is not looked for.

use super::geometry::Identity;
use super::mounts;
use chunkstore::format::names::{NOT_OURS, PREFIXES, directory_levels};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// As many links as the kernel follows for one path.
const LINKS_MAX: u32 = 40;

/// Whether writing to what is at `path`, or will be made there, would write into the repository in
/// `directory`, which need not be there yet.
pub fn leads_into(path: &Path, directory: &Path) -> io::Result<bool> {
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

/// A directory of a repository: its root, what one of its prefixes leads to, or a link or a mount
/// below that.
struct Place {
    /// Without links.
    path: PathBuf,
    /// Device and inode; `None`: it is not there, or is a link that leads round in a circle.
    number: Option<(u64, u64)>,
    /// Directories between it and what is in it. Of the root, only what is directly in it is the
    /// repository's.
    levels: usize,
}

impl Place {
    fn of(path: &Path, levels: usize) -> io::Result<Self> {
        let leads_nowhere = |e: &io::Error| {
            [Errno::NOENT, Errno::NOTDIR, Errno::LOOP]
                .map(|e| Some(e.raw_os_error()))
                .contains(&e.raw_os_error())
        };
        let number = match fs::metadata(path) {
            Err(e) if leads_nowhere(&e) => None,
            found => Some(number(&found?)),
        };
        Ok(Self { path: resolved(path)?, number, levels })
    }
}

fn places_of(directory: &Path) -> io::Result<Vec<Place>> {
    let mut places = vec![Place::of(directory, 0)?];
    for prefix in PREFIXES {
        let place = directory.join(prefix.trim_end_matches('/'));
        add(&mut places, &place, directory_levels(prefix))?;
    }
    // below the root it is in a prefix, or is nothing of ours
    for at in mounts::mount_points() {
        let levels = |place: &Place| {
            let depth = at.strip_prefix(&place.path).ok()?.components().count();
            (1..=place.levels + 1).contains(&depth).then(|| place.levels.saturating_sub(depth))
        };
        if let Some(levels) = places[1..].iter().filter_map(levels).max() {
            add(&mut places, &at, levels)?;
        }
    }
    Ok(places)
}

/// A place, and what is linked to from its directories.
fn add(places: &mut Vec<Place>, path: &Path, levels: usize) -> io::Result<()> {
    let place = Place::of(path, levels)?;
    if place.number.is_none() {
        return Ok(());
    }
    let mut todo = vec![(place.path.clone(), levels)];
    places.push(place);
    while let Some((directory, levels)) = todo.pop() {
        if levels == 0 {
            continue;
        }
        each_entry(&directory, &mut |entry| {
            let kind = entry.file_type()?;
            if !is_ours(entry) {
                return Ok(false);
            }
            if kind.is_symlink() {
                let place = Place::of(&entry.path(), levels - 1)?;
                if place.number.is_some() {
                    todo.push((place.path.clone(), levels - 1));
                    places.push(place);
                }
            } else if kind.is_dir() && levels > 1 {
                todo.push((entry.path(), levels - 1));
            }
            Ok(false)
        })?;
    }
    Ok(())
}

fn is_in(path: &Path, places: &[Place]) -> io::Result<bool> {
    let path = resolved(path)?;
    let above: Vec<(u64, u64)> =
        path.ancestors().filter_map(|dir| fs::metadata(dir).ok()).map(|m| number(&m)).collect();
    let is_it = |n: (u64, u64)| above.contains(&n);
    if places.iter().any(|p| path.starts_with(&p.path) || p.number.is_some_and(is_it)) {
        return Ok(true);
    }
    let parent = path.parent().unwrap_or(&path);
    // a file may be mounted, too
    let file = fs::metadata(&path)
        .ok()
        .filter(|meta| meta.is_file() && (meta.nlink() > 1 || !same_mount(&path, parent)));
    for place in places {
        let Some((dev, _)) = place.number else { continue };
        if let Some(file) = file.as_ref().filter(|file| file.dev() == dev)
            && find(place, &mut |entry| is(entry, file), &|_| true)?
        {
            return Ok(true);
        }
        let may_be_seen = above.iter().any(|(at, _)| *at == dev);
        if place.levels == 0 || !may_be_seen || same_mount(parent, &place.path) {
            continue;
        }
        let is_above = |entry: &fs::DirEntry| {
            let inode = above.iter().any(|(_, ino)| *ino == entry.ino());
            inode && entry.metadata().is_ok_and(|meta| meta.is_dir() && is_it(number(&meta)))
        };
        // a directory of two links has no directories: `.` and its own name are all
        if find(place, &mut |entry| is_above(entry), &|meta| meta.nlink() != 2)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn number(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn is(entry: &fs::DirEntry, file: &Metadata) -> bool {
    entry.ino() == file.ino() && entry.metadata().is_ok_and(|meta| number(&meta) == number(file))
}

fn is_ours(entry: &fs::DirEntry) -> bool {
    !NOT_OURS.iter().any(|name| entry.file_name() == *name)
}

/// Whether something of the repository in a place is what is looked for. Goes into no directory that
/// is not worth it, and no deeper than objects are; what vanishes meanwhile is not there.
fn find(
    place: &Place,
    wanted: &mut dyn FnMut(&fs::DirEntry) -> bool,
    worth: &dyn Fn(&Metadata) -> bool,
) -> io::Result<bool> {
    let mut todo = vec![(place.path.clone(), place.levels)];
    while let Some((directory, levels)) = todo.pop() {
        let found = each_entry(&directory, &mut |entry| {
            if wanted(entry) {
                return Ok(true);
            }
            let enter = levels > 0 && is_ours(entry) && entry.file_type()?.is_dir();
            if enter && entry.metadata().is_ok_and(|meta| worth(&meta)) {
                todo.push((entry.path(), levels - 1));
            }
            Ok(false)
        })?;
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Until `seen` says that this is enough: whether it did. What is not there, or is no directory, has
/// no entries.
fn each_entry(
    directory: &Path,
    seen: &mut dyn FnMut(&fs::DirEntry) -> io::Result<bool>,
) -> io::Result<bool> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&e.kind()) => {
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    for entry in entries {
        if seen(&entry?)? {
            return Ok(true);
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

/// What a path names, symbolic links followed; of what is not there yet, where it will be.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    resolve(&std::path::absolute(path)?, LINKS_MAX)
}

fn resolve(path: &Path, links: u32) -> io::Result<PathBuf> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.components().next_back()) else {
        return Ok(path.to_owned());
    };
    match fs::read_link(path) {
        // to what is not there yet
        Ok(to) if links > 0 => resolve(&parent.join(to), links - 1),
        _ => Ok(resolve(parent, links)?.join(name)),
    }
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
    fn links_below_a_prefix_lead_to_the_repository() {
        let top = tempfile::tempdir().unwrap();
        let (inside, big) = (top.path().join("in"), top.path().join("big"));
        for dir in ["in/packs/cd", "in/backups/v", "in/leases", "big/ab", "big/b1", "big/w/b2"] {
            fs::create_dir_all(top.path().join(dir)).unwrap();
        }
        for (to, at) in [
            ("ab", "packs/ab"),
            ("b1", "backups/v/b1"),
            ("w", "backups/w"),
            ("none", "packs/ef"),
            ("other", "packs/cd/deeper"),
            ("lease", "leases/lease"),
        ] {
            std::os::unix::fs::symlink(big.join(to), inside.join(at)).unwrap();
        }
        for dir in ["other", "none-2", "w-2"] {
            fs::create_dir(big.join(dir)).unwrap();
        }
        fs::write(big.join("ab/pack"), [1]).unwrap();
        fs::hard_link(big.join("ab/pack"), top.path().join("hard")).unwrap();
        fs::create_dir(big.join("other/ab")).unwrap();
        std::os::unix::fs::symlink(inside.join("packs/cd/new"), big.join("to-be")).unwrap();
        let into = |path: &Path| leads_into(path, &inside).unwrap();
        for path in ["ab/pack", "ab/new", "b1/0", "w/b2/0", "w/new", "../hard", "to-be"] {
            assert!(into(&big.join(path)), "{path}");
        }
        for path in ["new", "other/new", "other/ab/new", "none-2/new", "w-2/new"] {
            assert!(!into(&big.join(path)), "{path}");
        }
    }

    #[test]
    fn links_that_lead_back_are_followed_no_deeper_than_objects_are() {
        let top = tempfile::tempdir().unwrap();
        let (inside, outside) = (top.path().join("in"), top.path().join("out"));
        for dir in ["in/backups/v", "in/packs", "out/deep/er"] {
            fs::create_dir_all(top.path().join(dir)).unwrap();
        }
        std::os::unix::fs::symlink("..", inside.join("backups/v/up")).unwrap();
        std::os::unix::fs::symlink(".", inside.join("backups/self")).unwrap();
        std::os::unix::fs::symlink("loop", inside.join("packs/loop")).unwrap();
        let into = |path: &Path| leads_into(path, &inside).unwrap();
        assert!(!into(&outside.join("deep/er/file")));
        assert!(into(&inside.join("backups/self/self/v/up/new")));
    }

    #[test]
    fn a_repository_that_is_not_there_yet_has_a_place_too() {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("to/be/made");
        std::os::unix::fs::symlink("to", top.path().join("link")).unwrap();
        let into = |path: &str| leads_into(&top.path().join(path), &inside).unwrap();
        assert!(into("to/be/made/key") && into("link/be/made/a/key") && into("to/be/made"));
        assert!(!into("to/be/key") && !into("link") && !into("to/be/made-2"));
        fs::create_dir_all(&inside).unwrap();
        assert!(into("to/be/made/key") && into("link/be/made/a/key"));
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
