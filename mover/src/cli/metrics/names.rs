//! The table of all metrics: name, kind, unit, stability, and where the value comes from.

use super::Moment;
use prometheus::Opts;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never falls within a run; its name ends with `_total`.
    Counter,
    Gauge,
}

/// What a user may build on. Only a new major version renames or removes what is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stability {
    Stable,
    Experimental,
}

pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: &'static str,
    pub(super) stability: Stability,
    pub(super) help: &'static str,
    /// Members of the summary that have the value at the end, or a list of so many; the first that
    /// is there. A dot goes down.
    pub(super) members: &'static [&'static str],
    /// The value before that.
    pub(super) live: fn(&Moment) -> Option<u64>,
}

const fn counter(
    name: &'static str,
    help: &'static str,
    members: &'static [&'static str],
    live: fn(&Moment) -> Option<u64>,
) -> Metric {
    let (kind, stability) = (Kind::Counter, Stability::Stable);
    Metric { name, kind, unit: "bytes", stability, help, members, live }
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    stability: Stability,
    help: &'static str,
    live: fn(&Moment) -> Option<u64>,
) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, stability, help, members: &[], live }
}

/// Of `serve` and `mount` alone.
const fn served(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    members: &'static [&'static str],
    live: fn(&Moment) -> Option<u64>,
) -> Metric {
    Metric { unit, stability: Stability::Experimental, ..counter(name, help, members, live) }
}

use Stability::{Experimental, Stable};

/// Metrics of one value each. All carry the labels `command` and, where it is known, `volume`.
pub(super) const PLAIN: [Metric; 35] = [
    gauge("mover_planned_bytes", "bytes", Stable, "What is to be gone through", |m| {
        Some(m.total_bytes)
    }),
    gauge("mover_done_bytes", "bytes", Stable, "What has been gone through", |m| {
        Some(m.done_bytes)
    }),
    counter("mover_read_bytes_total", "Read from the device", &["read_bytes"], |m| {
        m.reads_device.then_some(m.read_bytes)
    }),
    counter("mover_fetched_bytes_total", "Read from packs", &["fetched_bytes"], |m| {
        (!m.reads_device).then_some(m.read_bytes)
    }),
    counter("mover_zero_bytes_total", "Zero, read or known", &["zero_bytes"], |m| {
        Some(m.zero_bytes)
    }),
    counter("mover_unchanged_bytes_total", "As in the parent", &["unchanged_bytes"], |m| {
        Some(m.unchanged_bytes)
    }),
    counter("mover_reused_bytes_total", "Stored before", &["reused_bytes"], |m| {
        Some(m.reused_bytes)
    }),
    counter("mover_new_bytes_total", "Not stored before", &["new_bytes"], |m| Some(m.new_bytes)),
    counter("mover_stored_bytes_total", "Put into the store, as stored", &["stored_bytes"], |m| {
        Some(m.stored_bytes)
    }),
    counter("mover_written_bytes_total", "Written by a restore", &["data_bytes"], |m| {
        Some(m.written_bytes)
    }),
    counter("mover_deleted_bytes_total", "Deleted by gc", &["deleted_bytes"], |_| None),
    served("mover_served_bytes_total", "bytes", "Sent to clients", &["served_bytes"], |m| {
        m.served(|p| &p.served_bytes)
    }),
    served("mover_served_reads_total", "reads", "Reads of clients", &["served_reads"], |m| {
        m.served(|p| &p.served_reads)
    }),
    served(
        "mover_served_microseconds_total",
        "microseconds",
        "Time of these reads, one after the other",
        &[],
        |m| m.served(|p| &p.served_micros),
    ),
    served(
        "mover_served_written_bytes_total",
        "bytes",
        "Written by clients",
        &["served_written_bytes"],
        |m| m.served(|p| &p.served_written_bytes),
    ),
    served(
        "mover_served_changes_total",
        "requests",
        "Writes, zeros and trims of clients",
        &["served_changes"],
        |m| m.served(|p| &p.served_changes),
    ),
    served(
        "mover_served_flushes_total",
        "requests",
        "Flushes of clients",
        &["served_flushes"],
        |m| m.served(|p| &p.served_flushes),
    ),
    served(
        "mover_served_errors_total",
        "requests",
        "Requests of clients that failed",
        &["served_errors"],
        |m| m.served(|p| &p.served_errors),
    ),
    served(
        "mover_cache_hits_total",
        "entries",
        "Entries that clients wanted, and that were kept or under way",
        &["cache_hits"],
        |m| m.served(|p| &p.cache_hits),
    ),
    served(
        "mover_disk_cache_hits_total",
        "entries",
        "Entries that came from the disk cache",
        &["disk_hits"],
        |m| m.served(|p| &p.disk_hits),
    ),
    served(
        "mover_cache_misses_total",
        "entries",
        "Entries that clients wanted, and that were not there",
        &["cache_misses"],
        |m| m.served(|p| &p.cache_misses),
    ),
    gauge("mover_clients", "clients", Experimental, "Clients that are served", |m| {
        m.served(|p| &p.clients)
    }),
    gauge(
        "mover_store_waits",
        "reads",
        Experimental,
        "Reads of a live restore that wait for the store",
        |m| m.served(|p| &p.store_waits),
    ),
    Metric {
        members: &["overlay_bytes"],
        ..gauge(
            "mover_overlay_bytes",
            "bytes",
            Experimental,
            "Of volumes that clients write to: in overlays, as whole chunks",
            |m| m.served(|p| &p.overlay_bytes),
        )
    },
    Metric {
        unit: "chunks",
        ..counter(
            "mover_audited_chunks_total",
            "Compared by the audit, at the end only",
            &["audit.chunks"],
            |_| None,
        )
    },
    counter(
        "mover_resumed_bytes_total",
        "Done by an earlier run that this one went on from, at the end only",
        &["resumed.bytes"],
        |_| None,
    ),
    Metric {
        members: &["degraded"],
        ..gauge(
            "mover_degraded_reasons",
            "reasons",
            Stable,
            "At the end only: steps down the ladder, a list that the audit found false, a source that was mounted or written to meanwhile",
            |_| None,
        )
    },
    gauge("mover_elapsed_seconds", "seconds", Stable, "Since the start", |_| None),
    gauge("mover_resident_bytes", "bytes", Experimental, "Memory of the process", |m| {
        m.resident_bytes
    }),
    gauge("mover_memory_budget_bytes", "bytes", Stable, "What --memory is", |m| {
        Some(m.run.memory_bytes)
    }),
    gauge("mover_memory_limit_bytes", "bytes", Stable, "Limit of the control group", |m| {
        m.run.memory_limit_bytes
    }),
    gauge("mover_threads", "threads", Experimental, "Threads that seal or open", |m| {
        Some(m.run.threads)
    }),
    gauge("mover_exit_code", "code", Stable, "At the end only", |m| m.exit_code.map(u64::from)),
    gauge("mover_end_timestamp_seconds", "seconds", Stable, "At the end only, since 1970", |m| {
        m.exit_code.and(m.ended_at)
    }),
    gauge(
        "mover_success_timestamp_seconds",
        "seconds",
        Stable,
        "At the end only, with exit code 0, since 1970",
        |m| m.exit_code.filter(|code| *code == 0).and(m.ended_at),
    ),
];

