//! A repository in memory and a work directory, driven through the library: for tests of many small
//! runs.

use crate::work_dir;
use chunkstore::{
    AttachmentName, BackupId, ChunkSize, CollectOptions, Compression, Credential, Encryption,
    InitOptions, KdfCost, LeaseOptions, Repository, Result, Store, VolumeName, collect,
    format::SnapshotInfo, map::ReadLimits, protocol::Collected, repository::ATTACHMENTS,
};
use futures::TryStreamExt;
use mover_changes::ChangeRequest;
use mover_engine::ops::attachment::{AttachmentOptions, AttachmentTarget, write_attachment};
use mover_engine::ops::backup::{AuditAmount, BackupOptions, BackupSummary, ParentChoice, backup};
use mover_engine::ops::check::{CheckOptions, CheckReport, ReadData, check};
use mover_engine::ops::restore::{RestoreOptions, RestoreSummary, RestoreTarget, restore};
use mover_engine::ops::verify::{VerifyOptions, VerifySummary, verify};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use mover_engine::volume::device::DirectIo;
use mover_engine::volume::io::EngineChoice;
use object_store::memory::InMemory;
use object_store::{ObjectStore, path::Path as StorePath};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

const KEY: [u8; 32] = [7; 32];
const MEMORY: MemoryBudget = MemoryBudget { total_bytes: 64 << 20 };

/// Parameters of a repository.
#[derive(Debug, Clone, Copy)]
pub struct VaultParams {
    /// Chunk size.
    pub chunk_bytes: u32,
    /// Most chunks in an entry.
    pub entry_chunks: u16,
    /// Children of a page.
    pub page_fanout: u16,
    /// How it is sealed.
    pub encryption: Encryption,
}

/// See the module.
#[derive(Debug)]
pub struct Vault {
    credentials: Vec<Credential>,
    rt: Runtime,
    memory: Arc<InMemory>,
    checkpoint_bytes: Option<u64>,
    volume_changes: bool,
    dir: tempfile::TempDir,
}

/// How a run ended.
#[derive(Debug)]
pub struct VaultRun {
    /// What it returned.
    pub result: Result<BackupSummary>,
    /// What it read of the volume, even if it failed.
    pub read_bytes: u64,
}

fn credential() -> Credential {
    Credential::from_key_file_bytes(&KEY).expect("32 bytes are a key")
}

fn lease() -> LeaseOptions {
    LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "test".into() }
}

fn store(inner: Arc<dyn ObjectStore>) -> Store {
    Store::new(inner, StorePath::from("repo"), "memory")
}

impl Vault {
    /// A new repository; `name` is for the work directory.
    pub fn new(name: &str, params: VaultParams) -> Self {
        let rt = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let memory = Arc::new(InMemory::new());
        let encrypted = params.encryption == Encryption::Aes256Gcm;
        let options = InitOptions {
            chunk: ChunkSize::new(params.chunk_bytes).expect("a chunk size"),
            entry_chunks: params.entry_chunks,
            page_fanout: params.page_fanout,
            encryption: params.encryption,
            credential: encrypted.then(credential),
            label: "test".into(),
            kdf: KdfCost::default(),
            created_by: "test".into(),
        };
        rt.block_on(Repository::init(store(memory.clone()), options)).expect("init");
        let credentials = if encrypted { vec![credential()] } else { Vec::new() };
        let dir = work_dir(name);
        Self { credentials, rt, memory, checkpoint_bytes: None, volume_changes: false, dir }
    }

    /// Backups make a checkpoint at least so often.
    #[must_use]
    pub fn with_checkpoints(self, every_bytes: u64) -> Self {
        Self { checkpoint_bytes: Some(every_bytes), ..self }
    }

    /// The volume may have another size, or other content of one snapshot, at each backup.
    #[must_use]
    pub fn with_a_volume_that_changes(self) -> Self {
        Self { volume_changes: true, ..self }
    }

    /// The objects themselves.
    pub fn memory(&self) -> Arc<InMemory> {
        Arc::clone(&self.memory)
    }

