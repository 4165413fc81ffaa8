//! ResourceQuotas: room for what a backup makes for a while.

use super::quantity::quantity;
use super::{Level, Look};
use crate::engine::object::{Kind, Selection};
use crate::engine::observed::Object;
use crate::engine::request::Repository;
use crate::engine::step::Planned;
use serde_json::Value;

/// What is made in a namespace: names of quotas, and how much of each.
pub(super) struct Demand {
    namespace: String,
    of: &'static str,
    amounts: Vec<(String, String)>,
}

fn one(name: &str) -> (String, String) {
    (name.to_owned(), "1".to_owned())
}

impl Demand {
    /// The pod of a Job.
    pub(super) fn pod(repository: &Repository) -> Self {
        let Repository { cpu, memory, .. } = repository;
        let mut amounts = vec![one("pods"), one("count/pods"), one("count/jobs.batch")];
        for name in ["cpu", "requests.cpu", "limits.cpu"] {
            amounts.push((name.to_owned(), cpu.clone()));
        }
        for name in ["memory", "requests.memory", "limits.memory"] {
            amounts.push((name.to_owned(), memory.clone()));
        }
        Self { namespace: repository.namespace.clone(), of: "the pod of a Job", amounts }
    }

    /// The volume that is made of the snapshot.
    pub(super) fn volume(namespace: &str, class: &str, capacity: &str) -> Self {
        let of_class = format!("{class}.storageclass.storage.k8s.io");
        let mut amounts = vec![one("persistentvolumeclaims"), one("count/persistentvolumeclaims")];
        amounts.push(one(&format!("{of_class}/persistentvolumeclaims")));
        for name in ["requests.storage".to_owned(), format!("{of_class}/requests.storage")] {
            amounts.push((name, capacity.to_owned()));
        }
        let of = "the volume that is made of the snapshot";
        Self { namespace: namespace.to_owned(), of, amounts }
    }

    /// What stands beside the claim.
    pub(super) fn records(namespace: &str) -> Self {
        let amounts = [
            "configmaps",
            "count/configmaps",
            "count/leases.coordination.k8s.io",
            "count/volumesnapshots.snapshot.storage.k8s.io",
        ];
        let of = "the snapshot and the record of an operation";
        Self { namespace: namespace.to_owned(), of, amounts: amounts.map(one).to_vec() }
    }
}

/// Whether a quota is about pods such as ours, which have requests and no deadline.
fn applies(quota: &Value) -> bool {
    let scopes = quota["spec"]["scopes"].as_array().into_iter().flatten();
    quota["spec"]["scopeSelector"].is_null()
        && scopes
            .filter_map(Value::as_str)
            .all(|at| ["NotBestEffort", "NotTerminating"].contains(&at))
}

pub(super) fn check(look: &mut Look<'_>, demand: &Demand) -> Planned<()> {
    let Demand { namespace, of, amounts } = demand;
    let selection = Selection::labelled(Kind::ResourceQuota, namespace, "");
    let place = format!("resourcequotas in namespace {namespace}");
    let all: Option<Vec<Object<Value>>> =
        look.known(Level::Note, place, look.seen.list(&selection))?;
    for quota in all.unwrap_or_default() {
        if !applies(&quota.body) {
            continue;
        }
        for (name, needed) in amounts {
            let status = &quota.body["status"];
            let hard = status["hard"][name].as_str().or(quota.body["spec"]["hard"][name].as_str());
            let used = status["used"][name].as_str().unwrap_or("0");
            let Some(hard) = hard else { continue };
            let (Some(most), Some(now), Some(more)) =
                (quantity(hard), quantity(used), quantity(needed))
            else {
                continue;
            };
            if now + more <= most {
                continue;
            }
            let what = format!(
                "{name} is {hard}, of which {used} is used: no room for {of}, which needs {needed}"
            );
            let hint = format!("raise it, or free some: kubectl -n {namespace} describe quota");
            look.say(Level::Error, &quota.key, &what, &hint);
        }
    }
    Ok(())
}
