//! `kubectl mover objects`: the objects of an application, listed, saved and made again.

use super::super::args::{
    Existing, ListObjects, ObjectsCommand, ObjectsOf, RestoreObjects, SaveObjects, StoredObjects,
};
use super::super::output::Output;
use super::pair;
use crate::api::Api;
use crate::engine::{Failure, exit};
use crate::manifest::{
    NamespaceMap, ObjectManifest, OwnerRule, differences, read_manifest, restore_order, shared,
    write_manifest,
};
use crate::ops::manifest::{
    self, ObjectsFile, Reading, Remade, RemadeObject, Remaking, Spool, Updates,
};
use crate::ops::{repository, stored};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Differences are named so far, and counted then.
const NAMED: usize = 20;
/// Plans of as many objects as a file may have are shorter.
const PLAN_MAX: u64 = 1 << 30;

pub(super) async fn run(
    api: &Api,
    namespace: &str,
    command: ObjectsCommand,
    output: &Output,
) -> Result<u8, Failure> {
    match command {
        ObjectsCommand::List(given) => list(api, namespace, &given, output).await,
        ObjectsCommand::Save(given) => save(api, namespace, &given, output).await,
        ObjectsCommand::Restore(given) => restore(api, namespace, &given, output).await,
    }
}

pub(super) fn reading(
    namespace: &str,
    words: &[String],
    of: &ObjectsOf,
) -> Result<Reading, Failure> {
    let mut namespaces = BTreeSet::new();
    for word in words {
        let (kind, name) = word.split_once('/').unwrap_or(("ns", word));
        let is_namespace = ["ns", "namespace", "namespaces"].contains(&kind);
        if !is_namespace || name.is_empty() || name.contains('/') {
            let what = format!("{word} is no namespace");
            return Err(Failure::new(exit::USAGE, what).hint("write ns/NAME or NAME"));
        }
        namespaces.insert(name.to_owned());
    }
    if namespaces.is_empty() {
        namespaces.insert(namespace.to_owned());
    }
    let rules = of.owner_rule.iter().map(|rule| OwnerRule::parse(rule));
    Ok(Reading {
        namespaces,
        selector: of.selector.clone(),
        rules: rules.collect::<Result<_, _>>()?,
        skip_unreadable: of.skip_unreadable,
    })
}

pub(super) async fn read(
    api: &Api,
    wanted: &Reading,
    of: &ObjectsOf,
    spool: Option<&mut Spool>,
    output: &Output,
) -> Result<ObjectManifest, Failure> {
    // A file that is none is an error before a minute of reading.
    let accepted = of.accept.as_deref().map(saved).transpose()?;
    let found = manifest::read(api, wanted, spool, &|text| output.so_far(text)).await?;
    if let (Some(accepted), Some(path)) = (accepted, &of.accept) {
        let all: Vec<String> =
            differences(&accepted, &found).iter().map(ToString::to_string).collect();
        unchanged(&all, path)?;
    }
    for unread in &found.unread {
        output.say(&format!("warning: without {}: {}", unread.what, unread.why));
    }
    for note in &found.notes {
        output.say(&format!("note: {note}"));
    }
    Ok(found)
}

fn unchanged(differences: &[String], path: &Path) -> Result<(), Failure> {
    if differences.is_empty() {
        return Ok(());
    }
    let mut shown = differences.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if differences.len() > NAMED {
        shown = format!("{shown}; and {} more", differences.len() - NAMED);
    }
    let what = format!("the cluster no longer matches {}: {shown}", path.display());
    Err(Failure::new(exit::USAGE, what).hint("look at it again, and save a new list to accept"))
}

async fn list(
    api: &Api,
    namespace: &str,
    given: &ListObjects,
    output: &Output,
) -> Result<u8, Failure> {
    let wanted = reading(namespace, &given.namespaces, &given.of)?;
    let other = given.shared_with.as_deref().map(saved).transpose()?;
    let found = read(api, &wanted, &given.of, None, output).await?;
    if let Some(path) = &given.save {
        let failed = |why: std::io::Error| unwritten(path, &why);
        let mut to = std::io::BufWriter::new(create(path)?);
        write_manifest(&found, &mut to).and_then(|()| to.write_all(b"\n")).map_err(failed)?;
        to.into_inner().map_err(|why| failed(why.into_error()))?.sync_all().map_err(failed)?;
    }
    if let Some(other) = other {
        let rows = shared(&found, &other).into_iter().map(|object| {
            let record = json!({ "object": object });
            (vec![object], record)
        });
        output.table(&["SHARED OBJECT"], 0, &rows.collect::<Vec<_>>());
        return Ok(0);
    }
    let circles = restore_order(&found).cut.len();
    if circles > 0 {
        output.say(&format!("note: {circles} owners stand in circles, and come later"));
    }
    summary(&found, output);
    Ok(0)
}