    /// A copy of all objects.
    pub fn fork(&self) -> Arc<InMemory> {
        Arc::new(self.memory.fork())
    }

    /// A file in the work directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Backs up volume `v` as backup and snapshot `id`; with a list, on top of the snapshot that is
    /// named with it.
    pub fn backup(
        &self,
        objects: Arc<dyn ObjectStore>,
        image: &Path,
        id: &str,
        list: Option<(&str, &Path)>,
    ) -> Result<BackupSummary> {
        self.run(objects, &self.options(image, id, list), &Cancel::new()).result
    }

    /// What [`Self::backup`] asks for.
    pub fn options(&self, image: &Path, id: &str, list: Option<(&str, &Path)>) -> BackupOptions {
        BackupOptions {
            source: image.to_owned(),
            volume: Some(VolumeName::new("v").expect("a name")),
            backup_id: Some(BackupId::new(id).expect("an id")),
            changes: list.map(|(_, path)| ChangeRequest::file(path)).unwrap_or_default(),
            parent: ParentChoice::Auto,
            base_snapshot: list.map(|(base, _)| base.to_owned()),
            snapshot: SnapshotInfo { id: Some(id.to_owned()), ..SnapshotInfo::default() },
            volume_changed: self.volume_changes,
            compression: Compression::Zstd(1).into(),
            labels: BTreeMap::new(),
            attachments: Vec::new(),
            memory: MEMORY,
            engine: EngineChoice::Blocking,
            direct: DirectIo::Never,
            scratch: None,
            temporary: None,
            threads: Some(2),
            checkpoint_bytes: self.checkpoint_bytes,
            limit_read: None,
            quota: Quota::default(),
            audit: AuditAmount::OFF,
            tool: "test".into(),
            host: "test".into(),
        }
    }

    /// Makes a backup as it is asked for.
    pub fn run(
        &self,
        objects: Arc<dyn ObjectStore>,
        options: &BackupOptions,
        cancel: &Arc<Cancel>,
    ) -> VaultRun {
        let progress = Progress::new();
        let opened = self.rt.block_on(Repository::open(store(objects), &self.credentials));
        let result =
            opened.and_then(|repo| backup(self.rt.handle(), &repo, options, &progress, cancel));
        VaultRun { result, read_bytes: progress.read_bytes.get() }
    }

    /// Keys of all objects below a prefix of the repository.
    pub fn keys(&self, objects: &Arc<dyn ObjectStore>, prefix: &str) -> Vec<String> {
        let below = StorePath::from(format!("repo/{prefix}"));
        let listed = objects.list(Some(&below)).map_ok(|meta| meta.location.to_string());
        self.rt.block_on(listed.try_collect()).expect("memory can be listed")
    }

    /// Restores backup `id` onto `target` as it is.
    pub fn restore(&self, objects: Arc<dyn ObjectStore>, id: &str, target: &Path) -> Result<()> {
        self.restore_under(objects, id, target, None, false).map(drop)
    }

    /// Restores all that is left of backup `id`.
    pub fn restore_left(
        &self,
        objects: Arc<dyn ObjectStore>,
        id: &str,
        target: &Path,
    ) -> Result<RestoreSummary> {
        self.restore_under(objects, id, target, None, true)
    }

    /// The same, with a lease.
    pub fn restore_leased(
        &self,
        objects: Arc<dyn ObjectStore>,
        id: &str,
        target: &Path,
    ) -> Result<()> {
        self.restore_under(objects, id, target, Some(lease()), false).map(drop)
    }

    fn restore_under(
        &self,
        objects: Arc<dyn ObjectStore>,
        id: &str,
        target: &Path,
        lease: Option<LeaseOptions>,
        skip_damaged: bool,
    ) -> Result<RestoreSummary> {
        let repo = self.rt.block_on(Repository::open(store(objects), &self.credentials))?;
        let target = RestoreTarget::Path(target.to_owned());
        let options = RestoreOptions {
            backup: format!("v@{id}"),
            target,
            force: true,
            differential: false,
            verify: false,
            skip_damaged,
            range: None,
            lease,
            memory: MEMORY,
            engine: EngineChoice::Blocking,
            direct: DirectIo::Never,
            threads: Some(2),
            source_paths_to_refuse: Vec::new(),
            journal_to_remove: None,
        };
        restore(self.rt.handle(), &repo, options, &Progress::new(), &Cancel::new())
    }

