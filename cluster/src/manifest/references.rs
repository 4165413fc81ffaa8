//! What an object refers to by name, and so needs before it is of use.
//!
//! Of built-in kinds the fields are known. In all others each map with a kind and a name is a
//! reference, as the conventions of the API have it, and a few labels name the owner's object.

use serde_json::Value;

/// Labels whose value is the name of an object in the same namespace: the label, group and kind.
pub const SOFT_OWNERS: &[(&str, &str, &str)] = &[
    ("cluster.x-k8s.io/cluster-name", "cluster.x-k8s.io", "Cluster"),
    ("cluster.x-k8s.io/deployment-name", "cluster.x-k8s.io", "MachineDeployment"),
    ("cluster.x-k8s.io/set-name", "cluster.x-k8s.io", "MachineSet"),
    ("cnpg.io/cluster", "postgresql.cnpg.io", "Cluster"),
    ("kubernetes.io/service-name", "", "Service"),
    ("strimzi.io/cluster", "kafka.strimzi.io", "Kafka"),
];

/// More maps than this in one object are not looked at: references stand near its top.
const MAPS_MAX: usize = 20_000;

/// One reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found<'a> {
    /// Group and kind.
    pub(super) to: (&'a str, &'a str),
    /// If it is named; else that of the object, or none.
    pub(super) namespace: Option<&'a str>,
    pub(super) name: &'a str,
    /// Where it stands.
    pub(super) by: By<'a>,
}

/// How a reference is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By<'a> {
    Field(&'static str),
    Path(String),
    Label(&'a str),
}

/// All of an object of this group and kind.
pub(super) fn references<'a>(group: &'a str, kind: &str, object: &'a Value) -> Vec<Found<'a>> {
    let mut all = Collected { all: Vec::new() };
    let spec = &object["spec"];
    match (group, kind) {
        ("", "Pod") => all.pod(spec),
        ("apps", _) | ("", "ReplicationController" | "PodTemplate") | ("batch", "Job") => {
            all.pod(&spec["template"]["spec"]);
            all.pod(&object["template"]["spec"]);
            all.add(("", "Service"), &spec["serviceName"], "spec.serviceName");
        }
        ("batch", "CronJob") => all.pod(&spec["jobTemplate"]["spec"]["template"]["spec"]),
        ("", "PersistentVolumeClaim") => {
            all.add(("", "PersistentVolume"), &spec["volumeName"], "spec.volumeName");
            all.add(CLASS, &spec["storageClassName"], "spec.storageClassName");
        }
        ("", "PersistentVolume") => {
            all.add(CLASS, &spec["storageClassName"], "spec.storageClassName");
        }
        ("", "ServiceAccount") => {
            for secret in each(&object["imagePullSecrets"]).chain(each(&object["secrets"])) {
                all.add(("", "Secret"), &secret["name"], "secrets");
            }
        }
        ("networking.k8s.io", "Ingress") => all.ingress(spec),
        ("snapshot.storage.k8s.io", "VolumeSnapshot") => {
            let class = &spec["volumeSnapshotClassName"];
            let of = ("snapshot.storage.k8s.io", "VolumeSnapshotClass");
            all.add(of, class, "spec.volumeSnapshotClassName");
            let claim = &spec["source"]["persistentVolumeClaimName"];
            all.add(("", "PersistentVolumeClaim"), claim, "spec.source");
        }
        _ => {}
    }
    // Schemas are long, and are about objects instead of naming them.
    if kind != "CustomResourceDefinition" && (group, kind) != ("", "ConfigMap") {
        all.maps(group, object);
    }
    for (label, group, kind) in SOFT_OWNERS {
        let value = object["metadata"]["labels"].get(label).and_then(Value::as_str);
        if let Some(name) = value.filter(|name| !name.is_empty()) {
            let by = By::Label(label);
            all.all.push(Found { to: (group, kind), namespace: None, name, by });
        }
    }
    all.all
}

const CLASS: (&str, &str) = ("storage.k8s.io", "StorageClass");

fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

struct Collected<'a> {
    all: Vec<Found<'a>>,
}

