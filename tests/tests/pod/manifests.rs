//! What is shipped for Kubernetes: it renders, fits the schemas of a recent Kubernetes, and agrees
//! with the program.

use super::text;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tests::{mover_bin, python, run, run_ok, work_dir};

const KUBERNETES: &str = "1.34";
pub(super) const OPERATIONS: [&str; 6] =
    ["init", "snapshot", "backup", "incremental", "restore", "gc"];
const CREDENTIALS: [&str; 7] = [
    "s3-static",
    "s3-irsa",
    "s3-pod-identity",
    "s3-instance",
    "gcs-workload-identity",
    "azure-workload-identity",
    "custom-ca",
];

/// Reads YAML documents from files, checks those of kinds that Kubernetes itself has against its
/// schemas, and prints all of them as JSON lines.
const VALIDATE: &str = r#"
import json, sys, yaml, kubernetes_validate
version, bad = sys.argv[1], 0
for path in sys.argv[2:]:
    for doc in yaml.safe_load_all(open(path)):
        print(json.dumps(doc))
        if doc['apiVersion'] == 'snapshot.storage.k8s.io/v1':
            continue
        try:
            kubernetes_validate.validate(doc, version, strict=True)
        except Exception as e:
            bad += 1
            print(f'{path}: {doc["kind"]}: {e}', file=sys.stderr)
sys.exit(bad > 0)
"#;

pub(super) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy")
}

/// A copy of the manifests, to set something in it as a user would.
pub(super) fn manifests(directory: &Path) -> PathBuf {
    run_ok("cp", ["-r", text(&deploy().join("kubernetes")), text(directory)]);
    directory.join("kubernetes")
}

