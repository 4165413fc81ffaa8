//! Keys that are read, made and refused.

use super::*;
use crate::cli::settings::Secret;
use std::os::unix::fs::PermissionsExt;

fn none() -> KeySources {
    KeySources {
        key_files: Vec::new(),
        password_file: None,
        password_command: None,
        password: None,
        can_ask: false,
    }
}

fn passphrase(credential: &Credential) -> &str {
    match credential {
        Credential::Passphrase(text) => text,
        Credential::KeyFile(_) => panic!("a key file"),
    }
}

#[test]
fn a_directory_stands_for_its_key_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    assert_eq!(key_files_at(path).unwrap_err().kind(), ErrorKind::NotFound);
    // as a mounted Secret is
    std::fs::create_dir(path.join("..2026")).unwrap();
    for name in ["next", "current"] {
        std::fs::write(path.join("..2026").join(name), [7; 32]).unwrap();
        let link = Path::new("..data").join(name);
        std::os::unix::fs::symlink(link, path.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("..2026", path.join("..data")).unwrap();
    assert_eq!(key_files_at(path).unwrap(), [path.join("current"), path.join("next")]);
    assert_eq!(key_files_at(&path.join("next")).unwrap(), [path.join("next")]);
    assert!(read_key_file(&path.join("next")).is_ok());
}

#[test]
fn every_source_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let (key, password) = (dir.path().join("key"), dir.path().join("password"));
    read_or_make_key_file(&key).unwrap();
    std::fs::write(&password, "from file\r\nsecond line\n").unwrap();
    let found = credentials(
        &KeySources {
            key_files: vec![key],
            password_file: Some(password),
            password_command: Some("echo from command; echo more".into()),
            password: Some(Secret(Zeroizing::new("from environment".into()))),
            can_ask: false,
        },
        None,
    )
    .unwrap();
    assert!(matches!(found[0], Credential::KeyFile(_)));
    let texts: Vec<_> = found[1..].iter().map(passphrase).collect();
    assert_eq!(texts, ["from file", "from command", "from environment"]);
    assert!(credentials(&none(), None).unwrap().is_empty());
}

#[test]
fn a_key_file_is_made_once_and_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    assert!(read_or_make_key_file(&path).unwrap().1.is_some());
    let text = std::fs::read(&path).unwrap();
    assert_eq!(text.len(), 65);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(read_or_make_key_file(&path).unwrap().1.is_none());
    assert_eq!(std::fs::read(&path).unwrap(), text);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no draft stays");
}

#[test]
fn a_key_that_somebody_has_planted_is_not_taken_for_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, [7; 32]).unwrap();
    if let Err(e) = std::os::unix::fs::chown(&path, Some(12345), None) {
        println!("SKIP: needs the right to give a file away: {e}");
        return;
    }
    let e = read_or_make_key_file(&path).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Denied);
    assert!(e.to_string().contains("12345"), "{e}");
    // named as a key that there is, it is the user's own choice
    read_key_file(&path).unwrap();
}

#[test]
fn a_link_that_somebody_has_planted_is_not_followed_to_a_new_key() {
    use std::os::unix::fs::{lchown, symlink};
    let dir = tempfile::tempdir().unwrap();
    let [key, planted, own] = ["key", "planted", "own"].map(|name| dir.path().join(name));
    std::fs::write(&key, [7; 32]).unwrap();
    symlink("key", &own).unwrap();
    assert!(read_or_make_key_file(&own).unwrap().1.is_none());
    let dangling = dir.path().join("dangling");
    symlink("absent", &dangling).unwrap();
    let e = read_or_make_key_file(&dangling).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    symlink("key", &planted).unwrap();
    if let Err(e) = lchown(&planted, Some(12345), None) {
        println!("SKIP: needs the right to give a link away: {e}");
        return;
    }
    let behind = dir.path().join("behind");
    symlink("planted", &behind).unwrap();
    for path in [planted, behind] {
        let e = read_or_make_key_file(&path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
        assert!(e.to_string().contains("12345"), "{e}");
    }
}

#[test]
fn many_at_once_agree_on_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let made = std::thread::scope(|s| {
        let threads: Vec<_> =
            (0..8).map(|_| s.spawn(|| read_or_make_key_file(&path).unwrap().1.is_some())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).filter(|made| *made).count()
    });
    assert_eq!(made, 1);
}

/// Who finds a key file that may yet be taken back waits, and makes one if it was.
#[test]
fn a_key_file_is_taken_back_from_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let (first, made) = read_or_make_key_file(&path).unwrap();
    let second = std::thread::scope(|s| {
        let other = s.spawn(|| read_or_make_key_file(&path).unwrap());
        made.unwrap().take_back().unwrap();
        other.join().unwrap()
    });
    assert!(second.1.is_some(), "it has made its own");
    let bytes = |credential: &Credential| match credential {
        Credential::KeyFile(key) => key.to_vec(),
        Credential::Passphrase(_) => panic!("a passphrase"),
    };
    assert_ne!(bytes(&first), bytes(&second.0));
    assert_eq!(bytes(&read_key_file(&path).unwrap()), bytes(&second.0));
    // whose place another file has taken is not removed
    std::fs::rename(&path, dir.path().join("away")).unwrap();
    std::fs::write(&path, "another's").unwrap();
    assert!(second.1.unwrap().take_back().is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
}

#[test]
fn what_is_no_key_is_refused_without_repeating_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    for bad in [&b""[..], b"short secret", &[b'x'; 5000]] {
        std::fs::write(&path, bad).unwrap();
        let e = read_key_file(&path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
        assert!(!e.to_string().contains("secret") || bad.len() > 100, "{e}");
    }
    let e = read_key_file(&dir.path().join("absent")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    let e = read_or_make_key_file(&dir.path().join("absent/key")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
}

#[test]
fn an_empty_passphrase_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "\nnot this line\n").unwrap();
    assert_eq!(read_password_file(&path).unwrap_err().kind(), ErrorKind::Usage);
    for command in ["true", "exit 3", "head -c 5000 /dev/zero"] {
        let sources = KeySources { password_command: Some(command.into()), ..none() };
        assert_eq!(credentials(&sources, None).unwrap_err().kind(), ErrorKind::Usage, "{command}");
    }
}
