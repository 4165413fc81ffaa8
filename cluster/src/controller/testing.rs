//! An API server in memory for tests of tasks: it keeps objects, gives uids and versions, holds
//! writes to both, and refuses as it is told to. It watches nothing: a test tells the controller
//! what changed by [`Server::tell`].

use super::metrics::Metrics;
use super::objects::Objects;
use super::seal::Seal;
use super::serve::Doors;
use super::turns::Turns;
use super::{Context, ControllerSettings};
use crate::api::Api;
use crate::engine::{Key, Kind, key_of};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a refusal of requests is about: method, a part of the path, and the code.
type Refusal = (&'static str, String, u16);

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    refusals: Vec<Refusal>,
    /// Method and path of each write that was taken.
    written: Vec<String>,
    /// When objects are made.
    now: String,
    /// Connections are cut after so many more requests that write.
    cut_after: Option<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Server {
    state: Arc<Mutex<State>>,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves, and makes the context of a controller that asks it.
    pub(super) async fn context(&self, clock: fn() -> DateTime<Utc>) -> Context {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let of = self.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let of = of.clone();
                std::thread::spawn(move || drop(of.serve(stream)));
            }
        });
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let url = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
        let api = Api::new(client);
        let seal = Seal::load(&api, &Seal::key("mover-system", "seal")).await.expect("a seal");
        let context = Context {
            api,
            settings: ControllerSettings {
                namespace: "mover-system".into(),
                watched: Vec::new(),
                image: "mover:1".into(),
                restricted: false,
                seal_secret: "seal".into(),
                doors: Doors::default(),
                differential: None,
                velero: Some("velero".into()),
            },
            objects: Rc::new(Objects::default()),
            turns: Turns::default(),
            seal,
            metrics: Metrics::default(),
            cluster: Ok("c1".into()),
            clock,
        };
        self.tell(&context);
        context
    }

    /// What watches would have told.
    pub(super) fn tell(&self, context: &Context) {
        let all: Vec<Value> = self.state().objects.values().cloned().collect();
        let watched = [&super::objects::WATCHED[..], &super::objects::OF_VELERO].concat();
        for kind in watched.clone() {
            let known = context.objects.all(kind);
            for object in known {
                let key = key_of(&object);
                if !all.iter().any(|at| key_of(at) == key) {
                    context.objects.remove(&key);
                }
            }
        }
        for object in all {
            if watched.contains(&key_of(&object).kind) {
                context.objects.set(object);
            }
        }
    }

    pub(super) fn at(&self, now: &str) {
        now.clone_into(&mut self.state().now);
    }

    /// Puts an object there; it gets a uid of its name.
    pub(super) fn put(&self, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("{}-{name}", kind.to_lowercase()).into();
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] = state.now.clone().into();
        }
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        let path = path(&object);
        state.objects.insert(path, object);
    }

    pub(super) fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        let key = |at: &&Value| at["kind"] == kind.word() && at["metadata"]["name"] == name;
        self.state().objects.values().find(key).cloned()
    }

    /// Arguments of the first Job that some work makes. No Job of this server ends.
    pub(super) async fn asked(&self, work: impl Future) -> Vec<String> {
        let made = async {
            loop {
                if let Some(name) = self.names(Kind::Job).first() {
                    return self.get(Kind::Job, name).expect("it was there");
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let job = tokio::select! {
            job = made => job,
            _ = work => panic!("it ended without a Job"),
        };
        let arguments = &job["spec"]["template"]["spec"]["containers"][0]["args"];
        serde_json::from_value(arguments.clone()).unwrap_or_else(|why| panic!("{why}: {job:#}"))
    }

    pub(super) fn names(&self, kind: Kind) -> Vec<String> {
        let state = self.state();
        let of = |at: &&Value| at["kind"] == kind.word();
        let name = |at: &Value| at["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        state.objects.values().filter(of).map(name).collect()
    }

    /// Takes an object away, as a user does.
    pub(super) fn remove(&self, kind: Kind, name: &str) {
        let gone = |at: &Value| at["kind"] == kind.word() && at["metadata"]["name"] == name;
        self.state().objects.retain(|_, at| !gone(at));
    }

    pub(super) fn refuse(&self, refusals: Vec<Refusal>) {
        self.state().refusals = refusals;
    }

    /// Whether connections are cut.
    pub(super) fn cuts(&self) -> bool {
        self.state().cut_after.is_some()
    }

    /// The next requests that write are done; all after them are refused by cut connections.
    pub(super) fn cut_after(&self, writes: Option<u64>) {
        self.state().cut_after = writes;
    }

    pub(super) fn written(&self) -> Vec<String> {
        self.state().written.clone()
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            loop {
                let mut header = String::new();
                reader.read_line(&mut header)?;
                let header = header.trim().to_ascii_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap_or_default();
                }
                if header.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let mut words = line.split(' ');
            let method = words.next().unwrap_or_default();
            let target = words.next().unwrap_or_default().to_owned();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let Some((code, answer)) = self.answer(method, &target, body) else { return Ok(()) };
            let text = answer.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                text.len()
            );
            writer.write_all(format!("{head}{text}").as_bytes())?;
        }
    }

    /// Nothing where the connection is cut.
    fn answer(&self, method: &str, target: &str, body: Value) -> Option<(u16, Value)> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut state = self.state();
        if method != "GET" {
            match &mut state.cut_after {
                Some(0) => return None,
                Some(left) => *left -= 1,
                None => {}
            }
        }
        let refused =
            state.refusals.iter().find(|(of, part, _)| *of == method && path.contains(part));
        if let Some((.., code)) = refused {
            return Some((*code, failure(*code)));
        }
        let answer = match method {
            "GET" => read(&state, path, query),
            "POST" => create(&mut state, path, body),
            "PATCH" => patch(&mut state, path, &body),
            "DELETE" => delete(&mut state, path, &body),
            _ => (405, failure(405)),
        };
        if method != "GET" && answer.0 < 300 {
            state.written.push(format!("{method} {path}"));
        }
        Some(answer)
    }
}

