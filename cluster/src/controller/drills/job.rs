//! The Job of a drill: a pod of the user's image with nothing but the restored volume, and what its
//! end means.

use super::super::Context;
use super::super::task::Task;
use crate::engine::{self, Key, Kind, MANAGER, Meta, OWNER, ROLE, SCHEDULE};
use crate::kinds::Drill;
use serde_json::{Value, json};

/// On the Job: the uid of the record that it is of.
const OF: &str = "mover.dev/drill-of";
/// Where the volume is.
const PATH: &str = "/restored";
const SECONDS: u32 = 3_600;
const MESSAGE_CHARS: usize = 1_000;
/// The level of pod security that a namespace holds its pods to.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce";

/// What a drill has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) passed: bool,
    pub(super) message: String,
}

/// Whether pods of a namespace may not run as root. Who may not ask takes it for no.
pub(super) async fn is_restricted(context: &Context, namespace: &str) -> bool {
    let found = context.api.get(&Key::wide(Kind::Namespace, namespace)).await.ok().flatten();
    let level = found.and_then(|at| Meta::of(&at).labels.remove(ENFORCED));
    level.as_deref() == Some("restricted")
}

/// The Job. Not every image runs as another user than root, so that is asked for only where the
/// namespace has it; all else of the level `restricted` is.
pub(super) fn of(
    task: &Task,
    meta: &Meta,
    drill: &Drill,
    claim: &Value,
    is_restricted: bool,
) -> Value {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::Job, namespace, &meta.name);
    let labels = json!({
        "app.kubernetes.io/managed-by": MANAGER,
        // The controller's account may make and remove no Job without it.
        OWNER: task.uid,
        ROLE: "drill",
        OF: task.uid,
        SCHEDULE: meta.labels.get(SCHEDULE),
    });
    let mut pod_security = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    if is_restricted {
        pod_security["runAsNonRoot"] = true.into();
    }
    let mut container = json!({
        "name": "drill",
        "image": drill.image,
        "command": drill.command,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "privileged": false,
            "capabilities": { "drop": ["ALL"] },
        },
    });
    match claim["spec"]["volumeMode"].as_str() {
        Some("Block") => {
            container["volumeDevices"] = json!([{ "name": "restored", "devicePath": PATH }]);
        }
        _ => container["volumeMounts"] = json!([{ "name": "restored", "mountPath": PATH }]),
    }
    let metadata = json!({
        "name": key.name,
        "namespace": namespace,
        "labels": labels.clone(),
        "ownerReferences": [task.reference()],
    });
    let spec = json!({
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": drill.timeout_seconds.unwrap_or(SECONDS),
        "template": {
            "metadata": { "labels": labels },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": pod_security,
                "containers": [container],
                "volumes": [{
                    "name": "restored",
                    "persistentVolumeClaim": { "claimName": claim["metadata"]["name"] },
                }],
            },
        },
    });
    engine::object(&key, metadata, json!({ "spec": spec }))
}

/// Whether a Job is that of a record.
pub(super) fn is_of(job: &Value, record: &str) -> bool {
    job["metadata"]["labels"][OF] == record
}

/// What the end of a Job says; nothing while it has none. `waits` is the last thing that its pod
/// was known to wait for.
pub(super) fn verdict(job: &Value, pods: &[Value], waits: Option<&str>) -> Option<Found> {
    let conditions = job["status"]["conditions"].as_array()?;
    let ended =
        |kind: &str| conditions.iter().find(|at| at["type"] == kind && at["status"] == "True");
    if ended("Complete").is_some() {
        let said = exits(pods).map(|(_, message)| message).unwrap_or_default();
        let message = match said.is_empty() {
            true => "all data was read back, and the command ended with 0".into(),
            false => format!("the command ended with 0: {said}"),
        };
        return Some(Found { passed: true, message });
    }
    let failed = ended("Failed")?;
    let message = if failed["reason"] == "DeadlineExceeded" {
        let seconds = &job["spec"]["activeDeadlineSeconds"];
        let why = waits.map(|waits| format!("; it waited: {waits}")).unwrap_or_default();
        format!("the command did not end within {seconds} seconds{why}")
    } else {
        match exits(pods) {
            Some((code, said)) if said.is_empty() => format!("the command ended with {code}"),
            Some((code, said)) => format!("the command ended with {code}: {said}"),
            None => {
                let said = failed["message"].as_str().unwrap_or_default();
                format!("its pod did not end by itself: {said}")
            }
        }
    };
    Some(Found { passed: false, message })
}

/// What a pod waits for.
pub(super) fn waits(pods: &[Value]) -> Option<String> {
    let states = pods.iter().flat_map(|pod| pod["status"]["containerStatuses"].as_array());
    let mut waiting =
        states.flatten().map(|at| &at["state"]["waiting"]).filter(|at| at.is_object());
    if let Some(waiting) = waiting.next() {
        let (reason, message) = (waiting["reason"].as_str(), waiting["message"].as_str());
        let said = [reason, message].into_iter().flatten().collect::<Vec<_>>().join(": ");
        return Some(short(&said));
    }
    let conditions = pods.iter().flat_map(|pod| pod["status"]["conditions"].as_array()).flatten();
    let mut unscheduled =
        conditions.filter(|at| at["type"] == "PodScheduled" && at["status"] == "False");
    unscheduled.next().and_then(|at| at["message"].as_str()).map(short)
}

