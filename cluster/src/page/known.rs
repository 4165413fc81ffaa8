//! The facts that the page and the metrics are made of: of each of our objects, what is shown.
//!
//! They take a fraction of the room of the objects. An object that cannot be read, of a later
//! version or tampered with, is named on the page and counts as absent.

use super::rhythm::Rhythm;
use crate::kinds::{
    BackupSchedule, BackupSource, Condition, CronTimes, Phase, Repository, VolumeBackup,
    VolumeRestore,
};
use crate::schedule::{MARK, Mark, expected_since, leeway};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Namespace and name.
pub(crate) type Place = (String, String);

/// What is known of all our objects. It changes one object at a time.
#[derive(Debug, Default)]
pub struct Known {
    pub(crate) repositories: BTreeMap<Place, RepositoryFacts>,
    pub(crate) backups: BTreeMap<Place, BackupFacts>,
    pub(crate) restores: BTreeMap<Place, RestoreFacts>,
    pub(crate) schedules: BTreeMap<Place, ScheduleFacts>,
    /// Claims that exist. Where none is known, all of them may.
    claims: BTreeSet<Place>,
    /// Objects that could not be read, by kind and place, and why.
    pub(crate) unreadable: BTreeMap<(String, Place), String>,
    heard: Option<DateTime<Utc>>,
}

impl Known {
    /// An object of ours is this one now. Of a PersistentVolumeClaim it is kept that it exists.
    /// Objects of other kinds are passed over.
    pub fn set(&mut self, object: &Value) {
        let of = |part: &str| object["metadata"][part].as_str().unwrap_or_default().to_owned();
        let place = (of("namespace"), of("name"));
        let kind = object["kind"].as_str().unwrap_or_default();
        let read = match kind {
            "Repository" => typed(object).map(|it| self.set_repository(&it)),
            "VolumeBackup" => typed(object).map(|it| self.set_backup(&it)),
            "VolumeRestore" => typed(object).map(|it| self.set_restore(&it)),
            "BackupSchedule" => typed(object).map(|it| self.set_schedule(&it)),
            "PersistentVolumeClaim" => {
                self.claims.insert(place);
                return;
            }
            _ => return,
        };
        let key = (kind.to_owned(), place);
        match read {
            Ok(()) => {
                self.unreadable.remove(&key);
            }
            Err(why) => {
                self.remove(&key.0, &key.1.0, &key.1.1);
                self.unreadable.insert(key, why.to_string());
            }
        }
    }

    /// An object is gone.
    pub fn remove(&mut self, kind: &str, namespace: &str, name: &str) {
        let place = (namespace.to_owned(), name.to_owned());
        match kind {
            "Repository" => drop(self.repositories.remove(&place)),
            "VolumeBackup" => drop(self.backups.remove(&place)),
            "VolumeRestore" => drop(self.restores.remove(&place)),
            "BackupSchedule" => drop(self.schedules.remove(&place)),
            "PersistentVolumeClaim" => drop(self.claims.remove(&place)),
            _ => {}
        }
        self.unreadable.remove(&(kind.to_owned(), place));
    }

    /// The same for a typed object.
    pub fn set_repository(&mut self, object: &Repository) {
        self.repositories.insert(place(object), RepositoryFacts::of(object));
    }

    /// The same for a typed object.
    pub fn set_backup(&mut self, object: &VolumeBackup) {
        self.backups.insert(place(object), BackupFacts::of(object));
    }

    /// The same for a typed object.
    pub fn set_restore(&mut self, object: &VolumeRestore) {
        self.restores.insert(place(object), RestoreFacts::of(object));
    }

    /// The same for a typed object.
    pub fn set_schedule(&mut self, object: &BackupSchedule) {
        self.schedules.insert(place(object), ScheduleFacts::of(object));
    }

    /// Whether a claim is there; so where no claim is known.
    pub(crate) fn has_claim(&self, namespace: &str, name: &str) -> bool {
        self.claims.is_empty() || self.claims.contains(&(namespace.to_owned(), name.to_owned()))
    }

