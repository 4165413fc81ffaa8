//! `kubectl mover objects` against fixed answers: what is read, saved, accepted, made and refused.

use super::server::{Answer, Server};
use super::{ends, items, list, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

pub(crate) const SHOP: &str = "/api/v1/namespaces/shop";
pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
pub(crate) const GAMES: &str = "/apis/example.com/v1";

fn resource(name: &str, kind: &str, namespaced: bool) -> Value {
    let verbs = ["create", "get", "list"];
    json!({ "name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs })
}

pub(crate) fn named(name: &str, more: Value) -> Value {
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": "1",
        },
    });
    let all = object.as_object_mut().expect("a map");
    for (member, value) in more.as_object().expect("a map") {
        match all.get_mut(member).and_then(Value::as_object_mut) {
            Some(map) => map.extend(value.as_object().expect("a map").clone()),
            None => drop(all.insert(member.clone(), value.clone())),
        }
    }
    object
}

/// A namespace with a game that refers to a Secret, in a group of two versions, and more.
pub(crate) fn shop() -> BTreeMap<String, Answer> {
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    let core = [
        resource("namespaces", "Namespace", false),
        resource("configmaps", "ConfigMap", true),
        resource("secrets", "Secret", true),
        resource("events", "Event", true),
        resource("pods/log", "Pod", true),
        json!({ "name": "bindings", "kind": "Binding", "namespaced": true, "verbs": ["create"] }),
    ];
    all.insert("/api/v1".into(), json!({ "resources": core }));
    let group = |name: &str, versions: &[&str]| {
        let all: Vec<Value> = versions.iter().map(|of| json!({ "version": of })).collect();
        json!({ "name": name, "versions": all, "preferredVersion": { "version": "v1" } })
    };
    let groups = [
        group("apiextensions.k8s.io", &["v1"]),
        group("example.com", &["v1beta1", "v1"]),
        group("rbac.authorization.k8s.io", &["v1"]),
    ];
    all.insert("/apis".into(), json!({ "groups": groups }));
    let game = resource("games", "Game", true);
    all.insert(GAMES.into(), json!({ "resources": [game] }));
    let old = [game, resource("boards", "Board", true)];
    all.insert("/apis/example.com/v1beta1".into(), json!({ "resources": old }));
    let definitions = resource("customresourcedefinitions", "CustomResourceDefinition", false);
    all.insert("/apis/apiextensions.k8s.io/v1".into(), json!({ "resources": [definitions] }));
    let rights = [
        resource("clusterroles", "ClusterRole", false),
        resource("clusterrolebindings", "ClusterRoleBinding", false),
    ];
    all.insert(RBAC.into(), json!({ "resources": rights }));
    all.insert(SHOP.into(), json!({ "metadata": { "name": "shop", "uid": "uid-ns" } }));
    let root = named("kube-root-ca.crt", json!({}));
    all.insert(format!("{SHOP}/configmaps"), list(&[named("settings", json!({})), root]));
    let token =
        json!({ "type": "kubernetes.io/service-account-token", "data": { "token": "c2VjcmV0" } });
    let secrets = [named("token", token), named("password", json!({ "data": { "p": "cA==" } }))];
    all.insert(format!("{SHOP}/secrets"), list(&secrets));
    // One reference that leads elsewhere, if it is taken as it is.
    let spec = json!({ "spec": {
        "secretRef": { "kind": "Secret", "name": "password" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "../../../api/v1/secrets",
        },
    }});
    all.insert(format!("{GAMES}/namespaces/shop/games"), list(&[named("a", spec)]));
    let board = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "example.com/v1", "kind": "Game", "name": "a", "uid": "uid-a" },
    ]}});
    let boards = "/apis/example.com/v1beta1/namespaces/shop/boards".to_owned();
    all.insert(boards, list(&[named("wood", board)]));
    let binding = |name: &str, namespace: &str| {
        json!({
            "metadata": { "name": name, "uid": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "x", "namespace": namespace }],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "see" },
        })
    };
    let bindings = list(&[binding("ours", "shop"), binding("theirs", "other")]);
    all.insert(format!("{RBAC}/clusterrolebindings"), bindings);
    all.insert(
        format!("{RBAC}/clusterroles/see"),
        json!({ "metadata": { "name": "see", "uid": "s" } }),
    );
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/games.example.com";
    let metadata = json!({ "name": "games.example.com", "uid": "d" });
    let established = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
    all.insert(definition.into(), json!({ "metadata": metadata, "status": established }));
    all.into_iter().map(|(path, object)| (path, Answer::Object(object))).collect()
}

