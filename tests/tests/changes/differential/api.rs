//! An API server of a few objects, that knows whose tokens are whose and who may do what.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What tokens of callers are for.
pub(crate) const AUDIENCE: &str = "differential-snapshots.mover.dev";
/// The account that drivers are asked by, and its token.
pub(crate) const ACCOUNT: &str = "mover-differential-snapshots";
pub(crate) const DRIVER_TOKEN: &str = "token-for-the-driver";

#[derive(Default)]
pub(crate) struct State {
    objects: BTreeMap<String, Value>,
    /// User and audience of each token.
    pub(crate) tokens: BTreeMap<String, (String, String)>,
    /// User, namespace and name of who may get what.
    pub(crate) rights: BTreeSet<(String, String, String)>,
    /// Audiences that tokens were asked for.
    pub(crate) asked: Vec<String>,
}

/// It ends with the test's process.
pub(crate) struct FakeApi {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) port: u16,
}

fn plural(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "DifferentialSnapshot" => ("mover.dev/v1alpha1", "differentialsnapshots"),
        "VolumeSnapshot" => ("snapshot.storage.k8s.io/v1", "volumesnapshots"),
        "VolumeSnapshotContent" => ("snapshot.storage.k8s.io/v1", "volumesnapshotcontents"),
        "SnapshotMetadataService" => ("cbt.storage.k8s.io/v1beta1", "snapshotmetadataservices"),
        other => panic!("{other}"),
    }
}

fn path(kind: &str, namespace: Option<&str>, name: &str) -> String {
    let (version, plural) = plural(kind);
    let namespace = namespace.map(|at| format!("/namespaces/{at}")).unwrap_or_default();
    format!("/apis/{version}{namespace}/{plural}/{name}")
}

impl FakeApi {
    pub(crate) fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), port });
        let of = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let of = Arc::clone(&of);
                std::thread::spawn(move || drop(of.serve(stream)));
            }
        });
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the server panics while it holds this")
    }

    /// Puts an object there. Its uid is of its name, unless it has one.
    pub(crate) fn put(&self, mut object: Value) {
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{name}").into();
        }
        object["apiVersion"] = plural(&kind).0.into();
        self.state().objects.insert(path(&kind, namespace.as_deref(), &name), object);
        self.changed.notify_all();
    }

    pub(crate) fn remove(&self, kind: &str, namespace: Option<&str>, name: &str) {
        let found = self.state().objects.remove(&path(kind, namespace, name));
        assert!(found.is_some(), "{kind}/{name} is there");
    }

    /// Waits until the status of a DifferentialSnapshot is as wanted.
    pub(crate) fn wait_status(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let at = path("DifferentialSnapshot", Some("shop"), name);
        let is_not = |state: &mut State| !wanted(&state.objects[&at]["status"]);
        let waited = self.changed.wait_timeout_while(self.state(), Duration::from_secs(60), is_not);
        let (state, timeout) = waited.expect("no thread panics");
        assert!(!timeout.timed_out(), "{at}: {}", state.objects[&at]);
        state.objects[&at]["status"].clone()
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
                    length = value.trim().parse().expect("a length");
                }
                if header.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let mut words = line.split(' ');
            let (method, target) =
                (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            if query.contains("watch=true") {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
                writer.write_all(head.as_bytes())?;
                // It tells nothing, until the client goes.
                reader.read_line(&mut line)?;
                return Ok(());
            }
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, answer) = self.answer(method, path, &body);
            let text = answer.to_string();
            let length = text.len();
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            );
            writer.write_all(format!("{head}{text}").as_bytes())?;
        }
    }

    fn answer(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut state = self.state();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match (method, path) {
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews") => {
                let spec = &body["spec"];
                let known = state.tokens.get(&text(&spec["token"]));
                let wanted = spec["audiences"].as_array().expect("audiences").clone();
                let status = match known {
                    Some((user, audience)) if wanted.iter().any(|at| at == audience) => json!({
                        "authenticated": true, "audiences": [audience],
                        "user": { "username": user, "uid": "1", "groups": ["all"] },
                    }),
                    _ => json!({ "authenticated": false, "error": "no such token" }),
                };
                (201, json!({ "kind": "TokenReview", "status": status }))
            }
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews") => {
                let spec = &body["spec"];
                let about = &spec["resourceAttributes"];
                let is_get = about["verb"] == "get"
                    && about["group"] == "mover.dev"
                    && about["resource"] == "differentialsnapshots";
                let right = (text(&spec["user"]), text(&about["namespace"]), text(&about["name"]));
                let allowed = is_get && state.rights.contains(&right);
                let status = json!({ "allowed": allowed });
                (201, json!({ "kind": "SubjectAccessReview", "status": status }))
            }
            ("POST", path) => {
                let account =
                    format!("/api/v1/namespaces/mover-system/serviceaccounts/{ACCOUNT}/token");
                assert_eq!(path, account);
                state.asked.push(text(&body["spec"]["audiences"][0]));
                let status = json!({ "token": DRIVER_TOKEN });
                (201, json!({ "kind": "TokenRequest", "status": status }))
            }
            ("PATCH", path) => {
                let at = path.strip_suffix("/status").expect("nothing but a status is changed");
                let object = state.objects.get_mut(at).expect("it is there");
                assert_eq!(object["metadata"]["uid"], body["metadata"]["uid"]);
                object["status"] = body["status"].clone();
                let answer = object.clone();
                drop(state);
                self.changed.notify_all();
                (200, answer)
            }
            ("GET", path) if path.ends_with("/differentialsnapshots") => {
                let all = state.objects.iter();
                let items: Vec<&Value> = all
                    .filter(|(at, _)| at.contains("/differentialsnapshots/"))
                    .map(|(_, object)| object)
                    .collect();
                (
                    200,
                    json!({ "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items }),
                )
            }
            ("GET", path) => match state.objects.get(path) {
                Some(found) => (200, found.clone()),
                None => (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                            "message": "not found" }),
                ),
            },
            other => panic!("{other:?}"),
        }
    }
}
