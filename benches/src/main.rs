//! Measures `mover` on any device: its I/O engines beside others, and whole backups and restores.
//!
//! `docs/performance.md` says what is measured and how to read it. Devices are only read, but for
//! the one given as `--target`.
//!
//! | file | |
//! |---|---|
//! | `engines` | reading a device with each engine |
//! | `e2e` | backups and restores, each in a process of its own |
//! | `populate` | a repository that looks as if it held very many chunks |
//! | `generations` | a full backup and many increments at several repository settings |
//! | `machine`, `usage` | what the machine is; what a process or the machine used |
//! | `volume` | the synthetic volume as files, for what measures others |
//! | `stop` | ending early without leaving anything behind |
//! | `numbers`, `table` | medians, and how they are shown |

mod e2e;
mod engines;
mod generations;
mod machine;
mod numbers;
mod populate;
mod stop;
mod table;
mod usage;
mod volume;

use chunkstore::{Error, ErrorKind, Result};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use stop::Stop;

#[derive(Debug, Parser)]
#[command(name = "benches", about = "Measures mover on a device", version)]
enum Command {
    /// Read a device with each I/O engine, at several read sizes and depths
    Engines(engines::Args),
    /// Full and incremental backups and a restore, each in a process of its own
    E2e(Box<e2e::Args>),
    /// Make a repository that looks as if it held very many chunks
    Synthetic(populate::Args),
    /// Increments in such a repository beside the same in an empty one
    Growth(e2e::growth::Args),
    /// A full backup and many increments at each of several repository settings
    Generations(generations::Args),
    /// Write a volume that is the same on every machine, the same some time later, and what changed
    Volume(volume::Args),
    /// One operation of `e2e`: reads what to do from stdin, prints what it did
    #[command(hide = true)]
    Operation,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Operation => e2e::run_operation(),
        Command::Engines(args) => with_stop(|stop| engines::run(&args, stop)),
        Command::Synthetic(args) => with_stop(|stop| populate::run(&args, stop)),
        Command::Growth(args) => with_stop(|stop| e2e::growth::run(&args, stop)),
        Command::Generations(args) => with_stop(|stop| generations::run(&args, stop)),
        Command::Volume(args) => with_stop(|stop| volume::run(&args, stop)),
        Command::E2e(args) => with_stop(|stop| e2e::run(&args, stop)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let mut stderr = std::io::stderr().lock();
            // nobody may be there to read it
            let _ = writeln!(stderr, "error: {e}");
            ExitCode::from(if e.kind() == ErrorKind::Usage { 2 } else { 1 })
        }
    }
}

fn with_stop(measure: impl FnOnce(&Stop) -> Result<()>) -> Result<()> {
    let stop = Stop::install()?;
    measure(&stop)
}

/// An error of the system, with what was being done.
pub(crate) fn failed(what: impl Into<String>, e: std::io::Error) -> Error {
    let kind = match e.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        std::io::ErrorKind::InvalidInput => ErrorKind::Usage,
        std::io::ErrorKind::Interrupted => ErrorKind::Cancelled,
        _ => ErrorKind::Device,
    };
    Error::caused(kind, what, e)
}

/// To stdout; a reader that left is an error like another, so that no further hour is measured for
/// nobody.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(|e| failed("write to standard output", e))
}

/// To stderr: progress, and what a reader of the figures should know.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
