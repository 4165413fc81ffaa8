//! From the claims of some labels to the request of one backup of all of them.

use crate::api::Api;
use crate::engine::{
    Failure, Group, Hook, Kind, Observed, Planned, Repository, Selection, SnapshotClass, choice,
    exit,
};
use crate::ops::backup::{self, BackupOptions};
use crate::ops::hook;
use crate::ops::look::look;
use crate::ops::sources::{self, Source};
use std::collections::BTreeMap;

/// A request has all of them in one object, and drivers take no more at one moment.
const MEMBERS_MAX: usize = 100;

/// The labels of a selector; a group is chosen by labels and their values alone.
///
/// # Errors
///
/// A text that says more than that, or nothing.
pub fn labels(selector: &str) -> Result<BTreeMap<String, String>, Failure> {
    let pair = |text: &str| {
        let (name, value) = text.split_once('=')?;
        let is_plain = |text: &str| !text.contains(['!', '=', '(', ')', ' ']);
        (!name.is_empty() && is_plain(name) && is_plain(value))
            .then(|| (name.to_owned(), value.to_owned()))
    };
    let all: Option<BTreeMap<String, String>> = selector.split(',').map(pair).collect();
    all.ok_or_else(|| {
        let what = format!("{selector}: a group is chosen by labels, each with its value");
        Failure::new(exit::USAGE, what).hint("write NAME=VALUE, joined by commas, such as app=db")
    })
}

/// The request for a backup of all claims with these labels.
///
/// # Errors
///
/// The first reason why it would not work.
pub async fn request(
    api: &Api,
    namespace: &str,
    selector: &BTreeMap<String, String>,
    repository: &Repository,
    options: &BackupOptions,
) -> Result<Group, Failure> {
    if selector.is_empty() {
        return Err(Failure::new(exit::USAGE, "a group needs labels that choose its claims")
            .hint("give the claims of the application a label, and name it in the selector"));
    }
    let pairs: Vec<String> =
        selector.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let labels = pairs.join(",");
    let found = look(api, |seen| sources::expand(seen, namespace, &[], Some(&labels))).await?;
    let count = found.claims.len();
    if count > MEMBERS_MAX {
        let what = format!("{count} claims in namespace {namespace} have the labels {labels}");
        return Err(Failure::new(exit::USAGE, what)
            .hint(format!("a group has {MEMBERS_MAX} claims at most: choose fewer")));
    }
    let without_hook = BackupOptions { hook: None, ..options.clone() };
    let mut members = Vec::new();
    for Source { name, .. } in &found.claims {
        let one = backup::request(api, namespace, name, repository, &without_hook);
        members.push(Box::pin(one).await?);
    }
    let hooks = hooks(api, namespace, &found.claims, options).await?;
    let mut drivers: Vec<&str> = members.iter().map(|member| member.driver.as_str()).collect();
    drivers.dedup();
    let (class, why) = match drivers.as_slice() {
        [driver] => {
            let why = format!("driver {driver} has no VolumeGroupSnapshotClass");
            (look(api, |seen| class_of(seen, driver)).await?, why)
        }
        several => (None, format!("the claims are of several drivers: {}", several.join(", "))),
    };
    if class.is_none() && hooks.is_empty() {
        let what = format!("{why}, and nothing else makes snapshots of one moment");
        return Err(Failure::new(exit::USAGE, what).hint(
            "make a class, or have the application hold still by a hook while its volumes are snapshotted one by one",
        ));
    }
    Ok(Group {
        namespace: namespace.to_owned(),
        selector: selector.clone(),
        class,
        members,
        hooks,
        limits: options.limits,
    })
}

/// The class of groups: the driver's default, or its only one; none where it has none, or where the
/// cluster knows no groups.
fn class_of(seen: &Observed, driver: &str) -> Planned<Option<String>> {
    let all = seen.list::<SnapshotClass>(&Selection::all(Kind::VolumeGroupSnapshotClass))?;
    Ok(choice::group_class(driver, &all)?.map(|class| class.key.name.clone()))
}

/// One hook for each pod that uses a claim of the group, or for the one pod that is named.
async fn hooks(
    api: &Api,
    namespace: &str,
    claims: &[Source],
    options: &BackupOptions,
) -> Result<Vec<Hook>, Failure> {
    let Some(given) = &options.hook else { return Ok(Vec::new()) };
    let mut all: Vec<Hook> = Vec::new();
    for Source { name, .. } in claims {
        let one = hook::find(api, namespace, name, given).await?;
        if !all.iter().any(|other| other.uid == one.uid) {
            all.push(one);
        }
        if given.pod.is_some() {
            break;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_chosen_by_labels_and_their_values_alone() {
        let two = labels("app=db,tier=back").expect("two labels");
        assert_eq!(two["app"], "db");
        assert_eq!(two["tier"], "back");
        assert_eq!(labels("app=").expect("an empty value")["app"], "");
        for wrong in ["", "app", "app!=db", "app in (a,b)", "!app", "=db", "app==db"] {
            let why = labels(wrong).expect_err(wrong);
            assert!(why.message.contains("by labels"), "{wrong}: {why}");
        }
    }
}