/// Renders a folder into a file; `None`, with a line that says so, where there is no kubectl that
/// can.
pub(super) fn render(folder: &Path, file: &Path) -> Option<()> {
    if run("sh", ["-c", "command -v kubectl"]).stdout.is_empty() {
        tests::skip("pod::manifests needs kubectl 1.27 or newer");
        return None;
    }
    let output = run("kubectl", ["kustomize", text(folder)]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", folder.display());
    assert!(!stderr.to_lowercase().contains("warn"), "{}: {stderr}", folder.display());
    fs::write(file, output.stdout).unwrap();
    Some(())
}

pub(super) fn validated(files: &[PathBuf]) -> Vec<Value> {
    let python = python().expect("tests/setup made a Python environment");
    let mut args = vec!["-c", VALIDATE, KUBERNETES];
    args.extend(files.iter().map(|file| text(file)));
    let output = run(text(&python), args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The pod of a Job, a CronJob or a DaemonSet.
pub(super) fn pod(object: &Value) -> Option<&Value> {
    let spec = &object["spec"];
    [&spec["template"]["spec"], &spec["jobTemplate"]["spec"]["template"]["spec"]]
        .into_iter()
        .find(|pod| pod.is_object())
}

pub(super) fn list<'a>(value: &'a Value, name: &str) -> Vec<&'a Value> {
    value[name].as_array().into_iter().flatten().collect()
}

pub(super) fn containers(pod: &Value) -> Vec<&Value> {
    list(pod, "containers").into_iter().chain(list(pod, "initContainers")).collect()
}

pub(super) fn strings(values: &[&Value]) -> Vec<String> {
    values.iter().map(|value| value.as_str().unwrap().to_owned()).collect()
}

/// All strings in it.
pub(super) fn words(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(values) => values.iter().flat_map(words).collect(),
        Value::Object(members) => members.values().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_operation_fits_the_schemas_with_all_credentials() {
    let directory = work_dir("manifests");
    let kubernetes = manifests(directory.path());
    let choice = kubernetes.join("credentials/kustomization.yaml");
    let mut files = Vec::new();
    for credentials in CREDENTIALS {
        let component =
            "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\ncomponents:";
        fs::write(&choice, format!("{component} [{credentials}]\n")).unwrap();
        for operation in OPERATIONS {
            let file = directory.path().join(format!("{credentials}-{operation}.yaml"));
            let Some(()) = render(&kubernetes.join(operation), &file) else { return };
            files.push(file);
        }
    }
    let seccomp = directory.path().join("seccomp.yaml");
    render(&kubernetes.join("seccomp"), &seccomp).unwrap();
    files.push(seccomp);
    let objects = validated(&files);
    let kinds: BTreeSet<_> = objects.iter().map(|o| o["kind"].as_str().unwrap()).collect();
    for kind in ["Job", "CronJob", "PersistentVolumeClaim", "VolumeSnapshot", "DaemonSet"] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    for object in &objects {
        is_unprivileged(object);
    }
    let tokens = |kind: &str| {
        objects.iter().filter(|o| o.to_string().contains(kind)).filter_map(pod).count()
    };
    // each of the five operations with a pod
    assert_eq!(tokens("sts.amazonaws.com"), 5);
    assert_eq!(tokens("api://AzureADTokenExchange"), 5);
    assert_eq!(tokens("gke-metadata-server-enabled"), 5);
    assert_eq!(tokens("SSL_CERT_FILE"), 5);
}

fn is_unprivileged(object: &Value) {
    let Some(pod) = pod(object) else { return };
    assert_eq!(pod["automountServiceAccountToken"], false, "{object}");
    for container in containers(pod) {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(strings(&list(&context["capabilities"], "drop")), ["ALL"], "{container}");
        let resources = &container["resources"];
        if object["kind"] != "DaemonSet" {
            assert_eq!(resources["limits"], resources["requests"], "{container}");
        }
    }
}

/// Renders operations as they are shipped.
fn shipped(operations: &[&str]) -> Option<Vec<Value>> {
    let directory = work_dir("shipped");
    let mut files = Vec::new();
    for operation in operations {
        let file = directory.path().join(format!("{operation}.yaml"));
        render(&deploy().join("kubernetes").join(operation), &file)?;
        files.push(file);
    }
    Some(validated(&files))
}

#[test]
fn the_failure_policy_knows_the_exit_codes() {
    let Some(objects) = shipped(&["backup", "gc"]) else { return };
    let manual = fs::read_to_string(deploy().with_file_name("docs/reference.md")).unwrap();
    // | code | meaning | what to do |
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let codes: BTreeSet<u64> = rows.filter_map(|(code, _)| code.parse().ok()).collect();
    let final_ones: BTreeSet<u64> =
        codes.into_iter().filter(|c| ![0, 1, 143].contains(c)).collect();
    for object in objects.iter().filter(|object| pod(object).is_some()) {
        let job = if object["kind"] == "Job" {
            &object["spec"]
        } else {
            &object["spec"]["jobTemplate"]["spec"]
        };
        let rules = list(&job["podFailurePolicy"], "rules");
        let failing = rules.iter().find(|rule| rule["action"] == "FailJob").unwrap();
        let values = list(&failing["onExitCodes"], "values");
        let values: BTreeSet<u64> = values.iter().map(|v| v.as_u64().unwrap()).collect();
        assert_eq!(values, final_ones, "{job}");
        assert_eq!(pod(object).unwrap()["restartPolicy"], "Never", "the policy asks for it");
        assert_eq!(job["podReplacementPolicy"], "Failed");
    }
}

/// What the Jobs say to the program is understood by it: the program itself is asked.
#[test]
fn the_program_understands_the_arguments_and_the_environment() {
    let Some(objects) = shipped(&OPERATIONS) else { return };
    let manual = fs::read_to_string(deploy().with_file_name("docs/reference.md")).unwrap();
    // those in comments, too
    let settings = fs::read_to_string(deploy().join("kubernetes/settings/repository.env")).unwrap();
    let settings = settings.lines().filter_map(|line| line.split_once('='));
    let settings: Vec<_> = settings.map(|(name, _)| name.trim_start_matches('#')).collect();
    assert!(settings.contains(&"MOVER_REPO") && settings.contains(&"AWS_REGION"), "{settings:?}");
    for name in settings.iter().filter(|name| name.starts_with("MOVER_")) {
        assert!(manual.contains(&format!("`{name}`")), "{name} is no setting");
    }
    let mut seen = 0;
    let jobs = objects.iter().filter(|object| object["kind"] != "Deployment");
    for container in jobs.filter_map(pod).flat_map(containers) {
        for variable in list(container, "env") {
            let name = variable["name"].as_str().unwrap();
            assert!(manual.contains(&format!("`{name}`")), "{name} is no setting");
        }
        let mut args = strings(&list(container, "args"));
        args.push("--help".into());
        // a flag that does not exist is an error before the help
        let output = std::process::Command::new(mover_bin()).args(&args).env_clear().output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        seen += 1;
    }
    assert_eq!(seen, 6, "five operations, and gc has two containers");
}

/// The pods have ended before a scrape finds their last numbers, so a gateway has to be there, and
/// to be where the Jobs push to, without a word of the user's.
#[test]
fn the_numbers_of_the_end_find_a_gateway_that_is_there() {
    let Some(objects) = shipped(&["init"]) else { return };
    let of_kind = |kind: &str| {
        let mut all = objects.iter().filter(|object| object["kind"] == kind);
        all.next().unwrap_or_else(|| panic!("no {kind}"))
    };
    let (service, gateway) = (of_kind("Service"), of_kind("Deployment"));
    let settings = &of_kind("ConfigMap")["data"];
    let (name, port) = (&service["metadata"]["name"], &service["spec"]["ports"][0]["port"]);
    let url = format!("http://{}:{port}", name.as_str().unwrap());
    assert_eq!(settings["MOVER_PUSH_GATEWAY"], url);
    for object in [service, gateway, of_kind("Job")] {
        assert_eq!(object["metadata"]["namespace"], "shop");
    }
    let template = &gateway["spec"]["template"];
    assert_eq!(service["spec"]["selector"], template["metadata"]["labels"]);
    assert_eq!(template["metadata"]["annotations"]["prometheus.io/scrape"], "true");
    let container = containers(pod(gateway).unwrap())[0];
    assert!(container["image"].as_str().unwrap().contains("/pushgateway:v"), "{container}");
    assert_eq!(container["ports"][0]["containerPort"], *port);
    // applied again, the Job that makes the repository ends well
    let job = containers(pod(of_kind("Job")).unwrap())[0];
    assert_eq!(strings(&list(job, "args")), ["init", "--if-absent"]);
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let dashboard = fs::read_to_string(deploy().join("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let docs = deploy().with_file_name("docs");
    let manual = ["reference.md", "metrics-controller.md"]
        .map(|page| fs::read_to_string(docs.join(page)).unwrap())
        .concat();
    let panels = list(&dashboard, "panels");
    assert!(panels.len() >= 8);
    for target in panels.iter().flat_map(|panel| list(panel, "targets")) {
        let expression = target["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<_> = words.filter(|word| word.starts_with("mover_")).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(manual.contains(&format!("| `{name}` |")), "{name} in {expression}");
        }
    }
}
