//! What BackupSchedules ask of a Repository: which backups of their claims stay, and where to copies
//! of them go.

use crate::engine::{
    self, Failure, Key, Kind, Object, Observed, Planned, Repository, Selection, Stop, exit, notes,
};
use crate::kinds::{BackupScheduleSpec, Keep, RepositoryRef};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A BackupSchedule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScheduleOf {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub spec: BackupScheduleSpec,
}

impl ScheduleOf {
    fn label(&self) -> String {
        format!("backupschedule/{} in namespace {}", self.name, self.namespace)
    }
}

/// Copies to one Repository.
#[derive(Debug, Clone, Default)]
pub(super) struct Copies<'a> {
    /// The schedules that ask for them.
    pub schedules: Vec<&'a ScheduleOf>,
    /// Where to, or why not.
    pub target: Option<Repository>,
    /// For people.
    pub refused: Option<String>,
}

/// A Repository as a text of the engine.
fn text_of(reference: &RepositoryRef) -> String {
    match &reference.namespace {
        Some(namespace) => format!("{namespace}/{}", reference.name),
        None => reference.name.clone(),
    }
}

/// What a reference of a namespace means; nothing, where it means nothing.
fn meant(
    seen: &Observed,
    reference: &RepositoryRef,
    of: &str,
    image: &str,
) -> Planned<Result<Repository, Failure>> {
    match engine::repository(seen, Some(&text_of(reference)), of, image) {
        Ok(found) => Ok(Ok(found)),
        Err(Stop::Failure(why)) => Ok(Err(why)),
        Err(next) => Err(next),
    }
}

/// The schedules whose backups go to a Repository.
///
/// # Errors
///
/// A read, which comes first.
pub(super) fn of<'a>(
    seen: &Observed,
    place: &Repository,
    schedules: &'a [ScheduleOf],
    image: &str,
) -> Planned<Vec<&'a ScheduleOf>> {
    let mut all = Vec::new();
    for schedule in schedules {
        let reference = &schedule.spec.template.spec.repository_ref;
        if reference.name != place.name {
            continue;
        }
        let found = meant(seen, reference, &schedule.namespace, image)?;
        let same = |other: Repository| {
            (other.namespace, other.name) == (place.namespace.clone(), place.name.clone())
        };
        if found.is_ok_and(same) {
            all.push(schedule);
        }
    }
    Ok(all)
}

/// Volumes of a schedule's claims, as they are recorded. A claim that is named counts also once it
/// is gone: its backups are still that schedule's.
fn volumes(
    seen: &Observed,
    place: &Repository,
    schedule: &ScheduleOf,
) -> Planned<BTreeSet<String>> {
    let source = &schedule.spec.template.spec.source;
    let volume = |claim: &str| format!("{}/{}/{claim}", place.cluster, schedule.namespace);
    let mut all: BTreeSet<String> = source.pvc.iter().map(|claim| volume(claim)).collect();
    if let Some(selector) = &source.selector {
        let labels: Vec<String> =
            selector.match_labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let selection =
            Selection::labelled(Kind::PersistentVolumeClaim, &schedule.namespace, labels.join(","));
        let claims: Vec<Object<Value>> = seen.list(&selection)?;
        seen.confirm(&selection.into())?;
        all.extend(claims.iter().map(|claim| volume(&claim.meta.name)));
    }
    Ok(all)
}

/// The rules of `keep`, as `mover forget` reads them: name and value.
fn rules(keep: &Keep) -> Vec<(&'static str, String)> {
    let counts = [
        ("last", keep.last),
        ("hourly", keep.hourly),
        ("daily", keep.daily),
        ("weekly", keep.weekly),
        ("monthly", keep.monthly),
        ("yearly", keep.yearly),
    ];
    let counts = counts.into_iter().filter_map(|(name, count)| Some((name, count?.to_string())));
    counts.chain(keep.within.clone().map(|span| ("within", span))).collect()
}

/// Arguments of `mover forget` by the rules of a Repository and of its schedules; none where nothing
/// is to be forgotten.
///
/// A schedule decides about backups of its own namespace alone: in one that was made anew under an
/// old name nobody forgets what the old one had stored.
///
/// # Errors
///
/// A read, which comes first, or that failed: then nothing is forgotten.
pub(super) fn forget(
    seen: &Observed,
    place: &Repository,
    keep: Option<&Keep>,
    schedules: &[&ScheduleOf],
) -> Planned<Option<Vec<String>>> {
    // Other clusters, and hosts, may have volumes in the same bucket.
    let mut arguments = vec!["forget".to_owned(), format!("--below={}/", place.cluster)];
    let always = arguments.len();
    let rest = keep.map(rules).unwrap_or_default();
    arguments.extend(rest.iter().map(|(name, value)| format!("--keep-{name}={value}")));
    for schedule in schedules {
        let of_schedule = schedule.spec.keep.as_ref().map(rules).unwrap_or_default();
        if of_schedule.is_empty() {
            continue;
        }
        let namespace = Key::wide(Kind::Namespace, &schedule.namespace);
        let Some(found) = seen.find::<Value>(&namespace)? else { continue };
        let joined: Vec<String> =
            of_schedule.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let only = match schedule.namespace == place.namespace {
            // The keys are there: whoever is there may forget anything by himself.
            true => String::new(),
            false => format!(",only={}={}", notes::NAMESPACE_UID, found.meta.uid),
        };
        for volume in volumes(seen, place, schedule)? {
            arguments.push(format!("--keep-of={}{only}:{volume}", joined.join(",")));
        }
    }
    Ok((arguments.len() > always).then_some(arguments))
}

