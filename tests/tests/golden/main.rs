//! The golden repositories: every later program reads what version 1 wrote, and refuses what was
//! damaged.

mod damage;
mod decode;

use chunkstore::testkit::fuzzing;
use chunkstore::{BackupId, Credential, ErrorKind, VolumeName, format::names};
use decode::{Decoder, kind_of};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tests::{ExpectedBackup, Golden, Library, work_dir};

/// Every path below a directory with what would change if somebody wrote there.
fn state(dir: &Path) -> Vec<(String, i64, i64, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let meta = std::fs::metadata(&dir).expect("stat");
        found.push((dir.display().to_string(), meta.mtime(), meta.mtime_nsec(), None));
        for path in std::fs::read_dir(&dir).expect("list").map(|entry| entry.expect("list").path())
        {
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let (meta, bytes) =
                (std::fs::metadata(&path).expect("stat"), std::fs::read(&path).expect("read"));
            found.push((path.display().to_string(), meta.mtime(), meta.mtime_nsec(), Some(bytes)));
        }
    }
    found.sort();
    found
}

#[test]
fn every_backup_is_restored_and_nothing_is_written() {
    let (library, work) = (Library::new(), work_dir("golden"));
    for golden in Golden::all() {
        let before = state(&golden.dir);
        // each credential by itself, or none
        let mut ways: Vec<Vec<Credential>> =
            golden.credentials().into_iter().map(|credential| vec![credential]).collect();
        if ways.is_empty() {
            ways.push(Vec::new());
        }
        for credentials in &ways {
            let repo = library.open(&golden.dir, credentials).unwrap();
            for backup in &golden.backups {
                // bytes that are neither the volume's nor zero are there before
                let target = work.path().join("volume.img");
                let size = usize::try_from(backup.size_bytes).unwrap();
                std::fs::write(&target, vec![0xa5; size]).unwrap();
                library.restore(&repo, &backup.spec(), &target).unwrap();
                backup.check(&target);
                std::fs::remove_file(&target).unwrap();
                library.restore(&repo, &backup.spec(), &target).unwrap();
                backup.check(&target);
            }
        }
        assert!(state(&golden.dir) == before, "{}: something was written", golden.name);
    }
}

#[test]
fn forgotten_and_fenced_attempts_are_no_backups() {
    let library = Library::new();
    for golden in Golden::all() {
        let repo = golden.open(&library).unwrap();
        let listed = library.list(&repo).unwrap();
        let listed: BTreeSet<_> = listed.iter().map(|m| m.name().to_string()).collect();
        let name = |b: &ExpectedBackup| {
            let volume = VolumeName::new(&b.volume).unwrap();
            let backup_id = BackupId::new(&b.backup_id).unwrap();
            let attempt = b.attempt;
            names::AttemptName { volume, backup_id, attempt }.to_string()
        };
        let wanted: BTreeSet<_> = golden.backups.iter().map(name).collect();
        assert_eq!(listed, wanted);
        let find = |spec| library.runtime.block_on(repo.find_backup(spec));
        assert_eq!(find("disk@forgotten").unwrap_err().kind(), ErrorKind::NotFound);
        if !["later", "attached"].contains(&golden.name) {
            assert_eq!(find("fenced@again").unwrap().attempt, 1);
        }
        assert_eq!(find("disk@latest").unwrap().backup_id.as_str(), "incremental");
    }
}

#[test]
fn there_is_an_object_of_each_kind_and_all_are_read() {
    let library = Library::new();
    for golden in Golden::all() {
        let decoder = Decoder::new(&golden, golden.open(&library).unwrap());
        let mut seen = BTreeSet::new();
        for (key, bytes) in golden.objects() {
            seen.insert(kind_of(&key).to_owned());
            seen.extend(decoder.decode(&key, &bytes).unwrap());
        }
        let mut wanted = vec![
            "format",
            "format-copy",
            "packs",
            "backups",
            "dedup",
            "leases",
            "moved",
            "condemned",
            "blockers",
            "verdict",
            "forgotten",
            "damaged",
            "Chunks",
            "Page",
            "raw",
            "zstd",
            "backup",
            "fence",
            "writer",
            "reader",
            "collector",
            "checkpoint",
            "condemned fence",
            "condemned list",
        ];
        wanted.extend((golden.name == "encrypted").then_some("keys"));
        if ["later", "attached"].contains(&golden.name) {
            let of_a_backup = ["format", "format-copy", "keys", "packs", "backups", "features"];
            wanted = [&of_a_backup[..], &["Chunks", "Page", "raw", "zstd", "backup"]].concat();
        }
        let seen: BTreeSet<_> = seen.iter().map(String::as_str).collect();
        assert_eq!(seen, wanted.into_iter().collect(), "{}", golden.name);
    }
}

#[test]
fn other_keys_do_not_open_it() {
    let library = Library::new();
    let [encrypted, plain, ..] = Golden::all();
    let others = [
        vec![],
        vec![Credential::passphrase("golden passphrase")],
        vec![Credential::from_key_file_bytes(&[7; 32]).unwrap()],
        vec![Credential::passphrase(""), Credential::from_key_file_bytes(&[0; 32]).unwrap()],
    ];
    for credentials in &others {
        let error = library.open(&encrypted.dir, credentials).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
        // it needs none; where one is given, somebody may have put it in the place of an encrypted
        // one
        let opened = library.open(&plain.dir, credentials).map(|_| ()).map_err(|e| e.kind());
        let want = if credentials.is_empty() { Ok(()) } else { Err(ErrorKind::Usage) };
        assert_eq!(opened, want);
    }
}

#[test]
fn later_versions_and_features_are_not_guessed_at() {
    let (library, work) = (Library::new(), work_dir("golden"));
    for golden in Golden::all() {
        let decoder = Decoder::new(&golden, golden.open(&library).unwrap());
        for (key, mut bytes) in golden.objects() {
            // where all magic values but that of an entry are followed by the version; nothing
            // vouches for this one, so it is damage
            bytes[8] = 2;
            let error = decoder.decode(&key, &bytes).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::WrongKey),
                "{key}: {error}"
            );
            if kind_of(&key) == "packs" {
                // with a hash that fits it is the version that is refused
                fuzzing::rehash_pack(&mut bytes);
                let error = decoder.decode(&key, &bytes).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{key}: {error}");
            }
        }
        let copy = golden.copy_to(&work.path().join(golden.name));
        let text = std::fs::read(copy.dir.join("format")).unwrap();
        let needle = b"\"required_features\":1";
        let at = text.windows(needle.len()).position(|w| w == needle).unwrap() + needle.len() - 1;
        std::fs::remove_file(copy.dir.join("format-copy")).unwrap();
        for digit in *b"2468" {
            let mut changed = text.clone();
            changed[at] = digit;
            std::fs::write(copy.dir.join("format"), changed).unwrap();
            let error = copy.open(&library).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "its tag is another's: {error}");
        }
        let key = "backups/disk/full/0";
        for body in [r#"{"type":"backup","format":2}"#, r#"{"type":"fence","format":9,"x":1}"#] {
            let bytes = decoder.manifest_of_body(key, body.as_bytes());
            let error = decoder.decode(key, &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        let fence =
            r#"{"type":"fence","format":1,"by":"x","time":"2025-01-01T00:00:00Z","later":[1]}"#;
        let bytes = decoder.manifest_of_body(key, fence.as_bytes());
        assert_eq!(decoder.decode(key, &bytes).unwrap(), ["fence"], "unknown members are ignored");
    }
}
