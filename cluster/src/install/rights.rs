//! Accounts and roles: the least that the steps of the engine and of the controller take.
//!
//! The controller reads one Secret, that of its seals. It never needs those of a Repository: they
//! are mounted into the pods of Jobs, which the kubelet does. What a right cannot say, such as
//! "Jobs of ours alone", the admission policies say.

use super::{CONTROLLER, EACH, File, Manifest, SEAL_SECRET, Settings, When, labelled};
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";
pub(super) const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const GROUPS: &str = "groupsnapshot.storage.k8s.io";
const READ: [&str; 3] = ["get", "list", "watch"];
const ALL: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
/// Rights in the namespaces that it works in.
const NAMESPACED: &str = "mover-controller-namespaced";
/// Rights in the namespace of Velero.
const VELERO: &str = "mover-controller-velero";
/// The right to run hooks.
const HOOKS: &str = "mover-controller-hooks";

pub(super) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

/// Objects of the cluster.
fn wide() -> Vec<Value> {
    vec![
        rule("", &["persistentvolumes"], &ALL),
        // The uid of kube-system names the cluster, and a namespace that goes takes all with it.
        rule("", &["namespaces"], &READ),
        rule("storage.k8s.io", &["storageclasses", "volumeattachments", "csidrivers"], &READ),
        rule(SNAPSHOTS, &["volumesnapshotclasses"], &READ),
        rule(SNAPSHOTS, &["volumesnapshotcontents"], &ALL),
        rule(GROUPS, &["volumegroupsnapshotclasses"], &READ),
        rule(GROUPS, &["volumegroupsnapshotcontents"], &["get", "list", "watch", "patch"]),
        rule("cbt.storage.k8s.io", &["snapshotmetadataservices"], &READ),
    ]
}

/// Objects of namespaces.
fn namespaced() -> Vec<Value> {
    const OURS: [&str; 4] = ["repositories", "volumebackups", "volumerestores", "backupschedules"];
    let status = OURS.map(|plural| format!("{plural}/status"));
    let finalizers = OURS.map(|plural| format!("{plural}/finalizers"));
    vec![
        rule("mover.dev", &OURS, &["get", "list", "watch", "patch"]),
        // Those that schedules, drills and the list of a repository make.
        rule("mover.dev", &["volumebackups", "volumerestores"], &["create", "delete"]),
        json!({ "apiGroups": ["mover.dev"], "resources": status, "verbs": ["get", "patch"] }),
        // An owner that is waited for, where OwnerReferencesPermissionEnforcement asks.
        json!({ "apiGroups": ["mover.dev"], "resources": finalizers, "verbs": ["update"] }),
        rule("", &["configmaps", "persistentvolumeclaims"], &ALL),
        rule("", &["pods"], &READ),
        rule("", &["pods/log"], &["get"]),
        rule("", &["events"], &["get", "list", "watch", "create", "patch"]),
        rule("batch", &["jobs"], &ALL),
        rule("coordination.k8s.io", &["leases"], &ALL),
        rule(SNAPSHOTS, &["volumesnapshots"], &ALL),
        rule(GROUPS, &["volumegroupsnapshots"], &ALL),
        // The Jobs' account and its one right, which the controller has itself.
        rule("", &["serviceaccounts"], &["get", "list", "watch", "create"]),
        rule(RBAC, &["roles", "rolebindings"], &["get", "create"]),
    ]
}

/// Its own namespace.
fn own() -> Vec<Value> {
    vec![
        json!({
            "apiGroups": [""], "resources": ["secrets"],
            "resourceNames": [SEAL_SECRET], "verbs": ["get"],
        }),
        // A name cannot bound a creation; the policy `mover-controller-secrets` does.
        rule("", &["secrets"], &["create"]),
    ]
}

pub(super) fn role(kind: &str, name: &str, namespace: Option<&str>, rules: Vec<Value>) -> Value {
    let mut role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "rules": rules,
    });
    if let Some(namespace) = namespace {
        role["metadata"]["namespace"] = namespace.into();
    }
    labelled(role)
}

