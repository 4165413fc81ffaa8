//! Who asks, whether he may, and with which token a driver is asked in turn.
//!
//! The API server says all of it: whose a token is (TokenReview), whether he may get that
//! DifferentialSnapshot (SubjectAccessReview). A token must be for the audience of this server, so
//! that one which was given to us is of no use anywhere else, and one for the API server is not
//! wanted here. Drivers are asked by an account of its own, which may read VolumeSnapshots and
//! nothing else, with a token for the driver's audience.

use super::answer::Answer;
use super::subject::Trouble;
use crate::api::{Api, ApiError, Asked};
use crate::engine::GROUP;
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Tokens of callers must be for it.
pub const AUDIENCE: &str = "differential-snapshots.mover.dev";
/// A token of a service account is some hundred bytes to a few KiB.
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// The API gives none that lives shorter.
const TOKEN_SECONDS: u64 = 600;
/// So long a token for a driver is used.
const TOKEN_USE: Duration = Duration::from_secs(300);
/// Drivers whose tokens are kept.
const TOKENS_MAX: usize = 32;

/// The account that drivers are asked by, and its tokens.
#[derive(Debug)]
pub(super) struct Account {
    namespace: String,
    name: String,
    tokens: Mutex<BTreeMap<String, (Instant, Token)>>,
}

#[derive(Clone)]
struct Token(Zeroizing<String>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

async fn post(api: &Api, path: &str, body: &Value, asked: Asked) -> Result<Value, ApiError> {
    let sent = ("application/json", serde_json::to_vec(body).expect("JSON"));
    api.request(Method::POST, path, &[], Some(sent), asked).await
}

/// The token of a request, if it can be one.
pub(super) fn bearer(header: Option<&str>) -> Option<Zeroizing<String>> {
    let (scheme, token) = header?.split_once(' ')?;
    let token = token.trim();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    let good = scheme.eq_ignore_ascii_case("bearer")
        && !token.is_empty()
        && token.len() <= TOKEN_BYTES_MAX
        && token.bytes().all(plain);
    good.then(|| Zeroizing::new(token.to_owned()))
}

/// Whether the owner of a token may get a DifferentialSnapshot; else the answer that he gets.
pub(super) async fn check(
    api: &Api,
    token: &str,
    namespace: &str,
    name: &str,
) -> Result<(), Answer> {
    let unavailable = |why: ApiError| {
        let why = crate::engine::Failure::from(why);
        tracing::warn!("{why}");
        Answer::later("who asks cannot be found out just now")
    };
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": { "token": token, "audiences": [AUDIENCE] },
    });
    let asked = Asked::other(
        "ask whose a token is",
        "create tokenreviews.authentication.k8s.io of the cluster",
    );
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = post(api, path, &review, asked).await.map_err(unavailable)?;
    let status = &review["status"];
    let audiences = status["audiences"].as_array().map_or(&[][..], Vec::as_slice);
    // A server that knows no audiences names none: its word is not about this one.
    if status["authenticated"] != true || !audiences.iter().any(|name| name == AUDIENCE) {
        return Err(Answer::unauthorized());
    }
    let user = &status["user"];
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user["username"],
            "uid": user["uid"],
            "groups": user["groups"],
            "extra": user["extra"],
            "resourceAttributes": {
                "namespace": namespace,
                "verb": "get",
                "group": GROUP,
                "version": crate::kinds::VERSION,
                "resource": "differentialsnapshots",
                "name": name,
            },
        },
    });
    let asked = Asked::other(
        "ask what a user may do",
        "create subjectaccessreviews.authorization.k8s.io of the cluster",
    );
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = post(api, path, &review, asked).await.map_err(unavailable)?;
    if review["status"]["allowed"] == true && review["status"]["denied"] != true {
        return Ok(());
    }
    Err(Answer::forbidden(namespace, name))
}

impl Account {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        let tokens = Mutex::default();
        Self { namespace: namespace.to_owned(), name: name.to_owned(), tokens }
    }

    /// A token for a driver's audience.
    pub(super) async fn token(
        &self,
        api: &Api,
        audience: &str,
    ) -> Result<Zeroizing<String>, Trouble> {
        {
            let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, token)) = tokens.get(audience)
                && since.elapsed() < TOKEN_USE
            {
                return Ok(token.0.clone());
            }
        }
        let Self { namespace, name, .. } = self;
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "audiences": [audience], "expirationSeconds": TOKEN_SECONDS },
        });
        let asked = Asked::other(
            &format!("ask for a token of serviceaccount/{name} in namespace {namespace}"),
            &format!("create serviceaccounts/token in namespace {namespace}"),
        );
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let since = Instant::now();
        let answer = post(api, &path, &body, asked).await?;
        let Some(token) = answer["status"]["token"].as_str().filter(|token| !token.is_empty())
        else {
            let what = format!("serviceaccount/{name} in namespace {namespace} got no token");
            return Err(Trouble::Unavailable(what));
        };
        let token = Token(Zeroizing::new(token.to_owned()));
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= TOKENS_MAX {
            tokens.clear();
        }
        tokens.insert(audience.to_owned(), (since, token.clone()));
        Ok(token.0)
    }

    /// A driver refuses the token that it got.
    pub(super) fn forget(&self, audience: &str) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).remove(audience);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_of_a_known_scheme() {
        let token = |header| bearer(Some(header)).map(|token| token.to_string());
        assert_eq!(token("Bearer abc.d-e_f").as_deref(), Some("abc.d-e_f"));
        assert_eq!(token("bearer  abc").as_deref(), Some("abc"));
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "Bearer a b", "Bearer a\u{e9}"] {
            assert_eq!(token(bad), None, "{bad}");
        }
        assert!(bearer(Some(&format!("Bearer {}", "a".repeat(TOKEN_BYTES_MAX + 1)))).is_none());
        assert!(bearer(None).is_none());
    }
}
