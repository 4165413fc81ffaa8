//! Whole operations on a device: full backup, increment by a list, increment without one, restore.
//!
//! Each operation runs in a process of its own, which is this program again: so its CPU time and
//! memory are its own, and nothing of one operation (caches, threads, connections) helps the next.
//! It calls the `mover` library, as the `mover` program does.
//!
//! A run makes one fresh repository for the increment by list and one for that without: what one
//! stored must not be found by the other. Which comes first turns round from run to run; the later
//! one is restored. Repositories, images and files that the harness made are removed however it
//! ends, killing it apart.
//!
//! | file | |
//! |---|---|
//! | `operation` | the child: one operation through the library |
//! | `child` | starting it, waiting for it, what it used |
//! | `place` | where repositories and targets are, and removing them |
//! | `series` | the runs, one operation after the other |
//! | `sample` | what is measured, and what of it is shown |
//! | `growth` | increments in a repository that holds very much |
//! | `compare`, `html` | against an earlier report; the page |

pub(crate) mod child;
mod compare;
pub(crate) mod growth;
mod html;
pub(crate) mod operation;
pub(crate) mod place;
mod sample;
mod series;

pub(crate) use operation::run_operation;

use crate::engines::size;
use crate::machine::Machine;
use crate::numbers::show;
use crate::stop::Stop;
use crate::table::columns;
use crate::{failed, note, say};
use benches::synthetic;
use chunkstore::{Error, ErrorKind, Result};
use mover::cli::parse_compression;
use mover_engine::volume::io::EngineChoice;
use sample::{Kind, METRICS, Report};
use serde::{Deserialize, Serialize};
pub(crate) use series::same;
use std::path::{Path, PathBuf};

/// What to measure, and with what.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Block device or image file to back up; it is only read
    #[arg(long, value_name = "DEVICE", required_unless_present = "synthetic")]
    device: Option<PathBuf>,
    /// Make a volume of this size, and what it is later, in the work directory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    #[arg(conflicts_with_all = ["device", "next_device", "changed_blocks"])]
    synthetic: Option<u64>,
    /// The same volume later, for the increments; by default the same device, so that nothing has
    /// changed
    #[arg(long, value_name = "DEVICE")]
    next_device: Option<PathBuf>,
    /// What changed in between, in any shape that `mover backup` takes
    #[arg(long, value_name = "FILE")]
    changed_blocks: Option<PathBuf>,
    /// Where repositories are made and removed: a directory or a URL; by default the work directory
    #[arg(long, value_name = "DIR-OR-URL")]
    repo: Option<String>,
    /// Device or file to restore to. ITS CONTENT IS LOST. By default a file in the work directory
    #[arg(long, value_name = "DEVICE-OR-FILE")]
    target: Option<PathBuf>,
    /// Use the target though it exists as a file, or a file system or partition table was found on
    /// it
    #[arg(long, requires = "target")]
    force: bool,
    /// Where the work directory is made; by default the temporary directory
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// As in mover
    #[arg(long, default_value = "256MiB", value_parser = size)]
    memory: u64,
    /// As in mover
    #[arg(long, default_value = "auto")]
    compression: String,
    /// As in mover
    #[arg(long, default_value = "auto", value_parser = engine)]
    engine: EngineChoice,
    /// As in mover; by default one a core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// As in `mover init`
    #[arg(long, default_value = "64KiB", value_parser = size)]
    chunk_size: u64,
    /// As in `mover init`
    #[arg(long, default_value_t = 16)]
    entry_chunks: u16,
    /// As in `mover init`
    #[arg(long, default_value_t = 128)]
    page_fanout: u16,
    /// Write machine, settings and all samples here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with bars here
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Compare with what `--json` wrote earlier
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// By how much (in percent) a median must differ from the earlier one to be marked
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    threshold: u32,
}

fn engine(text: &str) -> Result<EngineChoice> {
    text.parse()
}

