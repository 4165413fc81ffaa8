//! Metrics of the controller: every name with its unit and labels in one table, and their values.
//!
//! Whatever can be told from objects is told from them at each scrape, so that it cannot drift from
//! them, and a controller that was just started says the same as the one before. Counted are only
//! things that leave no object: how operations ended, and requests to the API server.
//! `docs/metrics-controller.md` has the same table, and a test compares the two.
//!
//! The number of series has a bound: [`SERIES_MAX`] of each name, the worst first.

mod names;

use crate::page::{ConditionFacts, DrillResult, Known, Model, View};
use crate::schedule::Owed;
use chrono::{DateTime, Utc};
use names::{COUNTED, TOLD};
use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, IntCounterVec, Registry, TextEncoder};
use std::collections::BTreeMap;

/// Most series of one name.
pub const SERIES_MAX: usize = 2_000;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tally {
    /// Well.
    Good,
    /// Not well.
    Failed,
}

/// What is counted from the start of the process on. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    counters: BTreeMap<&'static str, IntCounterVec>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let mut counters = BTreeMap::new();
        for metric in &COUNTED {
            let counter = IntCounterVec::new(metric.opts(), metric.labels);
            let counter = counter.expect("the table has good names");
            registry.register(Box::new(counter.clone())).expect("each name is there once");
            counters.insert(metric.name, counter);
        }
        let metrics = Self { registry, counters };
        // There from the start, as a rise from nothing is no rise.
        for name in [names::BACKUPS, names::RESTORES, names::DRILLS] {
            for outcome in ["good", "failed"] {
                metrics.counters[name].with_label_values(&[outcome]).inc_by(0);
            }
        }
        metrics.counters[names::REFUSALS].with_label_values(&["403"]).inc_by(0);
        metrics
    }
}

impl Metrics {
    fn ended(&self, name: &str, outcome: Tally) {
        let outcome = match outcome {
            Tally::Good => "good",
            Tally::Failed => "failed",
        };
        self.counters[name].with_label_values(&[outcome]).inc();
    }

    /// A VolumeBackup has ended. Call it once for each, when its end is recorded.
    pub fn backup_ended(&self, outcome: Tally) {
        self.ended(names::BACKUPS, outcome);
    }

    /// A VolumeRestore that is no drill has ended.
    pub fn restore_ended(&self, outcome: Tally) {
        self.ended(names::RESTORES, outcome);
    }

    /// A drill has ended.
    pub fn drill_ended(&self, outcome: Tally) {
        self.ended(names::DRILLS, outcome);
    }

    /// A request was sent to the API server.
    pub fn request(&self, verb: &'static str) {
        self.counters[names::REQUESTS].with_label_values(&[verb]).inc();
    }

    /// A request was answered with this code, from 400 on.
    pub fn refused(&self, code: u16) {
        self.counters[names::REFUSALS].with_label_values(&[code.to_string().as_str()]).inc();
    }

    /// All of them, as Prometheus reads them.
    ///
    /// # Errors
    ///
    /// Only where the table of names is wrong.
    pub fn text(&self, known: &Known, now: DateTime<Utc>) -> Result<String, prometheus::Error> {
        let mut families = self.registry.gather();
        let mut told = Told::default();
        told.controller(known);
        told.objects(&Model::of(known, &View::default(), now));
        families.extend(told.families()?);
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families)
    }
}

