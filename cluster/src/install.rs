//! Everything that an administrator applies to a cluster so that the controller runs in it, and its
//! removal.
//!
//! All objects are made here, once, as JSON. Plain manifests print them; the Helm chart is printed
//! from the same objects, whose settings are then expressions of templates. So neither can say
//! something that the other does not. Rights are the least that the controller's steps take, and
//! admission policies bound what rights alone cannot.
//!
//! Owns no object of a backup or a restore. Removal never touches what a repository holds.

mod apply;
mod chart;
mod differential;
mod monitoring;
mod network;
mod places;
mod policies;
mod remove;
mod rights;
mod workload;
mod yaml;

pub use apply::{Applied, apply, rolled_out};
pub use chart::{default_image, files};
pub use policies::{Policy, Validation, policies};
pub use remove::{Removal, Removed, Report, remove};
pub use yaml::documents;

use crate::kinds;
use serde_json::{Map, Value, json};

/// Where the controller runs unless told otherwise. Repositories in it serve other namespaces.
pub const NAMESPACE: &str = "mover-system";
/// Service account of the controller, and the name of most of its objects.
pub const CONTROLLER: &str = "mover-controller";
/// Secret in the controller's namespace with the key of its seals.
pub const SEAL_SECRET: &str = "mover-controller-seal";
/// Service and account of the server of changed blocks.
pub const DIFFERENTIAL: &str = "mover-differential-snapshots";
/// Prefix of our finalizers.
pub const FINALIZERS: &str = "mover.dev/";
/// Port of metrics and probes.
pub const METRICS_PORT: u16 = 8081;
/// Port of the server of changed blocks.
pub const DIFFERENTIAL_PORT: u16 = 8443;
/// On all objects of an installation.
pub const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "mover");

/// How the pods of Jobs are secured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobSecurity {
    /// Pod Security *baseline*: root without capabilities, as device nodes belong to root.
    #[default]
    Baseline,
    /// Pod Security *restricted*: where the container runtime gives device nodes to the pod's user
    /// (`device_ownership_from_security_context`).
    Restricted,
}

/// A part of an installation that may be left away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The definitions of our kinds.
    Definitions,
    /// Admission policies.
    Policies,
    /// Network policies.
    NetworkPolicies,
    /// PodMonitor and PrometheusRule.
    Monitoring,
}

/// How an installation is. Texts are expressions of templates where a chart is made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the controller.
    pub namespace: String,
    /// Image of the controller, and of Jobs whose Repository names none.
    pub image: String,
    /// More images that a Repository may name, as the rest of a list of CEL.
    pub job_images: String,
    /// When the controller's image is pulled.
    pub image_pull_policy: String,
    /// Namespaces that it works in; all of them without any.
    pub watch_namespaces: Vec<String>,
    /// Parts that are left away.
    pub without: Vec<Part>,
    /// Whether it may run hooks in pods.
    pub hooks: bool,
    /// Whether it may restore in place, and so delete and remake claims of users: of CEL.
    pub in_place: String,
    /// How Jobs are secured.
    pub job_security: JobSecurity,
    /// Secret with the certificate of the server of changed blocks, which is off without it.
    pub differential: Option<String>,
    /// Namespace of Velero, whose data it moves; nothing of Velero without.
    pub velero: Option<String>,
    /// Begins lines that are there with Velero alone: empty, but where a chart is made.
    pub velero_mark: String,
    /// Requests and limits of the controller.
    pub resources: Value,
    /// More arguments of the controller.
    pub arguments: Vec<String>,
    /// More ports of the controller.
    pub ports: Vec<Value>,
    /// More members of its container.
    pub container: Map<String, Value>,
    /// More members of its pod's spec.
    pub pod: Map<String, Value>,
}

impl Settings {
    /// Those of an installation in this namespace, of this image, with all parts.
    #[must_use]
    pub fn new(namespace: &str, image: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            job_images: String::new(),
            image_pull_policy: "IfNotPresent".to_owned(),
            watch_namespaces: Vec::new(),
            without: Vec::new(),
            hooks: false,
            in_place: "true".to_owned(),
            job_security: JobSecurity::default(),
            differential: None,
            velero: None,
            velero_mark: String::new(),
            resources: workload::resources(),
            arguments: Vec::new(),
            ports: Vec::new(),
            container: Map::new(),
            pod: Map::new(),
        }
    }

    /// More images that a Repository may name.
    #[must_use]
    pub fn with_job_images(mut self, images: &[String]) -> Self {
        self.job_images =
            images.iter().map(|image| format!(", {}", policies::quoted(image))).collect();
        self
    }
}

/// Which file of manifests an object belongs to, and so which template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// The namespace, which Helm makes by itself.
    Namespace,
    /// The kinds.
    Definitions,
    /// Admission.
    Policies,
    /// Accounts and roles.
    Rights,
    /// The right to run hooks.
    Hooks,
    /// Accounts and rights of the server of changed blocks.
    Differential,
    /// Network policies.
    Network,
    /// The Deployment.
    Controller,
    /// For the Prometheus operator.
    Monitoring,
}

