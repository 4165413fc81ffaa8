//! `kubectl mover doctor`.

use super::super::args;
use super::super::output::Output;
use crate::api::Api;
use crate::drive::Driver;
use crate::engine::{self, Failure, Finding, Level, Observed, Question, exit};
use crate::ops::backup::BackupOptions;
use crate::ops::group as ops_group;
use crate::ops::look::{issuer, look};
use crate::ops::sources::{self, Source};
use crate::ops::{hook, lookup, repository};
use serde_json::json;
use std::collections::BTreeSet;

/// A snapshot that has no status for longer has no controller.
const STALE: chrono::TimeDelta = chrono::TimeDelta::minutes(5);

pub(super) async fn run(
    api: &Api,
    namespace: &str,
    given: &args::Doctor,
    output: &Output,
) -> Result<u8, Failure> {
    let mut before = Vec::new();
    let all = claims(api, namespace, &given.sources, &mut before).await?;
    let stale = chrono::Utc::now() - STALE;
    let question = Question {
        namespace: namespace.to_owned(),
        claims: all.into_iter().map(|at| (at.namespace, at.name)).collect(),
        repository: given.repository.clone(),
        snapshot_class: given.snapshot_class.clone(),
        storage_class: given.storage_class.clone(),
        whole: given.whole,
        velero: given.velero.clone(),
        issuer: if given.whole { None } else { issuer(api).await },
        stale_before: Some(stale.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)),
    };
    output.progress("looking at the cluster");
    let mut found = Driver::new(api, Observed::default())
        .run(|seen| engine::doctor(seen, &question), None, |_| ())
        .await?;
    found.extend(before);
    if let Some(options) = super::hooks::options(&given.hook) {
        for (namespace, name) in &question.claims {
            output.progress(&format!("looking whether a hook can run for pvc/{name}"));
            if let Err(why) = hook::find(api, namespace, name, &options).await {
                found.push(Finding {
                    level: Level::Error,
                    object: format!("pvc/{name} in namespace {namespace}"),
                    message: format!("its hook cannot run: {}", why.message),
                    hint: why.hint,
                });
            }
        }
    }
    if let Some(labels) = given.sources.selector.as_deref().filter(|_| given.group) {
        // The others are of claims, and say more of each.
        if !found.iter().any(|finding| finding.level == Level::Error) {
            output.progress("looking whether the claims can be a group");
            found.extend(Box::pin(group(api, namespace, labels, given)).await);
        }
    }
    if given.connect {
        // A Job without its Secret would wait for it until its deadline.
        match found.iter().any(|finding| finding.level == Level::Error) {
            true => output.say("--connect: no Job is run until the errors are removed"),
            false => connect(api, &question, &mut found, output).await,
        }
    }
    found.sort_by_key(|finding| finding.level);
    Ok(print(&found, output))
}

/// What would keep the claims from being backed up at one moment.
async fn group(api: &Api, namespace: &str, labels: &str, given: &args::Doctor) -> Option<Finding> {
    let options = BackupOptions {
        snapshot_class: given.snapshot_class.clone(),
        storage_class: given.storage_class.clone(),
        whole: given.whole,
        hook: super::hooks::options(&given.hook),
        ..BackupOptions::default()
    };
    let asked = async {
        let labels = ops_group::labels(labels)?;
        let place = repository::find(api, given.repository.as_deref(), namespace).await?;
        ops_group::request(api, namespace, &labels, &place, &options).await
    };
    let object = format!("group {labels} in namespace {namespace}");
    match asked.await {
        Ok(group) if group.class.is_some() => None,
        Ok(_) => Some(Finding {
            level: Level::Note,
            object,
            message: "its snapshots are of single volumes, taken under one lock".to_owned(),
            hint: Some("a VolumeGroupSnapshotClass of the driver makes one of all".to_owned()),
        }),
        Err(Failure { message, hint, .. }) => {
            Some(Finding { level: Level::Error, object, message, hint })
        }
    }
}

/// The claims that are meant. A source that means none is a finding, and the others go on.
async fn claims(
    api: &Api,
    namespace: &str,
    given: &args::Sources,
    found: &mut Vec<Finding>,
) -> Result<Vec<Source>, Failure> {
    let words = given.words.iter().map(|word| (std::slice::from_ref(word), None));
    let labels = given.selector.iter().map(|labels| (&[][..], Some(labels.as_str())));
    let mut claims = Vec::new();
    for (words, labels) in words.chain(labels) {
        let expand = |seen: &Observed| sources::expand(seen, namespace, words, labels);
        let all = match look(api, expand).await {
            Ok(all) => all,
            Err(why) if why.exit_code == exit::RETRYABLE => return Err(why),
            Err(Failure { message, hint, .. }) => {
                let object = words.first().map(String::as_str).or(labels).unwrap_or_default();
                let object = object.to_owned();
                found.push(Finding { level: Level::Error, object, message, hint });
                continue;
            }
        };
        found.extend(all.skipped.into_iter().map(|skipped| Finding {
            level: Level::Note,
            object: skipped.claim,
            message: format!("it is left out: {}", skipped.why),
            hint: Some("name it by itself to see more".to_owned()),
        }));
        for claim in all.claims {
            if !claims.contains(&claim) {
                claims.push(claim);
            }
        }
    }
    Ok(claims)
}

/// Lists each Repository by a Job, as a backup would reach it.
async fn connect(api: &Api, question: &Question, found: &mut Vec<Finding>, output: &Output) {
    let mut say = |level, object: String, message: String, hint| {
        found.push(Finding { level, object, message, hint });
    };
    let mut namespaces: BTreeSet<&str> =
        question.claims.iter().map(|(namespace, _)| namespace.as_str()).collect();
    if namespaces.is_empty() {
        namespaces.insert(&question.namespace);
    }
    let mut asked = BTreeSet::new();
    for namespace in namespaces {
        // That there is none is found already.
        let found = repository::find(api, question.repository.as_deref(), namespace).await;
        let Ok(place) = found else { continue };
        if !asked.insert((place.namespace.clone(), place.name.clone())) {
            continue;
        }
        let object = format!("Repository {} in namespace {}", place.name, place.namespace);
        let tell = |wait: &_| output.waiting(wait);
        if let Err(why) = lookup::ask(api, &place, &["list"], tell).await {
            let message = format!("its repository {} cannot be listed: {}", place.url, why.message);
            say(Level::Error, object, message, why.hint);
        }
    }
}

fn print(found: &[Finding], output: &Output) -> u8 {
    const GOOD: &str = "ok: nothing is found that would keep a backup from working";
    if found.is_empty() {
        output.result(&json!({ "items": [] }), GOOD);
        return 0;
    }
    let row = |finding: &Finding| {
        let Finding { level, object, message, hint } = finding;
        let hint = hint.clone().unwrap_or_default();
        (vec![level.to_string(), object.clone(), message.clone(), hint], json!(finding))
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    output.table(&["LEVEL", "OBJECT", "MESSAGE", "HINT"], 0, &rows);
    if found.iter().any(|finding| finding.level == Level::Error) {
        return exit::USAGE;
    }
    output.say(GOOD);
    0
}
