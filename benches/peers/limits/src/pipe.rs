//! The smallest honest pipeline: O_DIRECT pread, zero check, BLAKE3, dedup, zstd, optional AEAD, one pack file.
//! What it reaches is what a full implementation may hope for, less its format and safety.
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::Instant;

/// Page-aligned memory for O_DIRECT.
struct Aligned(*mut u8, usize);

impl Aligned {
    fn new(len: usize) -> Self {
        let l = std::alloc::Layout::from_size_align(len, 4096).expect("layout");
        // SAFETY: the layout has a non-zero size.
        Aligned(unsafe { std::alloc::alloc_zeroed(l) }, len)
    }
    fn get(&mut self) -> &mut [u8] {
        // SAFETY: we own these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

fn open_direct(path: &str, write: bool) -> File {
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .or_else(|_| OpenOptions::new().read(true).write(write).open(path))
        .unwrap_or_else(|e| panic!("{path}: {e}"))
}

const NONE: u64 = u64::MAX;

fn zero_u64(b: &[u8]) -> bool {
    // SAFETY: any bytes are valid u64 values.
    let (h, m, t) = unsafe { b.align_to::<u64>() };
    h.iter().chain(t).all(|&x| x == 0)
        && m.chunks(512).all(|c| c.iter().fold(0, |a, &x| a | x) == 0)
}

/// User and system CPU seconds of this process so far.
fn cpu() -> (f64, f64) {
    // SAFETY: all bits zero are a valid rusage, and getrusage writes one through a valid pointer.
    let u = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut u);
        u
    };
    let s = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    (s(u.ru_utime), s(u.ru_stime))
}

fn report(name: &str, len: u64, t: Instant, stored: u64) {
    let w = t.elapsed().as_secs_f64();
    let (u, s) = cpu();
    println!(
        "{name}\twall {w:.3} s\tuser {u:.2}\tsys {s:.2}\t{:.3} GB/s\t{:.3} CPU-s/GiB\tstored {:.1} MiB",
        len as f64 / w / 1e9,
        (u + s) / (len as f64 / (1u64 << 30) as f64),
        stored as f64 / 1048576.0
    );
}

/// With CHANGED=file (the JSON list of make-volumes) only these extents are read: what an increment costs when a
/// changed-block tracker, or a snapshot's own map, says what to read.
fn changed(count: usize, size: usize) -> Vec<usize> {
    let Some(path) = std::env::var_os("CHANGED") else { return (0..count).collect() };
    let text = std::fs::read_to_string(path).expect("changed list");
    let n: Vec<usize> = text.split(|c: char| !c.is_ascii_digit()).filter_map(|w| w.parse().ok()).collect();
    let mut ids: Vec<usize> = n.chunks_exact(2).flat_map(|e| e[0] / size..(e[0] + e[1]).div_ceil(size)).collect();
    ids.dedup();
    ids
}