    /// The schedule that made a backup, or the one of several claims that it is a part of.
    pub(crate) fn schedule_of<'a>(
        &'a self,
        namespace: &str,
        backup: &'a BackupFacts,
    ) -> Option<&'a str> {
        let whole = || {
            let place = (namespace.to_owned(), backup.part_of.clone()?);
            self.backups.get(&place)?.schedule.as_deref()
        };
        backup.schedule.as_deref().or_else(whole)
    }

    /// The quietest of the watches that feed this has told something at that moment. Before the
    /// first call nothing is known.
    pub fn heard(&mut self, at: DateTime<Utc>) {
        self.heard = self.heard.max(Some(at));
    }

    pub(crate) fn heard_at(&self) -> Option<DateTime<Utc>> {
        self.heard
    }

    /// How old it may be; `None` where no watch has told anything yet.
    #[must_use]
    pub fn age(&self, now: DateTime<Utc>) -> Option<TimeDelta> {
        self.heard.map(|at| (now - at).max(TimeDelta::zero()))
    }

    /// Whether decisions of people should not rest on it.
    #[must_use]
    pub fn is_stale(&self, now: DateTime<Utc>) -> bool {
        self.age(now).is_none_or(|age| age > super::STALE_AFTER)
    }
}

/// A condition.
#[derive(Debug, Clone)]
pub(crate) struct ConditionFacts {
    pub(crate) kind: String,
    /// `None` is unknown.
    pub(crate) holds: Option<bool>,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) since: Option<DateTime<Utc>>,
}

/// What is shown of a Repository.
#[derive(Debug, Clone)]
pub(crate) struct RepositoryFacts {
    pub(crate) url: String,
    pub(crate) created: Option<DateTime<Utc>>,
    pub(crate) conditions: Vec<ConditionFacts>,
    pub(super) check: Option<Rhythm>,
    pub(super) gc: Option<Rhythm>,
    pub(crate) last_check: Option<DateTime<Utc>>,
    pub(crate) last_gc: Option<DateTime<Utc>>,
    pub(crate) last_sync: Option<DateTime<Utc>>,
    pub(crate) backups: Option<i64>,
    pub(crate) stored_bytes: Option<i64>,
}

/// Which volume an operation is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Claim {
    /// A claim of the namespace.
    Named(String),
    /// Claims of the namespace, by their labels.
    Chosen(String),
    /// A volume that a repository has, as `CLUSTER/NAMESPACE/PVC`.
    Recorded(String),
}

/// What a backup was told about changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    Delta,
    Allocated,
    Whole,
}

/// What is shown of a VolumeBackup.
#[derive(Debug, Clone)]
pub(crate) struct BackupFacts {
    pub(crate) claim: Claim,
    /// `CLUSTER/NAMESPACE/PVC`.
    pub(crate) volume: Option<String>,
    pub(crate) backup_id: Option<String>,
    /// Namespace, if it is named, and name.
    pub(crate) repository: (Option<String>, String),
    /// The schedule that made it.
    pub(crate) schedule: Option<String>,
    /// The VolumeBackup of several claims that it is a part of.
    pub(crate) part_of: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) created: Option<DateTime<Utc>>,
    pub(crate) scheduled: Option<DateTime<Utc>>,
    pub(crate) cut: Option<DateTime<Utc>>,
    pub(crate) completed: Option<DateTime<Utc>>,
    pub(crate) list: Option<ListKind>,
    pub(crate) size_bytes: i64,
    pub(crate) read_bytes: i64,
    pub(crate) stored_bytes: i64,
    pub(crate) message: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) attempts: u32,
}

/// What is shown of a VolumeRestore.
#[derive(Debug, Clone)]
pub(crate) struct RestoreFacts {
    /// What is restored, and where to.
    pub(crate) source: String,
    pub(crate) target: String,
    /// The schedule whose drill it is.
    pub(crate) drill_of: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) created: Option<DateTime<Utc>>,
    pub(crate) message: String,
    pub(crate) attempts: u32,
    /// When all was read back, and how many bytes.
    pub(crate) proof: Option<(Option<DateTime<Utc>>, i64)>,
    /// Claims that name it: each with its phase and message.
    pub(crate) consumers: Vec<(String, Phase, String)>,
}

