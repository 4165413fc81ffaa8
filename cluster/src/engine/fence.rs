//! The fence of a restore: only a Job that its anchor names ever writes to a volume.
//!
//! A driver may be late: its process was paused, or its view is old. It then makes a Job again
//! whose name has become free, and that Job's pod would write to a volume that is in use by now.
//! So each Job of a restore is made suspended, and has no pod. Its uid is written into the anchor,
//! on the version of the anchor that the driver knows; then it is let go of. Whatever ends the time
//! of writing, the hand-over or the outcome, is written into the anchor too. After that, a late
//! driver's Job is never named, and so never let go of: the removal takes it away.
//!
//! A backup needs no fence: its Job writes to the repository alone, under an id that is given.

use super::observed::Object;
use super::step::{Planned, Step};
use super::views::{ConfigMap, Job};
use serde_json::{Value, json};

/// Member of the anchor: uids of its Jobs, in their order, between spaces.
const JOBS: &str = "jobs";

/// Uids of the Jobs that may write, or have written.
pub(super) fn named(anchor: &Object<ConfigMap>) -> impl Iterator<Item = &str> {
    anchor.body.data.get(JOBS).into_iter().flat_map(|text| text.split_whitespace())
}

/// The same Job, suspended from its first moment.
pub(super) fn closed(mut job: Value) -> Value {
    job["spec"]["suspend"] = true.into();
    job
}

/// Has the anchor name the Job, then lets go of it. `ready` comes before the Job is named.
pub(super) fn open(
    anchor: &Object<ConfigMap>,
    job: &Object<Job>,
    ready: impl FnOnce() -> Planned<()>,
) -> Planned<()> {
    if !named(anchor).any(|uid| uid == job.meta.uid) {
        ready()?;
        let all: Vec<&str> = named(anchor).chain([job.meta.uid.as_str()]).collect();
        let patch = json!({ "data": { JOBS: all.join(" ") } });
        return Err(Step::change(&anchor.key, &anchor.meta, patch).into());
    }
    if job.body.spec.suspend == Some(true) {
        let patch = json!({ "spec": { "suspend": false } });
        return Err(Step::change(&job.key, &job.meta, patch).into());
    }
    Ok(())
}