fn binding(
    settings: &Settings,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
    of: (&str, &str),
) -> Value {
    bound_to(settings, CONTROLLER, kind, name, namespace, of)
}

/// The same for an account of the controller's namespace.
pub(super) fn bound_to(
    settings: &Settings,
    account: &str,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
    of: (&str, &str),
) -> Value {
    let mut binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "roleRef": { "apiGroup": RBAC, "kind": of.0, "name": of.1 },
        "subjects": [{
            "kind": "ServiceAccount", "name": account, "namespace": settings.namespace,
        }],
    });
    if let Some(namespace) = namespace {
        binding["metadata"]["namespace"] = namespace.into();
    }
    labelled(binding)
}

/// What people of a namespace may do with our kinds, added to the roles that clusters have.
fn people() -> [Value; 2] {
    const OURS: [&str; 4] = ["repositories", "volumebackups", "volumerestores", "backupschedules"];
    let of = |name: &str, verbs: &[&str], to: &[&str]| {
        let mut role = role("ClusterRole", name, None, vec![rule("mover.dev", &OURS, verbs)]);
        for role_of_cluster in to {
            let label = format!("rbac.authorization.k8s.io/aggregate-to-{role_of_cluster}");
            role["metadata"]["labels"][label] = "true".into();
        }
        role
    };
    let write = ["create", "update", "patch", "delete", "deletecollection"];
    [
        of("mover-view", &READ, &["view", "edit", "admin"]),
        of("mover-edit", &write, &["edit", "admin"]),
    ]
}

/// What it takes to move data for Velero, whose namespace is one of those that it works in.
pub(super) fn of_velero(settings: &Settings) -> Vec<Manifest> {
    const GROUP: &str = "velero.io";
    let Some(namespace) = settings.velero.as_deref() else { return Vec::new() };
    let finalizers = ["datauploads/finalizers", "datadownloads/finalizers"];
    // They have no part for their status.
    let rules = vec![
        rule(GROUP, &["datauploads", "datadownloads"], &["get", "list", "watch", "patch"]),
        rule(GROUP, &finalizers, &["update"]),
        rule(GROUP, &["backupstoragelocations"], &READ),
    ];
    let at = Some(namespace);
    [
        role("Role", VELERO, at, rules),
        binding(settings, "RoleBinding", VELERO, at, ("Role", VELERO)),
    ]
    .map(|object| Manifest { file: File::Rights, when: When::Velero, object })
    .into()
}

pub(super) fn objects(settings: &Settings) -> Vec<Manifest> {
    let at = Some(settings.namespace.as_str());
    let rights = |when, object| Manifest { file: File::Rights, when, object };
    let hooks = |when, object| Manifest { file: File::Hooks, when, object };
    let account = labelled(json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": { "name": CONTROLLER, "namespace": settings.namespace },
        // Its pod asks for one.
        "automountServiceAccountToken": false,
    }));
    let exec = rule("", &["pods/exec"], &["get", "create"]);
    let cluster = |name| ("ClusterRole", name);
    let everywhere = |name| binding(settings, "ClusterRoleBinding", name, None, cluster(name));
    let somewhere = |name| binding(settings, "RoleBinding", name, Some(EACH), cluster(name));
    let mut all = vec![
        rights(When::Always, account),
        rights(When::Always, role("ClusterRole", CONTROLLER, None, wide())),
        rights(When::Always, everywhere(CONTROLLER)),
        rights(When::Always, role("ClusterRole", NAMESPACED, None, namespaced())),
        rights(When::Everywhere, everywhere(NAMESPACED)),
        rights(When::Somewhere, somewhere(NAMESPACED)),
        rights(When::Always, role("Role", CONTROLLER, at, own())),
        rights(
            When::Always,
            binding(settings, "RoleBinding", CONTROLLER, at, ("Role", CONTROLLER)),
        ),
    ];
    all.extend(people().into_iter().map(|object| rights(When::Always, object)));
    all.push(hooks(When::Hooks, role("ClusterRole", HOOKS, None, vec![exec])));
    all.push(hooks(When::HooksEverywhere, everywhere(HOOKS)));
    all.push(hooks(When::HooksSomewhere, somewhere(HOOKS)));
    all
}
