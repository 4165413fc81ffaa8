//! Admission policies: what rights alone cannot say.
//!
//! `authors`: whoever makes our objects gets no exec, no Secret and no data that he could not get
//! without us, as the controller acts for him with rights of its own. `bounds`: the controller's
//! own account makes, changes and deletes what is ours alone, also where its token is stolen.
//! `taken`: the same of what it does for Velero, where it does.
//!
//! Expressions stay within the costs that an API server allows: a look at somebody's rights counts
//! 350,000 of the 1,000,000 of one expression, so none has more than two of them.

mod authors;
mod bounds;
mod taken;

use super::{CONTROLLER, File, Manifest, Part, Settings, When, labelled};
use serde_json::{Value, json};

/// One condition, and what its breach says.
#[derive(Debug, Clone)]
pub struct Validation {
    /// True where all is well, in CEL.
    pub expression: String,
    /// For people: what is wrong, and what they need.
    pub message: String,
}

/// A ValidatingAdmissionPolicy, which is bound as it is.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Its name.
    pub name: &'static str,
    /// Group, resources and operations that it is about.
    pub resources: Vec<(&'static str, Vec<&'static str>, Vec<&'static str>)>,
    /// Requests that it is about: names and expressions, all of which hold.
    pub conditions: Vec<(&'static str, String)>,
    /// Names for expressions.
    pub variables: Vec<(&'static str, String)>,
    /// What has to hold.
    pub validations: Vec<Validation>,
}

/// A text of CEL.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Lines of one expression.
fn lines(all: &[&str]) -> String {
    all.join("\n")
}

fn validation(expression: impl Into<String>, message: &str) -> Validation {
    Validation { expression: expression.into(), message: message.to_owned() }
}

/// It has a label or an annotation of this name, as `notes` says.
fn has(object: &str, notes: &str, name: &str) -> String {
    format!("(has({object}.metadata.{notes}) && {name} in {object}.metadata.{notes})")
}

/// A policy for the controller, without the condition that it is about no one else.
fn bound(
    name: &'static str,
    resources: Vec<(&'static str, Vec<&'static str>, Vec<&'static str>)>,
    variables: Vec<(&'static str, String)>,
    validations: Vec<Validation>,
) -> Policy {
    Policy { name, resources, conditions: Vec::new(), variables, validations }
}

/// The request is the controller's own.
fn by_controller(settings: &Settings) -> String {
    let account = format!("system:serviceaccount:{}:{CONTROLLER}", settings.namespace);
    format!("request.userInfo.username == {}", quoted(&account))
}

/// About requests of the controller alone.
fn bounding(mut all: Vec<Policy>, settings: &Settings) -> Vec<Policy> {
    for policy in &mut all {
        policy.conditions = vec![("by-the-controller", by_controller(settings))];
    }
    all
}

/// Those that there are in any case.
fn usual(settings: &Settings) -> Vec<Policy> {
    let mut all = authors::policies(settings);
    all.extend(bounding(bounds::policies(settings), settings));
    all
}

/// Those that there are where data is moved for Velero.
fn of_velero(settings: &Settings) -> Vec<Policy> {
    match settings.velero {
        Some(_) => bounding(taken::policies(), settings),
        None => Vec::new(),
    }
}

/// All policies of an installation.
#[must_use]
pub fn policies(settings: &Settings) -> Vec<Policy> {
    let mut all = usual(settings);
    all.extend(of_velero(settings));
    all
}

pub(super) fn objects(settings: &Settings) -> Vec<Manifest> {
    let manifests = |of: Vec<Policy>, when: When| {
        let both = |policy: Policy| [object(&policy), binding(&policy)];
        let objects = of.into_iter().flat_map(both);
        objects.map(move |object| Manifest { file: File::Policies, when, object })
    };
    let mut all: Vec<_> = manifests(usual(settings), When::With(Part::Policies)).collect();
    all.extend(manifests(of_velero(settings), When::VeleroPolicies));
    all
}

const API: &str = "admissionregistration.k8s.io/v1";

fn object(policy: &Policy) -> Value {
    let named = |all: &[(&'static str, String)]| -> Vec<Value> {
        all.iter().map(|(name, text)| json!({ "name": name, "expression": text })).collect()
    };
    let rules: Vec<Value> = policy
        .resources
        .iter()
        .map(|(group, resources, operations)| {
            json!({
                "apiGroups": [group],
                "apiVersions": ["*"],
                "resources": resources,
                "operations": operations,
            })
        })
        .collect();
    let validated = |at: &Validation| json!({ "expression": at.expression, "message": at.message, "reason": "Forbidden" });
    let validations: Vec<Value> = policy.validations.iter().map(validated).collect();
    let mut spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": rules },
        "matchConditions": named(&policy.conditions),
        "validations": validations,
    });
    if !policy.variables.is_empty() {
        spec["variables"] = named(&policy.variables).into();
    }
    labelled(json!({
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": policy.name },
        "spec": spec,
    }))
}

fn binding(policy: &Policy) -> Value {
    labelled(json!({
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": policy.name },
        "spec": { "policyName": policy.name, "validationActions": ["Deny"] },
    }))
}
