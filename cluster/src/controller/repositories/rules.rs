//! What BackupSchedules ask of a Repository: which backups of their claims stay, and where to copies
//! of them go.

use crate::engine::{
    self, Failure, Key, Kind, Next, Object, Observed, Planned, Repository, Selection, Stop, exit,
    notes,
};
use crate::kinds::{BackupScheduleSpec, Keep, RepositoryRef};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The longest name that a volume may have.
const VOLUME_BYTES_MAX: usize = 200;
/// Schedules that are named where they are left out.
const NAMED_MAX: usize = 5;

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

/// What a Job of `mover` is to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Schedules whose wishes are not among them, and why.
    pub left_out: Vec<String>,
}

impl Words {
    /// Arguments that leave nothing out.
    pub(super) fn of(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            left_out: Vec::new(),
        }
    }

    fn leave_out(&mut self, schedule: &ScheduleOf, why: &Failure) {
        match self.left_out.len() {
            ..NAMED_MAX => self.left_out.push(format!("{}: {why}", schedule.label())),
            NAMED_MAX => self.left_out.push("and more".into()),
            _ => {}
        }
    }
}

/// What a schedule asks for, or why that cannot be known. One that cannot be meant is no reason to
/// leave the others waiting.
///
/// # Errors
///
/// A read, which comes first. A failure upon an old answer is looked at again.
fn by_itself<T>(seen: &Observed, planned: Planned<T>) -> Planned<Result<T, Failure>> {
    match planned {
        Ok(found) => Ok(Ok(found)),
        Err(Stop::Failure(why)) if seen.is_fresh() => Ok(Err(why)),
        Err(Stop::Failure(_)) => Err(Stop::Next(Next::Refresh)),
        Err(next) => Err(next),
    }
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

/// The claims of a namespace with these labels; all without any.
fn claims(seen: &Observed, namespace: &str, labels: String) -> Planned<Vec<String>> {
    let selection = Selection::labelled(Kind::PersistentVolumeClaim, namespace, labels);
    let claims: Vec<Object<Value>> = seen.list(&selection)?;
    seen.confirm(&selection.into())?;
    Ok(claims.into_iter().map(|claim| claim.meta.name).collect())
}

/// The volume of a claim, as it is recorded. One of a longer name was never backed up, and the
/// program takes no such name.
fn volume(place: &Repository, namespace: &str, claim: &str) -> Option<String> {
    let name = format!("{}/{namespace}/{claim}", place.cluster);
    (name.len() <= VOLUME_BYTES_MAX).then_some(name)
}

/// Volumes of a schedule's claims, as they are recorded. A claim that is named counts also once it
/// is gone: its backups are still that schedule's.
fn volumes(
    seen: &Observed,
    place: &Repository,
    schedule: &ScheduleOf,
) -> Planned<BTreeSet<String>> {
    let source = &schedule.spec.template.spec.source;
    let namespace = schedule.namespace.as_str();
    let mut all: Vec<String> = source.pvc.iter().cloned().collect();
    if let Some(selector) = &source.selector {
        let labels: Vec<String> =
            selector.match_labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        all.extend(claims(seen, namespace, labels.join(","))?);
    }
    Ok(all.iter().filter_map(|claim| volume(place, namespace, claim)).collect())
}

/// The same of a schedule that cannot be meant: where its labels are wrong, all of its namespace.
fn volumes_at_most(
    seen: &Observed,
    place: &Repository,
    schedule: &ScheduleOf,
) -> Planned<BTreeSet<String>> {
    let namespace = schedule.namespace.as_str();
    match volumes(seen, place, schedule) {
        Err(Stop::Failure(_)) => {
            let all = claims(seen, namespace, String::new())?;
            Ok(all.iter().filter_map(|claim| volume(place, namespace, claim)).collect())
        }
        found => found,
    }
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

/// Whether `mover forget` takes a span of time, and it keeps something.
fn is_span(text: &str) -> bool {
    let Some((last, unit)) = text.char_indices().next_back() else { return false };
    let each: u32 = match unit {
        'h' | 'm' => 1,
        'd' => 24,
        'w' => 24 * 7,
        'y' => 12,
        _ => return false,
    };
    let digits = &text[..last];
    let number = digits.parse::<u32>().ok().filter(|number| *number > 0);
    digits.bytes().all(|byte| byte.is_ascii_digit())
        && number.is_some_and(|number| number.checked_mul(each).is_some())
}

/// The rules of one schedule as arguments.
fn rules_of(
    seen: &Observed,
    place: &Repository,
    schedule: &ScheduleOf,
    keep: &Keep,
) -> Planned<Vec<String>> {
    if let Some(span) = keep.within.as_ref().filter(|span| !is_span(span)) {
        let why = Failure::new(exit::USAGE, format!("spec.keep.within: {span} cannot be meant"));
        return Err(why.hint("write a number and one of h, d, w, m, y, such as 30d").into());
    }
    let namespace = Key::wide(Kind::Namespace, &schedule.namespace);
    let Some(found) = seen.find::<Value>(&namespace)? else { return Ok(Vec::new()) };
    let joined: Vec<String> =
        rules(keep).iter().map(|(name, value)| format!("{name}={value}")).collect();
    let only = match schedule.namespace == place.namespace {
        // The keys are there: whoever is there may forget anything by himself.
        true => String::new(),
        false => format!(",only={}={}", notes::NAMESPACE_UID, found.meta.uid),
    };
    let volumes = volumes(seen, place, schedule)?;
    let rule = |volume| format!("--keep-of={}{only}:{volume}", joined.join(","));
    Ok(volumes.into_iter().map(rule).collect())
}

/// What `mover forget` is to do by the rules of a Repository and of its schedules; none where
/// nothing is to be forgotten.
///
/// A schedule decides about backups of its own namespace alone: in one that was made anew under an
/// old name nobody forgets what the old one had stored. One whose rule cannot be meant is left out,
/// and its volumes stay whole: the Repository's rule may be stricter.
///
/// # Errors
///
/// A read, which comes first, or that failed: then nothing is forgotten.
pub(super) fn forget(
    seen: &Observed,
    place: &Repository,
    keep: Option<&Keep>,
    schedules: &[&ScheduleOf],
) -> Planned<Option<Words>> {
    // Other clusters, and hosts, may have volumes in the same bucket.
    let mut words = Words::of(&["forget", &format!("--below={}/", place.cluster)]);
    let always = words.arguments.len();
    let rest = keep.map(rules).unwrap_or_default();
    words.arguments.extend(rest.iter().map(|(name, value)| format!("--keep-{name}={value}")));
    for schedule in schedules {
        let Some(keep) = schedule.spec.keep.as_ref().filter(|keep| !rules(keep).is_empty()) else {
            continue;
        };
        match by_itself(seen, rules_of(seen, place, schedule, keep))? {
            Ok(all) => words.arguments.extend(all),
            Err(why) => {
                words.leave_out(schedule, &why);
                let whole = volumes_at_most(seen, place, schedule)?.into_iter();
                let rule = |volume| format!("--keep-of=last={}:{volume}", u32::MAX);
                words.arguments.extend(whole.map(rule));
            }
        }
    }
    Ok((words.arguments.len() > always).then_some(words))
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

/// What `mover copy` is to do for the claims of these schedules; none where there is no claim.
///
/// # Errors
///
/// A read, which comes first.
pub(super) fn copy(
    seen: &Observed,
    place: &Repository,
    (target, retain): (&Repository, Option<&str>),
    schedules: &[&ScheduleOf],
) -> Planned<Option<Words>> {
    let mut words = Words::of(&[
        "copy",
        &format!("--to={}", target.url),
        &format!("--to-key-file={}", super::jobs::TO_KEYS),
    ]);
    let mut all = BTreeSet::new();
    for schedule in schedules {
        match by_itself(seen, volumes(seen, place, schedule))? {
            Ok(volumes) => all.extend(volumes),
            Err(why) => words.leave_out(schedule, &why),
        }
    }
    if all.is_empty() {
        return match words.left_out.is_empty() {
            true => Ok(None),
            false => Err(Failure::new(exit::USAGE, words.left_out.join("; ")).into()),
        };
    }
    words.arguments.extend(retain.map(|time| format!("--retain-for={time}")));
    words.arguments.extend(all.into_iter().map(|volume| format!("--volume={volume}")));
    Ok(Some(words))
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
    fn a_span_is_one_that_the_program_takes() {
        for text in ["1h", "30d", "8w", "6m", "99999y"] {
            assert!(is_span(text), "{text}");
        }
        for text in ["", "d", "0d", "30", "-1d", "+1d", "9999999999y", "4294967295d", "30é"] {
            assert!(!is_span(text), "{text}");
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