impl File {
    /// Its name without an ending.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Definitions => "definitions",
            Self::Policies => "policies",
            Self::Rights => "rights",
            Self::Hooks => "hooks",
            Self::Differential => "differential-snapshots",
            Self::Network => "network-policies",
            Self::Controller => "controller",
            Self::Monitoring => "monitoring",
        }
    }
}

/// When an object is a part of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// Unless this part is left away.
    With(Part),
    /// With hooks alone.
    Hooks,
    /// Where the controller works in all namespaces.
    Everywhere,
    /// Once for each namespace that the controller works in, where those are named.
    Somewhere,
    /// The same, with hooks alone.
    HooksSomewhere,
    /// With hooks, where it works in all namespaces.
    HooksEverywhere,
    /// With the server of changed blocks alone.
    Differential,
    /// The same, where the controller works in all namespaces.
    DifferentialEverywhere,
    /// The same, once for each namespace, where those are named.
    DifferentialSomewhere,
    /// The same, with network policies.
    DifferentialNetwork,
    /// Where data is moved for Velero.
    Velero,
    /// The same, with admission policies.
    VeleroPolicies,
}

/// One object of an installation.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Its file.
    pub file: File,
    /// When it is a part.
    pub when: When,
    /// Itself.
    pub object: Value,
}

/// Stands for each of the watched namespaces.
pub(crate) const EACH: &str = "each-watched-namespace";

/// All objects that there can be, in the order in which they are applied: rules come before rights,
/// and rights before whoever uses them.
pub(crate) fn all(settings: &Settings) -> Vec<Manifest> {
    let one = |file, when, object| Manifest { file, when, object };
    let mut all = vec![one(File::Namespace, When::Always, namespace(settings))];
    let definitions = kinds::definitions().into_iter().map(labelled);
    all.extend(definitions.map(|at| one(File::Definitions, When::With(Part::Definitions), at)));
    all.extend(policies::objects(settings));
    all.extend(rights::objects(settings));
    all.extend(rights::of_velero(settings));
    all.extend(differential::objects(settings));
    all.extend(
        network::objects(settings)
            .into_iter()
            .map(|at| one(File::Network, When::With(Part::NetworkPolicies), at)),
    );
    all.push(one(File::Controller, When::Always, workload::deployment(settings)));
    all.extend(
        monitoring::objects(settings)
            .into_iter()
            .map(|at| one(File::Monitoring, When::With(Part::Monitoring), at)),
    );
    all
}

/// The objects of one installation.
#[must_use]
pub fn manifests(settings: &Settings) -> Vec<Manifest> {
    let watched = &settings.watch_namespaces;
    let differential = settings.differential.is_some();
    let is_part = |when: When| match when {
        When::Always => true,
        When::With(part) => !settings.without.contains(&part),
        When::Hooks => settings.hooks,
        When::Everywhere => watched.is_empty(),
        When::Somewhere => !watched.is_empty(),
        When::HooksEverywhere => settings.hooks && watched.is_empty(),
        When::HooksSomewhere => settings.hooks && !watched.is_empty(),
        When::Differential => differential,
        When::DifferentialEverywhere => differential && watched.is_empty(),
        When::DifferentialSomewhere => differential && !watched.is_empty(),
        When::DifferentialNetwork => {
            differential && !settings.without.contains(&Part::NetworkPolicies)
        }
        When::Velero => settings.velero.is_some(),
        When::VeleroPolicies => {
            settings.velero.is_some() && !settings.without.contains(&Part::Policies)
        }
    };
    let is_for_each = |when: When| {
        matches!(when, When::Somewhere | When::HooksSomewhere | When::DifferentialSomewhere)
    };
    let mut found = Vec::new();
    for manifest in all(settings).into_iter().filter(|manifest| is_part(manifest.when)) {
        if !is_for_each(manifest.when) {
            found.push(manifest);
            continue;
        }
        for namespace in places::worked_in(settings) {
            let mut object = manifest.object.clone();
            object["metadata"]["namespace"] = namespace.into();
            found.push(Manifest { object, ..manifest.clone() });
        }
    }
    found
}

fn namespace(settings: &Settings) -> Value {
    labelled(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": settings.namespace,
            // Jobs of shared Repositories run here; the controller itself is restricted.
            "labels": {
                "pod-security.kubernetes.io/enforce": workload::level(settings.job_security),
                "pod-security.kubernetes.io/warn": workload::level(settings.job_security),
            },
        },
    }))
}

/// The same object with the labels of an installation.
pub(crate) fn labelled(mut object: Value) -> Value {
    let labels = &mut object["metadata"]["labels"];
    labels["app.kubernetes.io/name"] = "mover".into();
    labels[PART_OF.0] = PART_OF.1.into();
    object
}
