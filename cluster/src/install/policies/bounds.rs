//! For the controller's own account: it makes, changes and deletes what is ours.
//!
//! Two things are the users' and yet its work: the volume of a claim that is restored in place, and
//! that claim. Both have an annotation of ours first, and an administrator may switch them off.

use super::super::{SEAL_SECRET, Settings};
use super::authors::images;
use super::{Policy, Validation, bound, has, lines, quoted, taken, validation};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const ALL: [&str; 3] = ["CREATE", "UPDATE", "DELETE"];
const OWNER: &str = "'mover.dev/owner'";
/// On a volume that is restored in place, and on its claim before it is exchanged.
const IN_PLACE: &str = "'mover.dev/in-place'";
const RESTORED: &str = "'mover.dev/restored-from'";

pub(super) fn policies(settings: &Settings) -> Vec<Policy> {
    vec![
        jobs(settings),
        volumes(settings),
        claims(settings),
        contents(settings),
        group_contents(),
        snapshots(settings),
        records(),
        own_kinds(),
        accounts(),
        secrets(settings),
    ]
}

/// It has the label of what operations make.
fn owned(object: &str) -> String {
    has(object, "labels", OWNER)
}

/// A label's value.
fn is(object: &str, label: &str, value: &str) -> String {
    let has = has(object, "labels", label);
    format!("({has} && {object}.metadata.labels[{label}] == {value})")
}

/// Before a change or a removal it was ours, and it stays ours.
fn stays_owned() -> String {
    lines(&[
        &format!("(oldObject == null || {})", owned("oldObject")),
        &format!("&& (object == null || {})", owned("object")),
    ])
}

fn jobs(settings: &Settings) -> Policy {
    let pod = "variables.pod";
    let container = "variables.pod.containers[0]";
    let is_drill = is("object", "'mover.dev/role'", "'drill'");
    let variables = vec![
        ("pod", "object.spec.template.spec".to_owned()),
        ("volumes", format!("has({pod}.volumes) ? {pod}.volumes : []")),
        ("env", format!("has({container}.env) ? {container}.env : []")),
        ("args", format!("has({container}.args) ? {container}.args : []")),
        ("drill", format!("object != null && {is_drill}")),
        ("token", "variables.volumes.exists(v, has(v.projected))".to_owned()),
        (
            "account",
            format!("has({pod}.serviceAccountName) ? {pod}.serviceAccountName : 'default'"),
        ),
    ];
    let mut validations = vec![validation(
        stays_owned(),
        "the controller has no Jobs but those with mover.dev/owner",
    )];
    let unless_gone = |text: String| format!("object == null || (\n{text}\n)");
    for (text, message) in
        [shape(settings), security(), volumes_of_jobs(), tokens(), environment(), drills()]
    {
        validations.push(validation(unless_gone(text), message));
    }
    validations.extend(weak_account());
    bound(
        "mover-controller-jobs",
        vec![("batch", vec!["jobs"], ALL.to_vec())],
        variables,
        validations,
    )
}

/// One container, of our image and its own command.
fn shape(settings: &Settings) -> (String, &'static str) {
    let text = lines(&[
        "variables.pod.containers.size() == 1 && !has(variables.pod.initContainers)",
        "&& (variables.drill || (variables.pod.containers[0].name == 'mover'",
        "  && !has(variables.pod.containers[0].command)",
        &format!("  && variables.pod.containers[0].image in [{}]))", images(settings)),
    ]);
    (text, "the controller's Jobs run mover, of an image of the installation, or a drill")
}

