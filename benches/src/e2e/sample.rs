//! What is measured of an operation, and which figures of it are shown.

use super::Settings;
use crate::machine::Machine;
use crate::numbers::{Spread, float};
use chunkstore::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Raised when members change their meaning.
const FORMAT: u32 = 1;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// All of the volume into a fresh repository.
    Full,
    /// The volume later, reading what a list names.
    IncrementByList,
    /// The volume later, reading all of it.
    Increment,
    /// The volume later, back onto the target.
    Restore,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Full, Self::IncrementByList, Self::Increment, Self::Restore];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::IncrementByList => "increment, list",
            Self::Increment => "increment, read",
            Self::Restore => "restore",
        })
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) kind: Kind,
    pub(crate) run: u32,
    /// From starting the process to its end, with the flush of what it wrote.
    pub(crate) seconds: f64,
    /// Of the process and its threads.
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    /// Of the whole machine meanwhile, kernel threads included.
    pub(crate) machine_seconds: Option<f64>,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) volume_bytes: u64,
    /// Read from the device; by a restore from the store.
    pub(crate) read_bytes: u64,
    /// By how much the repository grew, everything counted; in a directory only.
    pub(crate) grown_bytes: Option<u64>,
    /// Packs and segments, as the operation itself counts them.
    pub(crate) stored_bytes: u64,
    pub(crate) requests: u64,
    pub(crate) engine: String,
    pub(crate) limit: String,
    /// All that the operation said of itself.
    pub(crate) summary: serde_json::Value,
}

impl Sample {
    fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }

    /// What rates and CPU time are related to: what a list named, else the volume.
    fn work_bytes(&self) -> f64 {
        float(match self.kind {
            Kind::IncrementByList => self.read_bytes,
            _ => self.volume_bytes,
        })
    }
}

/// A figure of an operation.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    /// At the top of a column.
    pub(crate) head: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) more_is_better: bool,
    pub(crate) of: fn(&Sample) -> Option<f64>,
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Time, the one that goes before all others.
pub(crate) static TIME: &Metric = &METRICS[0];

/// All, in the order in which they are shown.
pub(crate) static METRICS: [Metric; 8] = [
    Metric { name: "time", head: "s", unit: "s", more_is_better: false, of: |s| Some(s.seconds) },
    Metric {
        name: "rate",
        head: "GB/s",
        unit: "GB/s",
        more_is_better: true,
        of: |s| ratio(s.work_bytes() / 1e9, s.seconds),
    },
    Metric {
        name: "CPU time per GiB",
        head: "CPU-s/GiB",
        unit: "s/GiB",
        more_is_better: false,
        of: |s| ratio(s.cpu_seconds(), s.work_bytes() / GIB),
    },
    Metric {
        name: "the whole machine's CPU time",
        head: "all CPU s",
        unit: "s",
        more_is_better: false,
        of: |s| s.machine_seconds,
    },
    Metric {
        name: "peak memory (RSS)",
        head: "RSS MiB",
        unit: "MiB",
        more_is_better: false,
        of: |s| Some(float(s.peak_rss_bytes) / MIB),
    },
    Metric {
        name: "read",
        head: "read MiB",
        unit: "MiB",
        more_is_better: false,
        of: |s| Some(float(s.read_bytes) / MIB),
    },
    Metric {
        name: "stored",
        head: "stored MiB",
        unit: "MiB",
        more_is_better: false,
        // a restore stores nothing
        of: |s| {
            (s.kind != Kind::Restore).then(|| float(s.grown_bytes.unwrap_or(s.stored_bytes)) / MIB)
        },
    },
    Metric {
        name: "requests",
        head: "requests",
        unit: "",
        more_is_better: false,
        of: |s| Some(float(s.requests)),
    },
];

/// Nothing was done in no time, or per no byte.
fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then_some(a / b)
}

/// Everything about a series: what `--json` writes and `--compare` reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    format: u32,
    pub(crate) made: String,
    pub(crate) version: String,
    pub(crate) machine: Machine,
    pub(super) settings: Settings,
    pub(crate) samples: Vec<Sample>,
}

