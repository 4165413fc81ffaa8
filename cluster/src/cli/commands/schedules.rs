//! `kubectl mover schedule`.

use super::super::args::{KeepFlags, NewSchedule};
use super::super::output::Output;
use super::{claim, objects as of_objects};
use crate::api::{Api, ApiError};
use crate::engine::{Failure, Key, Kind, Meta, Repository, exit};
use crate::kinds::{
    BackupSchedule, BackupScheduleSpec, BackupSource, BackupTemplate, CronTimes, Drill, Keep,
    LabelSelector, VolumeBackupSpec,
};
use crate::ops::{objects, repository, schedules};
use crate::schedule::Cron;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// So many of the next times are told.
const TOLD: usize = 3;

/// Makes a schedule. All that can be wrong with it is looked for before.
pub(super) async fn add(
    api: &Api,
    namespace: &str,
    given: &NewSchedule,
    output: &Output,
) -> Result<u8, Failure> {
    let zone = given.time_zone.as_deref();
    let cron = times(&given.cron, zone, "--cron")?;
    if let Some(text) = &given.drill.drill {
        times(text, zone, "--drill")?;
    }
    let source = source(given)?;
    schedules::known(api).await?;
    let place = place(api, namespace, given.repository.as_deref()).await?;
    let copy = match &given.copy_to {
        None => None,
        Some(name) => Some(self::place(api, namespace, Some(name)).await?),
    };
    if copy.as_ref().is_some_and(|copy| same(copy, &place)) {
        let what = format!("--copy-to names the Repository {} itself", place.name);
        return Err(Failure::new(exit::USAGE, what).hint("name another Repository"));
    }
    if let Some(name) = &source.pvc
        && api.get(&Key::new(Kind::PersistentVolumeClaim, namespace, name)).await?.is_none()
    {
        output.say(&format!(
            "warning: there is no pvc/{name} in namespace {namespace} yet: its backups fail until there is"
        ));
    }
    let spec = spec(given, source, &place, copy.as_ref(), namespace)?;
    let key = Key::new(Kind::BackupSchedule, namespace, &given.name);
    let uid = schedules::make(api, &key, &spec).await?;
    if !given.no_wait {
        schedules::taken_up(api, &key, &uid, |wait| output.waiting(wait)).await?;
    }

    let next = next(&cron);
    let text = format!(
        "{key} is made: {}, {}, the next times are {}\n\
         kubectl mover schedule run {} -n {namespace} makes a backup now",
        said_of_source(&spec.template.spec.source),
        spec.cron,
        next.join(", "),
        given.name,
    );
    output.result(&json!({ "made": key.to_string(), "spec": spec, "next": next }), &text);
    Ok(0)
}

fn times(text: &str, zone: Option<&str>, flag: &str) -> Result<Cron, Failure> {
    Cron::parse(text, zone).map_err(|why| {
        let flag = if why.field == "timeZone" { "--time-zone" } else { flag };
        Failure::new(exit::USAGE, format!("{flag}: {}", why.message)).hint(why.hint)
    })
}

fn next(cron: &Cron) -> Vec<String> {
    let mut at = Utc::now();
    let mut all = Vec::new();
    while let Some(time) = cron.next_after(at).filter(|_| all.len() < TOLD) {
        all.push(shown(time));
        at = time;
    }
    all
}

fn shown(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn source(given: &NewSchedule) -> Result<BackupSource, Failure> {
    if let Some(text) = &given.claim {
        let pvc = Some(claim(text)?.to_owned());
        return Ok(BackupSource { pvc, ..BackupSource::default() });
    }
    let mut match_labels = BTreeMap::new();
    for text in given.selector.iter().flat_map(|text| text.split(',')) {
        // A kind's selector knows equality alone.
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !name.ends_with('!') => (name, value),
            _ => {
                let what = format!("--selector {text}: a schedule chooses by NAME=VALUE alone");
                return Err(Failure::new(exit::USAGE, what).hint(
                    "give the claims a label of their own: kubectl label pvc/NAME backup=yes",
                ));
            }
        };
        match_labels.insert(name.to_owned(), value.trim_start_matches('=').to_owned());
    }
    let selector = Some(LabelSelector { match_labels });
    let group = given.making.group.then_some(true);
    Ok(BackupSource { selector, group, ..BackupSource::default() })
}

