//! Manifests and chart: their files, their rights, and what they must not have.

use mover_cluster::install::{
    File, JobSecurity, Manifest, NAMESPACE, Part, Settings, documents, files, manifests,
};
use mover_cluster::kinds;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn settings() -> Settings {
    Settings::new(NAMESPACE, "mover:1")
}

fn of(settings: &Settings, file: File) -> Vec<Value> {
    let all = manifests(settings);
    all.into_iter().filter(|at| at.file == file).map(|at| at.object).collect()
}

/// `kubectl-mover __deploy deploy` writes them anew.
#[test]
fn the_files_in_deploy_are_those_of_the_source() {
    let files = files();
    for (name, text) in &files {
        let path = deploy().join(name);
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let hint = "run: cargo run -p mover-cluster -- __deploy deploy";
        assert!(found == *text, "{} is not as the source has it; {hint}", path.display());
    }
    for folder in ["controller", "helm/mover", "helm/mover/templates"] {
        for entry in std::fs::read_dir(deploy().join(folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.path().is_file() {
                let name = format!("{folder}/{}", entry.file_name().display());
                assert!(files.contains_key(&name), "nothing makes deploy/{name}");
            }
        }
    }
}

fn documents_of(text: &str) -> Vec<Value> {
    let all = text.split("\n---\n").filter(|one| !one.trim().is_empty());
    all.filter_map(|one| {
        let value: Value = serde_saphyr::from_str(one).unwrap_or_else(|why| panic!("{why}: {one}"));
        (!value.is_null()).then_some(value)
    })
    .collect()
}

#[test]
fn manifests_are_read_as_they_were_made() {
    let settings = Settings { hooks: true, ..settings() };
    let objects: Vec<Value> = manifests(&settings).into_iter().map(|at| at.object).collect();
    let text = documents(&objects);
    assert_eq!(documents_of(text.trim_start_matches("---\n")), objects);
}

#[test]
fn definitions_are_those_of_the_kinds() {
    let found = of(&settings(), File::Definitions);
    let specs: Vec<&Value> = found.iter().map(|at| &at["spec"]).collect();
    let wanted = kinds::definitions();
    assert_eq!(specs, wanted.iter().map(|at| &at["spec"]).collect::<Vec<_>>());
}

#[test]
fn parts_are_left_away() {
    let count = |settings: &Settings| manifests(settings).len();
    let all = count(&settings());
    for part in [Part::Definitions, Part::Policies, Part::NetworkPolicies, Part::Monitoring] {
        assert!(count(&Settings { without: vec![part], ..settings() }) < all, "{part:?}");
    }
}

/// Group, resource and verb of each rule of a role.
fn rights(role: &Value) -> BTreeSet<(String, String, String)> {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        all.map(str::to_owned).collect()
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    all.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    all
}

/// Neither a wildcard, nor what would let it become somebody else.
#[test]
fn the_controllers_rights_are_few() {
    let all = of(&settings(), File::Rights);
    for role in all.iter().filter(|at| at["rules"].is_array()) {
        let name = role["metadata"]["name"].as_str().expect("a name");
        for (group, resource, verb) in rights(role) {
            let what = format!("{name}: {verb} {resource}.{group}");
            assert!(group != "*" && resource != "*" && verb != "*", "{what}");
            assert!(
                !["impersonate", "bind", "escalate", "approve"].contains(&verb.as_str()),
                "{what}"
            );
            assert!(resource != "pods/exec" && resource != "serviceaccounts/token", "{what}");
            assert!(resource != "pods" || ["get", "list", "watch"].contains(&&*verb), "{what}");
            if resource == "secrets" {
                assert_eq!((role["kind"].as_str(), name), (Some("Role"), "mover-controller"));
                assert!(["get", "create"].contains(&&*verb), "{what}");
            }
        }
    }
    let own = all.iter().find(|at| at["kind"] == "Role").expect("a Role");
    let named = |rule: &Value| {
        rule["resources"][0] != "secrets"
            || rule["verbs"] == serde_json::json!(["create"])
            || rule["resourceNames"] == serde_json::json!(["mover-controller-seal"])
    };
    assert!(own["rules"].as_array().expect("rules").iter().all(named));
}

/// The users' table of docs/kubernetes.md: the controller does the same for them.
#[test]
fn the_controller_has_the_rights_of_its_engine() {
    let all = of(&settings(), File::Rights);
    let mut has = BTreeSet::new();
    for role in all.iter().filter(|at| at["kind"] == "ClusterRole") {
        has.extend(rights(role));
    }
    let path = deploy().join("../tests/cluster/operator.yaml");
    let text = std::fs::read_to_string(path).expect("the rights of users");
    for role in documents_of(&text) {
        for right in rights(&role) {
            assert!(has.contains(&right), "{right:?}");
        }
    }
}

#[test]
fn hooks_are_a_role_of_their_own_and_off() {
    assert!(of(&settings(), File::Hooks).is_empty());
    let on = of(&Settings { hooks: true, ..settings() }, File::Hooks);
    let kinds: Vec<&str> = on.iter().filter_map(|at| at["kind"].as_str()).collect();
    assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding"]);
    let rules = rights(&on[0]);
    assert!(rules.iter().all(|(_, resource, _)| resource == "pods/exec"), "{rules:?}");
}

/// Nothing of it is there until it is asked for: no right, no port, no account.
#[test]
fn the_server_of_changed_blocks_is_off_and_has_few_rights() {
    let off = manifests(&settings());
    let text = documents(off.iter().map(|at| &at.object));
    for word in ["differential-snapshots", "tokenreviews", "serviceaccounts/token", "8443\n  "] {
        let is_policy = |at: &&Manifest| at.file == File::Network;
        let others = documents(off.iter().filter(|at| !is_policy(at)).map(|at| &at.object));
        assert!(!others.contains(word), "{word} is in {text}");
    }
    let with = |watched: &[&str]| Settings {
        differential: Some("lists-tls".into()),
        watch_namespaces: watched.iter().map(|name| (*name).to_owned()).collect(),
        ..settings()
    };
    let on = of(&with(&[]), File::Differential);
    let mut has = BTreeSet::new();
    for role in on.iter().filter(|at| at["rules"].is_array()) {
        if role["metadata"]["name"] == "mover-differential-snapshots-edit" {
            continue;
        }
        for (group, resource, verb) in rights(role) {
            has.insert(format!("{verb} {resource}.{group}"));
        }
        if role["kind"] == "Role" {
            let named = serde_json::json!(["mover-differential-snapshots"]);
            assert_eq!(role["rules"][0]["resourceNames"], named, "a token of one account");
        }
    }
    let wanted = [
        "create serviceaccounts/token.",
        "create subjectaccessreviews.authorization.k8s.io",
        "create tokenreviews.authentication.k8s.io",
        "get differentialsnapshots.mover.dev",
        "get differentialsnapshots/status.mover.dev",
        "get volumesnapshots.snapshot.storage.k8s.io",
        "list differentialsnapshots.mover.dev",
        "patch differentialsnapshots/status.mover.dev",
        "watch differentialsnapshots.mover.dev",
    ];
    assert_eq!(has.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    // In named namespaces alone: who asks is found out for the cluster, all else is not.
    let some = of(&with(&["shop"]), File::Differential);
    let wide = |at: &&Value| at["kind"] == "ClusterRoleBinding";
    let wide: Vec<&Value> = some.iter().filter(wide).map(|at| &at["roleRef"]["name"]).collect();
    assert_eq!(wide, ["mover-differential-snapshots"]);
    let text = documents(of(&with(&[]), File::Controller).iter());
    for word in ["secretName: lists-tls", "--differential-tls=/etc/mover/differential"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let alone = Settings { without: vec![Part::NetworkPolicies], ..with(&[]) };
    assert!(of(&alone, File::Network).is_empty());
}

/// Nothing of Velero is there until it is asked for, and its namespace is one that is worked in.
#[test]
fn velero_is_off_and_takes_few_rights() {
    let printed = |settings: &Settings| documents(manifests(settings).iter().map(|at| &at.object));
    let off = settings();
    assert!(!printed(&off).contains("velero"));
    let on = Settings { velero: Some("backups".into()), ..settings() };
    let mut of_velero = of(&on, File::Rights);
    of_velero.retain(|at| at["metadata"]["name"] == "mover-controller-velero");
    assert_eq!(of_velero.len(), 2, "a Role and its binding");
    assert!(of_velero.iter().all(|at| at["metadata"]["namespace"] == "backups"), "{of_velero:?}");
    let has: BTreeSet<String> = of_velero
        .iter()
        .flat_map(rights)
        .map(|(group, resource, verb)| format!("{verb} {resource}.{group}"))
        .collect();
    let wanted = [
        "get backupstoragelocations.velero.io",
        "get datadownloads.velero.io",
        "get datauploads.velero.io",
        "list backupstoragelocations.velero.io",
        "list datadownloads.velero.io",
        "list datauploads.velero.io",
        "patch datadownloads.velero.io",
        "patch datauploads.velero.io",
        "update datadownloads/finalizers.velero.io",
        "update datauploads/finalizers.velero.io",
        "watch backupstoragelocations.velero.io",
        "watch datadownloads.velero.io",
        "watch datauploads.velero.io",
    ];
    assert_eq!(has.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    let deployment = documents(of(&on, File::Controller).iter());
    assert!(deployment.contains("--velero-namespace=backups"), "{deployment}");
    assert!(!deployment.contains("--watch-namespace"), "{deployment}");

    let some = Settings { watch_namespaces: vec!["shop".into()], ..on.clone() };
    let text = printed(&some);
    assert!(text.contains("--watch-namespace=backups"), "{text}");
    let bindings = of(&some, File::Rights);
    let named =
        |at: &&Value| at["kind"] == "RoleBinding" && at["metadata"]["namespace"] == "backups";
    assert_eq!(bindings.iter().filter(named).count(), 2, "its rights in namespaces, and these");

    let policies = |settings: &Settings| of(settings, File::Policies).len();
    assert_eq!(policies(&on), policies(&off) + 4, "two policies and their bindings");
    assert_eq!(policies(&Settings { without: vec![Part::Policies], ..on }), 0);
}

/// Named namespaces: no right in any other one.
#[test]
fn a_controller_of_some_namespaces_has_rights_in_them_alone() {
    let watched = vec!["shop".to_owned(), "web".to_owned()];
    let some = Settings { watch_namespaces: watched, hooks: true, ..settings() };
    let all: Vec<Manifest> = manifests(&some);
    let bindings = |kind: &str| -> BTreeSet<String> {
        let of = all.iter().filter(|at| at.object["kind"] == kind);
        of.map(|at| {
            let object = &at.object;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            format!(
                "{} in {}",
                text(&object["roleRef"]["name"]),
                text(&object["metadata"]["namespace"])
            )
        })
        .collect()
    };
    assert_eq!(bindings("ClusterRoleBinding"), ["mover-controller in ".to_owned()].into());
    let named = bindings("RoleBinding");
    for namespace in ["shop", "web", NAMESPACE] {
        for role in ["mover-controller-namespaced", "mover-controller-hooks"] {
            assert!(named.contains(&format!("{role} in {namespace}")), "{named:?}");
        }
    }
    assert_eq!(named.len(), 7, "{named:?}");
    let text = documents(all.iter().map(|at| &at.object));
    assert!(text.contains("--watch-namespace=shop") && text.contains("--watch-namespace=web"));
}

/// The level *restricted* of Pod Security, point by point.
#[test]
fn the_controllers_pod_is_restricted() {
    let all = of(&settings(), File::Controller);
    let pod = &all[0]["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_ne!(pod["securityContext"]["runAsUser"], 0);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for absent in ["hostNetwork", "hostPID", "hostIPC", "volumes"] {
        assert!(pod.get(absent).is_none(), "{absent}");
    }
    for container in pod["containers"].as_array().expect("containers") {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"], serde_json::json!({ "drop": ["ALL"] }));
        assert!(container["resources"]["limits"]["memory"].is_string());
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "metrics");
        }
    }
}

#[test]
fn the_level_of_jobs_is_that_of_the_namespace() {
    let level = |job_security| {
        let settings = Settings { job_security, ..settings() };
        let labels = of(&settings, File::Namespace)[0]["metadata"]["labels"].clone();
        let text = documents(&of(&settings, File::Controller));
        let told = text.contains("--job-security=restricted");
        (labels["pod-security.kubernetes.io/enforce"].as_str().map(str::to_owned), told)
    };
    assert_eq!(level(JobSecurity::Baseline), (Some("baseline".to_owned()), false));
    assert_eq!(level(JobSecurity::Restricted), (Some("restricted".to_owned()), true));
}

#[test]
fn alerts_are_those_of_the_file() {
    let all = of(&settings(), File::Monitoring);
    let rules = all.iter().find(|at| at["kind"] == "PrometheusRule").expect("rules");
    let text = std::fs::read_to_string(deploy().join("prometheus-rules.yaml")).expect("the file");
    let file: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(rules["spec"], file);
}

/// No object without the label by which `uninstall` finds it.
#[test]
fn all_objects_are_found_by_their_label() {
    let velero = Some("velero".to_owned());
    for manifest in manifests(&Settings { hooks: true, velero, ..settings() }) {
        let labels = &manifest.object["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/part-of"], "mover", "{}", manifest.object);
    }
}
