//! What a refusal of the API server means for a plan, and what it says to people: which request it
//! was, and what to do next. Nothing is decided by the text of a message but its hint.

use crate::engine::{Failure, Key, Kind, exit};
use kube::Error;
use kube::core::Status;

/// How a request ended that was not answered with objects.
#[derive(Debug, Clone)]
pub enum ApiError {
    /// There is none, also where the whole kind is unknown.
    Absent(Failure),
    /// Something else changed first, or has the name.
    Conflict(Failure),
    /// The same would be refused again.
    Refused(Failure),
    /// It may pass.
    Unavailable(Failure),
    /// The server no longer knows the version that was asked about: whoever reads begins anew.
    Expired(Failure),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Absent(why)
            | ApiError::Conflict(why)
            | ApiError::Refused(why)
            | ApiError::Unavailable(why)
            | ApiError::Expired(why) => why,
        }
    }
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    /// For people, as a verb phrase.
    what: String,
    /// The right that it takes.
    right: String,
    namespace: Option<String>,
}

impl Asked {
    /// A request about one object: the word for it, and the verb of the API.
    pub(super) fn one(word: &str, verb: &str, key: &Key) -> Self {
        Self::some(format!("{word} {key}"), verb, key.kind, "", key.namespace.as_deref())
    }

    /// One about a part of an object, such as the log of a pod.
    pub(super) fn part(word: &str, verb: &str, key: &Key, part: &str) -> Self {
        Self::some(format!("{word} {key}"), verb, key.kind, part, key.namespace.as_deref())
    }

    /// One about all objects of a kind.
    pub(super) fn many(verb: &str, kind: Kind, namespace: Option<&str>) -> Self {
        let place = namespace.map_or(String::new(), |name| format!(" in namespace {name}"));
        Self::some(format!("{verb} {}{place}", kind.resource().plural), verb, kind, "", namespace)
    }

    fn some(what: String, verb: &str, kind: Kind, part: &str, namespace: Option<&str>) -> Self {
        let resource = kind.resource();
        let dot = if resource.group.is_empty() { "" } else { "." };
        let place = match namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None if resource.namespaced => "in all namespaces".to_owned(),
            None => "of the cluster".to_owned(),
        };
        let right = format!("{verb} {}{dot}{}{part} {place}", resource.plural, resource.group);
        Self { what, right, namespace: namespace.map(str::to_owned) }
    }

    /// A request that is no plain one about objects.
    pub(crate) fn other(what: &str, right: &str) -> Self {
        Self { what: what.to_owned(), right: right.to_owned(), namespace: None }
    }

    /// Nobody answered within so many seconds.
    pub(super) fn unanswered(&self, seconds: u64) -> ApiError {
        ApiError::Unavailable(
            Failure::new(exit::RETRYABLE, format!("{}: no answer within {seconds} s", self.what))
                .hint(UNWELL),
        )
    }

    /// The server says that it is not allowed, and no more than that.
    pub(super) fn denied(&self) -> Failure {
        let Self { what, right, .. } = self;
        Failure::new(exit::DENIED, format!("{what}: it is not allowed")).hint(format!(
            "the right to {right} is missing: docs/kubernetes.md lists all that are needed"
        ))
    }

    /// A request that cannot be written down.
    pub(super) fn unwritten(&self, why: &impl std::fmt::Display) -> ApiError {
        ApiError::Refused(Failure::new(exit::USAGE, format!("{}: {why}", self.what)))
    }

    /// How many seconds the server asked to wait, in words.
    pub(super) fn waits(why: &Failure, seconds: f64) {
        tracing::warn!("{}; it is tried again in {seconds} s", why.message);
    }
}

const UNWELL: &str = "the API server is overloaded, not well or cannot be reached: kubectl get --raw '/readyz?verbose' says more";