fn said_of_source(source: &BackupSource) -> String {
    let labels = source.selector.iter().flat_map(|selector| &selector.match_labels);
    let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
    match &source.pvc {
        Some(name) => format!("pvc/{name}"),
        None if labels.is_empty() => "all claims".to_owned(),
        None if source.group == Some(true) => format!("group with {}", labels.join(",")),
        None => format!("claims with {}", labels.join(",")),
    }
}

/// A Repository that a controller looks after.
async fn place(api: &Api, namespace: &str, name: Option<&str>) -> Result<Repository, Failure> {
    let found = repository::find(api, name, namespace).await?;
    if objects::is_object(api, &found).await? {
        return Ok(found);
    }
    let what = format!(
        "Repository {} in namespace {} is of `kubectl mover` alone: no controller looks after it",
        found.name, found.namespace
    );
    Err(Failure::new(exit::USAGE, what)
        .hint("make it again by kubectl mover repository add: the same URL and key lead to the same backups"))
}

fn same(one: &Repository, other: &Repository) -> bool {
    (&one.namespace, &one.name) == (&other.namespace, &other.name)
}

fn spec(
    given: &NewSchedule,
    source: BackupSource,
    place: &Repository,
    copy: Option<&Repository>,
    namespace: &str,
) -> Result<BackupScheduleSpec, Failure> {
    Ok(BackupScheduleSpec {
        cron: given.cron.clone(),
        time_zone: given.time_zone.clone(),
        jitter_seconds: given.jitter,
        template: BackupTemplate {
            labels: BTreeMap::new(),
            spec: of_objects::spec_of(source, namespace, place, &given.making)?,
        },
        keep: keep(&given.keep),
        history: given.history,
        copy_to: copy.map(|copy| of_objects::reference(copy, namespace)),
        drill: given.drill.drill.clone().map(|cron| Drill {
            at: CronTimes { cron, time_zone: given.time_zone.clone() },
            image: given.drill.drill_image.clone(),
            command: (!given.drill.command.is_empty()).then(|| given.drill.command.clone()),
            timeout_seconds: given.drill.drill_timeout,
            storage_class_name: given.drill.drill_storage_class.clone(),
        }),
        ..BackupScheduleSpec::default()
    })
}

fn keep(given: &KeepFlags) -> Option<Keep> {
    let keep = Keep {
        last: given.keep_last,
        hourly: given.keep_hourly,
        daily: given.keep_daily,
        weekly: given.keep_weekly,
        monthly: given.keep_monthly,
        yearly: given.keep_yearly,
        within: given.keep_within.clone(),
    };
    (keep != Keep::default()).then_some(keep)
}

pub(super) async fn list(
    api: &Api,
    namespace: Option<&str>,
    output: &Output,
) -> Result<u8, Failure> {
    schedules::known(api).await?;
    let all = schedules::list(api, namespace).await?;
    let rows: Vec<_> = all.iter().map(row).collect();
    output.table(
        &[
            "NAMESPACE",
            "NAME",
            "TIMES",
            "SOURCE",
            "STATE",
            "NEWEST GOOD",
            "NEXT",
            "DRILL",
            "MESSAGE",
        ],
        1,
        &rows,
    );
    Ok(0)
}

