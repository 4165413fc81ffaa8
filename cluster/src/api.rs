//! The API server, as thin as it can be: reads, one write at a time, and watches, of objects as
//! they stand in JSON. It decides nothing.

mod errors;
mod exec;
mod hub;
mod limit;
mod log;
mod raw;
mod steps;
mod watch;

pub use errors::ApiError;
pub(crate) use errors::{Asked, classify};
pub use hub::HubSettings;
pub(crate) use hub::selector_of;
pub use limit::LimitSettings;
pub use log::Log;
pub use raw::Counter;
pub(crate) use raw::escaped;
pub use steps::Written;
pub use watch::Change;

pub use crate::engine::key_of;
use crate::engine::{Failure, Key, Kind, Observed, Query, Selection};
use futures::stream::{BoxStream, StreamExt as _};
use hub::Hub;
use kube::api::{
    DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, PropagationPolicy, Request,
};
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Error};
use limit::{Limit, Permit};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Names us in managed fields.
pub(crate) const FIELD_MANAGER: &str = "kubectl-mover";
/// Most objects in one answer of a list.
const PAGE: u32 = 500;
/// A connection that nobody answers on any more is given up after so long.
const ANSWER: Duration = Duration::from_secs(60);
/// A server that asks for patience is given so much, for one request.
const PATIENCE: Duration = Duration::from_secs(30);
/// It is not asked again sooner.
const PATIENCE_LEAST: Duration = Duration::from_millis(250);
/// How much of a pod's log is read: the longest answers are lists of backups, of which each has about a kilobyte.
const LOG: log::Bounds =
    log::Bounds { line_bytes: 1 << 20, bytes: 64 << 20, silence: Some(ANSWER) };

/// The API server of one cluster.
#[derive(Clone)]
pub struct Api {
    client: Client,
    limit: Option<Arc<Limit>>,
    hub: Option<Arc<Hub>>,
    /// Its requests wait for nobody.
    is_urgent: bool,
    /// Hears of each answer.
    counter: Option<Counter>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Speaks to the server by this client.
    pub fn new(client: Client) -> Self {
        Self { client, limit: None, hub: None, is_urgent: false, counter: None }
    }

    /// The same for many operations at once: all clones share their watches and a limit of
    /// requests. It needs a runtime of tokio when it watches.
    pub fn shared(client: Client, settings: HubSettings) -> Self {
        let limit = Some(Arc::new(Limit::new(settings.limit)));
        let lone = Self { client, limit, hub: None, is_urgent: true, counter: None };
        let hub = Some(Arc::new(Hub::new(lone.clone(), settings)));
        Self { hub, is_urgent: false, ..lone }
    }

    /// The same, whose requests count and wait for nobody: for who holds an application still.
    #[must_use]
    pub fn urgent(&self) -> Self {
        Self { is_urgent: true, ..self.clone() }
    }

    /// Whether watches are shared with other operations.
    pub fn is_shared(&self) -> bool {
        self.hub.is_some()
    }

