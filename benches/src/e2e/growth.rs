//! Increments in a repository that holds very much beside the same increments in an empty one.
//!
//! What an increment costs must not depend on what else its repository holds. Both repositories get
//! a full backup of one volume; then both get the same increments by a list, in turns: before each,
//! the listed blocks are changed, so that every increment of a run stores the same in both.
//!
//! `--scratch` says what an increment finds in its scratch directory: what earlier increments left
//! there (`kept`), nothing (`fresh`), or that there is none (`none`).

use super::child;
use super::operation::{Delta, Operation, Request};
use super::place::{bytes_below, work_dir};
use super::sample::{Kind, METRICS, Sample};
use super::series::sample;
use crate::engines::size;
use crate::machine::{Machine, drop_caches};
use crate::numbers::{Spread, show};
use crate::stop::Stop;
use crate::table::columns;
use crate::{failed, note, say};
use benches::{noise, synthetic};
use chunkstore::{Error, ErrorKind, Result, random_bytes};
use mover_changes::{ParseOptions, parse_changed_blocks};
use serde::Serialize;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const CHUNK_BYTES: u32 = 64 << 10;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repository that `synthetic` made. Backups of the volume `bench` are added to it
    #[arg(long, value_name = "DIR")]
    repo: PathBuf,
    /// Its key
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Where the empty repository and the volume are made and removed; by default beside the
    /// repository, so that both are on one file system
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Size of the volume
    #[arg(long, default_value = "64MiB", value_parser = size)]
    volume: u64,
    /// Increments in each repository
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// As in mover
    #[arg(long, default_value = "256MiB", value_parser = size)]
    memory: u64,
    /// What an increment finds in scratch: kept, fresh or none
    #[arg(long, default_value = "kept")]
    scratch: ScratchUse,
    /// Write machine and all samples here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ScratchUse {
    Kept,
    Fresh,
    None,
}

impl FromStr for ScratchUse {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "kept" => Ok(Self::Kept),
            "fresh" => Ok(Self::Fresh),
            "none" => Ok(Self::None),
            _ => Err(Error::new(ErrorKind::Usage, "choose a scratch directory", text)
                .hint("use kept, fresh or none")),
        }
    }
}

/// One of the two, and what was measured in it.
#[derive(Debug, Serialize)]
struct Side {
    name: &'static str,
    directory: PathBuf,
    #[serde(skip)]
    key: String,
    #[serde(skip)]
    scratch: PathBuf,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    format: u32,
    machine: Machine,
    scratch: ScratchUse,
    memory_bytes: u64,
    sides: &'a [Side],
}

struct Growth<'a> {
    args: &'a Args,
    stop: &'a Stop,
    images: synthetic::Images,
    /// Snapshots of two series in one repository must not have one name.
    series: String,
}

/// Measures and reports.
pub(crate) fn run(args: &Args, stop: &Stop) -> Result<()> {
    let beside = args.repo.parent().filter(|p| !p.as_os_str().is_empty());
    let work = work_dir(Some(args.work.as_deref().or(beside).unwrap_or(Path::new("."))))?;
    let read = |e| failed(format!("read {}", args.key_file.display()), e);
    let key = std::fs::read_to_string(&args.key_file).map_err(read)?;
    let images = synthetic::make(work.path(), args.volume, &|| stop.stopped())
        .map_err(|e| failed("make the synthetic volume", e))?;
    let growth = Growth { args, stop, images, series: hex::encode(random_bytes::<4>()) };
    let side = |name, directory, key| {
        let scratch = work.path().join(format!("scratch-{name}"));
        Side { name, directory, key, scratch, samples: Vec::new() }
    };
    let empty_key = hex::encode(random_bytes::<32>());
    let mut sides = [
        side("empty", work.path().join("empty"), empty_key),
        side("full", args.repo.clone(), key.trim().to_owned()),
    ];
    let machine = Machine::look();
    note(&machine.line());
    growth.prepare(&sides)?;
    for run in 1..=args.runs {
        growth.change()?;
        // in turns, and the other way round in the next run
        if run % 2 == 0 {
            sides.reverse();
        }
        for side in &mut sides {
            growth.increment(run, side)?;
        }
        if run % 2 == 0 {
            sides.reverse();
        }
    }
    say(&table(&sides))?;
    let Some(path) = &args.json else { return Ok(()) };
    let (scratch, memory_bytes) = (args.scratch, args.memory);
    let report = Report { format: 1, machine, scratch, memory_bytes, sides: &sides };
    let text = serde_json::to_vec_pretty(&report).map_err(|e| failed("encode JSON", e.into()))?;
    std::fs::write(path, text).map_err(|e| failed(format!("write {}", path.display()), e))
}

