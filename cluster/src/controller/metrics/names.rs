//! The table of all metrics of the controller: name, kind, unit, labels and meaning.

use prometheus::Opts;

/// One of them. Its kind follows from its name: counters end with `_total`.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

impl Metric {
    pub(super) fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }

    pub(super) fn opts(&self) -> Opts {
        Opts::new(self.name, format!("{} ({})", self.help, self.unit))
    }
}

const fn metric(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, unit, labels, help }
}

pub(super) const BACKUPS: &str = "mover_controller_backups_total";
pub(super) const RESTORES: &str = "mover_controller_restores_total";
pub(super) const DRILLS: &str = "mover_controller_drills_total";
pub(super) const REQUESTS: &str = "mover_controller_api_requests_total";
pub(super) const REFUSALS: &str = "mover_controller_api_refusals_total";
pub(super) const BUILD: &str = "mover_controller_build_info";
pub(super) const HEARD: &str = "mover_controller_heard_timestamp_seconds";
pub(super) const RESIDENT: &str = "mover_controller_resident_bytes";
pub(super) const OBJECTS: &str = "mover_controller_objects";
pub(super) const UNREADABLE: &str = "mover_controller_unreadable_objects";
pub(super) const OPERATIONS: &str = "mover_controller_operations";
pub(super) const LEFT_OFF: &str = "mover_controller_claims_left_off";
pub(super) const CLAIM_NEWEST: &str = "mover_claim_newest_good_timestamp_seconds";
pub(super) const ALONE_FAILING: &str = "mover_unscheduled_failing_claims";
pub(super) const SCHEDULE_NEWEST: &str = "mover_schedule_newest_good_timestamp_seconds";
pub(super) const SCHEDULE_LAG: &str = "mover_schedule_lag_seconds";
pub(super) const SCHEDULE_LATE: &str = "mover_schedule_late_claims";
pub(super) const SCHEDULE_FAILING: &str = "mover_schedule_failing_claims";
pub(super) const SCHEDULE_MISSED: &str = "mover_schedule_missed_runs_total";
pub(super) const DRILL_RESULT: &str = "mover_drill_result";
pub(super) const DRILL_TIME: &str = "mover_drill_timestamp_seconds";
pub(super) const DRILL_LAG: &str = "mover_drill_lag_seconds";
pub(super) const READY: &str = "mover_repository_ready";
pub(super) const CHECK_GOOD: &str = "mover_repository_check_good";
pub(super) const CHECK_TIME: &str = "mover_repository_check_timestamp_seconds";
pub(super) const CHECK_LAG: &str = "mover_repository_check_lag_seconds";
pub(super) const GC_GOOD: &str = "mover_repository_gc_good";
pub(super) const GC_TIME: &str = "mover_repository_gc_timestamp_seconds";
pub(super) const GC_LAG: &str = "mover_repository_gc_lag_seconds";
pub(super) const STORED: &str = "mover_repository_stored_bytes";
pub(super) const STORED_BACKUPS: &str = "mover_repository_backups";

const BY_SCHEDULE: &[&str] = &["namespace", "schedule"];
const BY_REPOSITORY: &[&str] = &["namespace", "repository"];

/// Counted since the controller started.
pub(super) const COUNTED: [Metric; 5] = [
    metric(BACKUPS, "backups", &["outcome"], "VolumeBackups that ended: good or failed"),
    metric(RESTORES, "restores", &["outcome"], "VolumeRestores that ended, drills apart"),
    metric(DRILLS, "drills", &["outcome"], "Drills that ended"),
    metric(REQUESTS, "requests", &["verb"], "Requests to the API server"),
    metric(REFUSALS, "requests", &["code"], "Requests that the API server refused"),
];

/// Told from objects at each scrape.
pub(super) const TOLD: [Metric; 26] = [
    metric(BUILD, "1", &["version"], "Version of the controller"),
    metric(HEARD, "seconds", &[], "When its quietest watch last told something, since 1970"),
    metric(RESIDENT, "bytes", &[], "Memory of the controller"),
    metric(OBJECTS, "objects", &["kind"], "Objects of the kinds of mover"),
    metric(UNREADABLE, "objects", &[], "Of those, ones that it cannot read"),
    metric(
        OPERATIONS,
        "operations",
        &["kind", "state"],
        "Backups, restores and drills that are running or waiting",
    ),
    metric(LEFT_OFF, "claims", &[], "Claims without a series of their own, beyond 2000"),
    metric(
        CLAIM_NEWEST,
        "seconds",
        &["namespace", "claim"],
        "The moment that the newest good backup holds, since 1970",
    ),
    metric(
        ALONE_FAILING,
        "claims",
        &["namespace"],
        "Claims of no schedule whose newest backup failed",
    ),
    metric(
        SCHEDULE_NEWEST,
        "seconds",
        BY_SCHEDULE,
        "The oldest of its claims' newest good backups, since 1970",
    ),
    metric(
        SCHEDULE_LAG,
        "seconds",
        BY_SCHEDULE,
        "Since the first run was due that left a claim without a good backup; 0 if none is late",
    ),
    metric(SCHEDULE_LATE, "claims", BY_SCHEDULE, "Claims that are late"),
    metric(SCHEDULE_FAILING, "claims", BY_SCHEDULE, "Claims whose newest backup failed"),
    metric(SCHEDULE_MISSED, "runs", BY_SCHEDULE, "Runs that were missed for good"),
    metric(
        DRILL_RESULT,
        "1",
        &["namespace", "schedule", "result"],
        "How the last drill was: passed, failed, running or never",
    ),
    metric(DRILL_TIME, "seconds", BY_SCHEDULE, "When the last drill ended, since 1970"),
    metric(DRILL_LAG, "seconds", BY_SCHEDULE, "Since a drill was due; 0 if it is not late"),
    metric(READY, "0 or 1", BY_REPOSITORY, "Whether it can be used"),
    metric(CHECK_GOOD, "0 or 1", BY_REPOSITORY, "Whether the last check found no damage"),
    metric(CHECK_TIME, "seconds", BY_REPOSITORY, "When it was last checked, since 1970"),
    metric(CHECK_LAG, "seconds", BY_REPOSITORY, "Since a check was due; 0 if it is not late"),
    metric(GC_GOOD, "0 or 1", BY_REPOSITORY, "Whether the last collection ended well"),
    metric(GC_TIME, "seconds", BY_REPOSITORY, "When garbage was last collected, since 1970"),
    metric(GC_LAG, "seconds", BY_REPOSITORY, "Since a collection was due; 0 if it is not late"),
    metric(STORED, "bytes", BY_REPOSITORY, "Size of its packs at the last check or collection"),
    metric(STORED_BACKUPS, "backups", BY_REPOSITORY, "Backups at its last listing"),
];
