//! Metrics for Prometheus: every name with its unit and stability in one table, and what their
//! values are now.
//!
//! While a run goes on its values are those of its progress counters; when it has ended they are
//! those of its summary, so a last scrape, the Pushgateway and the summary say the same. Nothing is
//! counted for metrics alone. `docs/reference.md` has the same table, and a test compares the two.
//!
//! | file | |
//! |---|---|
//! | `metrics` | values, text |
//! | `metrics/names` | the table |
//! | `metrics/serve` | answers a scrape |
//! | `metrics/push` | hands the end to a Pushgateway |

mod names;
mod push;
mod serve;

pub(crate) use push::push;
pub(crate) use serve::Server;

use super::exit::{CANCELLED, LIMIT, OK};
use chunkstore::{Error, ErrorKind, Result, Store, store::RequestCounts};
use mover_engine::run::{Counter, Phase, Progress};
use names::{INFO, Kind, OUTCOME, PHASE, PLAIN, REQUESTS};
use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Registry, TextEncoder};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What does not change while a run goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunFacts {
    pub(crate) command: &'static str,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) threads: u64,
}

/// Where an operation's counter `read_bytes` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    Device,
    Store,
}

/// All that is known of a run at one moment.
struct Moment {
    run: RunFacts,
    phase: Phase,
    total_bytes: u64,
    done_bytes: u64,
    read_bytes: u64,
    reads_device: bool,
    zero_bytes: u64,
    unchanged_bytes: u64,
    reused_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    written_bytes: u64,
    /// Of a run that serves.
    served: Option<Arc<Progress>>,
    requests: RequestCounts,
    resident_bytes: Option<u64>,
    exit_code: Option<u8>,
    ended_at: Option<u64>,
    elapsed_seconds: f64,
}

#[derive(Debug, Default)]
struct Watched {
    progress: Option<(Arc<Progress>, Reads)>,
    store: Option<Store>,
    volume: Option<String>,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    exit_code: u8,
    at: u64,
    summary: Option<Value>,
    elapsed_seconds: f64,
}

/// What a run shows of itself. Asked at any time by the server, and once at the end by the push.
#[derive(Debug)]
pub(crate) struct Telemetry {
    run: RunFacts,
    begun: Instant,
    watched: Mutex<Watched>,
}

impl Telemetry {
    pub(crate) fn new(run: RunFacts) -> Arc<Self> {
        Arc::new(Self { run, begun: Instant::now(), watched: Mutex::default() })
    }

    /// From now on the values are those of this operation.
    pub(crate) fn watch(&self, progress: &Arc<Progress>, reads: Reads, store: &Store) {
        let mut watched = self.lock();
        watched.progress = Some((Arc::clone(progress), reads));
        watched.store = Some(store.clone());
    }

    /// Which volume it is about, as soon as that is known.
    pub(crate) fn set_volume(&self, volume: &str) {
        self.lock().volume = Some(volume.to_owned());
    }

    /// From now on the values are those of the summary.
    pub(crate) fn end(&self, exit_code: u8, summary: Option<Value>) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let elapsed_seconds = self.begun.elapsed().as_secs_f64();
        let mut watched = self.lock();
        if let Some(volume) = summary.as_ref().and_then(|s| s["volume"].as_str()) {
            watched.volume = Some(volume.to_owned());
        }
        watched.end = Some(End { exit_code, at, summary, elapsed_seconds });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Labels that say whose values these are.
    fn labels(&self) -> Vec<(&'static str, String)> {
        let volume = self.lock().volume.clone();
        let volume = volume.map(|volume| ("volume", volume));
        [("command", self.run.command.to_owned())].into_iter().chain(volume).collect()
    }

    fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    fn moment(&self) -> (Moment, Option<Value>) {
        let watched = self.lock();
        let idle = Progress::default();
        let (p, reads) = match &watched.progress {
            Some((progress, reads)) => (&**progress, *reads),
            None => (&idle, Reads::Device),
        };
        let end = watched.end.as_ref();
        let moment = Moment {
            run: self.run,
            phase: p.phase(),
            total_bytes: p.total_bytes.get(),
            done_bytes: p.done_bytes.get(),
            read_bytes: p.read_bytes.get(),
            reads_device: reads == Reads::Device,
            zero_bytes: p.zero_bytes.get(),
            unchanged_bytes: p.unchanged_bytes.get(),
            reused_bytes: p.reused_bytes.get(),
            new_bytes: p.new_bytes.get(),
            stored_bytes: p.stored_bytes.get(),
            written_bytes: p.written_bytes.get(),
            served: watched
                .progress
                .as_ref()
                .filter(|(progress, _)| {
                    ["serve", "mount"].contains(&self.run.command) || progress.exports.get() > 0
                })
                .map(|(progress, _)| Arc::clone(progress)),
            requests: watched.store.as_ref().map(Store::counts).unwrap_or_default(),
            resident_bytes: resident_bytes(),
            exit_code: end.map(|end| end.exit_code),
            ended_at: end.map(|end| end.at),
            elapsed_seconds: end
                .map_or_else(|| self.begun.elapsed().as_secs_f64(), |end| end.elapsed_seconds),
        };
        (moment, end.and_then(|end| end.summary.clone()))
    }

    /// The values now, in Prometheus' text format.
    pub(crate) fn text(&self) -> Result<String> {
        let failed = |e: prometheus::Error| Error::caused(ErrorKind::Bug, "write the metrics", e);
        let labels = self.labels().into_iter().map(|(name, value)| (name.to_owned(), value));
        let registry =
            Registry::new_custom(None, Some(labels.collect::<HashMap<_, _>>())).map_err(failed)?;
        let (moment, summary) = self.moment();
        fill(&registry, &moment, summary.as_ref().unwrap_or(&Value::Null)).map_err(failed)?;
        TextEncoder::new().encode_to_string(&registry.gather()).map_err(failed)
    }
}

impl Moment {
    /// A counter of a run that serves.
    fn served(&self, counter: fn(&Progress) -> &Counter) -> Option<u64> {
        self.served.as_ref().map(|progress| counter(progress).get())
    }
}

fn fill(registry: &Registry, now: &Moment, summary: &Value) -> prometheus::Result<()> {
    for metric in &PLAIN {
        let at_end = metric.members.iter().find_map(|name| number(summary, name));
        let seconds = (metric.name == "mover_elapsed_seconds")
            .then(|| summary["elapsed_seconds"].as_f64().unwrap_or(now.elapsed_seconds));
        let Some(value) = at_end.or_else(|| (metric.live)(now)) else {
            if let Some(seconds) = seconds {
                let gauge = Gauge::with_opts(metric.opts())?;
                gauge.set(seconds);
                add(registry, gauge)?;
            }
            continue;
        };
        match metric.kind {
            Kind::Counter => {
                let counter = IntCounter::with_opts(metric.opts())?;
                counter.inc_by(value);
                add(registry, counter)?;
            }
            Kind::Gauge => {
                let gauge = Gauge::with_opts(metric.opts())?;
                #[allow(clippy::cast_precision_loss)] // what Prometheus holds is a float
                gauge.set(value as f64);
                add(registry, gauge)?;
            }
        }
    }
    let requests = IntCounterVec::new(REQUESTS.opts(), &["kind"])?;
    for (kind, live) in kinds(now.requests) {
        let at_end = summary["requests"][format!("{kind}s")].as_u64();
        requests.with_label_values(&[kind]).inc_by(at_end.unwrap_or(live));
    }
    add(registry, requests)?;
    let phase = GaugeVec::new(PHASE.opts(), &["phase"])?;
    let all =
        [Phase::Planning, Phase::Comparing, Phase::Moving, Phase::Verifying, Phase::Finishing];
    for each in all {
        let now = now.exit_code.is_none() && each == now.phase;
        phase.with_label_values(&[each.as_str()]).set(f64::from(u8::from(now)));
    }
    add(registry, phase)?;
    if let Some(code) = now.exit_code {
        let outcome = GaugeVec::new(OUTCOME.opts(), &["outcome"])?;
        outcome.with_label_values(&[outcome_word(code, summary)]).set(1.0);
        add(registry, outcome)?;
    }
    let info = GaugeVec::new(INFO.opts(), &["version", "engine"])?;
    let engine = summary["engine"].as_str().unwrap_or_default();
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), engine]).set(1.0);
    add(registry, info)
}