pub fn backup(dev: &str, pack: &str, size: usize, level: i32, threads: usize, seal: bool) {
    let t = Instant::now();
    let f = open_direct(dev, false);
    let len = (&f).seek(SeekFrom::End(0)).expect("size");
    let out = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(pack).expect("pack");
    let count = len.div_ceil(size as u64) as usize;
    let todo = changed(count, size);
    let next = AtomicUsize::new(0);
    let end = AtomicU64::new(0);
    let seen: Vec<Mutex<HashMap<[u8; 32], (u64, u32)>>> = (0..64).map(|_| Mutex::default()).collect();
    // BASE=old.index: what the old pack holds is not stored again (a bound for an increment that must read all; such a
    // pack cannot be restored by itself)
    if let Some(base) = std::env::var_os("BASE") {
        for e in std::fs::read(base).expect("base index")[24..].chunks_exact(44).filter(|e| e[..8] != [0xff; 8]) {
            let h: [u8; 32] = e[12..].try_into().unwrap();
            seen[h[0] as usize % 64].lock().unwrap().insert(h, (0, 0));
        }
    }
    let index = Mutex::new(vec![(NONE, 0u32, [0u8; 32]); count]);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                use aws_lc_rs::aead::*;
                let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[1; 32]).expect("key"));
                let mut cx = zstd::bulk::Compressor::new(level).expect("zstd");
                let mut buf = Aligned::new(size);
                let mut packed = vec![0u8; zstd::zstd_safe::compress_bound(size)];
                // (start, length, hash) of what was packed; pending writes are gathered into 4 MiB
                let mut gather: Vec<u8> = Vec::with_capacity(6 << 20);
                let mut held: Vec<(usize, usize, u32, [u8; 32])> = Vec::new();
                let flush = |gather: &mut Vec<u8>, held: &mut Vec<(usize, usize, u32, [u8; 32])>| {
                    let at = end.fetch_add(gather.len() as u64, Relaxed);
                    out.write_all_at(gather, at).expect("write");
                    for (i, off, n, h) in held.drain(..) {
                        seen[h[0] as usize % 64].lock().unwrap().insert(h, (at + off as u64, n));
                        index.lock().unwrap()[i] = (at + off as u64, n, h);
                    }
                    gather.clear();
                };
                loop {
                    let Some(&i) = todo.get(next.fetch_add(1, Relaxed)) else { break };
                    let off = i as u64 * size as u64;
                    let n = (len - off).min(size as u64) as usize;
                    let b = &mut buf.get()[..n];
                    f.read_exact_at(b, off).expect("read");
                    if zero_u64(b) {
                        continue;
                    }
                    let h = *blake3::hash(b).as_bytes();
                    match seen[h[0] as usize % 64].lock().unwrap().entry(h) {
                        std::collections::hash_map::Entry::Occupied(e) => {
                            let (at, n) = *e.get(); // (NONE, 0) while still held: resolved below by hash
                            index.lock().unwrap()[i] = (at, n, h);
                            continue;
                        }
                        std::collections::hash_map::Entry::Vacant(e) => {
                            e.insert((NONE, 0));
                        }
                    }
                    let m = cx.compress_to_buffer(b, &mut packed[..]).expect("compress");
                    let (body, flag) = if m < n / 16 * 15 { (&mut packed[..m], 0) } else { (&mut *b, 1u32 << 31) };
                    let body_len = body.len();
                    if seal {
                        let nonce = Nonce::assume_unique_for_key([3; 12]);
                        let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), body).expect("seal");
                        held.push((i, gather.len(), body_len as u32 | flag, h));
                        gather.extend_from_slice(body);
                        gather.extend_from_slice(tag.as_ref());
                    } else {
                        held.push((i, gather.len(), body_len as u32 | flag, h));
                        gather.extend_from_slice(body);
                    }
                    if gather.len() >= 4 << 20 {
                        flush(&mut gather, &mut held);
                    }
                }
                flush(&mut gather, &mut held);
            });
        }
    });
    let mut index = index.into_inner().unwrap();
    for e in index.iter_mut().filter(|e| e.0 == NONE && e.2 != [0; 32]) {
        let (at, n) = seen[e.2[0] as usize % 64].lock().unwrap()[&e.2];
        (e.0, e.1) = (at, n);
    }
    let mut ix = Vec::with_capacity(24 + 44 * count);
    ix.extend_from_slice(&len.to_le_bytes());
    ix.extend_from_slice(&(size as u64).to_le_bytes());
    ix.extend_from_slice(&(seal as u64).to_le_bytes());
    for (at, n, h) in &index {
        ix.extend_from_slice(&at.to_le_bytes());
        ix.extend_from_slice(&n.to_le_bytes());
        ix.extend_from_slice(h);
    }
    std::fs::write(format!("{pack}.index"), ix).expect("index");
    if std::env::var_os("FSYNC").is_some() {
        out.sync_all().expect("fsync");
    }
    report("backup", len, t, end.into_inner());
}

pub fn restore(pack: &str, target: &str, threads: usize) {
    let t = Instant::now();
    let ix = std::fs::read(format!("{pack}.index")).expect("index");
    let word = |k: usize| u64::from_le_bytes(ix[k..k + 8].try_into().unwrap());
    let (len, size, seal) = (word(0), word(8) as usize, word(16) != 0);
    let src = File::open(pack).expect("pack");
    let dst = open_direct(target, true);
    let ix = &ix[24..];
    let count = ix.len() / 44;
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                use aws_lc_rs::aead::*;
                let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[1; 32]).expect("key"));
                let mut dx = zstd::bulk::Decompressor::new().expect("zstd");
                let mut buf = Aligned::new(size);
                let mut packed = vec![0u8; size + 16];
                loop {
                    let i = next.fetch_add(1, Relaxed);
                    if i >= count {
                        break;
                    }
                    let e = &ix[i * 44..][..44];
                    let at = u64::from_le_bytes(e[..8].try_into().unwrap());
                    if at == NONE {
                        continue; // zero: the target is taken to be fresh
                    }
                    let word = u32::from_le_bytes(e[8..12].try_into().unwrap());
                    let (n, raw) = ((word & !(1 << 31)) as usize, word >> 31 == 1);
                    let want = (len - i as u64 * size as u64).min(size as u64) as usize;
                    let p = &mut packed[..n + if seal { 16 } else { 0 }];
                    src.read_exact_at(p, at).expect("read");
                    if seal {
                        let nonce = Nonce::assume_unique_for_key([3; 12]);
                        key.open_in_place(nonce, Aad::empty(), p).expect("open");
                    }
                    let b = buf.get();
                    if raw {
                        b[..n].copy_from_slice(&p[..n]);
                    } else {
                        dx.decompress_to_buffer(&p[..n], b).expect("decompress");
                    }
                    assert_eq!(blake3::hash(&b[..want]).as_bytes(), &e[12..], "chunk {i}");
                    dst.write_all_at(&b[..want], i as u64 * size as u64).expect("write");
                }
            });
        }
    });
    if std::env::var_os("FSYNC").is_some() {
        // SAFETY: plain call on a descriptor we hold.
        unsafe { libc::fsync(dst.as_raw_fd()) };
    }
    report("restore", len, t, 0);
}
