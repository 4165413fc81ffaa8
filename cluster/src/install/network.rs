//! Who may speak with the controller's pod, and whom it may speak with.

use super::{CONTROLLER, METRICS_PORT, Settings, labelled, workload};
use serde_json::{Value, json};

/// Ports of API servers: that of the Service, and those of the servers behind it.
const API_PORTS: [u16; 3] = [443, 6443, 8443];

/// No pod of the namespace is spoken to but the controller, and that for its metrics. Jobs there
/// reach their store, wherever that is: their way out stays open.
pub(super) fn objects(settings: &Settings) -> Vec<Value> {
    let policy = |name: &str, spec: Value| {
        labelled(json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "name": name, "namespace": settings.namespace },
            "spec": spec,
        }))
    };
    let tcp = |port: u16| json!({ "protocol": "TCP", "port": port });
    let name_service =
        json!([{ "protocol": "UDP", "port": 53 }, { "protocol": "TCP", "port": 53 }]);
    // The API server is a host of any address: policies know pods and addresses only.
    let server: Vec<Value> = API_PORTS.into_iter().map(tcp).collect();
    vec![
        policy("mover-deny-ingress", json!({ "podSelector": {}, "policyTypes": ["Ingress"] })),
        policy(
            CONTROLLER,
            json!({
                "podSelector": { "matchLabels": workload::labels() },
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "ports": [tcp(METRICS_PORT)] }],
                "egress": [{ "ports": name_service }, { "ports": server }],
            }),
        ),
    ]
}
