//! The child: one operation through the `mover` library, set up as the `mover` program does it.
//!
//! What to do comes as JSON on stdin, so that the key is in no argument; what was done goes to
//! stdout. What was written to files is flushed before the process ends, so that the flush is part
//! of its time.

use crate::{failed, machine, say};
use chunkstore::{
    ChunkSize, Credential, Encryption, Error, ErrorKind, InitOptions, KdfCost, LeaseOptions,
    Repository, Result, Store, StoreOptions, VolumeName, format::SnapshotInfo, open_url,
};
use mover::cli::parse_compression;
use mover_changes::ChangeRequest;
use mover_engine::ops::backup::{AuditAmount, BackupOptions, ParentChoice, backup};
use mover_engine::ops::restore::{RestoreOptions, RestoreTarget, restore};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use mover_engine::volume::device::DirectIo;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const VOLUME: &str = "bench";
const TOOL: &str = concat!("benches ", env!("CARGO_PKG_VERSION"));
const LEASE_SECONDS: u32 = 600;

/// What the child is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) repository: String,
    /// Where files were written that must be flushed: the repository's directory.
    pub(crate) directory: Option<PathBuf>,
    /// 64 hex digits.
    pub(crate) key: String,
    pub(crate) memory_bytes: u64,
    pub(crate) compression: String,
    pub(crate) engine: String,
    pub(crate) threads: Option<usize>,
    pub(crate) scratch: Option<PathBuf>,
    pub(crate) operation: Operation,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Operation {
    Init {
        chunk_bytes: u32,
        entry_chunks: u16,
        page_fanout: u16,
    },
    Backup {
        source: PathBuf,
        snapshot: String,
        delta: Option<Delta>,
    },
    Restore {
        target: PathBuf,
        force: bool,
        sources: Vec<PathBuf>,
    },
    /// Removes every object of the repository.
    Remove,
}

/// A changed-block list and the snapshot that it starts from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Delta {
    pub(crate) base: String,
    pub(crate) list: PathBuf,
}

/// What the child did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) peak_rss_bytes: u64,
    pub(crate) summary: serde_json::Value,
}

/// Does what stdin says.
pub(crate) fn run_operation() -> Result<()> {
    mover_engine::volume::io::bound_allocator();
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| failed("read what to do from standard input", e))?;
    // a harness that is killed takes its child along
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|e| failed("ask for the end of the parent", e.into()))?;
    let request: Request = serde_json::from_str(&text).map_err(|e| {
        Error::caused(ErrorKind::Usage, "read what to do", e)
            .hint("this command is for `benches e2e` itself")
    })?;
    // as the program has it
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 4).clamp(2, 8))
        .enable_all()
        .build()
        .map_err(|e| failed("start the network threads", e))?;
    let summary = request.run(&runtime)?;
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    let reply = Reply { peak_rss_bytes: machine::own_peak_rss_bytes()?, summary };
    say(&serde_json::to_string(&reply).map_err(|e| failed("encode JSON", e.into()))?)
}

impl Request {
    fn run(&self, runtime: &Runtime) -> Result<serde_json::Value> {
        match &self.operation {
            Operation::Init { chunk_bytes, entry_chunks, page_fanout } => {
                let options = InitOptions {
                    chunk: ChunkSize::new(*chunk_bytes)?,
                    entry_chunks: *entry_chunks,
                    page_fanout: *page_fanout,
                    encryption: Encryption::Aes256Gcm,
                    credential: Some(self.credential()?),
                    label: VOLUME.into(),
                    kdf: KdfCost::default(),
                    created_by: TOOL.into(),
                };
                let store = self.store(true)?;
                runtime.block_on(Repository::init(store, options))?;
                Ok(serde_json::Value::Null)
            }
            Operation::Backup { source, snapshot, delta } => {
                let summary = self.back_up(runtime, source, snapshot, delta.as_ref())?;
                if let Some(directory) = &self.directory {
                    flush(directory)?;
                }
                Ok(summary)
            }
            Operation::Restore { target, force, sources } => {
                let summary = self.restore(runtime, target, *force, sources)?;
                // of a device, the restore itself has flushed all
                if target.is_file() {
                    flush(target)?;
                }
                Ok(summary)
            }
            Operation::Remove => {
                let store = self.store(false)?;
                runtime.block_on(remove(&store)).map(serde_json::Value::from)
            }
        }
    }

