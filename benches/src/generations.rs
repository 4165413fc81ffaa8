//! `benches generations`: one full backup and many increments at each of several repository
//! settings, everything counted; what the defaults of `mover init` were chosen by.
//!
//! The volume is a copy of the device, so that every setting sees the same bytes. Before each
//! increment it ages: pages in the middle of its data are changed a little, as a database does, and
//! whole pieces are overwritten with other data of the same kind, as new files are. The list of
//! what changed goes to the backup. At the end the last backup is restored and compared.

mod ageing;

use crate::e2e::child::{self, Done};
use crate::e2e::operation::{Delta, Operation, Request};
use crate::e2e::place::{Place, bytes_below, work_dir};
use crate::e2e::same;
use crate::numbers::{Spread, float, show};
use crate::stop::Stop;
use crate::{failed, note, say, table};
use ageing::{Aged, Ageing};
use chunkstore::{Error, ErrorKind, Result, random_bytes};
use mover::cli::parse_compression;
use mover_engine::sizes::parse_size;
use mover_engine::volume::io::EngineChoice;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const MIB: f64 = 1_048_576.0;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Block device or image file to start from; it is only read
    #[arg(long, value_name = "DEVICE")]
    device: PathBuf,
    /// Repository settings, as CHUNK-SIZE/ENTRY-CHUNKS/PAGE-FANOUT
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64KiB/16/128")]
    settings: Vec<Setting>,
    /// Increments after each full backup
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    increments: u32,
    /// Pages of 16 KiB that are changed a little before each increment
    #[arg(long, default_value_t = 500)]
    pages: u32,
    /// Pieces of 1 MiB that are overwritten before each increment
    #[arg(long, default_value_t = 16)]
    pieces: u32,
    /// Where the volume's copy and the repositories are made; by default the temporary directory
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// As in mover, but fixed by default, so that the bytes of two settings compare
    #[arg(long, default_value = "zstd:1")]
    compression: String,
    /// As in mover
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    memory: u64,
    /// The same number gives the same changes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write all figures here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `mover init` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Setting {
    chunk_bytes: u32,
    entry_chunks: u16,
    page_fanout: u16,
}

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::new(ErrorKind::Usage, format!("use --settings {text:?}"), "it is no setting")
                .hint("write it like 64KiB/16/128")
        };
        let mut parts = text.split('/');
        let (Some(chunk), Some(entry), Some(fanout), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let chunk_bytes = u32::try_from(parse_size(chunk)?).map_err(|_| bad())?;
        let entry_chunks = entry.parse().map_err(|_| bad())?;
        Ok(Self { chunk_bytes, entry_chunks, page_fanout: fanout.parse().map_err(|_| bad())? })
    }
}

/// One backup or restore.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    seconds: f64,
    cpu_seconds: f64,
    peak_rss_bytes: u64,
    requests: u64,
    /// Stored by a backup, fetched by a restore.
    moved_bytes: u64,
}

/// All of one setting.
#[derive(Debug, Serialize)]
struct Row {
    setting: Setting,
    full: Figures,
    increments: Vec<Figures>,
    restore: Figures,
    /// All objects of the repository at the end.
    repository_bytes: u64,
    objects: u64,
}

/// Measures and prints.
pub(crate) fn run(args: &Args, stop: &Stop) -> Result<()> {
    parse_compression(&args.compression)?;
    let work = work_dir(args.work.as_deref())?;
    let mut rows = Vec::new();
    for setting in &args.settings {
        let row = Generations::prepare(args, *setting, work.path(), stop)?.measure()?;
        note(&format!(
            "{}: {:.1} MiB in the end",
            name(*setting),
            float(row.repository_bytes) / MIB
        ));
        rows.push(row);
    }
    say(&table::columns(&HEADS, &rows.iter().map(cells).collect::<Vec<_>>()))?;
    let Some(path) = &args.json else { return Ok(()) };
    let what = || format!("write {}", path.display());
    let json = serde_json::to_vec_pretty(&rows).map_err(|e| failed(what(), e.into()))?;
    std::fs::write(path, json).map_err(|e| failed(what(), e))
}

const HEADS: [&str; 12] = [
    "chunk/entry/fanout",
    "full MiB",
    "full CPU s",
    "increments MiB",
    "CPU s each",
    "requests each",
    "all MiB",
    "objects",
    "restore CPU s",
    "requests",
    "fetched MiB",
    "RSS MiB",
];

fn cells(row: &Row) -> Vec<String> {
    let sum = |of: &dyn Fn(&Figures) -> u64| row.increments.iter().map(of).sum::<u64>();
    let median = |of: &dyn Fn(&Figures) -> f64| {
        Spread::of(row.increments.iter().map(of)).map_or(f64::NAN, |s| s.median)
    };
    let mib = |bytes| show(float(bytes) / MIB);
    let rss = row.increments.iter().chain([&row.full, &row.restore]).map(|f| f.peak_rss_bytes);
    vec![
        name(row.setting),
        mib(row.full.moved_bytes),
        show(row.full.cpu_seconds),
        mib(sum(&|f| f.moved_bytes)),
        show(median(&|f| f.cpu_seconds)),
        show(median(&|f| float(f.requests))),
        mib(row.repository_bytes),
        row.objects.to_string(),
        show(row.restore.cpu_seconds),
        row.restore.requests.to_string(),
        mib(row.restore.moved_bytes),
        mib(rss.max().unwrap_or(0)),
    ]
}

