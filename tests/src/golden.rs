//! The golden repositories of `tests/golden/`: small, made once, to be read by every later version.

use chunkstore::{
    Compression, Credential, Manifest, Repository, Result, StoreOptions, VolumeName, open_url,
};
use mover_changes::ChangeRequest;
use mover_engine::ops::backup::{AuditAmount, BackupOptions, BackupSummary, ParentChoice, backup};
use mover_engine::ops::restore::{RestoreOptions, RestoreTarget, restore};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use mover_engine::volume::device::DirectIo;
use mover_engine::volume::io::EngineChoice;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A backup that can be restored, and what must come of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpectedBackup {
    /// Not escaped.
    pub volume: String,
    /// Its id.
    pub backup_id: String,
    /// The attempt that was committed.
    pub attempt: u32,
    /// Of the volume.
    pub size_bytes: u64,
    /// BLAKE3 of the volume, hex.
    pub blake3: String,
    /// Its attachments: name, size, BLAKE3 in hex.
    pub attachments: Vec<(String, u64, String)>,
}

impl ExpectedBackup {
    /// As the command line names it.
    pub fn spec(&self) -> String {
        format!("{}@{}", self.volume, self.backup_id)
    }

    /// Panics unless this file is the volume.
    pub fn check(&self, restored: &Path) {
        let bytes = std::fs::read(restored).expect("read what was restored");
        assert_eq!(bytes.len() as u64, self.size_bytes, "{}", self.spec());
        assert_eq!(blake3::hash(&bytes).to_hex().as_str(), self.blake3, "{}", self.spec());
    }
}

/// One of the golden repositories, or a copy of one.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Of its directory.
    pub name: &'static str,
    /// Its directory.
    pub dir: PathBuf,
    /// File that opens it, if it is encrypted.
    pub key_file: Option<PathBuf>,
    /// Text that opens it, if it is encrypted.
    pub passphrase: Option<String>,
    /// All backups that are neither forgotten nor fenced, sorted.
    pub backups: Vec<ExpectedBackup>,
}

impl Golden {
    /// All of them, where they are in the source tree: not to be changed.
    pub fn all() -> [Self; 4] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
        let text = std::fs::read(root.join("expected.json")).expect("read expected.json");
        let expected: Value = serde_json::from_slice(&text).expect("expected.json is JSON");
        ["encrypted", "plain", "later", "attached"]
            .map(|name| Self::of(&root, name, &expected[name]))
    }

    fn of(root: &Path, name: &'static str, expected: &Value) -> Self {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let number = |value: &Value| value.as_u64().expect("a number");
        let attachment = |value: &Value| {
            (text(&value["name"]), number(&value["size_bytes"]), text(&value["blake3"]))
        };
        let backup = |value: &Value| ExpectedBackup {
            volume: text(&value["volume"]),
            backup_id: text(&value["backup_id"]),
            attempt: u32::try_from(number(&value["attempt"])).expect("an attempt"),
            size_bytes: number(&value["size_bytes"]),
            blake3: text(&value["blake3"]),
            attachments: value["attachments"]
                .as_array()
                .into_iter()
                .flatten()
                .map(attachment)
                .collect(),
        };
        let backups = expected["backups"].as_array().expect("a list");
        let mut backups: Vec<_> = backups.iter().map(backup).collect();
        backups.sort();
        let access = expected["access"].as_object();
        Self {
            name,
            dir: root.join(name),
            key_file: access.map(|access| root.join(text(&access["key_file"]))),
            passphrase: access.map(|access| text(&access["passphrase"])),
            backups,
        }
    }

    /// A copy that may be damaged.
    #[must_use]
    pub fn copy_to(&self, dir: &Path) -> Self {
        for (key, bytes) in self.objects() {
            let path = dir.join(key);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
            std::fs::write(path, bytes).expect("copy an object");
        }
        Self { dir: dir.to_owned(), ..self.clone() }
    }

    /// Everything in it by object key.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let mut objects = BTreeMap::new();
        let mut dirs = vec![self.dir.clone()];
        while let Some(dir) = dirs.pop() {
            for found in std::fs::read_dir(&dir).expect("list a directory") {
                let path = found.expect("list a directory").path();
                if path.is_dir() {
                    dirs.push(path);
                    continue;
                }
                let key = path.strip_prefix(&self.dir).expect("it is in there");
                let key = key.to_str().expect("object keys are text").to_owned();
                objects.insert(key, std::fs::read(&path).expect("read an object"));
            }
        }
        objects
    }

    /// The key file's, then the passphrase.
    pub fn credentials(&self) -> Vec<Credential> {
        let from_file = self.key_file.as_ref().map(|path| {
            let bytes = std::fs::read(path).expect("read the key file");
            Credential::from_key_file_bytes(&bytes).expect("a key file")
        });
        from_file.into_iter().chain(self.passphrase.clone().map(Credential::passphrase)).collect()
    }

    /// Opens it with all that opens it.
    pub fn open(&self, library: &Library) -> Result<Arc<Repository>> {
        library.open(&self.dir, &self.credentials())
    }
}

