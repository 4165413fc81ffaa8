//! `chunkstore`: content-addressed, compressed, encrypted, deduplicated chunks of volumes in an
//! object store.
//!
//! It knows formats, keys, packs, volume maps, leases and the commit protocol. It knows no devices,
//! starts no threads, has no command line and no unsafe code. `docs/format.md` describes every byte
//! that it stores.
#![forbid(unsafe_code)]

mod check;
mod chunk;
mod dedup;
mod error;
mod fetch;
mod format;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod golden;
mod ids;
mod keys;
pub mod limits;
mod map;
mod pack;
mod protocol;
mod repository;
mod seal;
mod secrets;
mod store;
mod units;

pub use check::{
    Check, CheckFigures, Finding, FindingKind, LostBackup, PackChecker, PackReport, Repaired,
};
pub use chunk::is_zero;
pub use dedup::{
    Claim, DedupIndex, DedupOptions, DedupStats, Lookup, NeededBlock, RunTable, RunTableStats,
    Scratch, ScratchBytes, ScratchWriter,
};
pub use error::{Error, ErrorKind, Result};
pub use fetch::{EntryAddr, Fetched, Forwarder, RangeRead, plan_reads, read_range, resolve_moved};
pub use format::damaged::Damaged;
pub use format::forgotten::Forgotten;
pub use format::gc::{Blocker, Blockers, Condemned, CondemnedList, Verdict};
pub use format::key::{
    KeyInfo, KeyKind, Wrapping, read_key_info, unwrap_master_key, wrap_master_key,
};
pub use format::lease::{Checkpoint, FrontierPage, Lease, LeaseRole};
pub use format::manifest::{
    BackupStats, ChangeKind, CopiedFrom, Manifest, ManifestRecord, MapRoot, ParentRef,
    SnapshotInfo, SourceInfo, check_labels,
};
pub use format::moved::{Moved, OldPlace};
pub use format::names;
pub use format::page::{Child, Page};
pub use format::repository::{RepositoryParams, UnverifiedParams, check_parameters};
pub use format::segment::{
    SegmentIndex, SegmentLayout, SegmentOpener, SegmentRecord, encode_segment, to_plain_segment,
};
pub use ids::{
    BackupId, ChunkId, DamageId, GenerationId, KeyId, LeaseId, PackId, PageId, PlanDigest,
    RepositoryId, SegmentId, VolumeName, random_bytes,
};
pub use keys::{Credential, Encryption, KdfCost, Keys, MasterKey, PackKey};
pub use map::{
    Inherit, LivePack, LiveSet, LostPage, MapBuilder, MapReader, MapWalk, PageAt, PageSet,
    PageSink, Reached, ReadLimits, Visitor, VolumeMap, Window, check_frontier, damaged_chunks,
    diff, reach,
};
#[doc(hidden)]
pub use pack::pack_end;
pub use pack::{
    ClosedPack, Codec, DirectoryEntry, EntryHeader, EntryKind, FinishedPack, PACK_END_BYTES,
    PACK_HASH_BYTES, PackAllocator, PackCollector, PackHasher, PackHeader, PackKind, PackSummary,
    PackTrailer, Place, check_pack, decode_directory, decode_pack_header, decode_pack_trailer,
};
pub use protocol::{
    Checkpointer, CollectOptions, Collected, Commit, DamagedSet, LeaseOptions, Reader, ResumeBy,
    SegmentInfo, Unfinished, Waiting, Writer, WriterOptions, collect, find_unfinished,
    preview_collection, read_damaged,
};
pub use repository::{BackupEntry, CreateOnce, InitOptions, NewestSeen, Recent, Repository};
pub use seal::{Compression, Opener, SealedEntry, Sealer};
pub use secrets::{redact, redact_known, remember_secret};
pub use store::{
    Created, Inherited, Listed, ObjectLock, Pace, RequestCounts, RetainMode, RetainPolicy,
    Retention, SentBytes, Store, StoreOptions, TransferLimits, directory_of, open_url,
    open_url_with, time_span,
};
pub use units::{ChunkNo, ChunkRef, ChunkSize, Geometry, Location, PageRef, map_depth, page_span};
