//! A repository that looks as if it held very many chunks, made in minutes and in little space.
//!
//! Everything that a backup could read when it starts is real and made by the library: parameters
//! and key, manifests of many volumes with their maps, and large dedup segments as merging leaves
//! them. Packs have header, directory and trailer; the chunks in them are holes ([`sparse`]), so
//! that such a volume can be listed, walked and inherited from, but not restored. Ids are made up.
//!
//! Every second volume has packs and segment records, but no backup: what forgotten backups leave
//! until it is collected. About 95 bytes of disk a chunk.
//!
//! `growth` (in `e2e`) measures increments in it beside an empty repository.

mod sparse;

use crate::stop::Stop;
use crate::{failed, note, say};
use chunkstore::{
    BackupId, ChunkNo, ChunkRef, ChunkSize, Commit, Compression, Credential, Encryption, Error,
    ErrorKind, Geometry, InitOptions, KdfCost, LeaseOptions, Manifest, MapBuilder, PackId,
    Repository, Result, StoreOptions, VolumeName, Writer, WriterOptions,
    format::{BackupStats, ChangeKind, MapRoot, SegmentRecord, SnapshotInfo, SourceInfo},
    map::{Inherit, PageSink},
    open_url, random_bytes,
    repository::NewestSeen,
};
use mover_engine::sizes::show_bytes;
use sparse::{Layout, PACK_CHUNKS, PackWriter};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;

const CHUNK_BYTES: u32 = 64 << 10;
/// What every backup says that it was made of.
const SNAPSHOT: &str = "made-up";
const PACK_BYTES: u32 = 32 << 20;
const TOOL: &str = concat!("benches ", env!("CARGO_PKG_VERSION"));

/// What to make, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the repository; it must be empty or not be there
    #[arg(long, value_name = "DIR")]
    repo: PathBuf,
    /// File for its new key
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Chunks in it
    #[arg(long, default_value_t = 50_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    chunks: u64,
    /// Most chunks in one dedup segment
    #[arg(long, default_value_t = 1 << 18)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=67_108_864))]
    segment_chunks: u64,
    /// Chunks of one volume
    #[arg(long, default_value_t = 1 << 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    volume_chunks: u64,
}

/// Makes it.
pub(crate) fn run(args: &Args, stop: &Stop) -> Result<()> {
    let begun = Instant::now();
    let runtime = Runtime::new().map_err(|e| failed("start the network threads", e))?;
    let mut maker = Maker::new(args, &runtime)?;
    let mut start = 0;
    for number in 0.. {
        if start >= args.chunks {
            break;
        }
        let chunks = start..start.saturating_add(args.volume_chunks).min(args.chunks);
        start = chunks.end;
        maker.volume(number, chunks, stop)?;
        note(&format!("{start} of {} chunks", args.chunks));
    }
    maker.segment()?;
    let Maker { packs, pages, segments, backups, .. } = maker;
    say(&format!(
        "{} chunks of {} in {packs} packs, {segments} segments; {backups} backups with {pages} \
         pages; made in {:.0} s",
        args.chunks,
        show_bytes(CHUNK_BYTES.into()),
        begun.elapsed().as_secs_f64()
    ))
}

struct Maker<'a> {
    args: &'a Args,
    runtime: &'a Runtime,
    repository: Arc<Repository>,
    layout: Layout,
    records: Vec<SegmentRecord>,
    packs: u64,
    pages: u64,
    segments: u64,
    backups: u64,
}

impl<'a> Maker<'a> {
    fn new(args: &'a Args, runtime: &'a Runtime) -> Result<Self> {
        let key = hex::encode(random_bytes::<32>());
        let mut private = OpenOptions::new();
        private.write(true).create_new(true).mode(0o600);
        private
            .open(&args.key_file)
            .and_then(|mut file| file.write_all(key.as_bytes()))
            .map_err(|e| failed(format!("make the key file {}", args.key_file.display()), e))?;
        let url = args.repo.to_str().ok_or_else(|| {
            let what = format!("use {}", args.repo.display());
            Error::new(ErrorKind::Usage, what, "its path is not valid UTF-8")
        })?;
        let store = open_url(url, &StoreOptions { create_dir: true, ..StoreOptions::default() })?;
        let options = InitOptions {
            chunk: ChunkSize::new(CHUNK_BYTES)?,
            entry_chunks: 16,
            page_fanout: 128,
            encryption: Encryption::Aes256Gcm,
            credential: Some(Credential::from_key_file_bytes(key.as_bytes())?),
            label: "benches".into(),
            kdf: KdfCost::default(),
            created_by: TOOL.into(),
        };
        Ok(Self {
            args,
            runtime,
            repository: runtime.block_on(Repository::init(store, options))?,
            layout: Layout { seed: u64::from_le_bytes(random_bytes()) },
            records: Vec::new(),
            packs: 0,
            pages: 0,
            segments: 0,
            backups: 0,
        })
    }

    fn volume(&mut self, number: u64, chunks: Range<u64>, stop: &Stop) -> Result<()> {
        let packs = self.args.repo.join("packs");
        self.packs += write_packs(&self.repository, self.layout, &packs, &chunks, stop)?;
        for chunk in chunks.clone() {
            let (id, location) = (self.layout.chunk_id(chunk), self.layout.location(chunk));
            self.records.push(SegmentRecord { id, location });
            if self.records.len() as u64 >= self.args.segment_chunks {
                stop.check()?;
                self.segment()?;
            }
        }
        if number.is_multiple_of(2) {
            self.backup(number, &chunks)?;
        }
        Ok(())
    }

