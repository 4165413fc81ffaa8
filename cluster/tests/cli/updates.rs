//! `kubectl mover objects restore` where others have made and changed what it restores.

use super::objects::{GAMES, RBAC, SHOP, fails, named, place, restored_to, shown};
use super::server::{Answer, Server};
use super::{ends, items};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

/// The Secret as it was saved, by whoever wrote it last.
fn as_saved() -> Value {
    let metadata = json!({ "resourceVersion": "2" });
    let kind = json!({ "kind": "Secret", "apiVersion": "v1" });
    let mut secret = named("password", json!({ "data": { "p": "cA==" }, "metadata": metadata }));
    secret.as_object_mut().expect("a map").extend(kind.as_object().expect("a map").clone());
    secret
}

/// What others have made and changed since.
fn changed_by_others() -> [(String, Answer); 11] {
    let password = named("password", json!({ "data": { "p": "another", "more": "of it" } }));
    let going = named("settings", json!({ "metadata": { "deletionTimestamp": "2026-01-01" } }));
    let game =
        named("a", json!({ "spec": { "secretRef": { "kind": "Secret", "name": "other" } } }));
    let see = json!({ "metadata": { "name": "see", "uid": "s2", "labels": { "a": "b" } } });
    let role = json!({ "metadata": { "name": "ours", "uid": "b2" }, "roleRef": { "name": "all" } });
    let taken = || Answer::Refused(409, "already exists");
    [
        (format!("POST {SHOP}/secrets"), taken()),
        (format!("GET {SHOP}/secrets/password"), Answer::Object(password)),
        (format!("PATCH {SHOP}/secrets/password"), Answer::Object(as_saved())),
        (format!("POST {SHOP}/configmaps"), taken()),
        (format!("{SHOP}/configmaps/settings"), Answer::Object(going)),
        (format!("POST {GAMES}/namespaces/shop/games"), taken()),
        // It is as it was, whatever is written.
        (format!("{GAMES}/namespaces/shop/games/a"), Answer::Object(game)),
        (format!("POST {RBAC}/clusterroles"), taken()),
        (format!("{RBAC}/clusterroles/see"), Answer::Object(see)),
        (format!("POST {RBAC}/clusterrolebindings"), taken()),
        (format!("{RBAC}/clusterrolebindings/ours"), Answer::Object(role)),
    ]
}

/// What became of each object, and what is said of it.
fn results(output: &std::process::Output) -> BTreeMap<String, (String, String)> {
    let word = |row: &Value, name: &str| row[name].as_str().expect("a word").to_owned();
    (items(output).iter())
        .map(|row| (word(row, "object"), (word(row, "result"), word(row, "message"))))
        .collect()
}

fn written(server: &Server) -> Vec<(String, String, Value)> {
    server.sent().into_iter().filter(|(method, ..)| method != "GET").collect()
}