/// The program's library, called as its command line would call it.
#[derive(Debug)]
pub struct Library {
    /// What its network code runs on.
    pub runtime: Runtime,
}

impl Default for Library {
    fn default() -> Self {
        Self::new()
    }
}

impl Library {
    /// With a small runtime.
    pub fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("start a runtime");
        Self { runtime }
    }

    /// Opens the repository in a directory.
    pub fn open(&self, dir: &Path, credentials: &[Credential]) -> Result<Arc<Repository>> {
        let url = format!("file://{}", dir.display());
        let store = open_url(&url, &StoreOptions::default())?;
        self.runtime.block_on(Repository::open(store, credentials))
    }

    /// All backups; an error if one cannot be read.
    pub fn list(&self, repo: &Arc<Repository>) -> Result<Vec<Manifest>> {
        let (backups, mut problems) = self.runtime.block_on(repo.list_backups(None))?;
        match problems.pop() {
            Some(problem) => Err(problem),
            None => Ok(backups.into_iter().map(|backup| backup.manifest).collect()),
        }
    }

    /// Restores into an image file without taking a lease.
    pub fn restore(&self, repo: &Arc<Repository>, backup: &str, to: &Path) -> Result<()> {
        let options = RestoreOptions {
            backup: backup.into(),
            target: RestoreTarget::Path(to.into()),
            force: true,
            differential: false,
            verify: false,
            skip_damaged: false,
            range: None,
            lease: None,
            memory: MemoryBudget { total_bytes: 64 << 20 },
            engine: EngineChoice::Blocking,
            direct: DirectIo::Never,
            threads: Some(1),
            source_paths_to_refuse: Vec::new(),
            journal_to_remove: None,
        };
        restore(self.runtime.handle(), repo, options, &Progress::new(), &Cancel::new())?;
        Ok(())
    }

    /// Backs up all of an image file, on top of the newest backup of the volume.
    pub fn backup(
        &self,
        repo: &Arc<Repository>,
        volume: &str,
        image: &Path,
    ) -> Result<BackupSummary> {
        let options = BackupOptions {
            source: image.into(),
            volume: Some(VolumeName::new(volume)?),
            backup_id: None,
            changes: ChangeRequest::default(),
            parent: ParentChoice::Auto,
            base_snapshot: None,
            snapshot: chunkstore::format::SnapshotInfo::default(),
            volume_changed: false,
            compression: Compression::Zstd(3).into(),
            labels: BTreeMap::new(),
            attachments: Vec::new(),
            memory: MemoryBudget { total_bytes: 256 << 20 },
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            scratch: None,
            temporary: None,
            threads: Some(2),
            checkpoint_bytes: None,
            limit_read: None,
            quota: Quota::default(),
            audit: AuditAmount::OFF,
            tool: "tests".into(),
            host: "tests".into(),
        };
        backup(self.runtime.handle(), repo, &options, &Progress::new(), &Cancel::new())
    }
}