/// What figures depend on, apart from the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Settings {
    device: String,
    volume_bytes: u64,
    /// Where repositories were made: the directory or URL as given.
    repository: String,
    target: String,
    memory_bytes: u64,
    compression: String,
    engine: String,
    threads: Option<u16>,
    chunk_bytes: u64,
    entry_chunks: u16,
    page_fanout: u16,
    /// Whether reads came from the device: the page cache was dropped before each operation.
    caches_dropped: bool,
}

/// The volumes of a series.
#[derive(Debug)]
struct Volumes {
    base: PathBuf,
    next: PathBuf,
    list: Option<PathBuf>,
}

/// Measures and reports.
pub(crate) fn run(args: &Args, stop: &Stop) -> Result<()> {
    parse_compression(&args.compression)?;
    let earlier = args.compare.as_deref().map(read_report).transpose()?;
    let work = place::work_dir(args.work.as_deref())?;
    let volumes = volumes(args, work.path(), stop)?;
    let mut series = series::Series::prepare(args, work.path(), volumes, stop)?;
    let machine = Machine::look();
    note(&machine.line());
    if machine.build == "debug" {
        note("this is a debug build: its figures say that it works, nothing else");
    }
    let measured = series.measure(args.runs);
    let report = Report::new(machine, series.settings().clone(), series.into_samples());
    if let Err(e) = measured {
        // what was measured before it is not lost
        return write_files(args, &report, earlier.as_ref()).and(Err(e));
    }
    say(&table(&report))?;
    if let Some(earlier) = &earlier {
        say(&format!("\n{}", compare::text(&report, earlier, f64::from(args.threshold))))?;
    }
    write_files(args, &report, earlier.as_ref())
}

fn volumes(args: &Args, work: &Path, stop: &Stop) -> Result<Volumes> {
    if let Some(size) = args.synthetic {
        let images = synthetic::make(work, size, &|| stop.stopped())
            .map_err(|e| failed("make the synthetic volume", e))?;
        return Ok(Volumes { base: images.base, next: images.next, list: Some(images.list) });
    }
    let none = || Error::new(ErrorKind::Usage, "measure backups", "no --device was given");
    let base = args.device.clone().ok_or_else(none)?;
    let next = args.next_device.clone().unwrap_or_else(|| base.clone());
    Ok(Volumes { base, next, list: args.changed_blocks.clone() })
}

fn read_report(path: &Path) -> Result<Report> {
    let what = || format!("read the earlier report {}", path.display());
    let bytes = std::fs::read(path).map_err(|e| failed(what(), e))?;
    let report: Report =
        serde_json::from_slice(&bytes).map_err(|e| Error::caused(ErrorKind::Usage, what(), e))?;
    report.check().map_err(|e| e.within(what()))?;
    Ok(report)
}

fn write_files(args: &Args, report: &Report, earlier: Option<&Report>) -> Result<()> {
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).map_err(|e| failed(format!("write {}", path.display()), e))
    };
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(report);
        write(path, &json.map_err(|e| failed("encode JSON", e.into()))?)?;
    }
    if let Some(path) = &args.report {
        write(path, html::page(report, earlier, f64::from(args.threshold)).as_bytes())?;
    }
    Ok(())
}

fn table(report: &Report) -> String {
    let mut heads = vec!["operation", "runs", "s", "least..most"];
    heads.extend(METRICS.iter().filter(|m| m.name != "time").map(|m| m.head));
    heads.push("limit");
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let Some(time) = report.spread(kind, sample::TIME) else { continue };
        let mut row = vec![
            kind.to_string(),
            time.count.to_string(),
            show(time.median),
            format!("{}..{}", show(time.min), show(time.max)),
        ];
        row.extend(METRICS.iter().filter(|m| m.name != "time").map(|metric| {
            report.spread(kind, metric).map_or_else(|| "-".into(), |s| show(s.median))
        }));
        row.push(report.limits(kind));
        rows.push(row);
    }
    columns(&heads, &rows)
}
