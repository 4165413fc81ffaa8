//! `chunkstore`: content-addressed, compressed, encrypted, deduplicated chunks of volumes in an
//! object store.
//!
//! It knows formats, keys, packs, volume maps, leases and the commit protocol. It knows no devices,
//! starts no threads, has no command line and no unsafe code. `docs/format.md` describes every byte
//! that it stores; `docs/glossary.md` has its words.
//!
//! A volume is a row of *chunks* of one size. Chunks are sealed into *entries*, and entries fill
//! *packs*. The *map* of a backup is a tree of pages with a reference to each chunk that is not
//! zero. The *manifest* names the root of the map; its creation is the commit. No reference needs an
//! index: each one says in which pack, and where in it, its chunk is.
//!
//! | to | begin with |
//! |---|---|
//! | open a store | [`open_url`], [`Store`] |
//! | make or open a repository, list and find backups | [`Repository`] |
//! | make a backup | [`Writer`], [`Sealer`], [`PackAllocator`], [`MapBuilder`] |
//! | read one | [`Reader`] (its lease), [`MapReader`], [`fetch::plan_reads`], [`Opener`] |
//! | choose the backups to forget | [`retention::plan_forget`] |
//! | delete what no backup refers to | [`collect`] |
//! | find damage and repair it | [`Check`] |
//!
//! The names of the main road are here; each module has the rest of its own. Decoders of single
//! objects are in [`format`](mod@format), those of packs in [`pack`].
//!
//! All I/O is asynchronous and needs a tokio runtime. All errors are [`Error`], whose kind says
//! whether the world or the program is at fault.
//!
//! # A backup and its way back
//!
//! ```
//! use chunkstore::{fetch::*, format::*, map::*, pack::*, protocol::*, repository::*, units::*, *};
//! use object_store::{memory::InMemory, path::Path};
//! use std::sync::Arc;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<()> {
//! // An encrypted repository in memory. `open_url` gives a store in S3, GCS, Azure or a directory.
//! let store = Store::new(Arc::new(InMemory::new()), Path::from("repo"), "memory:///repo");
//! let key = Credential::from_key_file_bytes(&random_bytes::<32>())?;
//! let options = InitOptions {
//!     chunk: ChunkSize::new(4096)?,
//!     entry_chunks: 16,
//!     page_fanout: 16,
//!     encryption: Encryption::Aes256Gcm,
//!     credential: Some(key),
//!     label: "first".into(),
//!     kdf: KdfCost::default(),
//!     created_by: "doctest".into(),
//! };
//! let repo = Repository::init(store, options).await?;
//! let (keys, chunk) = (repo.keys(), repo.params().chunk);
//!
//! // A volume of three chunks: data, zeros, data.
//! let mut volume = vec![0; 3 * 4096];
//! volume[..4096].fill(1);
//! volume[8192..].fill(2);
//! let geometry = Geometry::new(volume.len() as u64, chunk)?;
//!
//! // The lease comes first: from here on no collection deletes what this writer stores.
//! let name = VolumeName::new("db")?;
//! let backup_id = BackupId::random();
//! let lease = LeaseOptions { lease_seconds: 600, tool: "doctest".into(), host: "here".into() };
//! let mut writer = Writer::begin(&repo, WriterOptions {
//!     volume: name.clone(),
//!     backup_id: backup_id.clone(),
//!     parents: Vec::new(),
//!     after: NewestSeen::default(),
//!     lease,
//! }).await?;
//!
//! // The two chunks of data are sealed as one entry of one pack.
//! let ids = [keys.chunk_id(&volume[..4096]), keys.chunk_id(&volume[8192..])];
//! let places = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, 1 << 20);
//! let mut sealer = Sealer::new(Compression::Zstd(1))?;
//! let entry = sealer.seal_chunks(&places, &volume, &[0..4096, 8192..12288], &ids)?;
//! let [first, last] =
//!     [0, 1].map(|i: u16| ChunkRef { id: ids[usize::from(i)], location: entry.location(i) });
//! let mut packs = PackBuilder::new(Arc::clone(keys), *repo.id(), PackKind::Chunks);
//! packs.add(entry)?;
//! packs.close(places.close().expect("a pack was begun"))?;
//! let data_pack = packs.take_finished().expect("it is complete");
//! repo.put_pack(&data_pack).await?;
//!
//! // The map says where each chunk is. Its pages go into packs, too.
//! let mut pages = PageSink::new(keys, *repo.id(), Compression::Zstd(1), 1 << 20)?;
//! let fanout = repo.params().page_fanout;
//! let mut map = MapBuilder::new(Arc::clone(keys), fanout, geometry, Inherit::Nothing, None)?;
//! map.set(&mut pages, ChunkNo(0), Some(first))?;
//! map.set_zero(&mut pages, 1..2)?;
//! map.set(&mut pages, ChunkNo(2), Some(last))?;
//! let root = map.finish(&mut pages)?;
//! pages.close()?;
//! let map_pack = pages.take_finished().expect("the map has a page");
//! repo.put_pack(&map_pack).await?;
//!
//! // The manifest names the root of the map. To create it is the commit.
//! let now = chrono::Utc::now();
//! let manifest = Manifest {
//!     volume: name,
//!     backup_id,
//!     attempt: 0,
//!     size_bytes: geometry.size_bytes(),
//!     map: root,
//!     parent: None,
//!     snapshot: SnapshotInfo::default(),
//!     source: SourceInfo {
//!         path: "memory".into(),
//!         kind: ChangeKind::Whole,
//!         origin: "doctest".into(),
//!         listed_bytes: 0,
//!         listed_extents: 0,
//!         identity: None,
//!     },
//!     started: now,
//!     finished: now,
//!     ordered: now,
//!     clock_offset_ms: None,
//!     stats: BackupStats::default(),
//!     tool: "doctest".into(),
//!     labels: Default::default(),
//!     degraded: Vec::new(),
//!     copied_from: None,
//!     attachments: Vec::new(),
//! };
//! let committed = writer.commit(manifest, &[data_pack.pack, map_pack.pack], &[]).await?;
//! assert!(matches!(committed, Commit::Done(_)));
//! writer.finish().await;
//!
//! // The way back: the manifest, the pages of its map, the entries of its chunks.
//! let found = repo.find_backup("db@latest").await?;
//! let mut reader = MapReader::new(Arc::clone(&repo), VolumeMap::of(&repo, &found)?)?;
//! let pages = reader.load(&[0..geometry.chunks()]).await?;
//! let mut opener = Opener::new(Arc::clone(keys))?;
//! let (mut restored, mut plain) = (vec![0; volume.len()], Vec::new());
//! for number in (0..geometry.chunks()).map(ChunkNo) {
//!     // a chunk without a reference is zero
//!     let Some(at) = pages.chunk(number)? else { continue };
//!     let addr = EntryAddr::from(&at.location);
//!     for read in plan_reads(vec![addr], 0, addr.stored_len) {
//!         let Fetched::Data(data) = read_range(&repo, &read).await? else { panic!("a pack is gone") };
//!         let stored = read.entry_bytes(&data, &addr)?;
//!         let header =
//!             opener.open_entry(EntryKind::Chunks, &addr.pack, addr.offset, &stored, &mut plain)?;
//!         let plain = &plain[header.expect(at.location.index, chunk, geometry.len(number))?];
//!         assert_eq!(keys.chunk_id(plain), at.id, "each chunk is checked against its id");
//!         let start = geometry.offset(number) as usize;
//!         restored[start..start + plain.len()].copy_from_slice(plain);
//!     }
//! }
//! assert_eq!(restored, volume);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod advice;
pub mod check;
mod chunk;
pub mod dedup;
mod error;
pub mod fetch;
pub mod format;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod map;
pub mod pack;
pub mod protocol;
pub mod repository;
pub mod retention;
pub mod roots;
pub mod salvage;
pub mod seal;
pub mod secrets;
pub mod store;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod units;

pub use advice::{Advice, Setting};
pub use check::Check;
pub use chunk::is_zero;
pub use error::{Error, ErrorKind, Result};
pub use format::Manifest;
pub use ids::{
    AttachmentName, BackupId, ChunkId, LeaseId, PackId, RepositoryId, VolumeName, random_bytes,
};
pub use keys::{Credential, Encryption, KdfCost, Keys, ProcessKey, ProcessSeal};
pub use map::{MapBuilder, MapReader, VolumeMap};
pub use pack::{PackAllocator, PackBuilder, PackKind};
pub use protocol::{CollectOptions, Commit, LeaseOptions, Reader, Writer, WriterOptions, collect};
pub use repository::{BackupEntry, Hold, InitOptions, Repository, TakenHold, hold_on};
pub use seal::{Compression, Opener, Sealer};
pub use store::{Store, StoreOptions, open_url};
pub use units::{ChunkNo, ChunkRef, ChunkSize, Geometry, Location};
