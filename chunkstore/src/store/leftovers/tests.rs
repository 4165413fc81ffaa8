use super::super::{StoreOptions, open_url};
use super::*;
use crate::ids::PackId;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const IDLE: Duration = Duration::from_secs(600);

fn store(directory: &Path) -> Store {
    open_url(directory.to_str().unwrap(), &StoreOptions::default()).unwrap()
}

/// A file that nobody has written to for hours.
fn old_file(path: PathBuf) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "what somebody wrote").unwrap();
    let hours_ago = SystemTime::now() - Duration::from_secs(7200);
    fs::File::options().write(true).open(&path).unwrap().set_modified(hours_ago).unwrap();
    path
}

fn hex(byte: u8) -> String {
    PackId::from_bytes([byte; 32]).to_hex()
}

#[test]
fn only_old_temporary_files_of_keys_go() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| old_file(dir.path().join(path));
    fs::create_dir(dir.path().join("leases")).unwrap();
    let lease = "5".repeat(32);
    let gone = [
        at(&format!("packs/ab/{}#1", hex(0xab))),
        at(&format!("moved/{}#12", hex(7))),
        at(&format!("leases/{lease}#0")),
        at(&format!("gc/{lease}/condemned#1")),
        at("backups/pvc=2Fa/2024.1/12#3"),
        at("format#1"),
    ];
    let stays = [
        // objects
        at(&format!("packs/ab/{}", hex(0xab))),
        at("backups/pvc=2Fa/2024.1/12"),
        at("format"),
        // of others
        at("Comics/Issue #42"),
        at("Comics/abc#1"),
        at("Issue#42"),
        at("packs/Issue #42"),
        at(&format!("packs/cd/{}#1", hex(0xab))),
        at(&format!("packs/ab/{}#1/Issue#42", hex(1))),
        at(&format!("packs/ab/x/{}#1", hex(0xab))),
        at(&format!("packs/ab/{}#1b", hex(0xab))),
        at(&format!("packs/ab/{}#1#2", hex(0xab))),
        at(&format!("packs/ab/{}#", hex(0xab))),
        at("backups/a/b/c/d/1#1"),
        at("clock-1#0"),
    ];
    let young = dir.path().join(format!("packs/ab/{}#2", hex(0xab)));
    fs::write(&young, "somebody is at work").unwrap();
    let removed = store(dir.path()).remove_leftovers(IDLE);
    let bytes = "what somebody wrote".len() as u64 * gone.len() as u64;
    assert_eq!(removed, Leftovers { files: gone.len() as u64, bytes });
    for path in gone {
        assert!(!path.exists(), "{} is left", path.display());
    }
    for path in stays.iter().chain([&young]) {
        assert!(path.exists(), "{} is gone", path.display());
    }
    let left = fs::read_dir(dir.path().join("leases")).unwrap().count();
    assert_eq!(left, 0, "the file that asks for the time is gone");
}

#[test]
fn links_are_not_followed_nor_removed() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(dir.path().join("leases")).unwrap();
    let name = format!("{}#1", hex(0xab));
    let victim = old_file(other.path().join("ab").join(&name));
    symlink(other.path(), dir.path().join("packs")).unwrap();
    fs::create_dir(dir.path().join("moved")).unwrap();
    symlink(&victim, dir.path().join("moved").join(&name)).unwrap();
    assert_eq!(store(dir.path()).remove_leftovers(IDLE), Leftovers::default());
    assert!(victim.exists() && dir.path().join("moved").join(&name).is_symlink());
    // where all of it is behind a link that the user has named
    fs::remove_file(dir.path().join("packs")).unwrap();
    let own = old_file(dir.path().join("packs/ab").join(&name));
    let link = other.path().join("repository");
    symlink(dir.path(), &link).unwrap();
    assert_eq!(store(&link).remove_leftovers(IDLE).files, 1);
    assert!(!own.exists() && victim.exists());
}

#[test]
fn nobody_can_plant_the_file_that_asks_for_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let victim = old_file(dir.path().join("victim"));
    // as they were named once, and as `leases/` may be a link
    symlink(&victim, dir.path().join(format!("clock-{}#0", std::process::id()))).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), dir.path().join("leases")).unwrap();
    assert_eq!(store(dir.path()).remove_leftovers(IDLE), Leftovers::default());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "what somebody wrote");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_with_other_things_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || store(dir.path()).refuse_other_things("make a repository");
    for name in ["lost+found", ".snapshot", "keys", "packs", "leases"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["format", "format#1"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    refused().unwrap();
    for (name, is_dir) in
        [("Comics", true), ("notes.txt", false), ("format#x", false), (".hidden", false)]
    {
        let path = dir.path().join(name);
        if is_dir {
            fs::create_dir(&path).unwrap()
        } else {
            fs::write(&path, "").unwrap()
        }
        let e = refused().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage);
        assert!(e.to_string().contains(&format!("{name:?};")), "{e}");
        if is_dir { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
    }
    symlink(dir.path(), dir.path().join("damaged")).unwrap();
    refused().unwrap();
    fs::write(dir.path().join("keys.txt"), "").unwrap();
    symlink("/", dir.path().join("root")).unwrap();
    let e = refused().unwrap_err().to_string();
    assert!(e.contains("\"keys.txt\" and 1 more"), "{e}");
}
