//! What killed writers leave behind in a directory.
//!
//! `object_store` writes a file under a temporary name, `KEY#NUMBER`, and renames or links it when
//! it is whole. A process that is killed in between leaves the temporary file: no listing shows it,
//! and nothing would ever remove it. No key has a `#` in it. A file that was written to recently
//! may be somebody's at work, so age decides, by the clock of the file system that stamped it. Who
//! is slower than that has its write fail, and tries again.

use super::Store;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

impl Store {
    /// Removes temporary files that were not written to for `idle`; gives how many. Does nothing in
    /// a store that is no directory.
    pub(crate) fn remove_leftovers(&self, idle: Duration) -> u64 {
        let Some(directory) = &self.directory else { return 0 };
        let Ok(now) = clock(directory) else { return 0 };
        let Some(before) = now.checked_sub(idle) else { return 0 };
        let mut removed = 0;
        remove_below(directory, before, &mut removed);
        removed
    }
}

/// What the file system says of a file that is written now.
fn clock(directory: &Path) -> io::Result<SystemTime> {
    let probe = directory.join(format!("clock-{}#0", std::process::id()));
    let written = fs::File::create(&probe).and_then(|file| file.metadata()?.modified());
    let _ = fs::remove_file(&probe);
    written
}

/// What cannot be looked at or removed stays: it harms nobody.
fn remove_below(directory: &Path, before: SystemTime, removed: &mut u64) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            remove_below(&entry.path(), before, removed);
        } else if kind.is_file() && entry.file_name().to_str().is_some_and(is_temporary) {
            let modified = entry.metadata().and_then(|meta| meta.modified());
            if modified.is_ok_and(|time| time < before) && fs::remove_file(entry.path()).is_ok() {
                *removed += 1;
            }
        }
    }
}

fn is_temporary(name: &str) -> bool {
    let number = name.rsplit_once('#').map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::{StoreOptions, open_url};
    use super::*;

    #[test]
    fn only_old_temporary_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let packs = dir.path().join("packs/ab");
        fs::create_dir_all(&packs).unwrap();
        let (old, young, key) = (packs.join("abc#1"), packs.join("abd#12"), packs.join("abe"));
        for path in [&old, &young, &key] {
            fs::write(path, "x").unwrap();
        }
        let hours_ago = SystemTime::now() - Duration::from_secs(7200);
        for path in [&old, &key] {
            fs::File::options().write(true).open(path).unwrap().set_modified(hours_ago).unwrap();
        }
        let store = open_url(dir.path().to_str().unwrap(), &StoreOptions::default()).unwrap();
        assert_eq!(store.remove_leftovers(Duration::from_secs(600)), 1);
        assert!(!old.exists() && young.exists() && key.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the clock is gone");
        assert!(!is_temporary("a#") && !is_temporary("a#1b") && !is_temporary("1"));
    }
}