/// One row for each kind and namespace.
fn summary(found: &ObjectManifest, output: &Output) {
    type Counts<'a> = (usize, usize, BTreeMap<&'a str, usize>);
    let mut rows: Vec<((String, &str), Counts<'_>)> = Vec::new();
    for item in &found.items {
        let of = (item.of.full(), &*item.namespace);
        if rows.last().is_none_or(|(last, _)| *last != of) {
            rows.push((of, Counts::default()));
        }
        if let Some((_, (all, made, reasons))) = rows.last_mut() {
            *all += 1;
            match &item.left_out {
                None => *made += 1,
                Some(why) => *reasons.entry(why).or_default() += 1,
            }
        }
    }
    let rows: Vec<_> = rows
        .into_iter()
        .map(|((kind, namespace), (all, made, reasons))| {
            let text = reasons.iter().map(|(why, count)| format!("{count}: {why}"));
            let text = text.collect::<Vec<_>>().join("; ");
            let record = json!({
                "kind": kind, "namespace": namespace, "objects": all, "restored": made,
                "leftOut": reasons,
            });
            let cells = vec![kind, namespace.to_owned(), all.to_string(), made.to_string(), text];
            (cells, record)
        })
        .collect();
    output.table(&["KIND", "NAMESPACE", "OBJECTS", "RESTORED", "LEFT OUT"], 0, &rows);
}

async fn save(
    api: &Api,
    namespace: &str,
    given: &SaveObjects,
    output: &Output,
) -> Result<u8, Failure> {
    let path = &given.file;
    if path.symlink_metadata().is_ok() {
        let what = format!("{} exists already", path.display());
        return Err(Failure::new(exit::USAGE, what).hint("choose another name, or remove it"));
    }
    let shown = path.display();
    if given.stored.from.is_some() {
        only_from(given)?;
        let stored = fetch(api, namespace, &given.stored, output).await?;
        let count = manifest::copy_archive(&stored, path)?;
        let record = json!({ "file": path, "objects": count });
        output.result(&record, &format!("{count} objects are in {shown}: {stored}"));
        return Ok(0);
    }
    of_a_backup(&given.stored)?;
    let wanted = reading(namespace, &given.namespaces, &given.of)?;
    let mut spool = Spool::beside(path)?;
    let found = read(api, &wanted, &given.of, Some(&mut spool), output).await?;
    let count = manifest::write_archive(path, &found, &mut spool)?;
    let left_out = found.items.len() - count;
    let record = json!({
        "file": path, "objects": count, "leftOut": left_out, "unread": found.unread.len(),
    });
    let text = format!("{count} objects are in {shown}, {left_out} are listed and left out");
    output.result(&record, &text);
    Ok(0)
}

/// What a backup has is not chosen anew.
fn only_from(given: &SaveObjects) -> Result<(), Failure> {
    let ObjectsOf { selector, owner_rule, skip_unreadable, accept } = &given.of;
    let chooses = !given.namespaces.is_empty()
        || selector.is_some()
        || !owner_rule.is_empty()
        || *skip_unreadable
        || accept.is_some();
    match chooses {
        false => Ok(()),
        true => Err(Failure::new(exit::USAGE, "--from saves all objects that the backup has")
            .hint(
                "leave namespaces, --selector, --owner-rule, --skip-unreadable and --accept away",
            )),
    }
}

/// A Repository is named for a backup alone.
fn of_a_backup(given: &StoredObjects) -> Result<(), Failure> {
    match &given.repository {
        None => Ok(()),
        Some(name) => {
            Err(Failure::new(exit::USAGE, format!("--repository {name}: there is no --from"))
                .hint("name a backup by --from, or leave the Repository away"))
        }
    }
}