/// Values of one scrape: by name, and by the values of its labels.
#[derive(Debug, Default)]
struct Told(BTreeMap<&'static str, BTreeMap<Vec<String>, f64>>);

#[allow(clippy::cast_precision_loss)]
fn seconds(at: DateTime<Utc>) -> f64 {
    at.timestamp() as f64
}

#[allow(clippy::cast_precision_loss)]
fn number(of: usize) -> f64 {
    of as f64
}

/// Seconds since something is owed; 0 while it may still be good in time.
#[allow(clippy::cast_precision_loss)]
fn lag(owed: Option<Owed>, now: DateTime<Utc>) -> f64 {
    owed.filter(|owed| owed.is_late).map_or(0.0, |owed| (now - owed.since).num_seconds() as f64)
}

impl Told {
    /// Whatever is beyond the bound is left off: callers begin with the worst.
    fn set(&mut self, name: &'static str, labels: &[&str], value: f64) {
        let series = self.0.entry(name).or_default();
        let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        if series.len() < SERIES_MAX || series.contains_key(&labels) {
            series.insert(labels, value);
        }
    }

    fn moment(&mut self, name: &'static str, labels: &[&str], at: Option<DateTime<Utc>>) {
        if let Some(at) = at {
            self.set(name, labels, seconds(at));
        }
    }

    fn condition(&mut self, name: &'static str, labels: &[&str], of: Option<&ConditionFacts>) {
        if let Some(holds) = of.and_then(|it| it.holds) {
            self.set(name, labels, f64::from(u8::from(holds)));
        }
    }

    fn controller(&mut self, known: &Known) {
        self.set(names::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        self.moment(names::HEARD, &[], known.heard_at());
        if let Some(bytes) = resident_bytes() {
            self.set(names::RESIDENT, &[], bytes);
        }
        for (kind, number_of) in [
            ("Repository", known.repositories.len()),
            ("VolumeBackup", known.backups.len()),
            ("VolumeRestore", known.restores.len()),
            ("BackupSchedule", known.schedules.len()),
        ] {
            self.set(names::OBJECTS, &[kind], number(number_of));
        }
        self.set(names::UNREADABLE, &[], number(known.unreadable.len()));
    }

    fn objects(&mut self, model: &Model<'_>) {
        for kind in ["Backup", "Restore", "Drill"] {
            for (state, is_running) in [("running", true), ("waiting", false)] {
                let mine = model.underway.iter().filter(|it| it.what == kind);
                let count = mine.filter(|it| it.is_running() == is_running).count();
                self.set(names::OPERATIONS, &[&kind.to_lowercase(), state], number(count));
            }
        }
        for volume in &model.volumes {
            let labels = [volume.namespace, &volume.claim.shown()];
            self.moment(names::CLAIM_NEWEST, &labels, volume.newest_good);
        }
        let mut alone: BTreeMap<&str, usize> = BTreeMap::new();
        for volume in model.volumes.iter().filter(|volume| volume.schedules.is_empty()) {
            *alone.entry(volume.namespace).or_default() += usize::from(volume.is_failing);
        }
        for (namespace, failing) in alone {
            self.set(names::ALONE_FAILING, &[namespace], number(failing));
        }
        let left = model.volumes.len().saturating_sub(SERIES_MAX);
        self.set(names::LEFT_OFF, &[], number(left));
        self.schedules(model);
        self.repositories(model);
    }

    fn schedules(&mut self, model: &Model<'_>) {
        for row in &model.schedules {
            let labels = [row.place.0.as_str(), row.place.1.as_str()];
            self.moment(names::SCHEDULE_NEWEST, &labels, row.newest_good);
            self.set(names::SCHEDULE_LAG, &labels, lag(row.owed, model.now));
            self.set(names::SCHEDULE_LATE, &labels, number(row.late));
            self.set(names::SCHEDULE_FAILING, &labels, number(row.failing));
            #[allow(clippy::cast_precision_loss)]
            self.set(names::SCHEDULE_MISSED, &labels, row.facts.missed as f64);
            let Some(drill) = &row.facts.drill else { continue };
            let result = match drill.result {
                DrillResult::Failed => "failed",
                DrillResult::Never => "never",
                DrillResult::Running => "running",
                DrillResult::Passed => "passed",
            };
            self.set(names::DRILL_RESULT, &[labels[0], labels[1], result], 1.0);
            self.moment(names::DRILL_TIME, &labels, drill.time);
            self.set(names::DRILL_LAG, &labels, lag(row.drill_owed, model.now));
        }
    }

    fn repositories(&mut self, model: &Model<'_>) {
        for row in &model.repositories {
            let labels = [row.place.0.as_str(), row.place.1.as_str()];
            let facts = row.facts;
            let ready = facts.condition("Ready").and_then(|it| it.holds) == Some(true);
            self.set(names::READY, &labels, f64::from(u8::from(ready)));
            self.condition(names::CHECK_GOOD, &labels, facts.condition("Checked"));
            self.moment(names::CHECK_TIME, &labels, facts.last_check);
            self.set(names::CHECK_LAG, &labels, lag(row.check_owed, model.now));
            self.condition(names::GC_GOOD, &labels, facts.condition("Collected"));
            self.moment(names::GC_TIME, &labels, facts.last_gc);
            self.set(names::GC_LAG, &labels, lag(row.gc_owed, model.now));
            #[allow(clippy::cast_precision_loss)]
            for (name, value) in
                [(names::STORED, facts.stored_bytes), (names::STORED_BACKUPS, facts.backups)]
            {
                if let Some(value) = value {
                    self.set(name, &labels, value as f64);
                }
            }
        }
    }

    fn families(self) -> Result<Vec<MetricFamily>, prometheus::Error> {
        let mut families = Vec::new();
        for metric in &TOLD {
            let Some(series) = self.0.get(metric.name) else { continue };
            if metric.is_counter() {
                let all = CounterVec::new(metric.opts(), metric.labels)?;
                for (labels, value) in series {
                    all.get_metric_with_label_values(labels)?.inc_by(*value);
                }
                families.extend(all.collect());
            } else {
                let all = GaugeVec::new(metric.opts(), metric.labels)?;
                for (labels, value) in series {
                    all.get_metric_with_label_values(labels)?.set(*value);
                }
                families.extend(all.collect());
            }
        }
        Ok(families)
    }
}

/// Memory of this process, of which the kernel tells pages.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests;