/// Exit code of the command, and the end of what it wrote.
fn exits(pods: &[Value]) -> Option<(i64, String)> {
    let states = pods.iter().flat_map(|pod| pod["status"]["containerStatuses"].as_array());
    let mut ended = states.flatten().map(|at| &at["state"]["terminated"]);
    ended.find_map(|at| {
        let code = at["exitCode"].as_i64()?;
        Some((code, short(at["message"].as_str().unwrap_or_default())))
    })
}

/// The last characters: the end of a log tells most.
fn short(text: &str) -> String {
    let text = text.trim();
    let all = text.chars().count();
    text.chars().skip(all.saturating_sub(MESSAGE_CHARS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use tokio::sync::watch;

    fn job(mode: &str, is_restricted: bool) -> Value {
        let key = Key::new(Kind::VolumeRestore, "shop", "mover-drill-nightly-202605030200");
        let task = Task::new(key, "r1".into(), Rc::default(), watch::channel(0).1);
        let meta = Meta {
            name: "mover-drill-nightly-202605030200".into(),
            namespace: Some("shop".into()),
            labels: [(SCHEDULE.to_owned(), "s1".to_owned())].into(),
            ..Meta::default()
        };
        let drill = Drill {
            image: Some("postgres:18".into()),
            command: Some(vec!["pg_verify".into()]),
            timeout_seconds: Some(60),
            ..Drill::default()
        };
        let claim = json!({
            "metadata": { "name": "mover-drill-nightly-202605030200" },
            "spec": { "volumeMode": mode },
        });
        of(&task, &meta, &drill, &claim, is_restricted)
    }

    #[test]
    fn its_pod_has_the_volume_and_nothing_else() {
        let made = job("Filesystem", false);
        assert!(is_of(&made, "r1") && !is_of(&made, "r2"));
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "r1");
        assert_eq!(
            (&made["spec"]["backoffLimit"], &made["spec"]["activeDeadlineSeconds"]),
            (&json!(0), &json!(60))
        );
        let pod = &made["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(
            pod["securityContext"],
            json!({ "seccompProfile": { "type": "RuntimeDefault" } })
        );
        let container = &pod["containers"][0];
        assert_eq!(
            container["securityContext"],
            json!({
                "allowPrivilegeEscalation": false,
                "privileged": false,
                "capabilities": { "drop": ["ALL"] },
            })
        );
        assert_eq!(
            container["volumeMounts"],
            json!([{ "name": "restored", "mountPath": "/restored" }])
        );
        assert!(container["env"].is_null() && container["envFrom"].is_null());
        assert_eq!(pod["volumes"].as_array().map(Vec::len), Some(1));
        let block = job("Block", true);
        let pod = &block["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["containers"][0]["volumeDevices"][0]["devicePath"], "/restored");
        assert!(pod["containers"][0]["volumeMounts"].is_null());
    }

    fn ended(kind: &str, reason: &str) -> Value {
        json!({
            "spec": { "activeDeadlineSeconds": 60 },
            "status": { "conditions": [
                { "type": kind, "status": "True", "reason": reason, "message": "of the Job" },
            ] },
        })
    }

    fn pod(state: Value) -> Vec<Value> {
        vec![json!({ "status": { "containerStatuses": [{ "name": "drill", "state": state }] } })]
    }

    #[test]
    fn the_end_of_its_job_is_the_end_of_a_drill() {
        assert_eq!(verdict(&json!({ "status": {} }), &[], None), None);
        let running =
            json!({ "status": { "conditions": [{ "type": "Failed", "status": "False" }] } });
        assert_eq!(verdict(&running, &[], None), None);
        let good =
            verdict(&ended("Complete", ""), &pod(json!({ "terminated": { "exitCode": 0 } })), None);
        assert!(good.expect("it").passed);
        let exit =
            pod(json!({ "terminated": { "exitCode": 3, "message": "two rows are missing\n" } }));
        let bad = verdict(&ended("Failed", "BackoffLimitExceeded"), &exit, None).expect("it");
        assert_eq!(
            (bad.passed, bad.message.as_str()),
            (false, "the command ended with 3: two rows are missing")
        );
        let gone = verdict(&ended("Failed", "BackoffLimitExceeded"), &[], None).expect("it");
        assert_eq!(gone.message, "its pod did not end by itself: of the Job");
        let late = verdict(
            &ended("Failed", "DeadlineExceeded"),
            &[],
            Some("ImagePullBackOff: no such image"),
        );
        assert_eq!(
            late.expect("it").message,
            "the command did not end within 60 seconds; it waited: ImagePullBackOff: no such image"
        );
    }

    #[test]
    fn what_a_pod_waits_for_is_told() {
        let image = pod(json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } }));
        assert_eq!(waits(&image).as_deref(), Some("ErrImagePull: not found"));
        assert_eq!(waits(&pod(json!({ "running": {} }))), None);
        let unscheduled =
            json!({ "type": "PodScheduled", "status": "False", "message": "no node" });
        let node = json!({ "status": { "conditions": [unscheduled] } });
        assert_eq!(waits(&[node]).as_deref(), Some("no node"));
        let log = "x".repeat(4_000);
        let long = pod(json!({ "terminated": { "exitCode": 1, "message": format!("{log}end") } }));
        let said = verdict(&ended("Failed", ""), &long, None).expect("it").message;
        assert!(said.ends_with("end") && said.len() < 1_100, "the end of a long log");
    }
}