impl Growth<'_> {
    fn request(&self, side: &Side, operation: Operation) -> Result<Request> {
        let repository = side.directory.to_str().map(str::to_owned).ok_or_else(|| {
            let what = format!("use {}", side.directory.display());
            Error::new(ErrorKind::Usage, what, "its path is not valid UTF-8")
        })?;
        Ok(Request {
            repository,
            directory: Some(side.directory.clone()),
            key: side.key.clone(),
            memory_bytes: self.args.memory,
            compression: "zstd:1".into(),
            engine: "auto".into(),
            threads: None,
            scratch: (self.args.scratch != ScratchUse::None).then(|| side.scratch.clone()),
            operation,
        })
    }

    /// The empty repository, and a full backup in both.
    fn prepare(&self, sides: &[Side; 2]) -> Result<()> {
        let (chunk_bytes, entry_chunks, page_fanout) = (CHUNK_BYTES, 16, 128);
        let init = Operation::Init { chunk_bytes, entry_chunks, page_fanout };
        child::run(&self.request(&sides[0], init)?, self.stop)?;
        for side in sides {
            let full = Operation::Backup {
                source: self.images.base.clone(),
                snapshot: self.snapshot(0),
                delta: None,
            };
            child::run(&self.request(side, full)?, self.stop)
                .map_err(|e| e.within(format!("back up into the {} repository", side.name)))?;
        }
        Ok(())
    }

    fn snapshot(&self, run: u32) -> String {
        format!("{}-{run}", self.series)
    }

    /// Gives every listed extent other bytes than it ever had, in earlier series too: what one of
    /// them stored in the large repository would be found there, and not in the empty one.
    fn change(&self) -> Result<()> {
        let path = &self.images.next;
        let what = |e| failed(format!("change {}", path.display()), e);
        let image = OpenOptions::new().read(true).write(true).open(path).map_err(what)?;
        let size = image.metadata().map_err(what)?.len();
        let text = std::fs::read(&self.images.list).map_err(what)?;
        let list = parse_changed_blocks(text.as_slice(), &ParseOptions::new("list", size))?;
        for extent in list.data.iter() {
            let seed = u64::from_le_bytes(random_bytes());
            for at in extent.clone().step_by(CHUNK_BYTES as usize) {
                image.write_all_at(&noise(4096, seed ^ at), at).map_err(what)?;
            }
        }
        image.sync_all().map_err(what)
    }

    fn increment(&self, run: u32, side: &mut Side) -> Result<()> {
        if self.args.scratch == ScratchUse::Fresh && side.scratch.exists() {
            std::fs::remove_dir_all(&side.scratch)
                .map_err(|e| failed(format!("empty {}", side.scratch.display()), e))?;
        }
        let delta = Delta { base: self.snapshot(0), list: self.images.list.clone() };
        let operation = Operation::Backup {
            source: self.images.next.clone(),
            snapshot: self.snapshot(run),
            delta: Some(delta),
        };
        let request = self.request(side, operation)?;
        let before = bytes_below(&side.directory)?;
        drop_caches();
        let done = child::run(&request, self.stop)
            .map_err(|e| e.within(format!("run {run}, {} repository", side.name)))?;
        let grown = bytes_below(&side.directory)?.saturating_sub(before);
        let volume_bytes = self.args.volume;
        let sample = sample(run, Kind::IncrementByList, volume_bytes, done, Some(grown))?;
        note(&format!("run {run}: {}: {:.3} s", side.name, sample.seconds));
        side.samples.push(sample);
        Ok(())
    }
}

/// Each figure in both, and their ratio.
fn table(sides: &[Side; 2]) -> String {
    let mut rows = Vec::new();
    for metric in &METRICS {
        let spread = |side: &Side| Spread::of(side.samples.iter().filter_map(metric.of));
        let (Some(empty), Some(full)) = (spread(&sides[0]), spread(&sides[1])) else { continue };
        let range = |s: Spread| format!("{}..{}", show(s.min), show(s.max));
        let ratio = if empty.median > 0.0 { show(full.median / empty.median) } else { "-".into() };
        rows.push(vec![
            format!("{} {}", metric.name, metric.unit).trim_end().to_owned(),
            show(empty.median),
            range(empty),
            show(full.median),
            range(full),
            ratio,
        ]);
    }
    columns(&["increment", "empty", "least..most", "full", "least..most", "ratio"], &rows)
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::report;
    use super::*;

    #[test]
    fn the_table_shows_both_sides_and_their_ratio() {
        let side = |seconds: &[f64]| Side {
            name: "one",
            directory: PathBuf::new(),
            key: String::new(),
            scratch: PathBuf::new(),
            samples: report(seconds).samples,
        };
        let text = table(&[side(&[1.0, 2.0, 3.0]), side(&[3.0])]);
        let time = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(time, ["time", "s", "2.000", "1.000..3.000", "3.000", "3.000..3.000", "1.500"]);
        assert!(!text.contains("whole machine"), "{text}");
    }
}