fn security() -> (String, &'static str) {
    let text = lines(&[
        "(!has(variables.pod.hostNetwork) || !variables.pod.hostNetwork)",
        "&& (!has(variables.pod.hostPID) || !variables.pod.hostPID)",
        "&& (!has(variables.pod.hostIPC) || !variables.pod.hostIPC)",
        "&& has(variables.pod.automountServiceAccountToken)",
        "&& !variables.pod.automountServiceAccountToken",
        "&& variables.pod.containers.all(c, has(c.securityContext)",
        "  && (!has(c.securityContext.privileged) || !c.securityContext.privileged)",
        "  && has(c.securityContext.allowPrivilegeEscalation)",
        "  && !c.securityContext.allowPrivilegeEscalation",
        "  && has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop)",
        "  && 'ALL' in c.securityContext.capabilities.drop",
        "  && !has(c.securityContext.capabilities.add))",
    ]);
    (text, "the controller's Jobs have no privilege, nothing of the host and no token of the API")
}

/// Secrets are keys, where the program reads keys and nothing else does: its own, and a copy's
/// target's.
fn volumes_of_jobs() -> (String, &'static str) {
    let text = lines(&[
        "variables.volumes.all(v, has(v.emptyDir) || has(v.configMap)",
        "  || has(v.persistentVolumeClaim) || has(v.projected) || has(v.secret))",
        "&& variables.volumes.all(v, !has(v.secret) || (has(variables.pod.containers[0].volumeMounts)",
        "  && variables.pod.containers[0].volumeMounts.all(m, m.name != v.name",
        "    || m.mountPath in ['/etc/mover/keys', '/etc/mover/to-keys'])))",
    ]);
    (text, "the controller's Jobs mount claims, a key, an authority and a token, and no host path")
}

/// The one token is for another audience than the API, and goes where it is meant for.
fn tokens() -> (String, &'static str) {
    let text = lines(&[
        "variables.volumes.all(v, !has(v.projected) || (has(v.projected.sources)",
        "  && v.projected.sources.all(s, has(s.downwardAPI) || (has(s.serviceAccountToken)",
        "    && has(s.serviceAccountToken.audience) && s.serviceAccountToken.audience != ''))))",
        "&& variables.args.all(a, a != '--changes-token-file'",
        "  && !a.startsWith('--changes-secrets-file') && !a.startsWith('--password-command')",
        "  && (!a.startsWith('--changes-token-file=')",
        "    || a == '--changes-token-file=/etc/mover/changes/token'))",
    ]);
    (text, "the controller's Jobs have a token for the service of changed blocks alone")
}

/// Nothing by which a program sends a file somewhere, or runs another one.
fn environment() -> (String, &'static str) {
    let text = lines(&[
        "variables.env.all(e, !has(e.valueFrom) && !e.name.endsWith('_TOKEN_FILE')",
        "  && !e.name.startsWith('MOVER_CHANGES_') && e.name != 'MOVER_PASSWORD_COMMAND')",
        "&& (!has(variables.pod.containers[0].envFrom)",
        "  || variables.pod.containers[0].envFrom.all(e, has(e.secretRef)))",
    ]);
    (text, "the controller's Jobs have plain variables, and those of the store's Secret")
}

/// Of any image, and so with nothing but the restored volume. It runs as whom its image says: data
/// may be readable to its owner alone. Nobody asks for root.
fn drills() -> (String, &'static str) {
    let text = lines(&[
        "!variables.drill || (",
        "variables.volumes.all(v, has(v.emptyDir) || (has(v.persistentVolumeClaim)",
        "  && v.persistentVolumeClaim.claimName.startsWith('mover-')))",
        "&& !has(variables.pod.containers[0].envFrom)",
        "&& has(variables.pod.securityContext)",
        "&& has(variables.pod.securityContext.seccompProfile)",
        "&& (!has(variables.pod.securityContext.runAsUser)",
        "  || variables.pod.securityContext.runAsUser > 0)",
        "&& variables.pod.containers.all(c, !has(c.securityContext.runAsUser)",
        "  || c.securityContext.runAsUser > 0))",
    ]);
    (text, "a drill has no privilege, and its restored volume alone")
}