    /// What was gathered, merged into one.
    fn segment(&mut self) -> Result<()> {
        let records = std::mem::take(&mut self.records);
        if !records.is_empty() {
            self.runtime.block_on(self.repository.put_segment(records))?;
            self.segments += 1;
        }
        Ok(())
    }

    /// A volume of these chunks, none of them zero, one after the other.
    fn backup(&mut self, number: u64, chunks: &Range<u64>) -> Result<()> {
        let size_bytes = (chunks.end - chunks.start) * u64::from(CHUNK_BYTES);
        let params = self.repository.params();
        let geometry = Geometry::new(size_bytes, params.chunk)?;
        let keys = self.repository.keys();
        let mut sink =
            PageSink::new(keys, *self.repository.id(), Compression::Zstd(1), PACK_BYTES)?;
        let inherit = Inherit::Nothing;
        let fanout = params.page_fanout;
        let mut builder = MapBuilder::new(Arc::clone(keys), fanout, geometry, inherit, None)?;
        for (place, chunk) in chunks.clone().enumerate() {
            let (id, location) = (self.layout.chunk_id(chunk), self.layout.location(chunk));
            let at = Some(ChunkRef { id, location });
            builder.set(&mut sink, ChunkNo(place as u64), at)?;
        }
        let map = builder.finish(&mut sink)?;
        sink.close()?;
        let mut own = Vec::new();
        while let Some(pack) = sink.take_finished() {
            self.runtime.block_on(self.repository.put_pack(&pack))?;
            own.push(pack.pack);
        }
        self.runtime.block_on(self.commit(number, size_bytes, map, &own))?;
        self.pages += sink.pages();
        self.backups += 1;
        Ok(())
    }

    async fn commit(
        &self,
        number: u64,
        size_bytes: u64,
        map: MapRoot,
        own_packs: &[PackId],
    ) -> Result<()> {
        let volume = VolumeName::new(format!("made-up-{number:04}"))?;
        let backup_id = BackupId::random();
        let lease = LeaseOptions { lease_seconds: 600, tool: TOOL.into(), host: "benches".into() };
        let options = WriterOptions {
            volume: volume.clone(),
            backup_id: backup_id.clone(),
            parents: Vec::new(),
            after: NewestSeen::default(),
            lease,
        };
        let mut writer = Writer::begin(&self.repository, options).await?;
        let now = chrono::Utc::now();
        let manifest = Manifest {
            volume,
            backup_id,
            attempt: writer.attempt(),
            size_bytes,
            map,
            parent: None,
            snapshot: SnapshotInfo { id: Some(SNAPSHOT.into()), ..SnapshotInfo::default() },
            source: SourceInfo {
                path: "/dev/null".into(),
                kind: ChangeKind::Whole,
                origin: "made up".into(),
                listed_bytes: size_bytes,
                listed_extents: 1,
                identity: None,
            },
            started: now,
            finished: now,
            ordered: now,
            clock_offset_ms: None,
            stats: BackupStats::default(),
            tool: TOOL.into(),
            labels: BTreeMap::new(),
            degraded: Vec::new(),
            copied_from: None,
            attachments: Vec::new(),
        };
        match writer.commit(manifest, own_packs, &[]).await? {
            Commit::Done(_) => drop(writer.finish().await),
            other => {
                let detail = format!("it ended otherwise: {other:?}");
                return Err(Error::new(ErrorKind::Bug, "commit a made-up backup", detail));
            }
        }
        Ok(())
    }
}

/// How many there were.
fn write_packs(
    repository: &Repository,
    layout: Layout,
    directory: &Path,
    chunks: &Range<u64>,
    stop: &Stop,
) -> Result<u64> {
    let writer = PackWriter::new(repository.keys(), *repository.id(), layout);
    let mut written = 0;
    let mut first = chunks.start;
    while first < chunks.end {
        stop.check()?;
        let end = (first + PACK_CHUNKS).min(chunks.end);
        writer.write(directory, &(first..end))?;
        (first, written) = (end, written + 1);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::{MapReader, VolumeMap};

    #[test]
    fn what_is_made_opens_and_its_maps_and_segments_say_where_the_chunks_are() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args {
            repo: dir.path().join("repo"),
            key_file: dir.path().join("key"),
            chunks: 5000,
            segment_chunks: 3000,
            volume_chunks: 1 << 20,
        };
        run(&args, &Stop::default()).unwrap();
        let key = std::fs::read(&args.key_file).unwrap();
        let store = open_url(args.repo.to_str().unwrap(), &StoreOptions::default()).unwrap();
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let credential = Credential::from_key_file_bytes(&key).unwrap();
            let repo = Repository::open(store, &[credential]).await.unwrap();
            let backup = repo.find_backup("made-up-0000@latest").await.unwrap();
            assert_eq!(backup.size_bytes, 5000 * u64::from(CHUNK_BYTES));
            let map = VolumeMap::of(&repo, &backup).unwrap();
            let mut reader = MapReader::new(Arc::clone(&repo), map).unwrap();
            let window = reader.load(std::slice::from_ref(&(0..5000))).await.unwrap();
            for n in [0, 1, 2047, 2048, 4999] {
                let chunk = window.chunk(ChunkNo(n)).unwrap().unwrap();
                let key = chunkstore::format::names::pack_key(&chunk.location.pack);
                let size = repo.store().head(&key).await.unwrap().unwrap().size;
                let end = chunk.location.offset + chunk.location.stored_len;
                assert!(size > u64::from(end), "chunk {n}");
            }
            assert_eq!(repo.store().list("dedup").await.unwrap().len(), 2);
            assert_eq!(repo.store().list("packs").await.unwrap().len(), 4);
            assert!(repo.store().list("leases").await.unwrap().is_empty());
        });
    }
}
