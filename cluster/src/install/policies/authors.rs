//! For whoever makes our objects: the rights that he would need to do the same without us.

use super::super::Settings;
use super::{Policy, Validation, by_controller, lines, quoted, validation};

const GROUP: &str = "mover.dev";
const WRITES: [&str; 2] = ["CREATE", "UPDATE"];
/// The spec is what it was: labels, finalizers and the like are changed by anybody who may.
const SAME: &str = "oldObject != null && object.spec == oldObject.spec";
/// Whoever may make pods in a namespace may mount its claims and Secrets.
const MAKES_PODS: &str =
    "authorizer.group('').resource('pods').namespace(request.namespace).check('create').allowed()";
const EXECS: &str = "authorizer.group('').resource('pods').subresource('exec')\
                     .namespace(request.namespace).check('create').allowed()";

pub(super) fn policies(settings: &Settings) -> Vec<Policy> {
    vec![
        backups(settings),
        schedules(settings),
        restores(settings),
        repositories(settings),
        records(settings),
        differentials(settings),
    ]
}

fn policy(
    settings: &Settings,
    name: &'static str,
    resource: &'static str,
    variables: Vec<(&'static str, String)>,
    validations: Vec<Validation>,
) -> Policy {
    let mut all = vec![("same", SAME.to_owned())];
    all.extend(variables);
    Policy {
        name,
        resources: vec![(GROUP, vec![resource], WRITES.to_vec())],
        conditions: vec![("by-others", format!("!({})", by_controller(settings)))],
        variables: all,
        validations,
    }
}

/// The right to read a Secret or a ConfigMap by its name, if one is named.
fn may_read(resource: &str, named: &[&str], name: &str) -> String {
    let absent: Vec<String> = named.iter().map(|member| format!("!has({member})")).collect();
    lines(&[
        &format!("variables.same || {}", absent.join(" || ")),
        &format!("|| authorizer.group('').resource('{resource}').namespace(request.namespace)"),
        &format!("  .name({name}).check('get').allowed()"),
    ])
}

/// The owner of another namespace's Repository gets the data: whoever sends it there could read it.
fn sends(settings: &Settings, has: &str, reference: &str) -> Validation {
    validation(
        lines(&[
            &format!("variables.same || !has({has}) || !has({reference}.namespace)"),
            &format!(
                "|| {reference}.namespace in [request.namespace, {}]",
                quoted(&settings.namespace)
            ),
            &format!("|| {MAKES_PODS}"),
        ]),
        "data goes to a Repository of another namespace: this needs the right to create pods here",
    )
}

/// A list names blocks of snapshots, which drivers tell whoever may read those.
fn differentials(settings: &Settings) -> Policy {
    policy(
        settings,
        "mover-authors-differentials",
        "differentialsnapshots",
        Vec::new(),
        vec![validation(
            lines(&[
                "variables.same || authorizer.group('snapshot.storage.k8s.io')",
                "  .resource('volumesnapshots').namespace(request.namespace).check('get').allowed()",
            ]),
            "a list of changed blocks needs the right to get volumesnapshots in this namespace",
        )],
    )
}

fn hooks() -> Validation {
    validation(
        lines(&["variables.same || !has(variables.spec.hooks)", &format!("|| {EXECS}")]),
        "hooks run commands in pods: this needs the right to create pods/exec in this namespace",
    )
}

fn backups(settings: &Settings) -> Policy {
    policy(
        settings,
        "mover-authors-backups",
        "volumebackups",
        vec![("spec", "object.spec".to_owned())],
        vec![
            hooks(),
            sends(settings, "variables.spec.repositoryRef", "variables.spec.repositoryRef"),
            validation(
                "request.operation != 'CREATE' || !has(variables.spec.source.recorded)",
                "a backup that a repository has already is shown by the controller alone",
            ),
        ],
    )
}

fn schedules(settings: &Settings) -> Policy {
    policy(
        settings,
        "mover-authors-schedules",
        "backupschedules",
        vec![("spec", "object.spec.template.spec".to_owned())],
        vec![
            hooks(),
            sends(settings, "variables.spec.repositoryRef", "variables.spec.repositoryRef"),
            sends(settings, "object.spec.copyTo", "object.spec.copyTo"),
            validation(
                lines(&[
                    "variables.same || !has(object.spec.drill) || !has(object.spec.drill.image)",
                    &format!("|| {MAKES_PODS}"),
                ]),
                "a drill runs an image: this needs the right to create pods in this namespace",
            ),
        ],
    )
}

fn restores(settings: &Settings) -> Policy {
    let in_place = "has(object.spec.target) && object.spec.target.inPlace";
    policy(
        settings,
        "mover-authors-restores",
        "volumerestores",
        vec![("inPlace", in_place.to_owned())],
        vec![
            validation(
                lines(&[
                    "variables.same || !has(object.spec.target) || variables.inPlace",
                    "|| authorizer.group('').resource('persistentvolumeclaims')",
                    "  .namespace(request.namespace).check('create').allowed()",
                ]),
                "a restore makes a claim: this needs the right to create persistentvolumeclaims \
                 in this namespace",
            ),
            validation(
                lines(&[
                    "variables.same || !variables.inPlace",
                    "|| authorizer.group('').resource('persistentvolumeclaims')",
                    "  .namespace(request.namespace).name(object.spec.target.pvc)",
                    &format!("  .check('delete').allowed() && {MAKES_PODS}"),
                ]),
                "a restore in place overwrites a volume: this needs the rights to delete that \
                 persistentvolumeclaim and to create pods in this namespace",
            ),
            validation(
                format!("variables.same || !variables.inPlace || ({})", settings.in_place),
                "restores in place are switched off in this cluster",
            ),
        ],
    )
}

/// Two pull secrets by their names, and with more of them the right to all.
fn pull_secrets() -> Vec<Validation> {
    let message = "the job template names a pull secret: this needs the right to get that secret";
    let named = "object.spec.jobTemplate.imagePullSecrets";
    let mut all: Vec<Validation> = (0..2)
        .map(|index| {
            let text = lines(&[
                &format!("variables.same || !has({named}) || {named}.size() <= {index}"),
                "|| authorizer.group('').resource('secrets').namespace(request.namespace)",
                &format!("  .name({named}[{index}].name).check('get').allowed()"),
            ]);
            validation(text, message)
        })
        .collect();
    all.push(validation(
        lines(&[
            &format!("variables.same || !has({named}) || {named}.size() <= 2"),
            "|| authorizer.group('').resource('secrets').namespace(request.namespace)",
            "  .check('get').allowed()",
        ]),
        "more than two pull secrets: this needs the right to get all secrets of this namespace",
    ));
    all
}

fn repositories(settings: &Settings) -> Policy {
    let secret = "this names a secret: it needs the right to get that secret";
    let key = "object.spec.keySecretRef";
    let credentials = ["object.spec.credentials", "object.spec.credentials.secretRef"];
    let collector = ["object.spec.gcCredentials", "object.spec.gcCredentials.secretRef"];
    let authority = "object.spec.caConfigMapRef";
    let mut validations = vec![
        validation(
            lines(&["variables.same", &format!("|| {MAKES_PODS}")]),
            "a Repository runs pods: this needs the right to create pods in this namespace",
        ),
        validation(may_read("secrets", &[key], &format!("{key}.name")), secret),
        validation(may_read("secrets", &credentials, &format!("{}.name", credentials[1])), secret),
        validation(may_read("secrets", &collector, &format!("{}.name", collector[1])), secret),
        validation(
            may_read("configmaps", &[authority], &format!("{authority}.name")),
            "this names a configmap: it needs the right to get that configmap",
        ),
        validation(
            lines(&[
                "variables.same || !has(object.spec.jobTemplate.image)",
                &format!("|| object.spec.jobTemplate.image in [{}]", images(settings)),
            ]),
            "no image of Jobs but those of the installation: an administrator allows more by \
             `kubectl mover install --job-image`",
        ),
        // What it takes without us to have the kernel parse a volume that was a block device.
        validation(
            lines(&[
                "!object.spec.allowModeChange",
                "|| (oldObject != null && oldObject.spec.allowModeChange",
                "  && object.spec.url == oldObject.spec.url",
                "  && object.spec.keySecretRef == oldObject.spec.keySecretRef)",
                "|| authorizer.group('snapshot.storage.k8s.io').resource('volumesnapshotcontents')",
                "  .check('patch').allowed()",
            ]),
            "allowModeChange lets a bucket's owner forge filesystems: this needs the right to \
             patch volumesnapshotcontents, as without us",
        ),
    ];
    validations.extend(pull_secrets());
    policy(settings, "mover-authors-repositories", "repositories", Vec::new(), validations)
}

/// Images of Jobs, as the inside of a list.
pub(super) fn images(settings: &Settings) -> String {
    format!("{}{}", quoted(&settings.image), settings.job_images)
}

/// A record of the controller is sealed: others may ask for its end, or delete it, and no more.
fn records(settings: &Settings) -> Policy {
    const SEAL: &str = "'mover.dev/seal'";
    let sealed = |name: &str| {
        format!(
            "({name} != null && has({name}.metadata.annotations) && {SEAL} in {name}.metadata.annotations)"
        )
    };
    let member = |path: &str| {
        format!(
            "(has(object.{path}) ? object.{path} : {{}}) == (has(oldObject.{path}) ? oldObject.{path} : {{}})"
        )
    };
    let unchanged = lines(&[
        &format!(
            "request.operation == 'UPDATE' && {} && {}",
            sealed("object"),
            sealed("oldObject")
        ),
        &format!(
            "&& object.metadata.annotations[{SEAL}] == oldObject.metadata.annotations[{SEAL}]"
        ),
        &format!("&& {}", member("data")),
        &format!("&& {}", member("binaryData")),
        &format!("&& {}", member("metadata.labels")),
    ]);
    Policy {
        name: "mover-authors-records",
        resources: vec![("", vec!["configmaps"], WRITES.to_vec())],
        conditions: vec![
            ("by-others", format!("!({})", by_controller(settings))),
            ("sealed", format!("{} || {}", sealed("object"), sealed("oldObject"))),
        ],
        variables: Vec::new(),
        validations: vec![validation(
            unchanged,
            "the record of an operation is the controller's: others may annotate it with \
             mover.dev/cancel, or delete it",
        )],
    }
}
