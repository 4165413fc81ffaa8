//! The alerts that are shipped beside the dashboard: Prometheus' own tool reads them, and says which
//! fire when.

use super::manifests::deploy;
use super::text;
use std::fs;
use std::path::Path;
use tests::{run, work_dir};

const RULES: &str = "prometheus-rules.yaml";

/// `None`, with a line that says so, where it is not installed.
fn promtool(args: &[&str]) -> Option<()> {
    if run("sh", ["-c", "command -v promtool"]).stdout.is_empty() {
        tests::skip("pod::alerts needs promtool; tests/setup gets it with prometheus");
        return None;
    }
    let output = run("promtool", args);
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {args:?}: {}", String::from_utf8_lossy(&said));
    Some(())
}

#[test]
fn the_alerts_fire_when_they_should_and_only_then() {
    let directory = work_dir("alerts");
    // beside each other, as the tests name the rules
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pod/alerts.yaml");
    for file in [deploy().join(RULES), cases] {
        fs::copy(&file, directory.path().join(file.file_name().unwrap())).unwrap();
    }
    let file = |name: &str| text(&directory.path().join(name)).to_owned();
    let Some(()) = promtool(&["check", "rules", &file(RULES)]) else { return };
    promtool(&["test", "rules", &file("alerts.yaml")]).unwrap();
}

/// Each alert is tried, and speaks of metrics that the manual has.
#[test]
fn the_alerts_use_metrics_that_exist() {
    let rules = fs::read_to_string(deploy().join(RULES)).unwrap();
    let docs = deploy().with_file_name("docs");
    let manual = ["reference.md", "metrics-controller.md"]
        .map(|page| fs::read_to_string(docs.join(page)).unwrap())
        .concat();
    let cases = include_str!("alerts.yaml");
    let after = |prefix: &'static str| {
        rules.lines().filter_map(move |line| line.trim_start().split_once(prefix))
    };
    let alerts: Vec<_> = after("- alert: ").map(|(_, name)| name).collect();
    assert!(alerts.len() >= 20, "{alerts:?}");
    for alert in alerts {
        assert!(cases.contains(&format!("alertname: {alert}\n")), "{alert} is not tried");
    }
    for (_, expression) in after("expr: ") {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<_> = words.filter(|word| word.starts_with("mover_")).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(manual.contains(&format!("| `{name}` |")), "{name} in {expression}");
        }
    }
}