/// The objects of a backup.
async fn fetch(
    api: &Api,
    namespace: &str,
    given: &StoredObjects,
    output: &Output,
) -> Result<ObjectsFile, Failure> {
    let backup = given.from.as_deref().unwrap_or_default();
    let place = repository::find(api, given.repository.as_deref(), namespace).await?;
    let tell = |wait: &_| output.waiting(wait);
    Box::pin(stored::fetch(api, backup, &place, namespace, tell)).await
}

/// What a dry run says, as it is saved and accepted.
#[derive(Serialize, Deserialize, PartialEq)]
struct Plan {
    format: String,
    /// BLAKE3 of the file of objects.
    file: String,
    namespaces: BTreeMap<String, String>,
    objects: Vec<(String, String)>,
}

const PLAN: &str = "mover.dev/object-plan/v1";

async fn restore(
    api: &Api,
    namespace: &str,
    given: &RestoreObjects,
    output: &Output,
) -> Result<u8, Failure> {
    let mut map = BTreeMap::new();
    for text in &given.namespace_map {
        let (old, new) = pair(text, "--namespace-map")?;
        let is_name = new.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if new.is_empty() || !is_name || map.insert(old, new).is_some() {
            let what = format!("--namespace-map {text}: write OLD=NEW, each OLD once");
            return Err(Failure::new(exit::USAGE, what));
        }
    }
    let namespaces = NamespaceMap(map.clone());
    let file = match &given.file {
        Some(path) => {
            of_a_backup(&given.stored)?;
            ObjectsFile::Path(path.clone())
        }
        None => fetch(api, namespace, &given.stored, output).await?,
    };
    let tell = |text: &str| output.so_far(text);
    let accepted = match given.accept.as_deref() {
        Some(path) => Some((plan_of(path)?, path)),
        None => None,
    };
    let mut updates = match given.existing {
        Existing::Update => Updates::All,
        Existing::Skip | Existing::Fail => Updates::None,
    };
    let ignore_claims = given.ignore_claims;
    let how = |dry_run, updates| {
        let namespaces = namespaces.clone();
        Remaking { namespaces, dry_run, updates, ignore_claims }
    };
    let looks = given.dry_run || accepted.is_some() || given.existing == Existing::Fail;
    if looks {
        let all = manifest::remake(api, &file, &how(true, updates.clone()), &tell).await?;
        let plan = || {
            let objects = all.iter().map(|at| (at.object.clone(), at.what.word().to_owned()));
            Ok::<_, Failure>(Plan {
                format: PLAN.to_owned(),
                file: file.digest()?,
                namespaces: map.clone(),
                objects: objects.collect(),
            })
        };
        if let Some((accepted, path)) = accepted {
            unchanged(&plan_differences(&accepted, &plan()?), path)?;
            // One that comes meanwhile is no part of the plan.
            let updated =
                all.iter().filter(|at| matches!(at.what, Remade::Updated | Remade::Marked(_)));
            if given.existing == Existing::Update {
                updates = Updates::These(updated.map(|at| at.object.clone()).collect());
            }
        }
        if given.existing == Existing::Fail {
            none_differs(&all, given.ignore_claims)?;
        }
        if given.dry_run {
            if let Some(path) = &given.save {
                let text = serde_json::to_vec(&plan()?).expect("JSON");
                let written = create(path)?.write_all(&text);
                written.map_err(|why| unwritten(path, &why))?;
            }
            return Ok(told(&all, given, output));
        }
    }
    let all = manifest::remake(api, &file, &how(false, updates), &tell).await?;
    Ok(told(&all, given, output))
}

fn none_differs(all: &[RemadeObject], ignore_claims: bool) -> Result<(), Failure> {
    let differ = all.iter().filter(|at| {
        let is_another = matches!(at.what, Remade::Differs | Remade::Foreign | Remade::Marked(1..));
        let counts = !ignore_claims || !at.object.starts_with("persistentvolumeclaims/");
        counts && (is_another || at.what == Remade::Going)
    });
    let differ: Vec<&str> = differ.map(|at| at.object.as_str()).collect();
    if differ.is_empty() {
        return Ok(());
    }
    let mut shown = differ.iter().take(NAMED).copied().collect::<Vec<_>>().join("; ");
    if differ.len() > NAMED {
        shown = format!("{shown}; and {} more", differ.len() - NAMED);
    }
    let what = format!("other objects have these names, and nothing was made: {shown}");
    Err(Failure::new(exit::USAGE, what)
        .hint("leave them as they are by --existing skip, change them by --existing update, or delete them (no claim whose volume is needed)"))
}

