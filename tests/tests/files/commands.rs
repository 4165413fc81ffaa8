//! The commands: what they print, what they refuse, what they leave as it is.

use super::{PLAIN, Stage};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use tests::{LoopDevice, Mount};

#[test]
fn files_are_listed_and_written_out() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mover = &stage.mover;
    let listed = mover.ok(["ls", "db@latest"]).text();
    assert!(listed.starts_with("/deep/\n/holes/\n/lengths/\n/links/\n"), "{listed}");
    let all = mover.ok(["ls", "db@latest", "/", "--recursive", "--json"]).json_lines();
    assert!(all.len() > 500 && all.iter().all(|line| line["type"] == "file"), "{}", all.len());
    let line = |path: &str| all.iter().find(|line| line["path"] == path).unwrap();
    assert_eq!(line("/links/short")["target"], "../deep/er");
    assert_eq!(line("/lengths/4097")["links"], 6);
    assert_eq!(line("/specials/null")["kind"], "character_device");
    let bytes = all.iter().find(|line| line["path_hex"].is_string()).unwrap();
    let hex: String = b"/names/not \xff\xfe text".iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(bytes["path_hex"], hex);
    let long = mover.ok(["ls", "db@latest", "/people", "-l"]).text();
    let set_id = long.lines().find(|line| line.ends_with("/people/set-id")).unwrap();
    assert!(set_id.starts_with("-rwsr-sr-x   1   1000   1001            6 "), "{set_id}");
    // no name moves a cursor
    let names = mover.ok(["ls", "db@latest", "/names"]).text();
    assert!(!names.contains('\x1b') && names.contains("/names/?[31mred\n"), "{names}");
    // links are followed within the volume
    let text = mover.ok(["cat", "db@latest", "/links/short/../er/and/deeper/still/file"]).text();
    assert_eq!(text, "deep");
    let one = mover.ok(["cat", "db@latest", "/links/absolute", "lengths/1"]);
    assert_eq!(one.stdout.len(), 2);
    for (path, words) in [
        ("/deep/none/file", "there is no /deep/none"),
        ("/lengths/1/x", "/lengths/1 is no directory"),
        ("/links/loop", "too many links"),
        ("/deep", "it is a directory"),
        ("/specials/pipe", "it is a fifo"),
    ] {
        let refused = mover.run(["cat", "db@latest", path]).expect_code(2);
        assert!(refused.stderr.contains(words), "{path}: {}", refused.stderr);
    }
}

#[test]
fn what_is_there_stays_unless_it_is_meant() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mover = &stage.mover;
    let target = stage.path("target");
    fs::create_dir(&target).unwrap();
    let to = target.to_str().unwrap();
    mover.ok(["cp", "db@latest", "/people/now", to]);
    let named = target.join("another");
    mover.ok(["cp", "db@latest", "/people/now", named.to_str().unwrap()]);
    assert_eq!(fs::read(&named).unwrap(), b"now");
    fs::write(target.join("now"), "mine").unwrap();
    let refused = mover.run(["cp", "db@latest", "/people/now", to]);
    assert_ne!(refused.code(), Some(0));
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    assert_eq!(fs::read(target.join("now")).unwrap(), b"mine");
    mover.ok(["cp", "db@latest", "/people/now", to, "--force"]);
    assert_eq!(fs::read(target.join("now")).unwrap(), b"now");
    // a link in the way is no way out
    let outside = stage.path("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, target.join("people")).unwrap();
    let refused = mover.run(["cp", "db@latest", "/people", to, "--force"]);
    assert_ne!(refused.code(), Some(0));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // two need a directory
    let line = ["cp", "db@latest", "/people/now", "/people/late", named.to_str().unwrap()];
    let refused = mover.run(line).expect_code(2);
    assert!(refused.stderr.contains("no directory"), "{}", refused.stderr);
    let refused = mover.run(["cp", "db@latest", "/people"]).expect_code(2);
    assert!(refused.stderr.contains("--tar"), "{}", refused.stderr);
}

