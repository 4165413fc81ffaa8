//! Other operations on the claim.

use super::{Level, Look};
use crate::engine::choice;
use crate::engine::names::{MANAGER, SOURCE, STATE, source_lease};
use crate::engine::object::{Kind, Selection};
use crate::engine::observed::Object;
use crate::engine::step::Planned;
use crate::engine::views::{Claim, ConfigMap, Lease};

pub(super) fn check(look: &mut Look<'_>, claim: &Object<Claim>) -> Planned<()> {
    let namespace = claim.key.namespace.as_deref().unwrap_or_default();
    let key = source_lease(namespace, &claim.meta.uid);
    let lease = look.known(Level::Error, &key, look.seen.find::<Lease>(&key))?;
    let mut at_work = None;
    if let Some(lease) = lease.flatten() {
        let holder = look.known(Level::Error, &key, choice::holder(look.seen, &lease))?;
        at_work = holder.flatten();
    }
    if let Some((of, name)) = &at_work {
        let what = format!("operation {name} in namespace {of} is at work on it");
        let hint = format!(
            "a backup waits for it, up to its --turn-timeout; end it: kubectl mover cancel {name} \
             -n {of}"
        );
        look.say(Level::Warning, &claim.key, &what, &hint);
    }
    let labels = format!(
        "app.kubernetes.io/managed-by={MANAGER},{SOURCE}={},{STATE}=running",
        claim.meta.uid
    );
    let selection = Selection::labelled(Kind::ConfigMap, namespace, labels);
    let place = format!("configmaps in namespace {namespace}");
    let all = look.known(Level::Error, place, look.seen.list::<ConfigMap>(&selection))?;
    for anchor in all.unwrap_or_default() {
        let name = &anchor.key.name;
        if at_work.as_ref().is_some_and(|(_, other)| other == name) {
            continue;
        }
        let what = format!("operation {name} has not ended");
        let hint = format!(
            "the command that began it goes on with it; kubectl mover cancel {name} -n {namespace} \
             ends it"
        );
        look.say(Level::Warning, &claim.key, &what, &hint);
    }
    Ok(())
}