/// What somebody else made or changed becomes what was saved, of this namespace alone.
#[test]
fn what_is_there_becomes_what_was_saved() {
    let (server, file) = restored_to("objects-update", changed_by_others());
    let update = ["objects", "restore", shown(&file), "--existing", "update", "-o", "json"];
    let plan = place("objects-update-plan.json");
    let dry = server.run(&[&update[..], &["--dry-run", "--save", shown(&plan)]].concat());
    ends(&dry, 2, &[]);
    let all = results(&dry);
    assert_eq!(all["secrets/password in namespace shop"].0, "update");
    assert_eq!(all["games.example.com/a in namespace shop"].0, "update");
    assert!(written(&server).is_empty(), "a dry run has written");
    // Without the flag it is another plan.
    let accept = ["objects", "restore", shown(&file), "--accept", shown(&plan)];
    fails(&server, &accept, 2, &["secrets/password in namespace shop: differs instead of update"]);
    assert!(written(&server).is_empty());
    let output = server.run(&[&update[..], &["--accept", shown(&plan)]].concat());
    ends(&output, 2, &[]);
    let all = results(&output);
    let is = |object: &str, result: &str, said: &str| {
        let (what, message) = &all[object];
        assert!(what == result && message.contains(said), "{object}: {what}, {message}");
    };
    is("secrets/password in namespace shop", "update", "had this name");
    is("configmaps/settings in namespace shop", "refused", "is being deleted");
    is("games.example.com/a in namespace shop", "refused", "is not as it was saved");
    is("clusterroles.rbac.authorization.k8s.io/see", "exists", "");
    is("clusterrolebindings.rbac.authorization.k8s.io/ours", "differs", "all namespaces share it");
    is("boards.example.com/wood in namespace shop", "create", "");
    let patched: Vec<_> =
        written(&server).into_iter().filter(|(method, ..)| method == "PATCH").collect();
    let paths: Vec<&str> =
        patched.iter().map(|(_, path, _)| path.split('?').next().expect("a path")).collect();
    assert_eq!(
        paths,
        [format!("{SHOP}/secrets/password"), format!("{GAMES}/namespaces/shop/games/a")]
    );
    let patch = &patched[0].2;
    // The very object that was looked at, and what differs alone.
    assert_eq!(patch["metadata"]["uid"], "uid-password");
    assert_eq!(patch["metadata"]["resourceVersion"], "1");
    assert_eq!(patch["data"], json!({ "p": "cA==", "more": null }));
    assert!(patch.get("kind").is_none() && patch["metadata"].get("name").is_none(), "{patch}");
    // It has its owner, though that is not as it was saved.
    let board = written(&server).into_iter().find(|(_, path, _)| path.contains("/boards"));
    let board = board.expect("it was made").2;
    assert_eq!(board["metadata"]["ownerReferences"][0]["uid"], "uid-a");
}

/// Somebody else writes meanwhile: it is looked at again, and not for ever. A server that keeps it as
/// it was has nothing to update.
#[test]
fn an_update_that_others_come_before_is_made_anew() {
    let mut kept = as_saved();
    kept["metadata"]["resourceVersion"] = "1".into();
    for (times, now, result, said) in [
        (1, as_saved(), "update", "had this name"),
        (0, kept, "exists", ""),
        (100, as_saved(), "refused", "changed all the time"),
    ] {
        let contended = (
            format!("PATCH {SHOP}/secrets/password"),
            Answer::Contended(AtomicU32::new(times), now),
        );
        let more = changed_by_others().into_iter().chain([contended]);
        let (server, file) = restored_to(&format!("objects-contended-{times}"), more);
        let update = ["objects", "restore", shown(&file), "--existing", "update", "-o", "json"];
        let output = server.run(&update);
        ends(&output, 2, &[]);
        let (what, message) = &results(&output)["secrets/password in namespace shop"];
        assert!(what == result && message.contains(said), "{times}: {what}, {message}");
    }
}

/// Its owner was refused when it was made: a later run that finds the owner gives it to it.
#[test]
fn an_owner_that_was_refused_is_given_later() {
    let early = json!({ "metadata": { "annotations": { "mover.dev/owners-later": "true" } } });
    let board = named("wood", early);
    let boards = "/apis/example.com/v1beta1/namespaces/shop/boards".to_owned();
    let answers = [
        (format!("POST {boards}"), Answer::Refused(409, "already exists")),
        (format!("{boards}/wood"), Answer::Object(board)),
    ];
    let (server, file) = restored_to("objects-early", answers);
    ends(&server.run(&["objects", "restore", shown(&file)]), 0, &["exists"]);
    let all = server.sent();
    let patch = all.iter().find(|(method, ..)| method == "PATCH").expect("it gets its owner");
    assert_eq!(patch.2["metadata"]["ownerReferences"][0]["uid"], "new-games");
    assert_eq!(patch.2["metadata"]["annotations"], json!({ "mover.dev/owners-later": null }));
}