/// What is shown of a BackupSchedule.
#[derive(Debug, Clone)]
pub(crate) struct ScheduleFacts {
    pub(crate) claim: Claim,
    pub(crate) repository: (Option<String>, String),
    pub(super) rhythm: Rhythm,
    /// How much later than due a run may be good.
    pub(super) leeway: TimeDelta,
    pub(crate) suspended: bool,
    /// Since when runs are expected of it.
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) conditions: Vec<ConditionFacts>,
    pub(crate) newest_good: Option<DateTime<Utc>>,
    pub(crate) claims: Option<i64>,
    pub(crate) missed: i64,
    pub(crate) drill: Option<DrillFacts>,
}

/// What is shown of drills.
#[derive(Debug, Clone)]
pub(crate) struct DrillFacts {
    pub(super) rhythm: Rhythm,
    /// Since when they are expected.
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) result: DrillResult,
    pub(crate) time: Option<DateTime<Utc>>,
    pub(crate) backup: Option<String>,
    pub(crate) message: String,
}

/// How the last drill was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrillResult {
    Failed,
    Never,
    Running,
    Passed,
}

fn typed<'a, T: Deserialize<'a>>(object: &'a Value) -> Result<T, serde_json::Error> {
    T::deserialize(object)
}

fn place(object: &impl kube::ResourceExt) -> Place {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn created(object: &impl kube::ResourceExt) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(object.creation_timestamp()?.0.as_second(), 0)
}

fn time(text: Option<&String>) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text?).ok().map(|at| at.with_timezone(&Utc))
}

/// Its owner of one of our kinds.
fn owner(object: &impl kube::ResourceExt, kind: &str) -> Option<String> {
    let mut owners = object.owner_references().iter();
    let owner = owners.find(|it| it.kind == kind && it.api_version.starts_with("mover.dev/"));
    owner.map(|owner| owner.name.clone())
}

fn rhythm(cron: &CronTimes) -> Rhythm {
    Rhythm { cron: cron.cron.clone(), zone: cron.time_zone.clone() }
}

fn conditions(all: &[Condition]) -> Vec<ConditionFacts> {
    let facts = |it: &Condition| ConditionFacts {
        kind: it.kind.clone(),
        holds: match it.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        },
        reason: it.reason.clone(),
        message: it.message.clone(),
        since: time(Some(&it.last_transition_time)),
    };
    all.iter().map(facts).collect()
}

impl Claim {
    fn of(source: &BackupSource) -> Self {
        if let Some(pvc) = &source.pvc {
            return Self::Named(pvc.clone());
        }
        if let Some(recorded) = &source.recorded {
            return Self::Recorded(recorded.volume.clone());
        }
        let labels = source.selector.iter().flat_map(|selector| &selector.match_labels);
        let labels: Vec<_> = labels.map(|(name, value)| format!("{name}={value}")).collect();
        Self::Chosen(labels.join(","))
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Named(name) | Self::Recorded(name) => name.clone(),
            Self::Chosen(labels) if labels.is_empty() => "all claims".into(),
            Self::Chosen(labels) => format!("claims with {labels}"),
        }
    }
}

impl RepositoryFacts {
    fn of(object: &Repository) -> Self {
        let status = object.status.clone().unwrap_or_default();
        Self {
            url: object.spec.url.clone(),
            created: created(object),
            conditions: conditions(&status.conditions),
            check: object.spec.check.as_ref().map(rhythm),
            gc: object.spec.gc.as_ref().map(rhythm),
            last_check: time(status.last_check.as_ref()),
            last_gc: time(status.last_gc.as_ref()),
            last_sync: time(status.last_sync.as_ref()),
            backups: status.backups,
            stored_bytes: status.stored_bytes,
        }
    }

