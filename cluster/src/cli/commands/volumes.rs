//! `kubectl mover backup` and `list`.

use super::super::args;
use super::super::output::Output;
use super::brought::Brought;
use super::{claim, groups, hooks, limits, objects, pair, repositories, turn, waits};
use crate::api::Api;
use crate::drive::{Times, show_bytes};
use crate::engine::{Failure, Key, Kind, Mandate, Outcome, Payload, Repository, Request, exit};
use crate::ops::look::look;
use crate::ops::objects::is_object;
use crate::ops::sources::{self, Source, Sources};
use crate::ops::{backup as backups, lookup, operation, repository};
use serde_json::{Value, json};

use std::time::{Duration, Instant};

pub(super) async fn backup(
    api: &Api,
    namespace: &str,
    given: &args::Backup,
    output: &Output,
) -> Result<u8, Failure> {
    let args::Sources { words, selector } = &given.sources;
    if let Some(selector) = selector.as_deref().filter(|_| given.making.group) {
        return Box::pin(groups::backup(api, namespace, selector, given, output)).await;
    }
    if sources::is_one_claim(words, selector.as_deref()) {
        let mut turn = turn(given.making.limits);
        let of = (namespace, claim(&words[0])?, &mut turn);
        let mut brought = Brought::new(given);
        return match Box::pin(back_up(api, of, given, &mut brought, output)).await? {
            Backed::Ended(done) => report(&done, output),
            Backed::Made(what) => objects::made(&what, output),
        };
    }
    if words.is_empty() && selector.is_none() {
        return Err(Failure::new(exit::USAGE, "name a claim or what uses it").hint(
            "kubectl mover backup pvc/NAME, statefulset/NAME, ns/NAME, or --selector LABELS",
        ));
    }
    let all =
        look(api, |seen| sources::expand(seen, namespace, words, selector.as_deref())).await?;
    Box::pin(back_up_all(api, &all, given, output)).await
}

/// One after the other, whatever becomes of each; the worst exit code.
async fn back_up_all(
    api: &Api,
    all: &Sources,
    given: &args::Backup,
    output: &Output,
) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    let mut worst = 0;
    let mut brought = Brought::new(given);
    // Operations that nobody goes on with are waited for once, and not for each claim anew.
    let mut turn = turn(given.making.limits);
    for (number, Source { namespace, name }) in all.claims.iter().enumerate() {
        let key = Key::new(Kind::PersistentVolumeClaim, namespace, name);
        output.say(&format!("{key}, {} of {}", number + 1, all.claims.len()));
        let of = (namespace.as_str(), name.as_str(), &mut turn);
        let done = Box::pin(back_up(api, of, given, &mut brought, output)).await;
        let outcome = match done {
            Ok(Backed::Ended(done)) => done.outcome,
            Ok(Backed::Made(what)) => {
                let cells = [key.to_string(), "made".to_owned(), what.clone()];
                let empty = std::iter::repeat_n(String::new(), 4);
                let record = json!({ "claim": key.to_string(), "result": "made", "object": what });
                rows.push((cells.into_iter().chain(empty).collect(), record));
                continue;
            }
            Err(why) => why.into(),
        };
        let left = outcome.left.iter().map(String::as_str);
        for text in left.chain(warned(&outcome.summary)) {
            output.say(&format!("warning: {key}: {text}"));
        }
        if outcome.exit_code != 0 {
            output.say(&format!("error: {key}: {}", outcome.message));
        }
        worst = worst.max(outcome.exit_code);
        rows.push(row(&key.to_string(), &outcome));
    }
    for skipped in &all.skipped {
        let cells = [skipped.claim.as_str(), "skipped", "", "", "", "", &skipped.why];
        rows.push((
            cells.map(str::to_owned).to_vec(),
            json!({ "claim": skipped.claim, "result": "skipped", "message": skipped.why }),
        ));
    }
    output.table(&HEAD, 0, &rows);
    Ok(worst)
}

/// Of a table of backups.
pub(super) const HEAD: [&str; 7] =
    ["CLAIM", "RESULT", "BACKUP", "KIND", "READ", "STORED", "MESSAGE"];

/// How the backup of one claim among others ended.
pub(super) fn row(claim: &str, outcome: &Outcome) -> (Vec<String>, Value) {
    let summary = &outcome.summary;
    let good = outcome.exit_code == 0;
    let result = if good { "ok".to_owned() } else { format!("failed ({})", outcome.exit_code) };
    let text = |name: &str| summary[name].as_str().unwrap_or_default().to_owned();
    let bytes = |name: &str| if good { size(&summary[name]) } else { String::new() };
    let message = match (good, &outcome.hint) {
        (true, _) => String::new(),
        (false, None) => outcome.message.clone(),
        (false, Some(hint)) => format!("{}; {hint}", outcome.message),
    };
    let mut cells = vec![claim.to_owned(), result, text("backup_id"), text("kind")];
    cells.extend([bytes("read_bytes"), bytes("stored_bytes"), message]);
    let word = if good { "ok" } else { "failed" };
    (cells, json!({ "claim": claim, "result": word, "outcome": outcome }))
}

