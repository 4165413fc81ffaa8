//! The accounts under which Jobs of a Repository run.

use super::jobs::{self, GC_ACCOUNT};
use super::plan::Facts;
use crate::engine::{
    self, CHANGES_ROLE, Key, Kind, MANAGER, Observed, Planned, Repository, SERVICE_ACCOUNT, Stop,
};
use serde_json::{Value, json};

/// The accounts of the Jobs, and the one right that they have. An account that was named is its
/// author's to make.
pub(super) fn accounts(facts: &Facts<'_>, seen: &Observed, place: &Repository) -> Planned<()> {
    let namespace = place.namespace.as_str();
    let labels = json!({ "app.kubernetes.io/managed-by": MANAGER });
    let ensure = |kind: Kind, name: &str, body: Value| {
        let key = Key::new(kind, namespace, name);
        if seen.find::<Value>(&key)?.is_some() {
            return Ok(());
        }
        let metadata = json!({ "name": name, "namespace": namespace, "labels": labels });
        seen.settle(Err(engine::Step::Create(engine::object(&key, metadata, body)).into()))
    };
    let no_token = || json!({ "automountServiceAccountToken": false });
    if place.service_account == SERVICE_ACCOUNT {
        ensure(Kind::ServiceAccount, SERVICE_ACCOUNT, no_token())?;
    }
    if facts.spec.gc.is_some() && jobs::gc_account(facts.spec) == GC_ACCOUNT {
        ensure(Kind::ServiceAccount, GC_ACCOUNT, no_token())?;
    }
    let rule = json!({
        "apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshots"], "verbs": ["get"],
    });
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CHANGES_ROLE });
    let subject =
        json!({ "kind": "ServiceAccount", "name": place.service_account, "namespace": namespace });
    for (kind, body) in [
        (Kind::Role, json!({ "rules": [rule] })),
        (Kind::RoleBinding, json!({ "roleRef": role, "subjects": [subject] })),
    ] {
        match ensure(kind, CHANGES_ROLE, body) {
            // Without it whole volumes are read.
            Err(Stop::Failure(why)) => tracing::debug!("{why}"),
            done => done?,
        }
    }
    Ok(())
}