fn plan_differences(accepted: &Plan, now: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    if (&accepted.format, &accepted.file) != (&now.format, &now.file) {
        all.push("it is about another file".to_owned());
    }
    if accepted.namespaces != now.namespaces {
        all.push("it has another --namespace-map".to_owned());
    }
    let mut old: BTreeMap<_, _> = accepted.objects.iter().map(|(of, what)| (of, what)).collect();
    for (object, what) in &now.objects {
        match old.remove(object) {
            Some(old) if old == what => {}
            Some(old) => all.push(format!("{object}: {what} instead of {old}")),
            None => all.push(format!("{object}: {what}")),
        }
    }
    all.extend(old.iter().map(|(object, what)| format!("{object}: not there instead of {what}")));
    all
}

/// The table; the exit code.
fn told(all: &[RemadeObject], given: &RestoreObjects, output: &Output) -> u8 {
    let mut code = 0;
    let rows: Vec<_> = all
        .iter()
        .map(|at| {
            let why = match &at.what {
                Remade::Refused(why) => {
                    code = exit::USAGE;
                    why.as_str()
                }
                Remade::Going => {
                    code = exit::USAGE;
                    "one of this name is being deleted: run the same command again when it is gone"
                }
                Remade::Differs
                    if given.existing == Existing::Update
                        && !at.object.contains(" in namespace ") =>
                {
                    "another object has this name, and stays as it is: all namespaces share it"
                }
                Remade::Differs if given.existing == Existing::Update => {
                    "another object has come to this name meanwhile, and stays as it is"
                }
                Remade::Differs => "another object has this name, and stays as it is",
                Remade::Updated if given.dry_run => "another object has this name",
                Remade::Updated => "another object had this name",
                Remade::Marked(1..) => "it has labels or annotations of another value, which stay",
                Remade::Ignored(why) => why.as_str(),
                Remade::Missing if given.ignore_claims => "whoever needs it begins with an empty one",
                Remade::Foreign if given.ignore_claims => "no restore made it, and it stays as it is",
                Remade::Missing => {
                    code = exit::USAGE;
                    "restore its volume first: nothing is made without it, but by --ignore-claims"
                }
                Remade::Foreign => {
                    code = exit::USAGE;
                    "no restore made it: nothing is made, but by --existing update or --ignore-claims"
                }
                Remade::Created | Remade::Same | Remade::Marked(0) => "",
            };
            let record = json!({ "object": at.object, "result": at.what.word(), "message": why });
            (vec![at.object.clone(), at.what.word().to_owned(), why.to_owned()], record)
        })
        .collect();
    output.table(&["OBJECT", "RESULT", "MESSAGE"], 0, &rows);
    code
}

fn saved(path: &Path) -> Result<ObjectManifest, Failure> {
    let wrong = |why: String| {
        Failure::new(exit::USAGE, format!("read {}: {why}", path.display()))
            .hint("`kubectl mover objects list --save FILE` writes such a list")
    };
    let file = File::open(path).map_err(|why| wrong(why.to_string()))?;
    read_manifest(BufReader::new(file)).map_err(|why| wrong(why.message))
}

fn plan_of(path: &Path) -> Result<Plan, Failure> {
    let wrong = |why: String| {
        Failure::new(exit::USAGE, format!("read {}: {why}", path.display()))
            .hint("`kubectl mover objects restore FILE --dry-run --save PLAN` writes such a plan")
    };
    let file = File::open(path).map_err(|why| wrong(why.to_string()))?;
    serde_json::from_reader(BufReader::new(file.take(PLAN_MAX)))
        .map_err(|why| wrong(why.to_string()))
}

fn create(path: &Path) -> Result<File, Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|why| unwritten(path, &why))
}

fn unwritten(path: &Path, why: &std::io::Error) -> Failure {
    Failure::new(exit::USAGE, format!("write {}: {why}", path.display()))
        .hint("choose a new file in a place that you may write to")
}