/// A token of an account that can do much is worth stealing, for whichever audience.
fn weak_account() -> [Validation; 3] {
    let of = |group: &str, resource: &str, verb: &str| {
        format!(
            "!authorizer.serviceAccount(request.namespace, variables.account).group('{group}')\
             .resource('{resource}').namespace(request.namespace).check('{verb}').allowed()"
        )
    };
    let pairs = [
        [of("", "pods", "create"), of("batch", "jobs", "create")],
        [of("", "secrets", "get"), of("", "serviceaccounts", "impersonate")],
        [of("*", "*", "*"), of("rbac.authorization.k8s.io", "rolebindings", "create")],
    ];
    pairs.map(|[left, right]| {
        validation(
            lines(&[
                "object == null || !variables.token",
                &format!("|| ({left}"),
                &format!("  && {right})"),
            ]),
            "a Job with a token runs under an account that can do next to nothing",
        )
    })
}

fn volumes(settings: &Settings) -> Policy {
    let claimed =
        "has(oldObject.spec.claimRef) && oldObject.spec.claimRef.name.startsWith('mover-')";
    let held =
        format!("({} && ({}))", has("oldObject", "annotations", IN_PLACE), settings.in_place);
    let ours = format!("({} || ({claimed}))", owned("oldObject"));
    let policy_of = "persistentVolumeReclaimPolicy";
    bound(
        "mover-controller-volumes",
        vec![("", vec!["persistentvolumes"], ALL.to_vec())],
        vec![("ours", format!("oldObject != null && {ours}"))],
        vec![
            validation(
                lines(&[
                    "request.operation != 'CREATE'",
                    &format!("|| ({} && has(object.spec.csi))", owned("object")),
                ]),
                "the controller makes no volume but one of a CSI driver with mover.dev/owner",
            ),
            validation(
                lines(&[
                    "request.operation != 'UPDATE' || variables.ours",
                    &format!("|| {held}"),
                    "|| (has(object.spec.claimRef) == has(oldObject.spec.claimRef)",
                    "  && (!has(object.spec.claimRef) || object.spec.claimRef == oldObject.spec.claimRef))",
                ]),
                "the controller gives no volume to another claim but one that it made or holds",
            ),
            validation(
                lines(&[
                    "request.operation != 'UPDATE' || variables.ours",
                    &format!("|| {held}"),
                    &format!("|| {}", has("oldObject", "annotations", RESTORED)),
                    &format!("|| object.spec.{policy_of} == oldObject.spec.{policy_of}"),
                    &format!("|| object.spec.{policy_of} == 'Retain'"),
                ]),
                "the controller lets no volume be deleted but one that it made or holds",
            ),
            validation(
                lines(&[
                    &format!("request.operation != 'DELETE' || {}", owned("oldObject")),
                    &format!("|| ({claimed} && oldObject.spec.{policy_of} == 'Retain')"),
                ]),
                "the controller deletes no volume but its own, and those whose data it keeps",
            ),
        ],
    )
}

fn claims(settings: &Settings) -> Policy {
    let in_place = &settings.in_place;
    bound(
        "mover-controller-claims",
        vec![("", vec!["persistentvolumeclaims"], ALL.to_vec())],
        Vec::new(),
        vec![
            validation(
                lines(&[
                    &format!("request.operation != 'CREATE' || {}", owned("object")),
                    &format!("|| (({in_place}) && has(object.spec.volumeName))"),
                ]),
                "the controller makes claims with mover.dev/owner, and those that it exchanges",
            ),
            validation(
                lines(&[
                    &format!("request.operation != 'UPDATE' || {}", owned("oldObject")),
                    "|| object.spec == oldObject.spec",
                ]),
                "the controller changes the spec of no claim but its own",
            ),
            validation(
                lines(&[
                    &format!("request.operation != 'DELETE' || {}", owned("oldObject")),
                    &format!("|| (({in_place}) && {})", has("oldObject", "annotations", IN_PLACE)),
                ]),
                "the controller deletes no claim but its own, and those that it exchanges",
            ),
        ],
    )
}

