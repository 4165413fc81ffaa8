//! Two file systems that are made up, compared: what cannot be read of either is all that is missing.

use super::super::changes::changed_files;
use super::*;
use mover_extents::Extents;

/// What is told of each file that changed, and what is left out.
fn compared(before: &Made, after: &Made) -> (Vec<String>, LeftOut) {
    let mut all = Vec::new();
    let mut told = |change: FileChange, path: &[u8], _: &FileNode| {
        all.push(format!("{change:?} {}", String::from_utf8_lossy(path)));
        Ok(())
    };
    let left_out = on(before, |before| {
        on(after, |after| {
            let sides =
                (Side { open: before, backup: "one" }, Side { open: after, backup: "other" });
            changed_files(sides, &Extents::default(), &mut told).unwrap()
        })
    });
    (all, left_out)
}

/// Names of a directory, of which one has no node; a directory without names; and others.
fn made() -> Made {
    let mut made = Made::new();
    made.name(ROOT, "a", 90);
    made.node(20, FileKind::Directory);
    made.name(ROOT, "b", 20);
    made.node(21, FileKind::Directory);
    made.name(ROOT, "c", 21);
    made.file("d", 11, 0, 4);
    made.file("e", 12, 4, 4);
    made.name(21, "in c", 11);
    made
}

#[test]
fn what_cannot_be_read_of_one_is_left_out() {
    let (mut before, mut after) = (made(), made());
    after.node(90, FileKind::File);
    after.name(20, "in b", 12);
    after.name(21, "in c too", 12);
    after.pieces.remove(&11);
    after.file("f", 13, 0, 4);
    before.file("g", 14, 0, 4);
    after.pieces.insert(12, vec![Piece { range: 0..4, place: Place::Volume(8) }]);
    let (told, left_out) = compared(&before, &after);
    assert_eq!(told, ["Changed /e", "Added /f", "Removed /g", "Added /c/in c too"]);
    let begins = ["/a in backup one: ", "/d in backup other: ", "/b in backup one: "];
    assert_eq!(left_out.damaged_files, 4);
    for begin in begins.into_iter().chain(["/c/in c in backup other: "]) {
        let named = left_out.damaged.iter().filter(|line| line.starts_with(begin)).count();
        assert_eq!(named, 1, "{begin}: {left_out:?}");
    }
}

/// Each directory is left out once, whatever of it cannot be read; so is one that is in two places.
#[test]
fn directories_are_left_out_once() {
    let (before, mut after) = (made(), made());
    after.names.insert(20, Vec::new());
    after.node(30, FileKind::Directory);
    after.name(ROOT, "h", 30);
    after.name(30, "again", ROOT);
    let (told, left_out) = compared(&before, &after);
    assert_eq!(told, ["Added /h", "Added /h/again"]);
    assert_eq!(left_out.damaged_files, 3, "{left_out:?}");
    assert!(left_out.damaged.iter().any(|line| line.starts_with("/h/again in backup other: ")));
    let (told, left_out) = compared(&before, &before);
    assert_eq!((told.len(), left_out.damaged_files), (0, 2), "{left_out:?}");
}

/// More are counted than named, and a failure of the store is none of a file.
#[test]
fn a_hundred_are_named() {
    let (before, mut after) = (Made::new(), Made::new());
    for id in 100..350 {
        after.name(ROOT, &format!("{id}"), id);
    }
    let (_, left_out) = compared(&before, &after);
    assert_eq!((left_out.damaged.len(), left_out.damaged_files), (100, 250));
    let mut all = LeftOut::default();
    all.extend(left_out.clone());
    all.extend(left_out);
    assert_eq!((all.damaged.len(), all.damaged_files), (100, 500));
    let away = Error::new(ErrorKind::Unavailable, "read a chunk", "nobody answers");
    assert_eq!(all.add("/x", away).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(all.damaged_files, 500);
}
