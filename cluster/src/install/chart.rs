//! The Helm chart and the plain manifests, as files: both are printed from the same objects.
//!
//! Where a chart has a setting, the object has a word that no object has otherwise. Once it is
//! printed, each such word gives way to an expression of a template, or to lines of one.

use super::{EACH, File, Manifest, Part, Settings, When, all, manifests, yaml};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

mod values;

/// Takes the place of a word.
enum Fill {
    /// An expression within a line.
    Inline(&'static str),
    /// A value, as a member: indented below its name.
    Yaml(&'static str),
    /// Lines instead of the line that has the word. `INDENT` is its depth in them, for `nindent`.
    Lines(&'static [&'static str]),
    /// Nothing: the rest of the line is there on this condition alone.
    If(&'static str),
}

const NAMESPACE: &str = "moverfill0namespace";
const IMAGE: &str = "moverfill1image";
const JOB_IMAGES: &str = "moverfill2images";
const PULL_POLICY: &str = "moverfill3pull";
const IN_PLACE: &str = "moverfill4place";
const RESOURCES: &str = "moverfill5resources";
const JOB_SECURITY: &str = "moverfill6security";
const WATCHED: &str = "moverfill7watched";
const POD: &str = "moverfill8pod";
const LISTS_ARGUMENTS: &str = "moverfill9arguments";
const LISTS_PORT: &str = "moverfill10port";
const LISTS_MOUNTS: &str = "moverfill11mounts";
const LISTS_VOLUMES: &str = "moverfill12volumes";
const VELERO: &str = "moverfill13velero";
const VELERO_MARK: &str = "moverfill14mark";

/// Each of the namespaces that are worked in.
const RANGE: &str = "{{- range (append (append $.Values.watchNamespaces $.Release.Namespace) \
                     $.Values.veleroNamespace | compact | uniq) }}";

const FILLS: [(&str, Fill); 16] = [
    (NAMESPACE, Fill::Inline("$.Release.Namespace")),
    (IMAGE, Fill::Inline("include \"mover.image\" $")),
    (JOB_IMAGES, Fill::Inline("include \"mover.jobImages\" $")),
    (PULL_POLICY, Fill::Inline("$.Values.image.pullPolicy")),
    (IN_PLACE, Fill::Inline("$.Values.restoreInPlace")),
    (EACH, Fill::Inline(".")),
    (VELERO, Fill::Inline("$.Values.veleroNamespace")),
    (VELERO_MARK, Fill::If("$.Values.veleroNamespace")),
    (RESOURCES, Fill::Yaml("$.Values.resources")),
    (
        JOB_SECURITY,
        Fill::Lines(&[
            "{{- if eq $.Values.jobSecurity \"restricted\" }}",
            "- \"--job-security=restricted\"",
            "{{- end }}",
        ]),
    ),
    (
        WATCHED,
        Fill::Lines(&[
            "{{- if $.Values.watchNamespaces }}",
            RANGE,
            "- \"--watch-namespace={{ . }}\"",
            "{{- end }}",
            "{{- end }}",
        ]),
    ),
    (
        POD,
        Fill::Lines(&[
            "{{- range $name := list \"imagePullSecrets\" \"nodeSelector\" \"tolerations\" \"affinity\" }}",
            "{{- with index $.Values $name }}",
            "{{ $name }}: {{- toYaml . | nindent INDENT }}",
            "{{- end }}",
            "{{- end }}",
            "{{- with $.Values.priorityClassName }}",
            "priorityClassName: {{ . }}",
            "{{- end }}",
        ]),
    ),
    (
        LISTS_ARGUMENTS,
        Fill::Lines(&[
            "{{- if $.Values.differentialSnapshots }}",
            "- \"--differential-snapshots=0.0.0.0:8443\"",
            "- \"--differential-tls=/etc/mover/differential\"",
            "- \"--differential-url=https://mover-differential-snapshots.{{ $.Release.Namespace }}.svc\"",
            "{{- end }}",
        ]),
    ),
    (
        LISTS_PORT,
        Fill::Lines(&[
            "{{- if $.Values.differentialSnapshots }}",
            "- containerPort: 8443",
            "  name: lists",
            "  protocol: TCP",
            "{{- end }}",
        ]),
    ),
    (
        LISTS_MOUNTS,
        Fill::Lines(&[
            "{{- if $.Values.differentialSnapshots }}",
            "volumeMounts:",
            "  - mountPath: /etc/mover/differential",
            "    name: differential-tls",
            "    readOnly: true",
            "{{- end }}",
        ]),
    ),
    (
        LISTS_VOLUMES,
        Fill::Lines(&[
            "{{- with $.Values.differentialSnapshots }}",
            "volumes:",
            "  - name: differential-tls",
            "    secret:",
            "      secretName: {{ . }}",
            "{{- end }}",
        ]),
    ),
];

/// Settings whose values are words to be filled in.
fn settings() -> Settings {
    let word = |word: &str| (word.to_owned(), Value::from(word));
    let pod = Map::from_iter([word(POD), word(LISTS_VOLUMES)]);
    Settings {
        namespace: NAMESPACE.to_owned(),
        job_images: JOB_IMAGES.to_owned(),
        image_pull_policy: PULL_POLICY.to_owned(),
        in_place: IN_PLACE.to_owned(),
        resources: RESOURCES.into(),
        arguments: [JOB_SECURITY, WATCHED, LISTS_ARGUMENTS].map(str::to_owned).to_vec(),
        ports: vec![LISTS_PORT.into()],
        container: Map::from_iter([word(LISTS_MOUNTS)]),
        pod,
        velero: Some(VELERO.to_owned()),
        velero_mark: VELERO_MARK.to_owned(),
        ..Settings::new(NAMESPACE, IMAGE)
    }
}

/// The lines around an object that is not always a part.
fn frame(when: When) -> (String, &'static str) {
    const END: &str = "{{- end }}\n";
    let each = format!("{RANGE}\n");
    let of = |condition: &str| format!("{{{{- if {condition} }}}}\n");
    match when {
        When::Always => (String::new(), ""),
        When::With(Part::Definitions) => (of("$.Values.definitions"), END),
        When::With(Part::Policies) => (of("$.Values.policies"), END),
        When::With(Part::NetworkPolicies) => (of("$.Values.networkPolicies"), END),
        When::With(Part::Monitoring) => (
            of(
                "and $.Values.monitoring ($.Capabilities.APIVersions.Has \"monitoring.coreos.com/v1\")",
            ),
            END,
        ),
        When::Hooks => (of("$.Values.hooks"), END),
        When::Everywhere => (of("not $.Values.watchNamespaces"), END),
        When::HooksEverywhere => (of("and $.Values.hooks (not $.Values.watchNamespaces)"), END),
        When::Somewhere => (of("$.Values.watchNamespaces") + &each, "{{- end }}\n{{- end }}\n"),
        When::Differential => (of("$.Values.differentialSnapshots"), END),
        When::Velero => (of("$.Values.veleroNamespace"), END),
        When::VeleroPolicies => (of("and $.Values.policies $.Values.veleroNamespace"), END),
        When::DifferentialNetwork => {
            (of("and $.Values.differentialSnapshots $.Values.networkPolicies"), END)
        }
        When::DifferentialEverywhere => {
            (of("and $.Values.differentialSnapshots (not $.Values.watchNamespaces)"), END)
        }
        When::DifferentialSomewhere => (
            of("and $.Values.differentialSnapshots $.Values.watchNamespaces") + &each,
            "{{- end }}\n{{- end }}\n",
        ),
        When::HooksSomewhere => {
            (of("and $.Values.hooks $.Values.watchNamespaces") + &each, "{{- end }}\n{{- end }}\n")
        }
    }
}

/// One object as a template.
fn template(manifest: &Manifest) -> String {
    let mut object = manifest.object.clone();
    if manifest.file == File::Definitions {
        // Without them all our objects would go.
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = "keep".into();
    }
    let printed = format!("---\n{}", yaml::document(&object)).replace("{{", "{{ \"{{\" }}");
    let (before, after) = frame(manifest.when);
    let mut text = before;
    for line in printed.lines() {
        text.push_str(&filled(line));
        text.push('\n');
    }
    text.push_str(after);
    text
}

fn filled(line: &str) -> String {
    let depth = line.len() - line.trim_start().len();
    let mut line = line.to_owned();
    let mut condition = None;
    for (word, fill) in &FILLS {
        if !line.contains(word) {
            continue;
        }
        match fill {
            Fill::Inline(expression) => {
                line = line.replace(word, &format!("{{{{ {expression} }}}}"));
            }
            Fill::Yaml(value) => {
                let text = format!("{{{{- toYaml {value} | nindent {} }}}}", depth + 2);
                line = line.replace(word, &text);
            }
            Fill::Lines(lines) => {
                let pad = " ".repeat(depth);
                let inner = (depth + 2).to_string();
                let all: Vec<String> = lines
                    .iter()
                    .map(|line| format!("{pad}{}", line.replace("INDENT", &inner)))
                    .collect();
                return all.join("\n");
            }
            Fill::If(of) => {
                line = line.replace(word, "");
                condition = Some(of);
            }
        }
    }
    match condition {
        None => line,
        Some(of) => {
            let pad = " ".repeat(depth);
            format!("{pad}{{{{- if {of} }}}}\n{line}\n{pad}{{{{- end }}}}")
        }
    }
}

const HEAD: &str =
    "# Made by `kubectl-mover __deploy deploy`; cluster/src/install/ has its source.\n";

/// All files of `deploy/controller/` and of the chart, by their paths below `deploy/`.
#[must_use]
pub fn files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let plain = Settings { hooks: true, ..Settings::new(super::NAMESPACE, &default_image()) };
    for manifest in manifests(&plain) {
        let path = format!("controller/{}.yaml", manifest.file.name());
        let text = files.entry(path).or_insert_with(|| HEAD.to_owned());
        text.push_str(&yaml::documents([&manifest.object]));
    }
    for manifest in all(&settings()).iter().filter(|at| at.file != File::Namespace) {
        let path = format!("helm/mover/templates/{}.yaml", manifest.file.name());
        let text = files.entry(path).or_insert_with(|| HEAD.to_owned());
        text.push_str(&template(manifest));
    }
    let chart = json!({
        "apiVersion": "v2",
        "name": "mover",
        "description": "Backups of PersistentVolumeClaims by changed blocks, proved restores, schedules and drills",
        "type": "application",
        "version": env!("CARGO_PKG_VERSION"),
        "appVersion": env!("CARGO_PKG_VERSION"),
        "kubeVersion": ">=1.30.0-0",
    });
    files.insert("helm/mover/Chart.yaml".into(), format!("{HEAD}{}", yaml::document(&chart)));
    files.insert("helm/mover/values.yaml".into(), format!("{HEAD}{}", values::file()));
    files.insert("helm/mover/values.schema.json".into(), values::schema());
    files.insert("helm/mover/README.md".into(), values::readme());
    files.insert("helm/mover/templates/_helpers.tpl".into(), HELPERS.to_owned());
    files.insert("helm/mover/templates/NOTES.txt".into(), NOTES.to_owned());
    files.insert("controller/kustomization.yaml".into(), kustomization());
    files
}

/// The image that is meant where none is named.
#[must_use]
pub fn default_image() -> String {
    format!("mover:{}", env!("CARGO_PKG_VERSION"))
}

fn kustomization() -> String {
    let mut text = format!(
        "{HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    );
    for file in [
        File::Namespace,
        File::Definitions,
        File::Policies,
        File::Rights,
        File::Network,
        File::Controller,
    ] {
        let _ = writeln!(text, "  - {}.yaml", file.name());
    }
    text.push_str(
        "  # The right to run hooks in pods:\n  # - hooks.yaml\n  # Where there is a Prometheus operator:\n  # - monitoring.yaml\n",
    );
    text
}

const HELPERS: &str = r#"{{- /* The image of the controller, and of Jobs whose Repository names none. */}}
{{- define "mover.image" -}}
{{- with $.Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}
{{- /* More images that a Repository may name, as the rest of a list of CEL. */}}
{{- define "mover.jobImages" -}}
{{- range $.Values.jobImages }}, '{{ . }}'{{ end -}}
{{- end -}}
"#;

const NOTES: &str = r#"mover {{ $.Chart.AppVersion }} runs in namespace {{ $.Release.Namespace }}. Its status page, read-only:
  kubectl -n {{ $.Release.Namespace }} port-forward deployment/mover-controller 8080
Before `helm uninstall`, have its finalizers taken off: kubectl mover uninstall --dry-run
"#;

/// A value of a chart as JSON.
fn parsed(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("a default is YAML")
}