fn number(summary: &Value, name: &str) -> Option<u64> {
    let member = name.split('.').fold(summary, |value, key| &value[key]);
    member.as_u64().or_else(|| u64::try_from(member.as_array()?.len()).ok())
}

/// The summary's own word; where it has none, what the exit code says.
fn outcome_word(code: u8, summary: &Value) -> &str {
    match (summary["outcome"].as_str(), code) {
        (_, LIMIT | CANCELLED) => "stopped",
        (Some(word), _) => word,
        (None, OK) => "ok",
        (None, _) => "failed",
    }
}

fn add(registry: &Registry, collector: impl Collector + 'static) -> prometheus::Result<()> {
    registry.register(Box::new(collector))
}

fn kinds(counts: RequestCounts) -> [(&'static str, u64); 6] {
    // tries come on top of requests: the summary tells of those that failed
    let RequestCounts { gets, puts, creates, heads, lists, deletes, failed_tries: _ } = counts;
    [
        ("get", gets),
        ("put", puts),
        ("create", creates),
        ("head", heads),
        ("list", lists),
        ("delete", deletes),
    ]
}

/// Resident memory, as the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn telemetry() -> Arc<Telemetry> {
        Telemetry::new(RunFacts {
            command: "backup",
            memory_bytes: 1 << 28,
            memory_limit_bytes: None,
            threads: 2,
        })
    }

    /// The value of the one line of a metric with these labels, in whatever order.
    fn value(text: &str, name: &str, labels: &[&str]) -> String {
        let of_name = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let found: Vec<_> = of_name.filter(|l| labels.iter().all(|x| l.contains(x))).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?} in\n{text}");
        found[0].rsplit_once(' ').unwrap().1.to_owned()
    }

    #[test]
    fn values_are_those_of_the_progress_and_then_of_the_summary() {
        let telemetry = telemetry();
        let progress = Progress::new();
        let store = Store::new(
            Arc::new(object_store::memory::InMemory::new()),
            object_store::path::Path::default(),
            "memory",
        );
        telemetry.watch(&progress, Reads::Device, &store);
        progress.read_bytes.add(7);
        progress.set_phase(Phase::Moving);
        let text = telemetry.text().unwrap();
        assert_eq!(value(&text, "mover_read_bytes_total", &[r#"command="backup""#]), "7");
        assert_eq!(value(&text, "mover_phase", &[r#"phase="moving""#]), "1");
        assert_eq!(value(&text, "mover_phase", &[r#"phase="planning""#]), "0");
        assert!(!text.contains("mover_exit_code") && !text.contains("mover_fetched"), "{text}");

        let summary = json!({
            "volume": "pvc/a \"b\"", "read_bytes": 4_503_599_627_370_495_u64, "elapsed_seconds": 1.5,
            "requests": { "gets": 3 }, "engine": "blocking", "degraded": ["a", "b"],
            "audit": { "chunks": 32 }, "resumed": null,
        });
        telemetry.end(0, Some(summary));
        let text = telemetry.text().unwrap();
        let labels = [r#"command="backup""#, r#"volume="pvc/a \"b\"""#];
        assert_eq!(value(&text, "mover_read_bytes_total", &labels), "4503599627370495");
        assert_eq!(value(&text, "mover_exit_code", &labels), "0");
        assert_eq!(value(&text, "mover_elapsed_seconds", &labels), "1.5");
        assert_eq!(value(&text, "mover_store_requests_total", &[r#"kind="get""#]), "3");
        assert_eq!(value(&text, "mover_info", &[r#"engine="blocking""#]), "1");
        assert_eq!(value(&text, "mover_degraded_reasons", &labels), "2");
        assert_eq!(value(&text, "mover_audited_chunks_total", &labels), "32");
        assert!(!text.contains("mover_resumed_bytes_total"), "{text}");
        assert!(text.contains("mover_success_timestamp_seconds{"), "{text}");
        assert_eq!(value(&text, "mover_outcome", &[r#"outcome="ok""#]), "1");
        telemetry.end(LIMIT, Some(json!({ "outcome": "stopped" })));
        let text = telemetry.text().unwrap();
        assert_eq!(value(&text, "mover_outcome", &[r#"outcome="stopped""#]), "1");
        telemetry.end(1, None);
        assert!(!telemetry.text().unwrap().contains("mover_success_timestamp_seconds{"));
    }
}