/// A context's clock is a function without state: this thread's time.
pub(super) mod clock {
    use chrono::{DateTime, Utc};
    use std::cell::Cell;

    thread_local! { static NOW: Cell<i64> = const { Cell::new(0) }; }

    pub(crate) fn set(text: &str) {
        let time = DateTime::parse_from_rfc3339(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        NOW.set(time.timestamp());
    }

    pub(crate) fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(NOW.get(), 0).expect("a time")
    }
}

fn path(object: &Value) -> String {
    let key = key_of(object);
    let resource = key.kind.resource();
    let group = match resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let namespace = key.namespace.map(|at| format!("/namespaces/{at}")).unwrap_or_default();
    format!("{group}{namespace}/{}/{}", resource.plural, key.name)
}

fn failure(code: u16) -> Value {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        403 => "Forbidden",
        422 => "Invalid",
        _ => "InternalError",
    };
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": format!("told to answer {code}") })
}

fn read(state: &State, path: &str, query: &str) -> (u16, Value) {
    if let Some(found) = state.objects.get(path) {
        return (200, found.clone());
    }
    if Kind::ALL.iter().any(|kind| path.ends_with(&format!("/{}", kind.resource().plural))) {
        let labels = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
        let labels = labels.unwrap_or_default().replace("%3D", "=").replace("%2C", ",");
        let wanted: Vec<(&str, &str)> =
            labels.split(',').filter_map(|at| at.split_once('=')).collect();
        let is_in = |(at, object): &(&String, &Value)| {
            let names = at.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
            names
                && wanted.iter().all(|(name, value)| object["metadata"]["labels"][*name] == *value)
        };
        let items: Vec<&Value> = state.objects.iter().filter(is_in).map(|at| at.1).collect();
        return (
            200,
            json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }),
        );
    }
    (404, failure(404))
}

fn create(state: &mut State, path: &str, mut object: Value) -> (u16, Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let path = format!("{path}/{name}");
    if state.objects.contains_key(&path) {
        return (409, failure(409));
    }
    state.version += 1;
    object["metadata"]["uid"] = format!("uid-{}", state.version).into();
    object["metadata"]["resourceVersion"] = state.version.to_string().into();
    object["metadata"]["creationTimestamp"] = state.now.clone().into();
    object["metadata"]["generation"] = 1.into();
    state.objects.insert(path, object.clone());
    (201, object)
}

fn patch(state: &mut State, path: &str, patch: &Value) -> (u16, Value) {
    let is_status = path.ends_with("/status");
    let path = path.strip_suffix("/status").unwrap_or(path);
    state.version += 1;
    let version = state.version.to_string();
    let Some(object) = state.objects.get_mut(path) else { return (404, failure(404)) };
    for name in ["uid", "resourceVersion"] {
        let wanted = &patch["metadata"][name];
        if !wanted.is_null() && *wanted != object["metadata"][name] {
            return (409, failure(409));
        }
    }
    match is_status {
        true => merge(&mut object["status"], &patch["status"]),
        false => merge(object, patch),
    }
    object["metadata"]["resourceVersion"] = version.into();
    let after = object.clone();
    if is_gone(&after) {
        state.objects.remove(path);
    }
    (200, after)
}

fn delete(state: &mut State, path: &str, options: &Value) -> (u16, Value) {
    state.version += 1;
    let version = state.version.to_string();
    let now = state.now.clone();
    let Some(object) = state.objects.get_mut(path) else { return (404, failure(404)) };
    let wanted = &options["preconditions"]["uid"];
    if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
        return (409, failure(409));
    }
    object["metadata"]["deletionTimestamp"] = now.into();
    object["metadata"]["resourceVersion"] = version.into();
    let after = object.clone();
    if is_gone(&after) {
        state.objects.remove(path);
        return (200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }));
    }
    (200, after)
}

fn is_gone(object: &Value) -> bool {
    let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
    object["metadata"]["deletionTimestamp"].is_string() && !held
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        match value {
            Value::Null => drop(target.as_object_mut().and_then(|at| at.remove(name))),
            value => merge(&mut target[name.as_str()], value),
        }
    }
}

/// The record of an operation that ended, as the engine leaves it.
pub(super) fn record(word: &str, of: &str, exit_code: u8, message: &str) -> Value {
    let outcome = json!({ "exitCode": exit_code, "message": message });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format!("mover-{word}-{of}-1"),
            "namespace": "shop",
            "labels": { crate::engine::FOR: of, crate::engine::STATE: "ended" },
        },
        "data": { "outcome": outcome.to_string() },
    })
}

/// The task of an object.
pub(super) fn task(context: &Context, key: &Key) -> super::task::Task {
    let object = context.objects.get(key).unwrap_or_else(|| panic!("{key} is not there"));
    super::schedules::task_of(context, &object)
}