impl<'a> Collected<'a> {
    fn add(&mut self, to: (&'static str, &'static str), name: &'a Value, field: &'static str) {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            self.all.push(Found { to, namespace: None, name, by: By::Field(field) });
        }
    }

    fn pod(&mut self, spec: &'a Value) {
        const SECRET: (&str, &str) = ("", "Secret");
        const MAP: (&str, &str) = ("", "ConfigMap");
        let account = &spec["serviceAccountName"];
        self.add(("", "ServiceAccount"), account, "spec.serviceAccountName");
        for secret in each(&spec["imagePullSecrets"]) {
            self.add(SECRET, &secret["name"], "spec.imagePullSecrets");
        }
        let class = &spec["priorityClassName"];
        self.add(("scheduling.k8s.io", "PriorityClass"), class, "spec.priorityClassName");
        let class = &spec["runtimeClassName"];
        self.add(("node.k8s.io", "RuntimeClass"), class, "spec.runtimeClassName");
        for volume in each(&spec["volumes"]) {
            let claim = &volume["persistentVolumeClaim"]["claimName"];
            self.add(("", "PersistentVolumeClaim"), claim, "spec.volumes");
            self.add(MAP, &volume["configMap"]["name"], "spec.volumes");
            self.add(SECRET, &volume["secret"]["secretName"], "spec.volumes");
            self.add(SECRET, &volume["csi"]["nodePublishSecretRef"]["name"], "spec.volumes");
            for source in each(&volume["projected"]["sources"]) {
                self.add(MAP, &source["configMap"]["name"], "spec.volumes");
                self.add(SECRET, &source["secret"]["name"], "spec.volumes");
            }
        }
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            for container in each(&spec[list]) {
                for from in each(&container["envFrom"]) {
                    self.add(MAP, &from["configMapRef"]["name"], "spec.containers");
                    self.add(SECRET, &from["secretRef"]["name"], "spec.containers");
                }
                for variable in each(&container["env"]) {
                    let from = &variable["valueFrom"];
                    self.add(MAP, &from["configMapKeyRef"]["name"], "spec.containers");
                    self.add(SECRET, &from["secretKeyRef"]["name"], "spec.containers");
                }
            }
        }
    }

    fn ingress(&mut self, spec: &'a Value) {
        let class = &spec["ingressClassName"];
        self.add(("networking.k8s.io", "IngressClass"), class, "spec.ingressClassName");
        let backend = &spec["defaultBackend"]["service"]["name"];
        self.add(("", "Service"), backend, "spec.defaultBackend");
        for rule in each(&spec["rules"]) {
            for path in each(&rule["http"]["paths"]) {
                self.add(("", "Service"), &path["backend"]["service"]["name"], "spec.rules");
            }
        }
        for tls in each(&spec["tls"]) {
            self.add(("", "Secret"), &tls["secretName"], "spec.tls");
        }
    }

    /// Each map below the object that has a kind and a name, but for its own metadata and status.
    fn maps(&mut self, own: &'a str, object: &'a Value) {
        let mut stack: Vec<(String, &'a Value)> = Vec::new();
        let top = object.as_object().into_iter().flatten();
        let foreign = ["metadata", "status", "data", "binaryData", "stringData"];
        for (name, value) in top.filter(|(name, _)| !foreign.contains(&name.as_str())) {
            stack.push((name.clone(), value));
        }
        let mut looked = 0;
        while let Some((path, value)) = stack.pop() {
            looked += 1;
            if looked > MAPS_MAX {
                return;
            }
            match value {
                Value::Array(all) => {
                    let nested = all.iter().filter(|at| at.is_object() || at.is_array());
                    stack.extend(nested.map(|at| (path.clone(), at)));
                }
                Value::Object(members) => {
                    self.reference(own, &path, value);
                    let nested = members.iter().filter(|(_, at)| at.is_object() || at.is_array());
                    stack.extend(nested.map(|(name, at)| (format!("{path}.{name}"), at)));
                }
                _ => {}
            }
        }
    }

    fn reference(&mut self, own: &'a str, path: &str, value: &'a Value) {
        let text = |name: &str| value[name].as_str().filter(|text| !text.is_empty());
        let (Some(kind), Some(name)) = (text("kind"), text("name")) else { return };
        let namespace = text("namespace");
        let group = match (text("apiGroup").or(text("group")), text("apiVersion")) {
            (Some(group), _) => Some(group),
            (None, Some(version)) => Some(version.split_once('/').map_or("", |(group, _)| group)),
            (None, None) => None,
        };
        let path = || By::Path(path.to_owned());
        match group {
            Some(group) => self.all.push(Found { to: (group, kind), namespace, name, by: path() }),
            // The core's, or one of the same group: what is not there is no owner.
            None => {
                self.all.push(Found { to: ("", kind), namespace, name, by: path() });
                if !own.is_empty() {
                    self.all.push(Found { to: (own, kind), namespace, name, by: path() });
                }
            }
        }
    }
}
