//! The least that a backup and a restore have to do.
//!
//!   limits backup DEVICE PACK CHUNK_KIB LEVEL THREADS [aead]
//!   limits restore PACK TARGET THREADS
//!
//! O_DIRECT reads, zero test, BLAKE3, deduplication, zstd, AES-256-GCM with `aead`, one pack file: no format, no commit, no
//! index of other backups, nothing that could be resumed. With FSYNC=1 it flushes what it wrote, as the tools that it is compared
//! with must. CHANGED=list.json reads only these extents; BASE=old.index leaves out what an old pack holds (such a pack
//! cannot be restored by itself). Prints wall and CPU time. A measuring stick, so a failure simply ends it.
mod pipe;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["backup", dev, pack, kib, level, threads, ref rest @ ..] => pipe::backup(
            dev,
            pack,
            kib.parse::<usize>().expect("chunk KiB") << 10,
            level.parse().expect("level"),
            threads.parse().expect("threads"),
            rest.contains(&"aead"),
        ),
        ["restore", pack, target, threads] => {
            pipe::restore(pack, target, threads.parse().expect("threads"));
        }
        _ => {
            eprintln!("usage: limits backup DEVICE PACK CHUNK_KIB LEVEL THREADS [aead]");
            eprintln!("       limits restore PACK TARGET THREADS");
            std::process::exit(2);
        }
    }
}