/// How an operation ended.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// What is said of it if that was well.
    pub(super) text: String,
    /// How long it took, and how much of that it waited for the cluster.
    pub(super) seconds: Value,
}

/// What became of the backup of one claim.
enum Backed {
    /// It has ended.
    Ended(Done),
    /// A controller makes it.
    Made(String),
}

/// One claim.
async fn back_up(
    api: &Api,
    (namespace, name, turn): (&str, &str, &mut Duration),
    given: &args::Backup,
    brought: &mut Brought<'_>,
    output: &Output,
) -> Result<Backed, Failure> {
    let begun = Instant::now();
    let place = Box::pin(place_of(api, namespace, given, output)).await?;
    // A controller may not read what it would have to bring along.
    if !brought.is_wanted() && is_object(api, &place).await? {
        let of = (namespace, name);
        let made = Box::pin(objects::backup(api, of, &place, given, output)).await?;
        let outcome = match made {
            objects::Followed::Ended(outcome) => outcome,
            objects::Followed::Made(what) => return Ok(Backed::Made(what)),
        };
        let volume = outcome.summary["volume"].as_str().unwrap_or_default().to_owned();
        let text = said_of_backup(&volume, &place.url, &outcome.summary);
        let seconds = json!({ "total": begun.elapsed().as_secs_f64() });
        return Ok(Backed::Ended(Done { text, outcome, seconds }));
    }
    let options = options(given)?;
    let tell = |wait: &_| output.waiting(wait);
    let (source, volume, (request, payload)) = loop {
        let request = backups::request(api, namespace, name, &place, &options);
        let request = Box::pin(request).await?;
        let (source, volume) = (request.source.uid.clone(), request.volume.clone());
        let request = Request::Backup(Box::new(request));
        let along = brought.along(api, (namespace, &place), request, output).await?;
        if !Box::pin(operation::free(api, namespace, &source, &along.0, turn, tell)).await? {
            break (source, volume, along);
        }
    };
    let of = (namespace, name, *turn);
    let run = Box::pin(run(api, of, &source, (&request, payload), output));
    let (outcome, times) = run.await?;
    let text = said_of_backup(&volume, &place.url, &outcome.summary);
    Ok(Backed::Ended(Done { text, outcome, seconds: seconds(begun, times) }))
}

/// The Repository of a backup, which is made where that was asked for.
pub(super) async fn place_of(
    api: &Api,
    namespace: &str,
    given: &args::Backup,
    output: &Output,
) -> Result<Repository, Failure> {
    let found = repository::find(api, given.repository.as_deref(), namespace).await;
    match (found, &given.make.url) {
        (Ok(found), None) => Ok(found),
        (Ok(found), Some(url)) if found.url == *url => Ok(found),
        (Ok(found), Some(url)) => {
            let what = format!("Repository {} is at {}, not at {url}", found.name, found.url);
            Err(Failure::new(exit::USAGE, what)
                .hint("leave --url away, or name another Repository by --repository"))
        }
        (Err(why), Some(_)) if why.exit_code == exit::USAGE => {
            let text = given.repository.as_deref().unwrap_or(repository::DEFAULT_NAME);
            let (at, name) = text.split_once('/').unwrap_or((namespace, text));
            Box::pin(repositories::make(api, at, name, &given.make, output)).await
        }
        (Err(why), _) => Err(why),
    }
}

/// What a command that lives as long as its operation says of it.
pub(super) fn options(given: &args::Backup) -> Result<backups::BackupOptions, Failure> {
    waits(given.wait)?;
    let labels = given.making.label.iter().map(|text| pair(text, "--label"));
    Ok(backups::BackupOptions {
        given: None,
        snapshot_class: given.making.snapshot_class.clone(),
        storage_class: given.making.storage_class.clone(),
        read_only: given.making.read_only_volume,
        keep_base: given.making.keep_base,
        retain: None,
        whole: given.making.whole,
        hook: hooks::options(&given.making.hook),
        labels: labels.collect::<Result<_, _>>()?,
        arguments: given.arguments.clone(),
        limits: limits(given.making.limits),
    })
}

/// What is said of a backup that ended well.
fn said_of_backup(volume: &str, url: &str, summary: &Value) -> String {
    format!(
        "backup {} of {volume} in {url}\n{}, {} read, {} stored{}",
        summary["backup_id"].as_str().unwrap_or_default(),
        how(summary),
        size(&summary["read_bytes"]),
        size(&summary["stored_bytes"]),
        warnings(summary),
    )
}

pub(super) fn seconds(begun: Instant, times: Times) -> Value {
    json!({ "total": begun.elapsed().as_secs_f64(), "waited": times.waited.as_secs_f64() })
}

/// How it was found what to read.
fn how(summary: &Value) -> &'static str {
    match summary["kind"].as_str() {
        Some("delta") => "changed blocks",
        Some("allocated") => "allocated blocks",
        _ => "the whole volume",
    }
}

/// What `mover` warned of, and why the operation is not what was asked for.
fn warned(summary: &Value) -> impl Iterator<Item = &str> {
    let lists = ["warnings", "degraded"].into_iter().filter_map(|name| summary[name].as_array());
    lists.flatten().filter_map(Value::as_str)
}