/// Exactly what somebody has done to the volume, and nothing that has the same bytes still.
#[test]
fn two_backups_tell_which_files_changed() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mover = &stage.mover;
    let first = mover.ok(["show", "db@latest", "--json"]).document();
    let first = format!("db@{}", first["backup_id"].as_str().unwrap());
    let device = LoopDevice::attach(&stage.image);
    let mounted = Mount::new(device.path(), &stage.path("changing"), "ext4", "defaults");
    let at = |name: &str| mounted.path().join(name);
    let before = |name: &str| fs::metadata(at(name)).unwrap().modified().unwrap();
    // in place, and with its time put back
    let (far, time) =
        (fs::OpenOptions::new().write(true).open(at("holes/far")).unwrap(), before("holes/far"));
    far.write_all_at(b"other", 5 << 20).unwrap();
    far.set_modified(time).unwrap();
    drop(far);
    fs::write(at("lengths/60"), [7; 60]).unwrap();
    fs::write(at("deep/added"), "new").unwrap();
    fs::create_dir(at("whole")).unwrap();
    fs::write(at("whole/of it"), "new").unwrap();
    fs::remove_file(at("people/sticky")).unwrap();
    fs::remove_dir_all(at("names")).unwrap();
    fs::rename(at("people/now"), at("people/then")).unwrap();
    fs::set_permissions(at("people/before"), fs::Permissions::from_mode(0o600)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(at("people/late"), "user.new", b"1", flags).unwrap();
    fs::remove_file(at("links/short")).unwrap();
    std::os::unix::fs::symlink("elsewhere", at("links/short")).unwrap();
    // the same bytes at another place
    let bytes = fs::read(at("lengths/65536")).unwrap();
    let (again, time) = (at("lengths/65536"), before("lengths/65536"));
    fs::remove_file(&again).unwrap();
    fs::write(&again, bytes).unwrap();
    fs::File::options().write(true).open(&again).unwrap().set_modified(time).unwrap();
    drop(mounted);
    drop(device);
    mover.ok(["backup", stage.image.to_str().unwrap(), "--volume", "db", "--quiet"]);
    let lines = mover.ok(["diff", &first, "db@latest", "--files", "--json"]).json_lines();
    let mut found: Vec<(String, String)> = lines
        .iter()
        .filter(|line| !line["path"].as_str().unwrap().starts_with("/names/"))
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("path"), text("change"))
        })
        .collect();
    found.sort();
    let wanted = [
        ("/deep", "described"),
        ("/deep/added", "added"),
        ("/holes/far", "changed"),
        ("/lengths", "described"),
        ("/lengths/60", "changed"),
        ("/links", "described"),
        ("/links/short", "changed"),
        ("/names", "removed"),
        ("/people", "described"),
        ("/people/before", "described"),
        ("/people/late", "described"),
        ("/people/now", "removed"),
        ("/people/sticky", "removed"),
        ("/people/then", "added"),
        ("/whole", "added"),
        ("/whole/of it", "added"),
    ];
    let wanted = wanted.map(|(path, change)| (path.to_owned(), change.to_owned()));
    assert_eq!(found, wanted);
    assert_eq!(lines.len(), wanted.len() + 7, "each name below what was removed");
    let text = mover.ok(["diff", &first, "db@latest", "--files"]).text();
    assert!(text.contains("M /holes/far\n") && text.contains("- /names/\n"), "{text}");
    assert_eq!(mover.ok(["diff", &first, &first, "--files"]).text(), "");
}

/// Without a wish for them, nothing is made that gives somebody more than a file.
#[test]
fn what_could_do_harm_is_left_out() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let target = stage.path("target");
    fs::create_dir(&target).unwrap();
    let done = stage.mover.ok(["cp", "db@latest", "/", target.to_str().unwrap()]);
    assert!(done.stderr.contains("2 devices are left out"), "{}", done.stderr);
    assert!(done.stderr.contains("set-id"), "{}", done.stderr);
    assert!(!target.join("specials/null").exists() && target.join("specials/pipe").exists());
    let set_id = fs::metadata(target.join("people/set-id")).unwrap();
    assert_eq!((set_id.permissions().mode() & 0o7777, set_id.uid()), (0o755, 1000));
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(target.join("people/dressed"), &mut names[..]).unwrap();
    let names = String::from_utf8_lossy(&names[..len]).into_owned();
    assert!(names.contains("user.comment") && !names.contains("trusted"), "{names:?}");
    assert!(!names.contains("security.capability"), "{names:?}");
    // holes take no room
    let far = fs::metadata(target.join("holes/far")).unwrap();
    assert!(far.len() > 300 << 20 && far.blocks() * 512 < 1 << 20, "{} blocks", far.blocks());
}