/// A file that is not there yet.
pub(crate) fn place(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

pub(crate) fn shown(path: &Path) -> &str {
    path.to_str().expect("text")
}

pub(crate) fn fails(server: &Server, arguments: &[&str], code: i32, said: &[&str]) {
    let output = server.run(arguments);
    ends(&output, code, &[]);
    let err = text(&output.stderr);
    said.iter().for_each(|said| assert!(err.contains(said), "{said} is not in {err}"));
}

#[test]
fn a_list_has_what_the_namespace_has_and_needs() {
    let server = Server::start("objects-list", shop());
    let output = server.run(&["objects", "list", "-o", "json"]);
    ends(&output, 0, &[]);
    let all: BTreeMap<String, (u64, u64)> = items(&output)
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().expect("a number");
            (
                row["kind"].as_str().expect("a kind").to_owned(),
                (number("objects"), number("restored")),
            )
        })
        .collect();
    let expected = [
        ("boards.example.com", (1, 1)),
        ("clusterrolebindings.rbac.authorization.k8s.io", (1, 1)),
        ("clusterroles.rbac.authorization.k8s.io", (1, 1)),
        ("configmaps", (2, 1)),
        ("customresourcedefinitions.apiextensions.k8s.io", (1, 1)),
        ("games.example.com", (1, 1)),
        ("namespaces", (1, 1)),
        ("secrets", (2, 1)),
    ];
    assert_eq!(all, expected.map(|(kind, counts)| (kind.to_owned(), counts)).into());
    ends(
        &server.run(&["objects", "list", "ns/shop"]),
        0,
        &["LEFT OUT", "1: it is a token of the old cluster"],
    );
    // Nothing was written anywhere, events were not read, and no name led elsewhere.
    let is_fine = |path: &str| !path.contains("events") && !path.contains("..");
    assert!(server.sent().iter().all(|(method, path, _)| method == "GET" && is_fine(path)));
    fails(&server, &["objects", "list", "pvc/db"], 2, &["pvc/db is no namespace"]);
    fails(&server, &["objects", "list", "none"], 2, &["there is no namespace none"]);
    fails(&server, &["objects", "list", "-l", "a=b=c,("], 2, &["these are no labels"]);
    fails(
        &server,
        &["objects", "list", "--owner-rule", "x"],
        2,
        &["--owner-rule x: there is no colon"],
    );
}

#[test]
fn what_cannot_be_read_is_named_and_fails_the_list() {
    let mut answers = shop();
    let cannot = "secrets is forbidden: User \"u\" cannot list resource \"secrets\"";
    answers.insert(format!("{SHOP}/secrets"), Answer::Refused(403, cannot));
    let down = Answer::Refused(503, "service unavailable");
    answers.insert("/apis/example.com/v1".into(), down);
    let server = Server::start("objects-unread", answers);
    // What may pass is to be tried again, unless the user goes without.
    fails(&server, &["objects", "list"], 1, &["service unavailable"]);
    let output = server.run(&["objects", "list", "--skip-unreadable"]);
    ends(&output, 0, &["configmaps"]);
    let err = text(&output.stderr);
    for said in
        ["warning: without secrets in namespace shop: ", "warning: without kinds of example.com/v1"]
    {
        assert!(err.contains(said), "{said} is not in {err}");
    }
    let mut answers = shop();
    answers.insert(format!("{SHOP}/secrets"), Answer::Refused(403, cannot));
    let server = Server::start("objects-forbidden", answers);
    let said = ["secrets in namespace shop cannot be read: ", "--skip-unreadable"];
    fails(&server, &["objects", "list"], 4, &said);
}