fn warnings(summary: &Value) -> String {
    warned(summary).map(|text| format!("\nwarning: {text}")).collect()
}

pub(super) fn size(value: &Value) -> String {
    show_bytes(value.as_u64().unwrap_or_default())
}

pub(super) async fn run(
    api: &Api,
    (namespace, subject, turn): (&str, &str, Duration),
    source: &str,
    (request, payload): (&Request, Option<Payload>),
    output: &Output,
) -> Result<(Outcome, Times), Failure> {
    let tell = |wait: &_| output.waiting(wait);
    let (anchor, mut seen, again) =
        operation::begin(api, (namespace, subject), source, request).await?;
    seen.set_turn(turn);
    if again {
        output.say(&format!("going on with {}", anchor.key));
    }
    if let Some(payload) = payload {
        seen.set_payload(payload);
    }
    operation::drive(api, &anchor, Mandate::Request(request), seen, tell).await
}

pub(super) fn report(done: &Done, output: &Output) -> Result<u8, Failure> {
    let Done { outcome, text, seconds } = done;
    for left in &outcome.left {
        output.say(&format!("warning: {left}"));
    }
    if outcome.exit_code != 0 {
        return Err(Failure {
            exit_code: outcome.exit_code,
            message: outcome.message.clone(),
            hint: outcome.hint.clone(),
        });
    }
    let mut record = json!(outcome);
    record["seconds"] = seconds.clone();
    output.result(&record, text);
    Ok(0)
}

/// Records of backups, and how names of volumes of this namespace begin.
pub(super) async fn records(
    api: &Api,
    namespace: &str,
    given: &args::List,
    output: &Output,
) -> Result<(String, Vec<Value>), Failure> {
    let place = repository::find(api, given.repository.as_deref(), namespace).await?;
    let wanted = match &given.source {
        None => None,
        Some(text) if text.split('/').count() == 3 => Some(text.clone()),
        Some(text) => Some(format!("{}/{namespace}/{}", place.cluster, claim(text)?)),
    };
    let flag = wanted.as_ref().map(|volume| format!("--volume={volume}"));
    let mut arguments = vec!["list"];
    arguments.extend(flag.as_deref());
    let lines = lookup::ask(api, &place, &arguments, |wait| output.waiting(wait)).await?;
    let own = format!("{}/{namespace}/", place.cluster);
    let is_asked = |record: &&Value| {
        let is_own = || record["volume"].as_str().is_some_and(|volume| volume.starts_with(&own));
        wanted.is_some() || given.all_namespaces || is_own()
    };
    let records = lookup::of_type(&lines, "backup").filter(is_asked).cloned().collect();
    Ok((own, records))
}

pub(super) async fn list(
    api: &Api,
    namespace: &str,
    given: &args::List,
    output: &Output,
) -> Result<u8, Failure> {
    let (own, records) = records(api, namespace, given, output).await?;
    let row = |record: Value| {
        let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        let (volume, finished) = (text("volume"), text("finished"));
        let cells = vec![
            volume.strip_prefix(&own).map_or(volume.clone(), str::to_owned),
            text("backup_id"),
            finished.get(..19).unwrap_or(&finished).replace('T', " "),
            size(&record["size_bytes"]),
            size(&record["stats"]["stored_bytes"]),
            record["source"]["kind"].as_str().unwrap_or_default().to_owned(),
            record["snapshot"]["id"].as_str().unwrap_or_default().to_owned(),
        ];
        (cells, record)
    };
    let rows: Vec<_> = records.into_iter().map(row).collect();
    let head = ["VOLUME", "BACKUP", "FINISHED (UTC)", "SIZE", "STORED", "READ", "SNAPSHOT"];
    output.table(&head, 1, &rows);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_has_a_row_of_how_it_ended() {
        let summary = json!({
            "backup_id": "b1", "kind": "delta", "read_bytes": 2048, "stored_bytes": 10,
        });
        let good =
            Outcome { exit_code: 0, message: "done".into(), hint: None, summary, left: Vec::new() };
        let (cells, record) = row("pvc/db", &good);
        assert_eq!(cells, ["pvc/db", "ok", "b1", "delta", "2.0 KiB", "10 B", ""]);
        assert_eq!(record["result"], "ok");
        assert_eq!(record["outcome"]["summary"]["backup_id"], "b1");
        let bad = Failure::new(exit::DENIED, "the bucket says no").hint("ask it").into();
        let (cells, record) = row("pvc/db", &bad);
        let wanted = ["pvc/db", "failed (4)", "", "", "", "", "the bucket says no; ask it"];
        assert_eq!(cells, wanted);
        assert_eq!(record["outcome"]["exitCode"], 4);
    }

    #[test]
    fn what_was_not_as_asked_is_said_beside_the_warnings() {
        let summary = json!({ "warnings": ["slow"], "degraded": ["went down to whole: no list"] });
        let said = "\nwarning: slow\nwarning: went down to whole: no list";
        assert_eq!(warnings(&summary), said);
        assert_eq!(warnings(&json!({ "degraded": [] })), "");
    }
}
