//! Pack to target, which is taken to be fresh: zeros are not written.

use crate::Options;
use crate::index::{Index, Place};
use crate::io::{Aligned, open_direct};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const TAG_BYTES: usize = 16;

/// Size of the volume.
pub fn run(pack: &str, target: &str, options: &Options) -> u64 {
    let index = Index::read(&Index::path(pack));
    let pack = File::open(pack).unwrap_or_else(|e| panic!("{pack}: {e}"));
    let target = open_direct(target, true);
    let taken = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..options.threads {
            threads.spawn(|| work(&index, &pack, &target, &taken));
        }
    });
    if options.flush {
        target.sync_all().expect("flush the target");
    }
    index.volume_bytes
}

fn work(index: &Index, pack: &File, target: &File, taken: &AtomicUsize) {
    let size = index.chunk_bytes;
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[1; 32]).expect("key"));
    let mut codec = zstd::bulk::Decompressor::new().expect("zstd");
    let (mut buffer, mut packed) = (Aligned::new(size), vec![0; size + TAG_BYTES]);
    loop {
        let chunk = taken.fetch_add(1, Relaxed);
        let Some(place) = index.places.get(chunk) else { return };
        let Some((offset, len, compressed)) = place.stored() else { continue };
        let stored = &mut packed[..len + if index.aead { TAG_BYTES } else { 0 }];
        pack.read_exact_at(stored, offset).expect("read");
        if index.aead {
            let nonce = Nonce::assume_unique_for_key([3; 12]);
            key.open_in_place(nonce, Aad::empty(), stored).expect("open");
        }
        let start = chunk as u64 * size as u64;
        let want = usize::try_from(index.volume_bytes - start).map_or(size, |left| left.min(size));
        let plain = buffer.bytes();
        if compressed {
            codec.decompress_to_buffer(&stored[..len], plain).expect("decompress");
        } else {
            plain[..len].copy_from_slice(&stored[..len]);
        }
        check(&plain[..want], place, chunk);
        target.write_all_at(&plain[..want], start).expect("write");
    }
}

fn check(plain: &[u8], place: &Place, chunk: usize) {
    assert!(blake3::hash(plain).as_bytes() == &place.hash, "chunk {chunk} differs");
}