/// A list that the server forgets between two pages is begun anew, and nothing of it stands twice.
#[test]
fn a_list_that_is_forgotten_begins_anew() {
    let mut answers = shop();
    let page =
        |from: usize| (from..from + 20).map(|at| named(&format!("c{at:03}"), json!({}))).collect();
    let pages = || vec![page(0), page(20), page(40)];
    answers.insert(format!("{SHOP}/configmaps"), Answer::Pages(AtomicU32::new(2), pages()));
    let server = Server::start("objects-gone", answers);
    let file = place("objects-gone.jsonl");
    let output = server.run(&["objects", "save", shown(&file), "-o", "json"]);
    ends(&output, 0, &[]);
    assert!(!text(&output.stderr).contains("twice"), "{}", text(&output.stderr));
    let saved = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(saved.lines().filter(|line| line.contains("\"kind\":\"ConfigMap\"")).count(), 61);
    let mut answers = shop();
    answers.insert(format!("{SHOP}/configmaps"), Answer::Pages(AtomicU32::new(100), pages()));
    let server = Server::start("objects-gone-always", answers);
    fails(&server, &["objects", "list"], 1, &["too old", "run it again"]);
}

#[test]
fn a_list_is_accepted_as_long_as_nothing_changes() {
    let server = Server::start("objects-accept", shop());
    let saved = place("objects-accept.json");
    ends(&server.run(&["objects", "list", "--save", shown(&saved)]), 0, &[]);
    let mode = std::fs::metadata(&saved).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    ends(&server.run(&["objects", "list", "--accept", shown(&saved)]), 0, &[]);
    fails(&server, &["objects", "list", "--save", shown(&saved)], 2, &["File exists"]);
    let shared = server.run(&["objects", "list", "--shared-with", shown(&saved)]);
    ends(&shared, 0, &["games.example.com/a in namespace shop"]);
    let mut answers = shop();
    answers.insert(format!("{SHOP}/configmaps"), Answer::Object(list(&[named("new", json!({}))])));
    let server = Server::start("objects-changed", answers);
    let said = [
        "the cluster no longer matches",
        "configmaps/new in namespace shop is new",
        "configmaps/settings in namespace shop is gone",
    ];
    fails(&server, &["objects", "list", "--accept", shown(&saved)], 2, &said);
    let file = place("objects-changed.jsonl");
    fails(&server, &["objects", "save", shown(&file), "--accept", shown(&saved)], 2, &said);
    // Nothing is left of it, neither whole nor half.
    assert!(!file.exists() && !Path::new(&format!("{}.part", shown(&file))).exists());
    let other = place("objects-other.json");
    std::fs::write(&other, "{}").expect("a file");
    fails(
        &server,
        &["objects", "list", "--accept", shown(&other)],
        2,
        &["it is no list of objects"],
    );
}

/// What was saved from one cluster, to another one where little is there.
pub(crate) fn restored_to(
    name: &str,
    more: impl IntoIterator<Item = (String, Answer)>,
) -> (Server, PathBuf) {
    let file = place(&format!("{name}.jsonl"));
    let server = Server::start(&format!("{name}-old"), shop());
    ends(
        &server.run(&["objects", "save", shown(&file)]),
        0,
        &["8 objects are in", "2 are listed and left out"],
    );
    let mut answers = shop();
    // Discovery alone.
    answers.retain(|path, _| path.matches('/').count() < 4);
    for path in ["/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"] {
        let made = json!({ "metadata": { "uid": "new-wide" } });
        answers.insert(format!("POST {path}"), Answer::Object(made));
    }
    let established =
        json!({ "status": { "conditions": [{ "type": "Established", "status": "True" }] } });
    let definition =
        "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/games.example.com";
    answers.insert(definition.into(), Answer::Object(established));
    for path in [
        format!("{RBAC}/clusterroles"),
        format!("{RBAC}/clusterrolebindings"),
        format!("{SHOP}/configmaps"),
        format!("{SHOP}/secrets"),
        format!("{GAMES}/namespaces/shop/games"),
        "/apis/example.com/v1beta1/namespaces/shop/boards".into(),
        "/api/v1/namespaces/new/configmaps".into(),
        "/api/v1/namespaces/new/secrets".into(),
        format!("{GAMES}/namespaces/new/games"),
        "/apis/example.com/v1beta1/namespaces/new/boards".into(),
    ] {
        let made = json!({ "metadata": { "uid": format!("new-{}", path.rsplit('/').next().expect("a name")) } });
        answers.insert(format!("POST {path}"), Answer::Object(made));
    }
    answers.extend(more);
    (Server::start(name, answers), file)
}