    /// One of its conditions.
    pub(crate) fn condition(&self, kind: &str) -> Option<&ConditionFacts> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

impl BackupFacts {
    fn of(object: &VolumeBackup) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let figures = status.figures.unwrap_or_default();
        let reference = &object.spec.repository_ref;
        let recorded = object.spec.source.recorded.as_ref();
        Self {
            claim: Claim::of(&object.spec.source),
            volume: status.volume.or_else(|| recorded.map(|it| it.volume.clone())),
            backup_id: status.backup_id.or_else(|| recorded.map(|it| it.backup_id.clone())),
            repository: (reference.namespace.clone(), reference.name.clone()),
            schedule: owner(object, "BackupSchedule"),
            part_of: owner(object, "VolumeBackup"),
            phase: status.phase,
            created: created(object),
            scheduled: time(status.scheduled_time.as_ref()),
            cut: time(status.cut_time.as_ref()),
            completed: time(status.completion_time.as_ref()),
            list: match status.changed_blocks.as_deref() {
                Some("delta") => Some(ListKind::Delta),
                Some("allocated") => Some(ListKind::Allocated),
                Some("whole") => Some(ListKind::Whole),
                _ => None,
            },
            size_bytes: figures.size_bytes.max(0),
            read_bytes: figures.read_bytes.max(0),
            stored_bytes: figures.stored_bytes.max(0),
            message: status.message,
            warnings: status.warnings,
            attempts: status.attempts,
        }
    }

    /// The moment that it stands for: its cut, or else when it was wanted or made.
    pub(crate) fn at(&self) -> Option<DateTime<Utc>> {
        self.cut.or(self.scheduled).or(self.created)
    }

    pub(crate) fn is_good(&self) -> bool {
        self.phase == Phase::Completed
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Completed | Phase::Failed)
    }
}

impl RestoreFacts {
    fn of(object: &VolumeRestore) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let source = &object.spec.source;
        let which = source.backup.clone().or_else(|| source.before.clone());
        let volume = status.volume.or_else(|| source.volume.clone());
        let of = source.backup_ref.as_ref().map(|it| it.name.clone());
        let consumers = status.consumers;
        let phases = consumers.iter().map(|it| it.phase);
        Self {
            source: match (of, volume) {
                (Some(backup), None) => backup,
                (Some(backup), Some(volume)) => format!("{volume} ({backup})"),
                (None, Some(volume)) => {
                    format!("{volume}@{}", which.as_deref().unwrap_or("latest"))
                }
                (None, None) => String::new(),
            },
            target: object.spec.target.as_ref().map_or_else(String::new, |it| it.pvc.clone()),
            drill_of: owner(object, "BackupSchedule"),
            // A claim that failed is a restore that failed, whatever became of the others.
            phase: phases.filter(|it| *it == Phase::Failed).fold(status.phase, Ord::max),
            created: created(object),
            message: status.message,
            attempts: status.attempts,
            proof: status.proof.map(|it| (time(Some(&it.time)), it.data_bytes)),
            consumers: consumers.into_iter().map(|it| (it.pvc, it.phase, it.message)).collect(),
        }
    }
}

impl ScheduleFacts {
    fn of(object: &BackupSchedule) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let spec = &object.spec;
        let reference = &spec.template.spec.repository_ref;
        let drill = status.drill.unwrap_or_default();
        let mark = object.metadata.annotations.as_ref().and_then(|all| Mark::parse(all.get(MARK)?));
        let since = created(object).map(|at| expected_since(spec, mark.as_ref(), at));
        let [since, drills_since] = since.unwrap_or_default();
        Self {
            claim: Claim::of(&spec.template.spec.source),
            repository: (reference.namespace.clone(), reference.name.clone()),
            rhythm: Rhythm { cron: spec.cron.clone(), zone: spec.time_zone.clone() },
            leeway: leeway(spec),
            suspended: spec.suspend,
            since,
            conditions: conditions(&status.conditions),
            newest_good: time(status.newest_good_time.as_ref()),
            claims: status.claims,
            missed: status.missed.unwrap_or_default().max(0),
            drill: spec.drill.as_ref().map(|wanted| DrillFacts {
                rhythm: rhythm(&wanted.at),
                since: drills_since,
                result: match drill.result.as_str() {
                    "Passed" => DrillResult::Passed,
                    "Failed" => DrillResult::Failed,
                    "Running" => DrillResult::Running,
                    _ => DrillResult::Never,
                },
                time: time(drill.time.as_ref()),
                backup: drill.backup,
                message: drill.message,
            }),
        }
    }
}
