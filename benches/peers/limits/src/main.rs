//! The least that a backup and a restore have to do.
//!
//! ```text
//! limits backup DEVICE PACK [--chunk KIB] [--level N] [--threads N] [--aead] [--flush]
//!                           [--extents LIST] [--base INDEX]
//! limits restore PACK TARGET [--threads N] [--flush]
//! ```
//!
//! Threads that each read with O_DIRECT, test for zero, hash, look up what was seen before,
//! compress, perhaps encrypt, and append to one pack file. There is no format, no commit, no
//! knowledge of other backups, nothing that could be resumed, and a fixed key: what this reaches is
//! what a real tool may hope for, less its safety. It is a measuring stick, so a failure simply
//! ends it.
//!
//! `--extents` reads only what a list of `{"offset": …, "size": …}` names. `--base` leaves out what
//! the pack of an earlier index holds: the bound of an increment that has to read everything (such
//! a pack cannot be restored by itself). `--flush` flushes what was written before the time is
//! taken.

mod backup;
mod index;
mod io;
mod restore;

use std::time::Instant;

const USAGE: &str = "\
usage: limits backup DEVICE PACK [--chunk KIB] [--level N] [--threads N] [--aead] [--flush]
                                 [--extents LIST] [--base INDEX]
       limits restore PACK TARGET [--threads N] [--flush]";

/// What was typed behind the names of files.
#[derive(Debug)]
struct Options {
    chunk_bytes: usize,
    level: i32,
    threads: usize,
    aead: bool,
    flush: bool,
    extents: Option<String>,
    base: Option<String>,
}

impl Options {
    fn parse(words: &[String]) -> Option<Self> {
        let mut options = Self {
            chunk_bytes: 1 << 20,
            level: 1,
            threads: 3,
            aead: false,
            flush: false,
            extents: None,
            base: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--aead" => options.aead = true,
                "--flush" => options.flush = true,
                "--chunk" => options.chunk_bytes = words.next()?.parse::<usize>().ok()? << 10,
                "--level" => options.level = words.next()?.parse().ok()?,
                "--threads" => options.threads = words.next()?.parse().ok()?,
                "--extents" => options.extents = Some(words.next()?.clone()),
                "--base" => options.base = Some(words.next()?.clone()),
                _ => return None,
            }
        }
        (options.chunk_bytes >= 4096 && options.threads > 0).then_some(options)
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [command, from, to, rest @ ..] = words.as_slice() else { leave() };
    let Some(options) = Options::parse(rest) else { leave() };
    let begun = Instant::now();
    let (volume_bytes, stored_bytes) = match command.as_str() {
        "backup" => backup::run(from, to, &options),
        "restore" => (restore::run(from, to, &options), 0),
        _ => leave(),
    };
    let wall = begun.elapsed().as_secs_f64();
    let cpu = io::cpu_seconds();
    println!(
        "{command}\twall {wall:.3} s\tCPU {cpu:.2} s\t{:.3} GB/s\tstored {:.1} MiB",
        volume_bytes as f64 / wall / 1e9,
        stored_bytes as f64 / f64::from(1 << 20)
    );
}

fn leave() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2);
}