fn made(server: &Server) -> Vec<(String, Value)> {
    let all = server.sent().into_iter().filter(|(method, ..)| method == "POST");
    all.map(|(_, path, body)| (path.split('?').next().expect("a path").to_owned(), body)).collect()
}

#[test]
fn a_restore_makes_owners_first_and_gives_their_new_uids() {
    let (server, file) = restored_to("objects-restore", []);
    let saved = std::fs::read_to_string(&file).expect("the file");
    assert!(!saved.contains("c2VjcmV0"), "a token was saved");
    ends(&server.run(&["objects", "restore", shown(&file)]), 0, &["create"]);
    let all = made(&server);
    let kinds: Vec<&str> =
        all.iter().map(|(_, body)| body["kind"].as_str().expect("a kind")).collect();
    assert_eq!(
        kinds,
        [
            "Namespace",
            "CustomResourceDefinition",
            "ClusterRole",
            "ClusterRoleBinding",
            "Secret",
            "ConfigMap",
            "Game",
            "Board",
        ][..]
            .to_vec()
    );
    let board = &all[7].1;
    assert_eq!(board["apiVersion"], "example.com/v1beta1");
    assert_eq!(board["metadata"]["ownerReferences"][0]["uid"], "new-games");
    assert!(all.iter().all(|(_, body)| body["metadata"]["uid"].is_null()));
    assert!(all.iter().all(|(_, body)| body["metadata"]["resourceVersion"].is_null()));
}

#[test]
fn another_namespace_gets_all_of_it() {
    let (server, file) = restored_to("objects-map", []);
    let map = ["objects", "restore", shown(&file), "--namespace-map", "shop=new"];
    ends(&server.run(&map), 0, &["games.example.com/a in namespace new"]);
    let all = made(&server);
    assert_eq!(all[0].1["metadata"]["name"], "new");
    assert!(all.iter().any(|(path, _)| path == "/apis/example.com/v1/namespaces/new/games"));
    let binding = all.iter().find(|(_, body)| body["kind"] == "ClusterRoleBinding").expect("it");
    assert_eq!(binding.1["subjects"][0]["namespace"], "new");
    fails(
        &server,
        &["objects", "restore", shown(&file), "--namespace-map", "x=y"],
        2,
        &["it has shop"],
    );
    fails(
        &server,
        &["objects", "restore", shown(&file), "--namespace-map", "shop"],
        2,
        &["NAME=VALUE"],
    );
}

#[test]
fn what_is_there_stays_and_is_said() {
    let taken = Answer::Refused(409, "already exists");
    let settings = named(
        "settings",
        json!({ "data": { "more": "of it" }, "kind": "ConfigMap", "apiVersion": "v1" }),
    );
    let password = named("password", json!({ "data": { "p": "another" } }));
    let answers = [
        (format!("POST {SHOP}/configmaps"), Answer::Refused(409, "already exists")),
        (format!("{SHOP}/configmaps/settings"), Answer::Object(settings)),
        (format!("POST {SHOP}/secrets"), taken),
        (format!("{SHOP}/secrets/password"), Answer::Object(password)),
        (
            format!("POST {GAMES}/namespaces/shop/games"),
            Answer::Refused(403, "User \"u\" cannot create"),
        ),
    ];
    let (server, file) = restored_to("objects-there", answers);
    let dry = server.run(&["objects", "restore", shown(&file), "--dry-run", "-o", "json"]);
    ends(&dry, 0, &[]);
    let result = |output: &std::process::Output, name: &str| {
        let all = items(output);
        let found =
            all.iter().find(|row| row["object"].as_str().is_some_and(|of| of.starts_with(name)));
        found.unwrap_or_else(|| panic!("{name}"))["result"].as_str().expect("a word").to_owned()
    };
    assert_eq!(result(&dry, "configmaps/settings"), "exists");
    assert_eq!(result(&dry, "secrets/password"), "differs");
    assert_eq!(result(&dry, "games"), "create");
    assert!(made(&server).is_empty(), "a dry run has written");
    let fail = ["objects", "restore", shown(&file), "--existing", "fail"];
    fails(&server, &fail, 2, &["nothing was made: ", "secrets/password in namespace shop"]);
    assert!(made(&server).is_empty());
    let going = named("settings", json!({ "metadata": { "deletionTimestamp": "2026-01-01" } }));
    let path = format!("{SHOP}/configmaps/settings");
    let (other, again) = restored_to("objects-going", [(path, Answer::Object(going))]);
    let fail = ["objects", "restore", shown(&again), "--existing", "fail"];
    fails(&other, &fail, 2, &["nothing was made: ", "configmaps/settings in namespace shop"]);
    assert!(made(&other).is_empty());
    // One that is refused stops no other.
    let output = server.run(&["objects", "restore", shown(&file), "-o", "json"]);
    ends(&output, 2, &[]);
    assert_eq!(result(&output, "games"), "refused");
    assert_eq!(result(&output, "boards"), "create");
}