/// Copies that schedules ask for, by the name of their target.
///
/// # Errors
///
/// A read, which comes first.
pub(super) fn copies<'a>(
    seen: &Observed,
    place: &Repository,
    schedules: &[&'a ScheduleOf],
    image: &str,
) -> Planned<BTreeMap<String, Copies<'a>>> {
    let mut all: BTreeMap<String, Copies<'a>> = BTreeMap::new();
    for schedule in schedules {
        let Some(reference) = &schedule.spec.copy_to else { continue };
        let target = match meant(seen, reference, &schedule.namespace, image)? {
            Ok(target) => may_copy(place, &target).map(|()| target),
            Err(why) => Err(why),
        };
        let name = text_of(reference);
        match target {
            Ok(target) => {
                let copies = all.entry(target.name.clone()).or_default();
                copies.schedules.push(schedule);
                copies.target = Some(target);
            }
            Err(why) => {
                // Beside the good ones, under a name that none of them can have.
                let copies = all.entry(format!("{name} of {}", schedule.label())).or_default();
                copies.refused = Some(format!("{}: copyTo {name}: {why}", schedule.label()));
            }
        }
    }
    Ok(all)
}

/// Whether one pod can read the one Repository and write the other.
///
/// # Errors
///
/// Why not, with the next step.
pub fn may_copy(from: &Repository, to: &Repository) -> Result<(), Failure> {
    let wrong = |what: String, hint: &str| Err(Failure::new(exit::USAGE, what).hint(hint));
    if from.namespace != to.namespace {
        return wrong(
            format!(
                "Repository {} is in namespace {}, and {} in namespace {}: one pod needs the keys of both",
                from.name, from.namespace, to.name, to.namespace
            ),
            "make a Repository of the target's url and key in the namespace of the source, and name that",
        );
    }
    if from.name == to.name || from.url == to.url {
        return wrong(
            format!("Repository {} is where the backups are already", to.name),
            "name another one",
        );
    }
    if from.ca_config_map != to.ca_config_map {
        return wrong(
            format!("Repositories {} and {} trust different authorities", from.name, to.name),
            "put the authorities of both into one ConfigMap, and name it in both caConfigMapRef",
        );
    }
    let is_file = to.url.starts_with("file:");
    let other_account = from.service_account != to.service_account;
    if to.credentials_secret.is_none()
        && !is_file
        && (from.credentials_secret.is_some() || other_account)
    {
        return wrong(
            format!(
                "a copy cannot be both Repository {} and {} to their stores",
                from.name, to.name
            ),
            "give the target a Secret of credentials (credentials.secretRef)",
        );
    }
    Ok(())
}

/// Arguments of `mover copy` for the claims of these schedules; none where there is no claim.
///
/// # Errors
///
/// A read, which comes first.
pub(super) fn copy(
    seen: &Observed,
    place: &Repository,
    (target, retain): (&Repository, Option<&str>),
    schedules: &[&ScheduleOf],
) -> Planned<Option<Vec<String>>> {
    let mut all = BTreeSet::new();
    for schedule in schedules {
        all.extend(volumes(seen, place, schedule)?);
    }
    if all.is_empty() {
        return Ok(None);
    }
    let mut arguments = vec![
        "copy".to_owned(),
        format!("--to={}", target.url),
        format!("--to-key-file={}", super::jobs::TO_KEYS),
    ];
    arguments.extend(retain.map(|time| format!("--retain-for={time}")));
    arguments.extend(all.into_iter().map(|volume| format!("--volume={volume}")));
    Ok(Some(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(namespace: &str, name: &str) -> Repository {
        Repository {
            namespace: namespace.into(),
            name: name.into(),
            url: format!("s3://{name}/"),
            service_account: "mover".into(),
            credentials_secret: Some("store".into()),
            ..Repository::default()
        }
    }

    #[test]
    fn one_pod_must_be_able_to_copy() {
        let from = place("shop", "near");
        may_copy(&from, &place("shop", "far")).expect("both by Secrets");
        let why = |to: Repository| may_copy(&from, &to).expect_err("it cannot").to_string();
        assert!(why(place("vault", "far")).contains("one pod needs the keys of both"));
        assert!(why(place("shop", "near")).contains("already"));
        let bare = Repository { credentials_secret: None, ..place("shop", "far") };
        assert!(why(bare.clone()).contains("secretRef"));
        let file = Repository { url: "file:///mnt".into(), ..bare.clone() };
        may_copy(&from, &file).expect("a file needs none");
        let ca = Repository { ca_config_map: Some("ca".into()), ..place("shop", "far") };
        assert!(why(ca).contains("into one ConfigMap"));
        let by_account = Repository { credentials_secret: None, ..from.clone() };
        may_copy(&by_account, &bare).expect("one account for both");
        let other = Repository { service_account: "far".into(), ..bare };
        assert!(may_copy(&by_account, &other).is_err(), "a pod has one account");
    }
}