pub(super) const REQUESTS: Metric = Metric {
    name: "mover_store_requests_total",
    kind: Kind::Counter,
    unit: "requests",
    stability: Stable,
    help: "Requests to the store, by kind: get, put, create, head, list, delete",
    members: &[],
    live: |_| None,
};
pub(super) const PHASE: Metric = Metric {
    name: "mover_phase",
    kind: Kind::Gauge,
    unit: "0 or 1",
    stability: Experimental,
    help: "1 for what is being done: planning, comparing, moving, verifying, finishing",
    members: &[],
    live: |_| None,
};
pub(super) const OUTCOME: Metric = Metric {
    name: "mover_outcome",
    kind: Kind::Gauge,
    unit: "1",
    stability: Experimental,
    help: "At the end only: how the run ended: ok, committed, already-committed, stopped or failed",
    members: &[],
    live: |_| None,
};
pub(super) const INFO: Metric = Metric {
    name: "mover_info",
    kind: Kind::Gauge,
    unit: "1",
    stability: Experimental,
    help: "Version of mover, and at the end the engine that moved the data",
    members: &[],
    live: |_| None,
};

impl Metric {
    pub(super) fn opts(&self) -> Opts {
        let (unit, stability) = (self.unit, self.stability.as_str());
        Opts::new(self.name, format!("{} ({unit}, {stability})", self.help))
    }
}

impl Stability {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Experimental => "experimental",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_unit() {
        for metric in PLAIN.iter().chain([&REQUESTS, &PHASE, &OUTCOME, &INFO]) {
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
            assert!(metric.unit != "bytes" || metric.name.contains("_bytes"), "{}", metric.name);
        }
    }

    #[test]
    fn the_manual_has_every_metric() {
        let manual = include_str!("../../../../docs/reference.md");
        for m in PLAIN.iter().chain([&REQUESTS, &PHASE, &OUTCOME, &INFO]) {
            let kind = if m.kind == Kind::Counter { "counter" } else { "gauge" };
            let row = format!(
                "| `{}` | {kind} | {} | {} | {} |",
                m.name,
                m.unit,
                m.stability.as_str(),
                m.help
            );
            assert!(manual.contains(&row), "docs/reference.md lacks this row:\n{row}");
        }
    }
}
