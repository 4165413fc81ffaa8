//! `.ci/sources`: what is the same keeps its time, and what differs gets a new one.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use tests::workspace;

fn copy(from: &Path, to: &Path) -> String {
    let script = workspace().join(".ci/sources");
    let run = Command::new("python3").arg(script).args([from, to]).output().expect("python3 runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("UTF-8")
}

/// Says that nothing in the folder was written for an hour.
fn age(folder: &Path, names: &[&str]) -> SystemTime {
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for name in names {
        let file = File::open(folder.join(name)).expect("a file");
        file.set_modified(hour_ago).expect("its time");
    }
    hour_ago
}

#[test]
fn only_files_that_differ_are_written() {
    let root = tempfile::tempdir().expect("a folder");
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    let write = |name: &str, text: &str| fs::write(from.join(name), text).expect("a file");
    fs::create_dir_all(from.join("deep/er")).expect("a folder");
    fs::create_dir_all(from.join("target")).expect("a folder");
    fs::create_dir_all(from.join("deep/target")).expect("a folder");
    write("same", "1");
    write("deep/er/same", "2");
    write("changed", "old");
    write("mode", "3");
    write("gone", "4");
    write("deep/becomes-a-folder", "5");
    write("target/built", "6");
    write("deep/target/source", "8");
    symlink("same", from.join("link")).expect("a link");
    assert_eq!(copy(&from, &to), "8 files of the sources differ from the last run's\n");
    assert!(!to.join("target").exists(), "what Cargo builds is no source");
    assert!(to.join("deep/target/source").exists(), "a module of that name is one");

    let names = ["same", "deep/er/same", "changed", "mode", "gone", "deep/becomes-a-folder"];
    let then = age(&to, &names);
    // As young as a new checkout makes them; and a text of the same length.
    for name in ["same", "deep/er/same"] {
        File::open(from.join(name)).unwrap().set_modified(SystemTime::now()).unwrap();
    }
    write("changed", "new");
    age(&from, &["changed"]);
    fs::set_permissions(from.join("mode"), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::remove_file(from.join("gone")).expect("a file");
    fs::remove_file(from.join("deep/becomes-a-folder")).expect("a file");
    fs::create_dir(from.join("deep/becomes-a-folder")).expect("a folder");
    write("deep/becomes-a-folder/inside", "7");
    fs::remove_file(from.join("link")).expect("a link");
    symlink("mode", from.join("link")).expect("a link");
    copy(&from, &to);

    let time =
        |name: &str| fs::metadata(to.join(name)).expect("a file").modified().expect("a time");
    let read = |name: &str| fs::read_to_string(to.join(name)).expect("a file");
    for name in ["same", "deep/er/same"] {
        assert_eq!(time(name), then, "{name} is the same");
    }
    // It is older than what was built of it, and so has to get a time of its own.
    assert_eq!(read("changed"), "new");
    for name in ["changed", "mode"] {
        assert!(time(name) > then + Duration::from_secs(1800), "{name} differs");
    }
    assert!(!to.join("gone").exists());
    assert_eq!(read("deep/becomes-a-folder/inside"), "7");
    assert_eq!(fs::read_link(to.join("link")).expect("a link"), Path::new("mode"));
    assert_eq!(fs::metadata(to.join("mode")).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(copy(&from, &to), "0 files of the sources differ from the last run's\n");
    // Somebody wrote there meanwhile.
    fs::write(to.join("same"), "x").expect("a file");
    copy(&from, &to);
    assert_eq!(read("same"), "1");
}