impl Report {
    pub(super) fn new(machine: Machine, settings: Settings, samples: Vec<Sample>) -> Self {
        Self {
            format: FORMAT,
            made: chrono::Utc::now().format("%Y-%m-%d %H:%M UTC").to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            machine,
            settings,
            samples,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.format == FORMAT {
            return Ok(());
        }
        let detail = format!("its format is {}, this program writes {FORMAT}", self.format);
        Err(Error::new(ErrorKind::Usage, "compare", detail)
            .hint("measure again with both versions"))
    }

    /// Of all runs of an operation; none if it was not measured or has no such figure.
    pub(crate) fn spread(&self, kind: Kind, metric: &Metric) -> Option<Spread> {
        Spread::of(self.samples.iter().filter(|s| s.kind == kind).filter_map(metric.of))
    }

    /// What the runs of an operation waited for most; all that were named, the most frequent first.
    pub(crate) fn limits(&self, kind: Kind) -> String {
        let mut counted: Vec<(&str, usize)> = Vec::new();
        for sample in self.samples.iter().filter(|s| s.kind == kind) {
            match counted.iter_mut().find(|(name, _)| *name == sample.limit) {
                Some((_, n)) => *n += 1,
                None => counted.push((&sample.limit, 1)),
            }
        }
        counted.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        counted.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("/")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::e2e) fn report(seconds: &[f64]) -> Report {
        let sample = |kind, run, seconds: f64| Sample {
            kind,
            run,
            seconds,
            user_seconds: seconds,
            system_seconds: 1.0,
            machine_seconds: None,
            peak_rss_bytes: 50 << 20,
            volume_bytes: 2 << 30,
            read_bytes: 1 << 30,
            grown_bytes: Some(3 << 20),
            stored_bytes: 2 << 20,
            requests: 12,
            engine: "blocking".into(),
            limit: if seconds > 2.5 { "cpu" } else { "<device>" }.into(),
            summary: serde_json::Value::Null,
        };
        let samples = (1..)
            .zip(seconds)
            .flat_map(|(run, s)| {
                [Kind::Full, Kind::IncrementByList, Kind::Restore].map(|k| sample(k, run, *s))
            })
            .collect();
        let settings = Settings {
            device: "<dev>".into(),
            volume_bytes: 2 << 30,
            repository: "r".into(),
            target: "t".into(),
            memory_bytes: 1,
            compression: "zstd:1".into(),
            engine: "auto".into(),
            threads: None,
            chunk_bytes: 65_536,
            entry_chunks: 16,
            page_fanout: 128,
            caches_dropped: true,
        };
        Report::new(Machine::look(), settings, samples)
    }

    fn median(report: &Report, kind: Kind, name: &str) -> Option<f64> {
        let metric = METRICS.iter().find(|m| m.name == name).unwrap();
        report.spread(kind, metric).map(|s| s.median)
    }

    #[test]
    fn figures_relate_to_the_right_bytes() {
        let r = report(&[2.0, 3.0, 1.0]);
        assert_eq!(median(&r, Kind::Full, "time"), Some(2.0));
        assert_eq!(median(&r, Kind::Full, "CPU time per GiB"), Some(1.5));
        assert_eq!(median(&r, Kind::IncrementByList, "CPU time per GiB"), Some(3.0));
        assert_eq!(median(&r, Kind::Full, "stored"), Some(3.0));
        assert_eq!(median(&r, Kind::Restore, "stored"), None);
        assert_eq!(median(&r, Kind::Increment, "time"), None);
        assert_eq!(median(&r, Kind::Full, "the whole machine's CPU time"), None);
        assert_eq!(r.limits(Kind::Full), "<device>/cpu");
    }

    #[test]
    fn a_report_comes_back_from_json_and_another_format_is_refused() {
        let mut r = report(&[2.5]);
        let text = serde_json::to_string(&r).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), r);
        r.format += 1;
        assert_eq!(r.check().unwrap_err().kind(), ErrorKind::Usage);
    }
}