fn contents(settings: &Settings) -> Policy {
    bound(
        "mover-controller-contents",
        vec![(SNAPSHOTS, vec!["volumesnapshotcontents"], ALL.to_vec())],
        Vec::new(),
        vec![
            validation(
                lines(&[
                    &format!("request.operation != 'CREATE' || ({}", owned("object")),
                    "  && object.spec.deletionPolicy == 'Retain'",
                    "  && object.spec.volumeSnapshotRef.name.startsWith('mover-'))",
                ]),
                "the controller makes contents that it hands over, of policy Retain",
            ),
            // Members of a group, named by the snapshot controller, are marked, and freed of Retain.
            // What the storage has of them goes with the content of the group alone.
            validation(
                taken::with(
                    settings,
                    taken::content,
                    &[
                        &format!("request.operation != 'UPDATE' || {}", owned("oldObject")),
                        "|| oldObject.spec.volumeSnapshotRef.name.startsWith('mover-')",
                        "|| (has(oldObject.status) && has(oldObject.status.volumeGroupSnapshotHandle)",
                        "  && object.spec.volumeSnapshotRef == oldObject.spec.volumeSnapshotRef",
                        "  && object.spec.source == oldObject.spec.source",
                        "  && object.spec.driver == oldObject.spec.driver)",
                    ],
                ),
                "the controller changes contents of its own snapshots alone",
            ),
            validation(
                format!("request.operation != 'DELETE' || {}", owned("oldObject")),
                "the controller deletes contents with mover.dev/owner alone",
            ),
        ],
    )
}

/// The content of a group says what becomes of the storage's snapshots.
fn group_contents() -> Policy {
    bound(
        "mover-controller-group-contents",
        vec![("groupsnapshot.storage.k8s.io", vec!["volumegroupsnapshotcontents"], ALL.to_vec())],
        Vec::new(),
        vec![
            validation(
                "request.operation == 'UPDATE'",
                "the controller makes and deletes no contents of groups",
            ),
            validation(
                lines(&[
                    "request.operation != 'UPDATE'",
                    "|| oldObject.spec.volumeGroupSnapshotRef.name.startsWith('mover-')",
                ]),
                "the controller changes contents of its own groups alone",
            ),
        ],
    )
}

fn snapshots(settings: &Settings) -> Policy {
    bound(
        "mover-controller-snapshots",
        vec![
            (SNAPSHOTS, vec!["volumesnapshots"], ALL.to_vec()),
            ("groupsnapshot.storage.k8s.io", vec!["volumegroupsnapshots"], ALL.to_vec()),
        ],
        Vec::new(),
        vec![
            validation(
                lines(&[
                    &format!(
                        "request.operation == 'UPDATE' || (object != null ? {}",
                        owned("object")
                    ),
                    &format!("  : {})", owned("oldObject")),
                ]),
                "the controller makes and deletes snapshots with mover.dev/owner alone",
            ),
            validation(
                lines(&[
                    &format!("request.operation != 'UPDATE' || {}", owned("oldObject")),
                    "|| object.spec == oldObject.spec",
                ]),
                "the controller changes the spec of its own snapshots alone",
            ),
            // A label of ours lets it be deleted.
            validation(
                taken::with(
                    settings,
                    taken::snapshot,
                    &[
                        &format!("request.operation != 'UPDATE' || {}", owned("oldObject")),
                        &format!("|| !{}", owned("object")),
                        "|| (request.kind.kind == 'VolumeSnapshot' && has(oldObject.status)",
                        "  && has(oldObject.status.volumeGroupSnapshotName)",
                        "  && oldObject.status.volumeGroupSnapshotName.startsWith('mover-'))",
                    ],
                ),
                "the controller makes members of its own groups its own, and no other snapshot",
            ),
        ],
    )
}