    fn back_up(
        &self,
        runtime: &Runtime,
        source: &Path,
        snapshot: &str,
        delta: Option<&Delta>,
    ) -> Result<serde_json::Value> {
        let repository =
            runtime.block_on(Repository::open(self.store(false)?, &[self.credential()?]))?;
        let base = delta.map(|d| d.base.clone());
        let options = BackupOptions {
            source: source.to_owned(),
            volume: Some(VolumeName::new(VOLUME)?),
            backup_id: None,
            changes: delta.map(|d| ChangeRequest::file(&d.list)).unwrap_or_default(),
            parent: ParentChoice::Auto,
            base_snapshot: base.clone(),
            snapshot: SnapshotInfo {
                id: Some(snapshot.to_owned()),
                base_id: base,
                ..SnapshotInfo::default()
            },
            volume_changed: false,
            compression: parse_compression(&self.compression)?,
            labels: BTreeMap::new(),
            attachments: Vec::new(),
            memory: MemoryBudget { total_bytes: self.memory_bytes },
            engine: self.engine.parse()?,
            direct: DirectIo::Auto,
            scratch: self.scratch.clone(),
            temporary: None,
            threads: self.threads,
            checkpoint_bytes: None,
            limit_read: None,
            quota: Quota::default(),
            audit: AuditAmount::default(),
            tool: TOOL.into(),
            host: VOLUME.into(),
        };
        let (progress, cancel) = (Progress::new(), Cancel::new());
        let summary = backup(runtime.handle(), &repository, &options, &progress, &cancel)?;
        encode(&summary)
    }

    fn restore(
        &self,
        runtime: &Runtime,
        target: &Path,
        force: bool,
        sources: &[PathBuf],
    ) -> Result<serde_json::Value> {
        let repository =
            runtime.block_on(Repository::open(self.store(false)?, &[self.credential()?]))?;
        let options = RestoreOptions {
            backup: format!("{VOLUME}@latest"),
            target: RestoreTarget::Path(target.to_owned()),
            force,
            differential: false,
            verify: false,
            skip_damaged: false,
            range: None,
            lease: Some(LeaseOptions {
                lease_seconds: LEASE_SECONDS,
                tool: TOOL.into(),
                host: VOLUME.into(),
            }),
            memory: MemoryBudget { total_bytes: self.memory_bytes },
            engine: self.engine.parse()?,
            direct: DirectIo::Auto,
            threads: self.threads,
            source_paths_to_refuse: sources.to_vec(),
            journal_to_remove: None,
        };
        let (progress, cancel) = (Progress::new(), Cancel::new());
        let summary = restore(runtime.handle(), &repository, options, &progress, &cancel)?;
        encode(&summary)
    }

    fn store(&self, create_dir: bool) -> Result<Store> {
        open_url(&self.repository, &StoreOptions { create_dir, ..StoreOptions::default() })
    }

    fn credential(&self) -> Result<Credential> {
        Credential::from_key_file_bytes(self.key.as_bytes())
    }
}

fn encode(summary: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(summary).map_err(|e| failed("encode a summary", e.into()))
}

/// Everything that was written to the file system of `path`.
fn flush(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(|e| failed(format!("open {}", path.display()), e))?;
    rustix::fs::syncfs(&file)
        .map_err(|e| failed(format!("flush the file system of {}", path.display()), e.into()))
}

/// How many objects there were.
async fn remove(store: &Store) -> Result<usize> {
    let listed = store.list("").await?;
    for object in &listed {
        store.delete(&object.key).await?;
    }
    Ok(listed.len())
}
