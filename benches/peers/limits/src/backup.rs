//! Device to pack.

use crate::Options;
use crate::index::{Hash, Index, Place};
use crate::io::{Aligned, open_direct};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;
/// A thread gathers so much before it writes.
const GATHER_BYTES: usize = 4 << 20;

/// What the threads share.
struct Job<'a> {
    options: &'a Options,
    device: File,
    volume_bytes: u64,
    pack: File,
    /// Chunk numbers to read, and how many were taken.
    todo: Vec<usize>,
    taken: AtomicUsize,
    /// Where the pack ends.
    end: AtomicU64,
    seen: Vec<Mutex<HashMap<Hash, Place>>>,
    places: Mutex<Vec<Place>>,
}

/// Size of the volume, and bytes stored.
pub fn run(device: &str, pack: &str, options: &Options) -> (u64, u64) {
    let device = open_direct(device, false);
    let volume_bytes = (&device).seek(SeekFrom::End(0)).expect("size");
    let chunks = usize::try_from(volume_bytes.div_ceil(options.chunk_bytes as u64)).expect("size");
    let mut new = OpenOptions::new();
    new.read(true).write(true).create(true).truncate(true);
    let job = Job {
        options,
        device,
        volume_bytes,
        pack: new.open(pack).unwrap_or_else(|e| panic!("{pack}: {e}")),
        todo: todo(options, chunks),
        taken: AtomicUsize::new(0),
        end: AtomicU64::new(0),
        seen: (0..SHARDS).map(|_| Mutex::default()).collect(),
        places: Mutex::new(vec![Place::ZERO; chunks]),
    };
    if let Some(base) = &options.base {
        let old = Index::read(base);
        old.places.iter().filter(|p| p.stored().is_some()).for_each(|p| job.know(*p));
    }
    std::thread::scope(|threads| {
        for _ in 0..options.threads {
            threads.spawn(|| Worker::new(&job).run());
        }
    });
    job.finish(&Index::path(pack))
}

/// All chunks, or those that a list of extents touches.
fn todo(options: &Options, chunks: usize) -> Vec<usize> {
    let Some(path) = &options.extents else { return (0..chunks).collect() };
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    // of each extent the offset, then the size: the only numbers in the list
    let digits = text.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<usize> = digits.filter_map(|word| word.parse().ok()).collect();
    let size = options.chunk_bytes;
    let mut touched: Vec<usize> = numbers
        .chunks_exact(2)
        .flat_map(|extent| extent[0] / size..(extent[0] + extent[1]).div_ceil(size))
        .collect();
    touched.dedup();
    touched
}

impl Job<'_> {
    fn shard(&self, hash: &Hash) -> &Mutex<HashMap<Hash, Place>> {
        &self.seen[hash[0] as usize % SHARDS]
    }

    fn know(&self, place: Place) {
        self.shard(&place.hash).lock().expect("lock").insert(place.hash, place);
    }

    fn finish(self, index: &str) -> (u64, u64) {
        let mut places = std::mem::take(&mut *self.places.lock().expect("lock"));
        for place in places.iter_mut().filter(|place| place.is_promise()) {
            *place = self.shard(&place.hash).lock().expect("lock")[&place.hash];
        }
        let Options { chunk_bytes, aead, flush, .. } = *self.options;
        let volume_bytes = self.volume_bytes;
        Index { volume_bytes, chunk_bytes, aead, places }.write(index);
        if flush {
            self.pack.sync_all().expect("flush the pack");
            File::open(index).and_then(|f| f.sync_all()).expect("flush the index");
        }
        (volume_bytes, self.end.into_inner())
    }
}

/// One thread, with all memory that it needs.
struct Worker<'a> {
    job: &'a Job<'a>,
    key: LessSafeKey,
    codec: zstd::bulk::Compressor<'static>,
    packed: Vec<u8>,
    gathered: Vec<u8>,
    /// Chunks whose bytes are gathered, with offsets from the start of these bytes.
    held: Vec<Held>,
}

struct Held {
    chunk: usize,
    at: usize,
    len: usize,
    raw: bool,
    hash: Hash,
}

impl<'a> Worker<'a> {
    fn new(job: &'a Job<'a>) -> Self {
        let size = job.options.chunk_bytes;
        Self {
            job,
            key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[1; 32]).expect("key")),
            codec: zstd::bulk::Compressor::new(job.options.level).expect("zstd"),
            packed: vec![0; zstd::zstd_safe::compress_bound(size)],
            gathered: Vec::with_capacity(GATHER_BYTES + size + 16),
            held: Vec::new(),
        }
    }

    fn run(mut self) {
        let size = self.job.options.chunk_bytes;
        let mut buffer = Aligned::new(size);
        while let Some(&chunk) = self.job.todo.get(self.job.taken.fetch_add(1, Relaxed)) {
            let offset = chunk as u64 * size as u64;
            let left = self.job.volume_bytes.saturating_sub(offset);
            let len = usize::try_from(left).map_or(size, |left| left.min(size));
            let plain = &mut buffer.bytes()[..len];
            self.job.device.read_exact_at(plain, offset).expect("read");
            if !is_zero(plain) {
                self.chunk(chunk, plain);
            }
        }
        self.write();
    }

    fn chunk(&mut self, chunk: usize, plain: &mut [u8]) {
        let hash = *blake3::hash(plain).as_bytes();
        match self.job.shard(&hash).lock().expect("lock").entry(hash) {
            Entry::Occupied(known) => {
                self.job.places.lock().expect("lock")[chunk] = *known.get();
                return;
            }
            Entry::Vacant(free) => {
                free.insert(Place::promised(hash));
            }
        }
        let len = self.codec.compress_to_buffer(plain, &mut self.packed[..]).expect("compress");
        // as mover: what does not shrink by a sixteenth stays as it is
        let raw = len >= plain.len() / 16 * 15;
        let body = if raw { plain } else { &mut self.packed[..len] };
        let held = Held { chunk, at: self.gathered.len(), len: body.len(), raw, hash };
        if self.job.options.aead {
            // one nonce for all: this measures what encryption costs, and keeps no secrets
            let nonce = Nonce::assume_unique_for_key([3; 12]);
            let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), body);
            self.gathered.extend_from_slice(body);
            self.gathered.extend_from_slice(tag.expect("seal").as_ref());
        } else {
            self.gathered.extend_from_slice(body);
        }
        self.held.push(held);
        if self.gathered.len() >= GATHER_BYTES {
            self.write();
        }
    }

    fn write(&mut self) {
        let start = self.job.end.fetch_add(self.gathered.len() as u64, Relaxed);
        self.job.pack.write_all_at(&self.gathered, start).expect("write");
        for held in self.held.drain(..) {
            let place = Place::new(start + held.at as u64, held.len, held.raw, held.hash);
            self.job.know(place);
            self.job.places.lock().expect("lock")[held.chunk] = place;
        }
        self.gathered.clear();
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: all bytes are valid u64 values.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
    head.iter().chain(tail).all(|&byte| byte == 0)
        && words.chunks(512).all(|some| some.iter().fold(0, |all, &word| all | word) == 0)
}