/// What an error of the client means for a plan.
pub(crate) fn classify(error: Error, asked: &Asked) -> ApiError {
    let what = &asked.what;
    let said = |code, text: &str| Failure::new(code, format!("{what}: {text}"));
    let status: Box<Status> = match error {
        Error::Api(status) => status,
        Error::Auth(why) => {
            let why = said(exit::DENIED, &why.to_string());
            return ApiError::Refused(why.hint("log in to the cluster again"));
        }
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(&other);
            while let Some(cause) = source {
                let cause_text = cause.to_string();
                if !text.contains(&cause_text) {
                    text = format!("{text}: {cause_text}");
                }
                source = cause.source();
            }
            let why = said(exit::RETRYABLE, &text);
            return ApiError::Unavailable(
                why.hint("the API server cannot be reached, or ends connections"),
            );
        }
    };
    let text = match status.message.as_str() {
        "" => "the API server gives no reason",
        text => text,
    };
    match status.code {
        404 => ApiError::Absent(said(exit::USAGE, text)),
        409 if status.reason == "AlreadyExists" => ApiError::Conflict(
            said(exit::USAGE, text)
                .hint("look at what has that name, and delete it or choose another"),
        ),
        409 => ApiError::Conflict(
            said(exit::RETRYABLE, text)
                .hint("somebody else changed it: run the same command again"),
        ),
        401 => ApiError::Refused(said(exit::DENIED, text).hint("log in to the cluster again")),
        403 => ApiError::Refused(said(exit::DENIED, text).hint(why_forbidden(&status, asked))),
        410 => ApiError::Expired(said(exit::RETRYABLE, text)),
        400 | 405 | 413 | 415 | 422 => ApiError::Refused(said(exit::USAGE, text)),
        code => {
            ApiError::Unavailable(said(exit::RETRYABLE, &format!("{code}: {text}")).hint(UNWELL))
        }
    }
}

/// A right that is missing, or one of the other things that have the same code.
fn why_forbidden(status: &Status, asked: &Asked) -> String {
    let namespace = asked.namespace.as_deref().unwrap_or("default");
    let causes = status.details.iter().flat_map(|details| &details.causes);
    if causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating") {
        return format!(
            "namespace {namespace} is being deleted: wait until it is gone, or use another one"
        );
    }
    if status.message.contains("exceeded quota") {
        return format!(
            "kubectl describe resourcequota -n {namespace} says what is used: make room there, and run the same command again"
        );
    }
    if status.message.contains(" cannot ") {
        return format!(
            "the right to {} is missing: docs/kubernetes.md lists all that are needed",
            asked.right
        );
    }
    "an admission rule of the cluster refuses it; whoever made the rule knows why".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> Failure {
        let key = Key::new(Kind::Job, "shop", "x");
        let status = Status::failure(message, reason).with_code(code).boxed();
        classify(Error::Api(status), &Asked::one("create", "create", &key)).into()
    }

    #[test]
    fn each_refusal_names_the_request_and_the_next_step() {
        let cannot = "jobs.batch is forbidden: User \"u\" cannot create resource \"jobs\"";
        for (code, reason, message, said) in [
            (403, "Forbidden", cannot, "the right to create jobs.batch in namespace shop"),
            (403, "Forbidden", "exceeded quota: few", "kubectl describe resourcequota -n shop"),
            (403, "Forbidden", "violates PodSecurity", "an admission rule"),
            (401, "Unauthorized", "Unauthorized", "log in"),
            (409, "AlreadyExists", "already exists", "look at what has that name"),
            (409, "Conflict", "modified", "somebody else changed it"),
            (429, "TooManyRequests", "later", "/readyz"),
            (500, "InternalError", "", "/readyz"),
        ] {
            let why = refused(code, reason, message);
            assert!(why.message.starts_with("create job/x in namespace shop: "), "{why}");
            assert!(why.hint.as_ref().is_some_and(|hint| hint.contains(said)), "{why}");
        }
    }
}