fn name(setting: Setting) -> String {
    let Setting { chunk_bytes, entry_chunks, page_fanout } = setting;
    format!("{} KiB/{entry_chunks}/{page_fanout}", chunk_bytes / 1024)
}

/// The runs of one setting.
struct Generations<'a> {
    args: &'a Args,
    setting: Setting,
    work: &'a Path,
    volume: PathBuf,
    ageing: Ageing,
    request: Request,
    stop: &'a Stop,
}

impl<'a> Generations<'a> {
    fn prepare(args: &'a Args, setting: Setting, work: &'a Path, stop: &'a Stop) -> Result<Self> {
        let volume = work.join("volume.img");
        let ageing = Ageing::of_copy(&args.device, &volume, args.seed, stop)?;
        let request = Request {
            repository: String::new(),
            directory: None,
            key: hex::encode(random_bytes::<32>()),
            memory_bytes: args.memory,
            compression: args.compression.clone(),
            engine: EngineChoice::Auto.to_string(),
            threads: None,
            scratch: Some(work.join("scratch")),
            operation: Operation::Remove,
        };
        Ok(Self { args, setting, work, volume, ageing, request, stop })
    }

    fn measure(mut self) -> Result<Row> {
        // it goes when it is dropped
        let repository = Place::Directory(self.work.to_owned()).fresh()?;
        self.request.repository = repository.url()?;
        self.request.directory = repository.directory().map(Path::to_owned);
        let Setting { chunk_bytes, entry_chunks, page_fanout } = self.setting;
        self.child(Operation::Init { chunk_bytes, entry_chunks, page_fanout })?;
        let full = self.backup(0, None)?;
        let mut increments = Vec::new();
        for n in 1..=self.args.increments {
            let Aged { list } = self.ageing.age(self.args.pages, self.args.pieces)?;
            let path = self.work.join("changed.json");
            std::fs::write(&path, list)
                .map_err(|e| failed(format!("write {}", path.display()), e))?;
            let base = snapshot(n - 1);
            increments.push(self.backup(n, Some(Delta { base, list: path }))?);
        }
        let target = self.work.join("restored.img");
        let restore = Operation::Restore { target: target.clone(), force: true, sources: vec![] };
        let restore = figures(self.child(restore)?, "fetched_bytes")?;
        same(&self.volume, &target, self.ageing.size_bytes(), self.stop)?;
        std::fs::remove_file(&target)
            .map_err(|e| failed(format!("remove {}", target.display()), e))?;
        let directory = repository.directory().unwrap_or(self.work);
        let (repository_bytes, objects) = (bytes_below(directory)?, files_below(directory)?);
        Ok(Row { setting: self.setting, full, increments, restore, repository_bytes, objects })
    }

    fn backup(&self, n: u32, delta: Option<Delta>) -> Result<Figures> {
        let source = self.volume.clone();
        let backup = Operation::Backup { source, snapshot: snapshot(n), delta };
        figures(self.child(backup).map_err(|e| e.within(format!("backup {n}")))?, "stored_bytes")
    }

    fn child(&self, operation: Operation) -> Result<Done> {
        child::run(&Request { operation, ..self.request.clone() }, self.stop)
    }
}

fn snapshot(n: u32) -> String {
    format!("snapshot-{n}")
}

fn figures(done: Done, moved: &str) -> Result<Figures> {
    let summary = &done.reply.summary;
    let missing =
        |name: &str| Error::new(ErrorKind::Bug, "read a summary", format!("it has no {name}"));
    let requests = summary["requests"].as_object().ok_or_else(|| missing("requests"))?;
    Ok(Figures {
        seconds: done.seconds,
        cpu_seconds: done.cpu.total_seconds(),
        peak_rss_bytes: done.reply.peak_rss_bytes,
        requests: requests.values().filter_map(serde_json::Value::as_u64).sum(),
        moved_bytes: summary[moved].as_u64().ok_or_else(|| missing(moved))?,
    })
}

fn files_below(dir: &Path) -> Result<u64> {
    let what = |e| failed(format!("count the files of {}", dir.display()), e);
    let mut count = 0;
    for entry in std::fs::read_dir(dir).map_err(what)? {
        let entry = entry.map_err(what)?;
        count +=
            if entry.metadata().map_err(what)?.is_dir() { files_below(&entry.path())? } else { 1 };
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_three_numbers() {
        let want = Setting { chunk_bytes: 16384, entry_chunks: 64, page_fanout: 256 };
        assert_eq!("16KiB/64/256".parse::<Setting>().unwrap(), want);
        for text in ["", "16KiB", "16KiB/4", "16KiB/4/4/4", "x/1/1", "8GiB/1/1", "16KiB/-1/1"] {
            assert_eq!(text.parse::<Setting>().expect_err(text).kind(), ErrorKind::Usage, "{text}");
        }
    }
}
