//! Reads a device with each engine, at several read sizes and depths.
//!
//! All readers fill the same page-aligned buffers and look at none of the bytes, so what is
//! measured is the way from the device into memory. Ours and tokio-uring read with `O_DIRECT` where
//! the device allows it; mmap cannot, and has no depth: it touches one byte of each page, a read
//! size at a time. The order of the cases turns round from run to run.

mod readers;

use crate::machine::{Machine, drop_caches};
use crate::numbers::{Spread, float, show};
use crate::stop::Stop;
use crate::table::columns;
use crate::{failed, note, say, usage};
use benches::synthetic;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::sizes::{parse_size, show_bytes};
use mover_engine::volume::device::{DirectIo, Source, SourceOptions};
use readers::{Case, Reader};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// A buffer of a depth of 256 at 16 MiB would be 4 GiB; beyond 1 GiB a case is left out.
const BUFFER_BYTES_MAX: u64 = 1 << 30;
const SIZE_ALIGN_BYTES: u64 = 4096;
const SIZE_BYTES_MAX: u64 = 64 << 20;
const DEPTH_MAX: usize = 256;

/// What to read and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Block device or image file; it is only read
    #[arg(long, value_name = "DEVICE", required_unless_present = "synthetic")]
    device: Option<PathBuf>,
    /// Make an image of this size in the temporary directory and read that
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "device")]
    synthetic: Option<u64>,
    /// Read sizes, multiples of 4 KiB
    #[arg(long, value_delimiter = ',', default_value = "64KiB,256KiB,1MiB", value_parser = size)]
    sizes: Vec<u64>,
    /// Reads at a time
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16")]
    depths: Vec<usize>,
    /// Only these readers: uring, uring-plain, blocking, tokio-uring, mmap
    #[arg(long, value_delimiter = ',')]
    readers: Vec<Reader>,
    /// How often each case is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Read no more than this from the device's start
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bytes: Option<u64>,
    /// Write all samples here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// For clap.
pub(crate) fn size(text: &str) -> Result<u64> {
    parse_size(text)
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    reader: Reader,
    read_bytes: u64,
    depth: usize,
    run: u32,
    seconds: f64,
    cpu_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    format: u32,
    machine: Machine,
    device: String,
    direct: bool,
    bytes: u64,
    caches_dropped: bool,
    samples: &'a [Sample],
    not_measured: &'a [String],
}

/// Measures and reports.
pub(crate) fn run(args: &Args, stop: &Stop) -> Result<()> {
    let (device, _made) = device(args, stop)?;
    let source = Source::open(&device, SourceOptions { direct: DirectIo::Auto })?;
    let bytes = args.bytes.unwrap_or(u64::MAX).min(source.size_bytes());
    let bytes = bytes / SIZE_ALIGN_BYTES * SIZE_ALIGN_BYTES;
    if bytes == 0 {
        return Err(Error::new(ErrorKind::Usage, "read the device", "it has less than 4 KiB"));
    }
    let machine = Machine::look();
    note(&machine.line());
    if machine.build == "debug" {
        note("this is a debug build: its figures say that it works, nothing else");
    }
    let dropped = drop_caches();
    if !dropped {
        note("the page cache cannot be dropped here: buffered reads may come from memory");
    }
    let mut measured = Measured::default();
    let all = cases(args)?;
    for run in 1..=args.runs {
        let mut order = all.clone();
        if run % 2 == 0 {
            order.reverse();
        }
        for case in order {
            stop.check()?;
            measured.measure(case, run, &source, bytes, stop)?;
        }
    }
    for line in &measured.problems {
        note(line);
    }
    let how = if source.direct() { "O_DIRECT" } else { "the page cache" };
    let what = device.display();
    say(&format!("{} of {what} a run, through {how}\n", show_bytes(bytes)))?;
    say(&table(&all, &measured.samples, bytes))?;
    let Some(path) = &args.json else { return Ok(()) };
    let report = Report {
        format: 1,
        machine,
        device: what.to_string(),
        direct: source.direct(),
        bytes,
        caches_dropped: dropped,
        samples: &measured.samples,
        not_measured: &measured.problems,
    };
    let text = serde_json::to_vec_pretty(&report).map_err(|e| failed("encode JSON", e.into()))?;
    std::fs::write(path, text).map_err(|e| failed(format!("write {}", path.display()), e))
}

