//! Admission policies by a CEL interpreter of its own, with somebody's rights as a list.

use kube_cel::KubeCelExt as _;
use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ExecutionError, Program, Value as Cel, to_value};
use mover_cluster::install::Policy;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A request to the API server.
pub(crate) struct Request {
    pub(crate) operation: String,
    pub(crate) user: String,
    pub(crate) namespace: String,
    pub(crate) object: Value,
    pub(crate) old: Value,
    /// As `VERB RESOURCE[.GROUP][/SUBRESOURCE] [NAME]`. Of an account's: `ACCOUNT: …`.
    pub(crate) rights: BTreeSet<String>,
}

/// A question about a right, as far as it is asked.
type Asked = Arc<String>;

fn put(asked: &Asked, name: &str, value: &str) -> Result<Cel, ExecutionError> {
    let mut all: Value = serde_json::from_str(asked).expect("a question");
    all[name] = value.into();
    Ok(Cel::String(Arc::new(all.to_string())))
}

/// Whether a list of rights has what was asked: without a name, or for all names.
fn allows(rights: &BTreeSet<String>, asked: &Value) -> bool {
    let text = |name: &str| asked[name].as_str().unwrap_or_default();
    let mut what = format!("{} {}", text("verb"), text("resource"));
    if !text("group").is_empty() {
        what = format!("{what}.{}", text("group"));
    }
    if !text("subresource").is_empty() {
        what = format!("{what}/{}", text("subresource"));
    }
    if !text("account").is_empty() {
        what = format!("{}: {what}", text("account"));
    }
    rights.contains(&what) || rights.contains(&format!("{what} {}", text("name")))
}

fn context(request: &Request) -> Context<'static> {
    let mut context = Context::default().with_all();
    let bind = |context: &mut Context<'static>, name: &str, value: &Value| {
        let value = to_value(value).expect("JSON is CEL");
        context.add_variable_from_value(name.to_owned(), value);
    };
    bind(&mut context, "object", &request.object);
    bind(&mut context, "oldObject", &request.old);
    let about = if request.object.is_null() { &request.old } else { &request.object };
    bind(
        &mut context,
        "request",
        &json!({
            "operation": request.operation,
            "namespace": request.namespace,
            "name": about["metadata"]["name"],
            "kind": { "kind": about["kind"] },
            "userInfo": { "username": request.user },
        }),
    );
    bind(&mut context, "authorizer", &json!("{}"));
    for name in ["group", "resource", "subresource", "namespace", "name"] {
        context.add_function(name, move |This(asked): This<Asked>, value: Asked| {
            put(&asked, name, &value)
        });
    }
    context.add_function("serviceAccount", |This(asked): This<Asked>, _: Asked, account: Asked| {
        put(&asked, "account", &account)
    });
    context
        .add_function("check", |This(asked): This<Asked>, verb: Asked| put(&asked, "verb", &verb));
    let rights = request.rights.clone();
    context.add_function("allowed", move |This(asked): This<Asked>| {
        allows(&rights, &serde_json::from_str(&asked).expect("a question"))
    });
    context
}

/// Variables stand for their expressions, which are looked at only where they are used.
fn expanded(policy: &Policy, text: &str) -> String {
    let mut text = text.to_owned();
    for (name, expression) in policy.variables.iter().rev() {
        text = text.replace(&format!("variables.{name}"), &format!("({expression})"));
    }
    assert!(!text.contains("variables."), "{}: an unknown variable in {text}", policy.name);
    text
}

fn holds(policy: &Policy, request: &Request, text: &str) -> Result<bool, String> {
    let text = expanded(policy, text);
    let program =
        Program::compile(&text).map_err(|why| format!("{}: {why}: {text}", policy.name))?;
    match program.execute(&context(request)) {
        Ok(Cel::Bool(holds)) => Ok(holds),
        other => Err(format!("{}: {other:?}: {text}", policy.name)),
    }
}

fn is_about(policy: &Policy, request: &Request) -> bool {
    let about = if request.object.is_null() { &request.old } else { &request.object };
    let group = about["apiVersion"].as_str().and_then(|text| text.split_once('/'));
    let group = group.map_or("", |(group, _)| group);
    let kind = about["kind"].as_str().unwrap_or_default().to_ascii_lowercase();
    let is = |plural: &str| match plural.strip_suffix("ies") {
        Some(stem) => kind == format!("{stem}y"),
        None => Some(kind.as_str()) == plural.strip_suffix('s'),
    };
    policy.resources.iter().any(|(of, plurals, operations)| {
        *of == group
            && plurals.iter().any(|plural| is(plural))
            && operations.contains(&request.operation.as_str())
    })
}

/// What the policies say against a request. An expression that fails is a refusal, as on a server;
/// here it is an error, as none of ours may fail.
pub(crate) fn refusals(policies: &[Policy], request: &Request) -> Result<Vec<String>, String> {
    let mut said = Vec::new();
    for policy in policies.iter().filter(|policy| is_about(policy, request)) {
        let mut applies = true;
        for (_, condition) in &policy.conditions {
            applies = applies && holds(policy, request, condition)?;
        }
        if !applies {
            continue;
        }
        for validation in &policy.validations {
            if !holds(policy, request, &validation.expression)? {
                said.push(validation.message.clone());
            }
        }
    }
    Ok(said)
}

/// Most looks at rights that one expression has: a server ends one that costs too much.
pub(crate) fn looks(policy: &Policy, text: &str) -> usize {
    expanded(policy, text).matches(".allowed()").count()
}