fn row(object: &Value) -> (Vec<String>, Value) {
    let meta = Meta::of(object);
    let read: Option<BackupSchedule> = serde_json::from_value(object.clone()).ok();
    let status = read.as_ref().and_then(|read| read.status.clone()).unwrap_or_default();
    let spec = read.map(|read| read.spec).unwrap_or_default();
    let bad = status.conditions.iter().find(|at| at.status == "False");
    let state = match bad {
        _ if spec.suspend => "suspended",
        Some(bad) => &bad.reason,
        None if status.conditions.is_empty() => "not taken up",
        None => "ok",
    };
    let drill = status.drill.clone().unwrap_or_default().result;
    let cells = vec![
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone(),
        match &spec.time_zone {
            Some(zone) => format!("{} {zone}", spec.cron),
            None => spec.cron.clone(),
        },
        said_of_source(&spec.template.spec.source),
        state.to_owned(),
        status.newest_good_time.clone().unwrap_or_else(|| "never".to_owned()),
        status.next_time.clone().unwrap_or_else(|| "-".to_owned()),
        if drill.is_empty() { "-".to_owned() } else { drill },
        bad.map(|bad| bad.message.clone()).unwrap_or_default(),
    ];
    let record = json!({
        "name": meta.name,
        "namespace": meta.namespace,
        "state": state,
        "spec": object["spec"],
        "status": object["status"],
    });
    (cells, record)
}

/// A backup by the template, now. It is no run of the schedule: none that is due is left out for it.
pub(super) async fn run(
    api: &Api,
    namespace: &str,
    name: &str,
    wait: bool,
    output: &Output,
) -> Result<u8, Failure> {
    let (_, object) = schedules::find(api, namespace, name).await?;
    let read: BackupSchedule = serde_json::from_value(object).map_err(|why| {
        Failure::new(exit::USAGE, format!("schedule {name} in namespace {namespace}: {why}"))
            .hint("this program is older than the cluster's kinds: take the controller's version")
    })?;
    let spec: &VolumeBackupSpec = &read.spec.template.spec;
    let labels = &read.spec.template.labels;
    let begins = format!("{name}-now");
    let (key, uid) =
        objects::make_labelled(api, Kind::VolumeBackup, namespace, &begins, labels, spec).await?;
    if !wait {
        return of_objects::made(&key.to_string(), output);
    }
    output.progress(&format!("made {key}"));
    let ended = objects::follow(api, &key, &uid, |text| output.progress(text)).await?;
    let status = &ended["status"];
    let message = status["message"].as_str().unwrap_or_default();
    let code = objects::exit_code(&ended);
    let text = format!("{key}: {}: {message}", status["phase"].as_str().unwrap_or_default());
    output.result(&json!({ "object": key.to_string(), "exitCode": code, "status": status }), &text);
    Ok(code)
}

/// Has it rest, or go on.
pub(super) async fn suspend(
    api: &Api,
    namespace: &str,
    name: &str,
    suspend: bool,
    output: &Output,
) -> Result<u8, Failure> {
    let (key, found) = schedules::find(api, namespace, name).await?;
    let was = found["spec"]["suspend"] == true;
    if was != suspend {
        let patch = json!({ "spec": { "suspend": suspend } });
        api.patch(&key, (&Meta::of(&found).uid, None), &patch).await?;
    }
    let text = match (was, suspend) {
        (true, true) => format!("{key} rested already"),
        (false, false) => format!("{key} did not rest"),
        (false, true) => format!("{key} rests: runs that it misses are not caught up on"),
        (true, false) => format!("{key} goes on with the next time that is due"),
    };
    output.result(&json!({ "object": key.to_string(), "suspend": suspend }), &text);
    Ok(0)
}

pub(super) async fn remove(
    api: &Api,
    namespace: &str,
    name: &str,
    output: &Output,
) -> Result<u8, Failure> {
    let (key, found) = schedules::find(api, namespace, name).await?;
    match api.delete(&key, &Meta::of(&found).uid).await {
        Ok(_) | Err(ApiError::Absent(_)) => {}
        Err(why) => return Err(why.into()),
    }
    let text =
        format!("{key} is removed. Its backups stay, and so does the rule of its Repository");
    output.result(&json!({ "removed": key.to_string() }), &text);
    Ok(0)
}
