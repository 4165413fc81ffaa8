//! For the Prometheus operator: where metrics are, and alerts on them.

use super::{CONTROLLER, Settings, labelled, workload};
use serde_json::{Value, json};

/// The alerts of Jobs and of the controller, as Prometheus itself reads them.
const RULES: &str = include_str!("../../../deploy/prometheus-rules.yaml");

pub(super) fn objects(settings: &Settings) -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(RULES).expect("the rules are YAML, as promtool says");
    let object = |kind: &str, spec: Value| {
        labelled(json!({
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": kind,
            "metadata": { "name": CONTROLLER, "namespace": settings.namespace },
            "spec": spec,
        }))
    };
    vec![
        object(
            "PodMonitor",
            json!({
                "selector": { "matchLabels": workload::labels() },
                "podMetricsEndpoints": [{ "port": "metrics", "path": "/metrics" }],
            }),
        ),
        object("PrometheusRule", rules),
    ]
}