fn records() -> Policy {
    let ours = |object: &str| is(object, "'app.kubernetes.io/managed-by'", "'mover'");
    bound(
        "mover-controller-records",
        vec![
            ("", vec!["configmaps"], ALL.to_vec()),
            ("coordination.k8s.io", vec!["leases"], ALL.to_vec()),
        ],
        Vec::new(),
        vec![validation(
            lines(&[
                &format!("(oldObject == null || ({}", ours("oldObject")),
                "  && oldObject.metadata.name.startsWith('mover-')",
                "  && !oldObject.metadata.name.startsWith('mover-repository-')))",
                &format!("&& (object == null || ({}", ours("object")),
                "  && object.metadata.name.startsWith('mover-')",
                "  && !object.metadata.name.startsWith('mover-repository-')))",
            ]),
            "the controller's records and Leases are named mover-…, and labelled so",
        )],
    )
}

/// It makes them, marks them and says how they are. Their specs are the authors'. Of a backup that it
/// removes alone it says before that the stored one stays; the kind's own rule holds all else of it.
fn own_kinds() -> Policy {
    let all = vec!["repositories", "volumebackups", "volumerestores", "backupschedules"];
    bound(
        "mover-controller-kinds",
        vec![("mover.dev", all, vec!["UPDATE", "DELETE"])],
        Vec::new(),
        vec![
            validation(
                lines(&[
                    "object == null || object.spec == oldObject.spec",
                    "|| (request.kind.kind == 'VolumeBackup' && has(object.spec.deletionPolicy)",
                    "  && object.spec.deletionPolicy == 'Retain')",
                ]),
                "the controller changes no spec",
            ),
            validation(
                lines(&[
                    "request.operation != 'DELETE'",
                    &format!("|| {}", is("oldObject", "'app.kubernetes.io/managed-by'", "'mover'")),
                ]),
                "the controller deletes what it made itself",
            ),
        ],
    )
}

/// The Jobs' account and its one right.
fn accounts() -> Policy {
    bound(
        "mover-controller-accounts",
        vec![
            ("", vec!["serviceaccounts"], vec!["CREATE"]),
            ("rbac.authorization.k8s.io", vec!["roles", "rolebindings"], vec!["CREATE"]),
        ],
        Vec::new(),
        vec![
            validation(
                lines(&[
                    "request.kind.kind != 'ServiceAccount'",
                    "|| (object.metadata.name.startsWith('mover')",
                    "  && has(object.automountServiceAccountToken)",
                    "  && !object.automountServiceAccountToken)",
                ]),
                "the controller makes accounts of Jobs, without a token",
            ),
            validation(
                lines(&[
                    "request.kind.kind != 'Role'",
                    "|| (object.metadata.name == 'mover-changed-blocks' && has(object.rules)",
                    "  && object.rules.all(r, r.verbs == ['get']",
                    "    && r.apiGroups == ['snapshot.storage.k8s.io']",
                    "    && r.resources == ['volumesnapshots']))",
                ]),
                "the controller makes one role: mover-changed-blocks, to get volumesnapshots",
            ),
            validation(
                lines(&[
                    "request.kind.kind != 'RoleBinding'",
                    "|| (object.roleRef.kind == 'Role'",
                    "  && object.roleRef.name == 'mover-changed-blocks' && has(object.subjects)",
                    "  && object.subjects.all(s, s.kind == 'ServiceAccount'",
                    "    && has(s.namespace) && s.namespace == request.namespace))",
                ]),
                "the controller binds mover-changed-blocks alone, to accounts of its namespace",
            ),
        ],
    )
}

/// A Secret of another type would bring a token of any account of that namespace.
fn secrets(settings: &Settings) -> Policy {
    bound(
        "mover-controller-secrets",
        vec![("", vec!["secrets"], vec!["CREATE", "UPDATE"])],
        Vec::new(),
        vec![validation(
            lines(&[
                &format!("request.namespace == {}", quoted(&settings.namespace)),
                &format!("&& object.metadata.name == {}", quoted(SEAL_SECRET)),
                "&& has(object.type) && object.type == 'Opaque'",
            ]),
            "the controller writes one Secret, that of its seals",
        )],
    )
}