    /// Whether a watch of this is shared. It is never silently dead, and costs no request.
    pub fn shares(&self, query: &Query) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.serves(query))
    }

    /// Whether such a watch is there now: then a reading by a list saves another one, as it has a
    /// version to be watched from.
    pub fn is_watched(&self, query: &Query) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.is_live(query))
    }

    /// Shared watches compare their versions with those that were read, and tell objects in the
    /// form that they have here: else an object would seem to have changed.
    fn noted(&self, kind: Kind, mut answer: Value) -> Value {
        steps::forget_parts(kind, &mut answer);
        let Some(hub) = &self.hub else { return answer };
        hub.note(kind, &answer);
        match answer.get_mut("items").and_then(Value::as_array_mut) {
            Some(items) => items.iter_mut().for_each(|item| hub::trim(kind, item)),
            None => hub::trim(kind, &mut answer),
        }
        answer
    }

    /// Waits until one more request may be sent.
    async fn permit(&self) -> Option<Permit> {
        let limit = self.limit.as_ref()?;
        Some(if self.is_urgent { limit.urgent() } else { limit.permit().await })
    }

    /// The client, for commands in pods. Whatever else is asked goes through the requests here: they
    /// are bounded in time and number, and counted.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// One object.
    ///
    /// # Errors
    ///
    /// See [`ApiError`]; an absent object is none.
    pub async fn get(&self, key: &Key) -> Result<Option<Value>, ApiError> {
        let request = Request::new(path(key.kind, key.namespace.as_deref()))
            .get(&key.name, &kube::api::GetParams::default());
        match self.send(request, Asked::one("read", "get", key)).await {
            Ok(object) => Ok(Some(self.noted(key.kind, object))),
            Err(ApiError::Absent(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a selection, with the version of the list.
    ///
    /// # Errors
    ///
    /// See [`ApiError`]; of an unknown kind there are no objects.
    pub async fn list(
        &self,
        selection: &Selection,
    ) -> Result<(Vec<Value>, Option<String>), ApiError> {
        let Selection { kind, namespace, labels, fields } = selection;
        let mut parameters = ListParams::default().limit(PAGE);
        if !labels.is_empty() {
            parameters = parameters.labels(labels);
        }
        if !fields.is_empty() {
            parameters = parameters.fields(fields);
        }
        let mut all = Vec::new();
        loop {
            let request = Request::new(path(*kind, namespace.as_deref())).list(&parameters);
            let asked = Asked::many("list", *kind, namespace.as_deref());
            let mut page = match self.send(request, asked).await {
                Ok(page) => self.noted(*kind, page),
                Err(ApiError::Absent(_)) => return Ok((Vec::new(), None)),
                Err(error) => return Err(error),
            };
            if let Value::Array(items) = page["items"].take() {
                all.extend(items);
            }
            let metadata = &page["metadata"];
            match metadata["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(token),
                None => {
                    return Ok((all, metadata["resourceVersion"].as_str().map(str::to_owned)));
                }
            }
        }
    }

    /// Makes an object.
    ///
    /// # Errors
    ///
    /// See [`ApiError`]; [`ApiError::Conflict`] where the name is taken.
    pub async fn create(&self, object: &Value) -> Result<Value, ApiError> {
        let key = key_of(object);
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), dry_run: false };
        let body = serde_json::to_vec(object).expect("JSON");
        let request =
            Request::new(path(key.kind, key.namespace.as_deref())).create(&parameters, body);
        let made = self.send(request, Asked::one("create", "create", &key)).await?;
        Ok(self.noted(key.kind, made))
    }

    /// Changes an object by a merge patch, if it has this uid and, if one is given, this version.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub async fn patch(
        &self,
        key: &Key,
        (uid, version): (&str, Option<&str>),
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let mut patch = patch.clone();
        patch["metadata"]["uid"] = uid.into();
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let request = Request::new(path(key.kind, key.namespace.as_deref())).patch(
            &key.name,
            &parameters,
            &Patch::Merge(patch),
        );
        let changed = self.send(request, Asked::one("change", "patch", key)).await?;
        Ok(self.noted(key.kind, changed))
    }

    /// Changes the status of an object by a merge patch, if it has this uid.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub async fn patch_status(
        &self,
        key: &Key,
        uid: &str,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let mut patch = patch.clone();
        patch["metadata"]["uid"] = uid.into();
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let request = Request::new(path(key.kind, key.namespace.as_deref())).patch_subresource(
            "status",
            &key.name,
            &parameters,
            &Patch::Merge(patch),
        );
        self.send(request, Asked::part("change the status of", "patch", key, "/status")).await
    }

    /// Deletes an object; what is left of it, if it does not go at once.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub async fn delete(&self, key: &Key, uid: &str) -> Result<Option<Value>, ApiError> {
        self.delete_version(key, uid, None).await
    }

    /// The same for one version of it, if one is given.
    ///
    /// # Errors
    ///
    /// See [`ApiError`]; [`ApiError::Conflict`] where it has changed since.
    pub async fn delete_version(
        &self,
        key: &Key,
        uid: &str,
        version: Option<&str>,
    ) -> Result<Option<Value>, ApiError> {
        let mut parameters = DeleteParams::default().preconditions(kube::api::Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: version.map(str::to_owned),
        });
        // Its pods first: what they use is removed next.
        if key.kind == Kind::Job {
            parameters.propagation_policy = Some(PropagationPolicy::Foreground);
        }
        let request =
            Request::new(path(key.kind, key.namespace.as_deref())).delete(&key.name, &parameters);
        match self.send(request, Asked::one("delete", "delete", key)).await {
            Ok(answer) if answer["kind"] == "Status" => Ok(None),
            Ok(object) => Ok(Some(self.noted(key.kind, object))),
            Err(ApiError::Absent(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads what a plan asks for.
    ///
    /// # Errors
    ///
    /// What may pass.
    pub async fn read(&self, query: &Query, seen: &mut Observed) -> Result<(), Failure> {
        let answer = match query {
            Query::One(key) => {
                self.get(key).await.map(|object| seen.set_object(key.clone(), object))
            }
            Query::Many(selection) => self
                .list(selection)
                .await
                .map(|(objects, version)| seen.set_list(selection.clone(), objects, version)),
        };
        match answer {
            Ok(()) => Ok(()),
            Err(ApiError::Unavailable(why) | ApiError::Expired(why)) => Err(why),
            Err(why) => {
                seen.set_refused(query.clone(), why.into());
                Ok(())
            }
        }
    }

    /// Reads one object by a list, whose version a watch can begin from: that of an object that has
    /// not changed for long may be forgotten by the server.
    ///
    /// # Errors
    ///
    /// What may pass.
    pub async fn read_listed(&self, key: &Key, seen: &mut Observed) -> Result<(), Failure> {
        let selection = Selection {
            kind: key.kind,
            namespace: key.namespace.clone(),
            labels: String::new(),
            fields: format!("metadata.name={}", key.name),
        };
        match self.list(&selection).await {
            Ok((found, version)) => {
                let object = found.into_iter().next().map(|mut object| {
                    // Items of a list have no kind of their own.
                    object["kind"] = key.kind.word().into();
                    object["apiVersion"] = key.kind.api_version().into();
                    object
                });
                seen.set_listed(key.clone(), object, version);
                Ok(())
            }
            Err(ApiError::Unavailable(why) | ApiError::Expired(why)) => Err(why),
            // Who may not list may get.
            Err(_) => self.read(&Query::One(key.clone()), seen).await,
        }
    }

    /// The log of a pod's container, as far as it is there.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub async fn log(&self, pod: &Key) -> Result<Log, ApiError> {
        let parameters = LogParams { container: Some("mover".to_owned()), ..LogParams::default() };
        let asked = Asked::part("read the log of", "get", pod, "/log");
        Ok(self.lines(pod, &parameters, &asked, LOG).await?.all().await)
    }

    /// Lines of the log of a pod's container, as they come.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub async fn follow(&self, pod: &Key) -> Result<BoxStream<'static, String>, ApiError> {
        let parameters = LogParams {
            container: Some("mover".to_owned()),
            follow: true,
            tail_lines: Some(1),
            ..LogParams::default()
        };
        let asked = Asked::part("follow the log of", "get", pod, "/log");
        // It says how far the pod is, and that may be long in coming.
        let bounds = log::Bounds { bytes: usize::MAX, silence: None, ..LOG };
        Ok(self.lines(pod, &parameters, &asked, bounds).await?.stream().boxed())
    }

    async fn lines(
        &self,
        pod: &Key,
        parameters: &LogParams,
        asked: &Asked,
        bounds: log::Bounds,
    ) -> Result<log::Lines<impl futures::AsyncBufRead + Send + Unpin + use<>>, ApiError> {
        let request = Request::new(path(Kind::Pod, pod.namespace.as_deref()))
            .logs(&pod.name, parameters)
            .map_err(|why| asked.unwritten(&why))?;
        let _permit = self.permit().await;
        let begun = tokio::time::timeout(ANSWER, self.client.request_stream(request)).await;
        let log = begun.map_err(|_| asked.unanswered(ANSWER.as_secs()))?;
        Ok(log::Lines::new(Box::pin(log.map_err(|why| classify(why, asked))?), bounds))
    }

    /// One request, and again where the server asks for patience.
    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        asked: Asked,
    ) -> Result<Value, ApiError> {
        let request = request.map_err(|why| asked.unwritten(&why))?;
        let mut waited = Duration::ZERO;
        loop {
            let permit = self.permit().await;
            let answer = tokio::time::timeout(ANSWER, self.answer(request.clone())).await;
            drop(permit);
            let Ok(answer) = answer else { return Err(asked.unanswered(ANSWER.as_secs())) };
            let (why, after) = match answer {
                Ok(value) => return Ok(value),
                Err((why, after)) => (classify(why, &asked), after),
            };
            let Some(after) = after.map(|after| after.max(PATIENCE_LEAST)) else { return Err(why) };
            waited = waited.saturating_add(after);
            match &why {
                ApiError::Unavailable(why) if waited <= PATIENCE => {
                    Asked::waits(why, after.as_secs_f64());
                }
                _ => return Err(why),
            }
            tokio::time::sleep(after).await;
        }
    }

    /// One answer, or how long the server asks to wait.
    async fn answer(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> Result<Value, (Error, Option<Duration>)> {
        let method = request.method().clone();
        let response =
            self.client.send(request.map(Body::from)).await.map_err(|why| (why, None))?;
        let code = response.status();
        if let Some(count) = &self.counter {
            count(&method, code.as_u16());
        }
        let after = response.headers().get("Retry-After");
        let after = after.and_then(|text| text.to_str().ok()?.parse().ok());
        let bytes = response.into_body().collect_bytes().await.map_err(|why| (why, None))?;
        if code.is_success() {
            return serde_json::from_slice(&bytes).map_err(|why| (Error::SerdeError(why), None));
        }
        let status = serde_json::from_slice::<Status>(&bytes).unwrap_or_else(|_| {
            // Of a part of the server, or of something before it, that knows no objects.
            let text: String = String::from_utf8_lossy(&bytes).trim().chars().take(200).collect();
            Status::failure(&text, code.canonical_reason().unwrap_or_default())
        });
        let status = status.with_code(code.as_u16()).boxed();
        Err((Error::Api(status), after.map(Duration::from_secs)))
    }
}

/// Where objects of a kind are.
fn path(kind: Kind, namespace: Option<&str>) -> String {
    let resource = kind.resource();
    let root = if resource.group.is_empty() { "/api" } else { "/apis" };
    let version = kind.api_version();
    match namespace {
        Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{}", resource.plural),
        None => format!("{root}/{version}/{}", resource.plural),
    }
}