fn device(args: &Args, stop: &Stop) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    let Some(size) = args.synthetic else {
        let none = || Error::new(ErrorKind::Usage, "measure engines", "no --device was given");
        return Ok((args.device.clone().ok_or_else(none)?, None));
    };
    let dir = tempfile::Builder::new()
        .prefix("mover-bench-")
        .tempdir()
        .map_err(|e| failed("make a work directory", e))?;
    let images = synthetic::make(dir.path(), size, &|| stop.stopped())
        .map_err(|e| failed("make the synthetic volume", e))?;
    Ok((images.base, Some(dir)))
}

fn cases(args: &Args) -> Result<Vec<Case>> {
    let refuse = |what: String, why: &str| Err(Error::new(ErrorKind::Usage, what, why));
    let mut cases = Vec::new();
    for &size in &args.sizes {
        if size == 0 || !size.is_multiple_of(SIZE_ALIGN_BYTES) || size > SIZE_BYTES_MAX {
            let why = "read sizes are multiples of 4 KiB, up to 64 MiB";
            return refuse(format!("use --sizes {size}"), why);
        }
        for (n, &depth) in args.depths.iter().enumerate() {
            if !(1..=DEPTH_MAX).contains(&depth) {
                return refuse(format!("use --depths {depth}"), "it is 1 to 256");
            }
            if size * depth as u64 > BUFFER_BYTES_MAX {
                note(&format!("{} at depth {depth} is left out", show_bytes(size)));
                continue;
            }
            for reader in Reader::ALL {
                let wanted = args.readers.is_empty() || args.readers.contains(&reader);
                if reader.has_depth() && wanted {
                    cases.push(Case { reader, size_bytes: size, depth });
                } else if wanted && n == 0 {
                    cases.push(Case { reader, size_bytes: size, depth: 1 });
                }
            }
        }
    }
    Ok(cases)
}

#[derive(Debug, Default)]
struct Measured {
    samples: Vec<Sample>,
    problems: Vec<String>,
}

impl Measured {
    /// A reader that does not work here is said once and left out; the others are worth having.
    fn measure(
        &mut self,
        case: Case,
        run: u32,
        source: &Source,
        bytes: u64,
        stop: &Stop,
    ) -> Result<()> {
        let known = format!("{}: ", case.reader);
        if self.problems.iter().any(|p| p.starts_with(&known)) {
            return Ok(());
        }
        drop_caches();
        let cpu = usage::own_cpu()?.total_seconds();
        let begun = Instant::now();
        let read = readers::read(case, source, bytes, stop);
        let seconds = begun.elapsed().as_secs_f64();
        stop.check()?;
        match read {
            Ok(()) => self.samples.push(Sample {
                reader: case.reader,
                read_bytes: case.size_bytes,
                depth: case.depth,
                run,
                seconds,
                cpu_seconds: usage::own_cpu()?.total_seconds() - cpu,
            }),
            Err(e) => self.problems.push(format!("{known}not measured: {e}")),
        }
        Ok(())
    }
}

fn table(cases: &[Case], samples: &[Sample], bytes: u64) -> String {
    let gib = float(bytes) / f64::from(1 << 30);
    let mut rows = Vec::new();
    for case in cases {
        let of = |figure: fn(&Sample) -> f64| {
            let mine = samples.iter().filter(|s| {
                (s.reader, s.read_bytes, s.depth) == (case.reader, case.size_bytes, case.depth)
            });
            Spread::of(mine.map(figure))
        };
        let (Some(time), Some(cpu)) = (of(|s| s.seconds), of(|s| s.cpu_seconds)) else { continue };
        let rate = |seconds: f64| show(float(bytes) / 1e9 / seconds.max(1e-9));
        rows.push(vec![
            case.reader.to_string(),
            show_bytes(case.size_bytes),
            if case.reader.has_depth() { case.depth.to_string() } else { "-".into() },
            rate(time.median),
            format!("{}..{}", rate(time.max), rate(time.min)),
            show(cpu.median / gib),
            time.count.to_string(),
        ]);
    }
    columns(&["reader", "size", "depth", "GB/s", "least..most", "CPU-s/GiB", "runs"], &rows)
}