    /// The repository on these objects.
    pub fn open(&self, objects: Arc<dyn ObjectStore>) -> Result<Arc<Repository>> {
        self.rt.block_on(Repository::open(store(objects), &self.credentials))
    }

    /// Runs something that waits.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.rt.block_on(future)
    }

    /// Forgets backup `id`.
    pub fn forget(&self, objects: Arc<dyn ObjectStore>, id: &str) -> Result<()> {
        let repo = self.open(objects)?;
        self.rt.block_on(async {
            let manifest = repo.find_backup(&format!("v@{id}")).await?;
            repo.forget(&manifest.name(), "test").await
        })
    }

    /// Collects garbage.
    pub fn collect(&self, objects: Arc<dyn ObjectStore>, exclusive: bool) -> Result<Collected> {
        let repo = self.open(objects)?;
        let options = CollectOptions { lease: lease(), limits: ReadLimits::default(), exclusive };
        self.rt.block_on(collect(&repo, &options, std::future::pending()))
    }

    /// Checks the repository.
    pub fn check(
        &self,
        objects: Arc<dyn ObjectStore>,
        read_data: ReadData,
        repair: bool,
    ) -> Result<CheckReport> {
        let repo = self.open(objects)?;
        let lease = Some(lease());
        let options = CheckOptions { read_data, repair, lease, memory: MEMORY, threads: Some(2) };
        check(self.rt.handle(), &repo, &options, &Progress::new(), &Cancel::new())
    }

    /// Verifies backup `id`: reads and checks all that a restore would.
    pub fn verify(&self, objects: Arc<dyn ObjectStore>, id: &str) -> Result<VerifySummary> {
        let repo = self.open(objects)?;
        let options = VerifyOptions {
            backup: format!("v@{id}"),
            device: None,
            lease: None,
            memory: MEMORY,
            engine: EngineChoice::Blocking,
            direct: DirectIo::Never,
            threads: Some(2),
        };
        verify(self.rt.handle(), &repo, options, &Progress::new(), &Cancel::new())
    }

    /// Adds the feature that backups with attachments need.
    pub fn add_attachments(&self, objects: Arc<dyn ObjectStore>) {
        let repo = self.open(objects).expect("it opens");
        self.rt.block_on(repo.add_feature(ATTACHMENTS.name, "test")).expect("a feature is added");
    }

    /// An attachment of backup `id`, through a file.
    pub fn attachment(
        &self,
        objects: Arc<dyn ObjectStore>,
        id: &str,
        name: &str,
    ) -> Result<Vec<u8>> {
        let repo = self.open(objects)?;
        let manifest = self.rt.block_on(repo.find_backup(&format!("v@{id}")))?;
        let target = self.path("attachment");
        // of an earlier call
        let _ = fs::remove_file(&target);
        let options = AttachmentOptions {
            name: AttachmentName::new(name)?,
            target: AttachmentTarget::File(target.clone()),
            lease: None,
            memory: MEMORY,
            threads: Some(2),
        };
        let (progress, cancel) = (Progress::new(), Cancel::new());
        write_attachment(self.rt.handle(), &repo, &manifest, &options, &progress, &cancel)?;
        Ok(fs::read(&target).expect("the file can be read"))
    }

    /// What backup `id` restores to, onto a file that is not there yet.
    pub fn restored(&self, objects: Arc<dyn ObjectStore>, id: &str) -> Result<Vec<u8>> {
        let target = self.path("target.img");
        // of an earlier call
        let _ = fs::remove_file(&target);
        self.restore(objects, id, &target)?;
        Ok(fs::read(&target).expect("the restored file can be read"))
    }
}