/// The server says with an error of its own that it could not ask a webhook, whose workload may be one of
/// those that come later.
#[test]
fn a_webhook_that_is_away_stops_no_other() {
    let away =
        "Internal error occurred: failed calling webhook \"games.example.com\": no endpoints";
    let answers = [(format!("POST {GAMES}/namespaces/shop/games"), Answer::Refused(500, away))];
    let (server, file) = restored_to("objects-webhook", answers);
    let output = server.run(&["objects", "restore", shown(&file), "-o", "json"]);
    assert_ne!(output.status.code(), Some(0));
    let all = items(&output);
    let of = |name: &str| {
        let found =
            all.iter().find(|row| row["object"].as_str().is_some_and(|of| of.starts_with(name)));
        found.unwrap_or_else(|| panic!("{name}: {output:?}"))
    };
    assert_eq!(of("games")["result"], "refused");
    assert!(of("games").to_string().contains("games.example.com"), "{}", of("games"));
    assert_eq!(of("boards")["result"], "create");
}

#[test]
fn a_plan_is_accepted_as_long_as_it_is_true() {
    let (server, file) = restored_to("objects-plan", []);
    let plan = place("objects-plan.json");
    let dry = ["objects", "restore", shown(&file), "--dry-run", "--save", shown(&plan)];
    ends(&server.run(&dry), 0, &["create"]);
    let accept = ["objects", "restore", shown(&file), "--accept", shown(&plan)];
    ends(&server.run(&accept), 0, &["create"]);
    let mapped = [&accept[..], &["--namespace-map", "shop=new"]].concat();
    fails(&server, &mapped, 2, &["it has another --namespace-map"]);
    let there = named("settings", json!({}));
    let path = format!("{SHOP}/configmaps/settings");
    let (server, again) = restored_to("objects-plan-changed", [(path, Answer::Object(there))]);
    let accept = ["objects", "restore", shown(&again), "--accept", shown(&plan)];
    let said = ["configmaps/settings in namespace shop: exists instead of create"];
    fails(&server, &accept, 2, &said);
    assert!(made(&server).is_empty());
}

#[test]
fn a_file_that_was_cut_or_changed_is_damaged() {
    let (server, file) = restored_to("objects-cut", []);
    let whole = std::fs::read_to_string(&file).expect("the file");
    let lines: Vec<&str> = whole.lines().collect();
    let last = lines.len() - 1;
    for (text, code, said) in [
        (lines[..last].join("\n") + "\n", 3, "it ends after 7 objects of 8"),
        (whole.trim_end().to_owned(), 3, "it ends after 7 objects of 8"),
        (whole.clone() + "{}\n", 3, "its manifest has no  , or the file has it twice"),
        (whole.clone() + lines[last] + "\n", 3, "no Board wood, or the file has it twice"),
        (
            whole.replace(
                "\"name\":\"wood\",\"namespace\":\"shop\",\"owner",
                "\"name\":\"iron\",\"namespace\":\"shop\",\"owner",
            ),
            3,
            "its manifest has no Board iron",
        ),
        (String::new(), 2, "it is no list of objects"),
    ] {
        std::fs::write(&file, text).expect("the file");
        fails(&server, &["objects", "restore", shown(&file), "--dry-run"], code, &[said]);
    }
}
