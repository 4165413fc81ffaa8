//! `tests/reader/reader.py` was written from `docs/format.md` alone: what it reads is what the
//! document says.

use chunkstore::{
    ChunkSize, Credential, Encryption, InitOptions, KdfCost, Manifest, Repository, StoreOptions,
    open_url,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tests::{Golden, Library, Rng, work_dir};

/// The second reader, or `None` with a `SKIP:` line where there is no Python for it.
fn reader() -> Option<Reader> {
    let python = tests::python();
    if python.is_none() {
        tests::skip("the second reader needs the Python environment that tests/setup makes");
    }
    Some(Reader { python: python? })
}

struct Reader {
    python: PathBuf,
}

impl Reader {
    fn run(&self, dir: &Path, access: &[String], args: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reader/reader.py");
        let mut command = Command::new(&self.python);
        command.arg(script).arg(dir).args(access).args(args);
        command.output().expect("start python")
    }

    fn ok(&self, dir: &Path, access: &[String], args: &[&str]) -> String {
        let output = self.run(dir, access, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "reader.py {args:?}: {}\n{stderr}", output.status);
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// The same manifests, member by member.
    fn check_list(&self, dir: &Path, access: &[String], wanted: &[Manifest]) {
        let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON lines");
        let listed = self.ok(dir, access, &["list"]);
        let mut listed: Vec<_> = listed.lines().map(parse).collect();
        for body in &mut listed {
            let members = body.as_object_mut().expect("an object");
            assert_eq!(members.remove("type"), Some("backup".into()));
            assert_eq!(members.remove("format"), Some(1.into()));
        }
        let to_json = |m: &Manifest| serde_json::to_value(m).expect("a manifest is JSON");
        let mut wanted: Vec<_> = wanted.iter().map(to_json).collect();
        listed.sort_by_key(ToString::to_string);
        wanted.sort_by_key(ToString::to_string);
        assert_eq!(listed, wanted);
    }
}

fn access(golden: &Golden) -> Vec<Vec<String>> {
    let key_file = golden.key_file.as_ref().map(|p| ["--key-file".into(), p.display().to_string()]);
    let passphrase = golden.passphrase.as_ref().map(|p| ["--password".to_owned(), p.clone()]);
    let mut ways: Vec<_> = key_file.into_iter().chain(passphrase).map(Vec::from).collect();
    if ways.is_empty() {
        ways.push(Vec::new());
    }
    ways
}

fn is_pack(key: &str) -> bool {
    key.starts_with("packs/")
}

#[test]
fn the_second_reader_reads_the_golden_repositories() {
    let Some(reader) = reader() else { return };
    let (library, work) = (Library::new(), work_dir("reader"));
    let target = work.path().join("volume.img");
    for golden in Golden::all() {
        let manifests = library.list(&golden.open(&library).unwrap()).unwrap();
        for access in access(&golden) {
            reader.check_list(&golden.dir, &access, &manifests);
            for backup in &golden.backups {
                let to = target.to_str().unwrap();
                let args = ["restore", &backup.volume, &backup.backup_id, to];
                reader.ok(&golden.dir, &access, &args);
                backup.check(&target);
                for (name, size, hash) in &backup.attachments {
                    let args = ["attachment", &backup.volume, &backup.backup_id, name, to];
                    reader.ok(&golden.dir, &access, &args);
                    let bytes = std::fs::read(&target).unwrap();
                    assert_eq!(bytes.len() as u64, *size, "{name}");
                    assert_eq!(blake3::hash(&bytes).to_hex().as_str(), hash, "{name}");
                }
            }
        }
        let packs = golden.objects().into_keys().filter(|key| is_pack(key)).count();
        assert_eq!(reader.ok(&golden.dir, &[], &["check-packs"]).trim(), packs.to_string());
    }
}

#[test]
fn the_second_reader_computes_the_test_vector_of_the_document() {
    let Some(reader) = reader() else { return };
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/format.md");
    assert_eq!(reader.ok(&document, &[], &["check-vectors"]).trim(), "21");
}

/// An attempt that cannot be read is nothing to it where another one of that backup can; the only
/// one is named.
#[test]
fn the_second_reader_passes_over_an_unreadable_attempt_beside_another() {
    let Some(reader) = reader() else { return };
    let (library, work) = (Library::new(), work_dir("reader"));
    for golden in Golden::all() {
        let access = &access(&golden)[0];
        let copy = golden.copy_to(&work.path().join(format!("{}-beside", golden.name)));
        let manifests = library.list(&copy.open(&library).unwrap()).unwrap();
        let first = manifests.first().expect("it has a backup");
        let path = copy.dir.join(first.name().manifest_key());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(path.with_file_name("999"), &bytes).unwrap();
        reader.check_list(&copy.dir, access, &manifests);
        assert_eq!(library.list(&copy.open(&library).unwrap()).unwrap(), manifests);
        std::fs::write(&path, &bytes).unwrap();
        let output = reader.run(&copy.dir, access, &["list"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("cannot be read"), "{said}");
    }
}

/// With one copy of `format` gone or damaged it reads on; with a feature that is needed to read it
/// does not.
#[test]
fn the_second_reader_opens_by_either_copy_and_heeds_features() {
    let Some(reader) = reader() else { return };
    let work = work_dir("reader");
    for golden in Golden::all() {
        let ways = access(&golden);
        for (n, damaged) in ["format", "format-copy"].into_iter().enumerate() {
            let copy = golden.copy_to(&work.path().join(format!("{}-{n}", golden.name)));
            let path = copy.dir.join(damaged);
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            reader.ok(&copy.dir, &ways[0], &["list"]);
            std::fs::remove_file(&path).unwrap();
            reader.ok(&copy.dir, &ways[0], &["list"]);
            std::fs::create_dir_all(copy.dir.join("features/read")).unwrap();
            std::fs::write(copy.dir.join("features/read/lavender"), b"").unwrap();
            let refused = reader.run(&copy.dir, &ways[0], &["list"]);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && said.contains("lavender"), "{said}");
        }
    }
}

#[test]
fn the_second_reader_refuses_damage_and_other_keys() {
    let Some(reader) = reader() else { return };
    let work = work_dir("reader");
    for golden in Golden::all() {
        let copy = golden.copy_to(&work.path().join(golden.name));
        for (key, mut bytes) in copy.objects().into_iter().filter(|(key, _)| is_pack(key)) {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(copy.dir.join(key), bytes).unwrap();
        }
        assert!(!reader.run(&copy.dir, &[], &["check-packs"]).status.success());
        let target = work.path().join("volume.img");
        let (volume, id) = if ["later", "attached"].contains(&golden.name) {
            ("disk", "full")
        } else {
            ("moved", "twice")
        };
        let args = ["restore", volume, id, target.to_str().unwrap()];
        let ways = access(&golden);
        assert!(!reader.run(&copy.dir, &ways[0], &args).status.success());
    }
    let wrong = ["--password".to_owned(), "wrong".to_owned()];
    assert!(!reader.run(&Golden::all()[0].dir, &wrong, &["list"]).status.success());
}

/// A sparse image of an odd size: some chunks random, some text, some equal.
fn write_image(path: &Path, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; 3_000_000 + 77];
    for chunk in bytes.chunks_mut(4096) {
        match rng.below(4) {
            0 => {}
            1 => rng.fill(chunk),
            2 => chunk.fill(b'a' + u8::try_from(rng.below(5)).expect("small")),
            _ => {
                let text = format!("line {} of a log\n", rng.below(1 << 40));
                let repeated = text.bytes().cycle();
                chunk.iter_mut().zip(repeated).for_each(|(to, from)| *to = from);
            }
        }
    }
    std::fs::write(path, &bytes).expect("write the image");
    bytes
}

#[test]
fn the_second_reader_reads_what_the_program_writes_today() {
    let Some(reader) = reader() else { return };
    let (library, work, mut rng) = (Library::new(), work_dir("reader"), Rng::new(3));
    let image = work.path().join("source.img");
    for encryption in [Encryption::Aes256Gcm, Encryption::None] {
        let dir = work.path().join(encryption.to_string());
        let encrypted = encryption == Encryption::Aes256Gcm;
        let url = format!("file://{}", dir.display());
        let options = InitOptions {
            chunk: ChunkSize::new(8192).unwrap(),
            entry_chunks: 7,
            page_fanout: 16,
            encryption,
            credential: encrypted.then(|| Credential::passphrase("a b c")),
            label: "first".into(),
            kdf: KdfCost { memory_kib: 64, passes: 2, lanes: 1 },
            created_by: "tests".into(),
        };
        let store =
            open_url(&url, &StoreOptions { create_dir: true, ..StoreOptions::default() }).unwrap();
        let repo = library.runtime.block_on(Repository::init(store, options)).unwrap();
        let first = write_image(&image, &mut rng);
        library.backup(&repo, "a/volume", &image).unwrap();
        let mut second = first.clone();
        rng.fill(&mut second[100_000..180_000]);
        second[2_000_000..2_400_000].fill(0);
        std::fs::write(&image, &second).unwrap();
        library.backup(&repo, "a/volume", &image).unwrap();
        let manifests = library.list(&repo).unwrap();
        let [one, two] = manifests.as_slice() else { panic!("two backups: {manifests:?}") };
        assert_eq!(two.parent, Some(one.as_parent()));

        let password = ["--password".to_owned(), "a b c".to_owned()];
        let access = if encrypted { &password[..] } else { &[] };
        reader.check_list(&dir, access, &manifests);
        for (manifest, wanted) in [(one, first), (two, second)] {
            let target = work.path().join("volume.img");
            let (id, to) = (manifest.backup_id.as_str(), target.to_str().unwrap());
            reader.ok(&dir, access, &["restore", "a/volume", id, to]);
            assert!(std::fs::read(&target).unwrap() == wanted, "{encryption} {id}");
        }
        reader.ok(&dir, &[], &["check-packs"]);
    }
}
