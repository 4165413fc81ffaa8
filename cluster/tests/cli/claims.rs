//! `kubectl mover objects restore` where volumes belong to somebody who looks after them.

use super::objects::{GAMES, SHOP, fails, named, place, shop, shown};
use super::server::{Answer, Server};
use super::{ends, items, list, text};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

const CLAIM: &str = "persistentvolumeclaims/disk in namespace shop";

fn with_claims() -> impl Iterator<Item = (String, Answer)> {
    let verbs = ["create", "get", "list", "patch"];
    let resource = |name: &str, kind: &str| json!({ "name": name, "kind": kind, "namespaced": kind != "Namespace", "verbs": verbs });
    let core = [
        resource("namespaces", "Namespace"),
        resource("configmaps", "ConfigMap"),
        resource("secrets", "Secret"),
        resource("persistentvolumeclaims", "PersistentVolumeClaim"),
    ];
    let owner = json!([{
        "apiVersion": "example.com/v1", "kind": "Game", "name": "a", "uid": "uid-a", "controller": true,
    }]);
    let metadata = json!({
        "labels": { "game": "a", "app.kubernetes.io/managed-by": "games", "mover.dev/owner": "u",
            "mover.dev/role": "target" },
        "annotations": { "serial": "1", "pv.kubernetes.io/bind-completed": "yes",
            "volume.kubernetes.io/selected-node": "n", "mover.dev/anchor": "shop/x" },
        "ownerReferences": owner,
    });
    let claim = named("disk", json!({ "metadata": metadata, "spec": { "volumeName": "old" } }));
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01" } });
    let password = named(
        "password",
        json!({ "metadata": { "ownerReferences": owner }, "data": { "p": "cA==" } }),
    );
    let mut all = shop();
    all.insert("/api/v1".into(), Answer::Object(json!({ "resources": core })));
    let claims = list(&[claim, named("old", going)]);
    all.insert(format!("{SHOP}/persistentvolumeclaims"), Answer::Object(claims));
    all.insert(format!("{SHOP}/secrets"), Answer::Object(list(&[password])));
    all.into_iter()
}

/// A file of a namespace with a claim, and a server with nothing but these answers.
fn restored_to(name: &str, more: Vec<(String, Answer)>) -> (Server, PathBuf) {
    let file = place(&format!("{name}.jsonl"));
    let server = Server::start(&format!("{name}-old"), with_claims().collect());
    ends(&server.run(&["objects", "save", shown(&file)]), 0, &[]);
    // Discovery alone, and what is made.
    let discovery = with_claims().filter(|(path, _)| path.matches('/').count() < 4);
    let wide = ["/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"];
    let made = |path: String| {
        let uid = format!("new-{}", path.rsplit('/').next().unwrap_or_default());
        (format!("POST {path}"), Answer::Made(json!({ "metadata": { "uid": uid } })))
    };
    let paths = [
        format!("{SHOP}/configmaps"),
        format!("{SHOP}/secrets"),
        format!("{GAMES}/namespaces/shop/games"),
        "/apis/example.com/v1beta1/namespaces/shop/boards".to_owned(),
        "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(),
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(),
    ];
    let established = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
    let definition =
        "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/games.example.com".to_owned();
    let answers = discovery
        .chain(wide.map(str::to_owned).map(made))
        .chain(paths.map(made))
        .chain([(definition, Answer::Object(json!({ "status": established })))])
        .chain(more);
    (Server::start(name, answers.collect()), file)
}

/// The Secret as it was made before its owner, and what its owner's patch is answered.
fn early_secret(patch: Answer) -> Vec<(String, Answer)> {
    let note = json!({ "annotations": { "mover.dev/owners-later": "true" }, "uid": "new-secrets" });
    let secret = named("password", json!({ "metadata": note }));
    vec![
        (format!("GET {SHOP}/secrets/password"), Answer::Object(secret)),
        (format!("PATCH {SHOP}/secrets/password"), patch),
    ]
}

fn there(labels: Value) -> Value {
    // As a restore leaves it.
    let annotations = json!({ "mine": "x", "mover.dev/restored-from": "c/shop/disk@1" });
    let mut all = json!({ "app.kubernetes.io/managed-by": "mover", "mover.dev/role": "target" });
    all.as_object_mut().expect("a map").extend(labels.as_object().expect("a map").clone());
    let metadata = json!({ "labels": all, "annotations": annotations, "uid": "new-disk" });
    named("disk", json!({ "metadata": metadata }))
}

fn claim_is(object: Value) -> Vec<(String, Answer)> {
    vec![
        (format!("{SHOP}/persistentvolumeclaims/disk"), Answer::Object(object.clone())),
        (format!("PATCH {SHOP}/persistentvolumeclaims/disk"), Answer::Object(object)),
    ]
}

fn written(server: &Server) -> Vec<(String, String, Value)> {
    server.sent().into_iter().filter(|(method, ..)| method != "GET").collect()
}

fn result(output: &std::process::Output, object: &str) -> String {
    let all = items(output);
    let found = all.iter().find(|row| row["object"] == object);
    found.unwrap_or_else(|| panic!("no {object} in {all:?}"))["result"]
        .as_str()
        .expect("a word")
        .into()
}

/// Whoever looks after the volume would begin with an empty one.
#[test]
fn nothing_is_made_for_a_claim_that_is_not_there() {
    let (server, file) = restored_to("claims-missing", Vec::new());
    let restore = ["objects", "restore", shown(&file)];
    let dry = server.run(&[&restore[..], &["--dry-run", "-o", "json"]].concat());
    ends(&dry, 2, &[]);
    assert_eq!(result(&dry, CLAIM), "missing");
    fails(
        &server,
        &restore,
        2,
        &["pvc/disk in namespace shop", "`kubectl mover restore`", "--ignore-claims"],
    );
    assert!(written(&server).is_empty(), "{:?}", written(&server));
    let output = server.run(&[&restore[..], &["--ignore-claims", "-o", "json"]].concat());
    ends(&output, 0, &["begins with an empty one"]);
    assert_eq!(result(&output, CLAIM), "missing");
    assert!(!written(&server).is_empty());
    // One that goes is none, and one that may not be read is no better.
    let mut going = there(json!({}));
    going["metadata"]["deletionTimestamp"] = "2026-01-01".into();
    let denied = (format!("{SHOP}/persistentvolumeclaims/disk"), Answer::Refused(403, "forbidden"));
    for (name, more, code) in
        [("claims-going", claim_is(going), 2), ("claims-denied", vec![denied], 4)]
    {
        let (server, file) = restored_to(name, more);
        let restore = ["objects", "restore", shown(&file), "-o", "json"];
        fails(&server, &restore, code, &["disk in namespace shop"]);
        assert!(written(&server).is_empty(), "{:?}", written(&server));
        // Whoever ignores claims is told of it, and stopped by none.
        let ignore = [&restore[..], &["--ignore-claims"]].concat();
        // A definition is there already; the claim is not among what stops it.
        let all_new = server.run(&[&ignore[..], &["--existing", "fail"]].concat());
        ends(&all_new, 2, &[]);
        assert!(!text(&all_new.stderr).contains(CLAIM), "{}", text(&all_new.stderr));
        let output = server.run(&ignore);
        ends(&output, 0, &[]);
        assert_eq!(result(&output, CLAIM), "ignored");
    }
}

/// The claim says whose it is before anybody looks for it; it gets no owner.
#[test]
fn a_claim_gets_its_labels_before_anything_is_made() {
    let mut answers = claim_is(there(json!({ "own": "y" })));
    answers.extend(early_secret(Answer::Object(json!({}))));
    let (server, file) = restored_to("claims-labels", answers);
    let restore = ["objects", "restore", shown(&file), "-o", "json"];
    let dry = server.run(&[&restore[..], &["--dry-run"]].concat());
    assert_eq!(result(&dry, CLAIM), "label");
    assert!(written(&server).is_empty(), "a dry run has written");
    let output = server.run(&restore);
    ends(&output, 0, &[]);
    assert_eq!(result(&output, CLAIM), "label");
    let all = written(&server);
    let (method, path, patch) = &all[0];
    assert!(method == "PATCH" && path.contains("/persistentvolumeclaims/disk?"), "{all:?}");
    assert_eq!(
        *patch,
        json!({ "metadata": { "uid": "new-disk", "resourceVersion": "1",
            "labels": { "game": "a", "app.kubernetes.io/managed-by": "games" },
            "annotations": { "serial": "1" } } })
    );
    // The Secret is there before its game, without an owner, and has it in the end.
    let at = |method: &str, part: &str| {
        let found = all.iter().position(|(of, path, _)| of == method && path.contains(part));
        found.unwrap_or_else(|| panic!("no {method} {part} in {all:?}"))
    };
    let (secret, game) = (at("POST", "/secrets"), at("POST", "/games"));
    assert!(secret < game, "{all:?}");
    let metadata = &all[secret].2["metadata"];
    assert!(metadata.get("ownerReferences").is_none(), "{metadata}");
    assert_eq!(metadata["annotations"]["mover.dev/owners-later"], "true");
    // Its game's controller may look for it at once.
    assert_eq!(at("PATCH", "/secrets/password"), game + 1, "{all:?}");
    let patch = &all[at("PATCH", "/secrets/password")].2["metadata"];
    assert_eq!(patch["ownerReferences"][0]["uid"], "new-games");
    assert_eq!(patch["annotations"], json!({ "mover.dev/owners-later": null }));
}

/// A file of an older program stands in its own order, and is restored in this one.
#[test]
fn settings_come_first_whatever_the_order_of_the_file_is() {
    let (server, file) = restored_to("claims-order", claim_is(there(json!({}))));
    let text = std::fs::read_to_string(&file).expect("the file");
    let mut lines: Vec<&str> = text.lines().collect();
    let at = |lines: &[&str], kind: &str| {
        let kind = format!("\"kind\":\"{kind}\",\"metadata\"");
        lines[1..].iter().position(|line| line.contains(&kind)).expect("it is there") + 1
    };
    let (secret, game) = (at(&lines, "Secret"), at(&lines, "Game"));
    assert!(secret < game, "{text}");
    lines.swap(secret, game);
    std::fs::write(&file, lines.join("\n") + "\n").expect("the file");
    ends(&server.run(&["objects", "restore", shown(&file)]), 0, &[]);
    let all = written(&server);
    let at = |part: &str| {
        let is =
            |(method, path, _): &(String, String, Value)| method == "POST" && path.contains(part);
        all.iter().position(is).unwrap_or_else(|| panic!("no {part} in {all:?}"))
    };
    assert!(at("/secrets") < at("/games"), "{all:?}");
}

/// It is named, and the rest goes on.
#[test]
fn an_owner_that_may_not_be_given_is_told() {
    let mut answers = claim_is(there(json!({})));
    answers.extend(early_secret(Answer::Refused(403, "no right to patch secrets")));
    let (server, file) = restored_to("claims-owner", answers);
    let output = server.run(&["objects", "restore", shown(&file), "-o", "json"]);
    ends(&output, 2, &["it has no owner yet"]);
    assert_eq!(result(&output, "secrets/password in namespace shop"), "refused");
    assert_eq!(result(&output, "games.example.com/a in namespace shop"), "create");
}

/// Somebody else's claim may be empty, or of another application.
#[test]
fn a_claim_that_no_restore_made_is_not_taken() {
    let mut claim = there(json!({}));
    claim["metadata"]["labels"] = json!({ "theirs": "x" });
    claim["metadata"]["annotations"] = json!({});
    let (server, file) = restored_to("claims-foreign", claim_is(claim.clone()));
    let restore = ["objects", "restore", shown(&file), "-o", "json"];
    let dry = server.run(&[&restore[..], &["--dry-run"]].concat());
    ends(&dry, 2, &[]);
    assert_eq!(result(&dry, CLAIM), "foreign");
    fails(&server, &restore, 2, &["pvc/disk in namespace shop was made by no restore"]);
    assert!(written(&server).is_empty());
    ends(&server.run(&[&restore[..], &["--ignore-claims"]].concat()), 0, &["it stays as it is"]);
    assert!(written(&server).iter().all(|(_, path, _)| !path.contains("persistentvolumeclaims")));
    let (server, file) = restored_to("claims-foreign-update", claim_is(claim.clone()));
    ends(&server.run(&["objects", "restore", shown(&file), "--existing", "update"]), 0, &["label"]);
    assert!(written(&server)[0].1.contains("/persistentvolumeclaims/disk"));
    // One that says it is another's is so, too, though it lacks nothing.
    let mut other = claim.clone();
    other["metadata"]["labels"] = json!({ "game": "b", "app.kubernetes.io/managed-by": "x" });
    other["metadata"]["annotations"] = json!({ "serial": "2" });
    let (server, file) = restored_to("claims-another", claim_is(other));
    fails(&server, &["objects", "restore", shown(&file)], 2, &["was made by no restore"]);
    assert!(written(&server).is_empty());
    // A restore may have made the claim's volume for a claim that its user made, or have written to it.
    let mut populated = claim.clone();
    populated["spec"] =
        json!({ "dataSourceRef": { "apiGroup": "mover.dev", "kind": "VolumeRestore" } });
    let mut in_place = claim.clone();
    in_place["spec"] = json!({ "volumeName": "pv" });
    let volume =
        json!({ "metadata": { "annotations": { "mover.dev/restored-from": "c/shop/disk@1" } } });
    for (name, claim) in [("claims-populated", populated), ("claims-in-place", in_place)] {
        let mut answers = claim_is(claim);
        answers.push(("/api/v1/persistentvolumes/pv".to_owned(), Answer::Object(volume.clone())));
        let (server, file) = restored_to(name, answers);
        ends(&server.run(&["objects", "restore", shown(&file)]), 0, &["label"]);
    }
    // The very claim that was saved is known, and one that lacks nothing is as good as any.
    claim["metadata"]["uid"] = "uid-disk".into();
    let (server, file) = restored_to("claims-same", claim_is(claim.clone()));
    ends(&server.run(&["objects", "restore", shown(&file)]), 0, &["label"]);
    claim["metadata"]["uid"] = "other".into();
    claim["metadata"]["labels"] = json!({ "game": "a", "app.kubernetes.io/managed-by": "games" });
    claim["metadata"]["annotations"] = json!({ "serial": "1" });
    let (server, file) = restored_to("claims-labelled", claim_is(claim));
    let output = server.run(&["objects", "restore", shown(&file), "-o", "json"]);
    ends(&output, 0, &[]);
    assert_eq!(result(&output, CLAIM), "exists");
}

#[test]
fn what_a_claim_says_otherwise_stays() {
    let other = || claim_is(there(json!({ "game": "b" })));
    let (server, file) = restored_to("claims-differ", other());
    let restore = ["objects", "restore", shown(&file), "-o", "json"];
    let said = ["nothing was made", CLAIM];
    fails(&server, &[&restore[..], &["--existing", "fail"]].concat(), 2, &said);
    assert!(written(&server).is_empty());
    ends(&server.run(&restore), 0, &["which stay"]);
    let patch = written(&server)[0].2.clone();
    assert_eq!(patch["metadata"]["labels"], json!({ "app.kubernetes.io/managed-by": "games" }));
    assert_eq!(patch["metadata"]["annotations"], json!({ "serial": "1" }));
    let (server, file) = restored_to("claims-update", other());
    ends(&server.run(&["objects", "restore", shown(&file), "--existing", "update"]), 0, &[]);
    let sets = |server: &Server| written(server)[0].2["metadata"]["labels"]["game"].clone();
    assert_eq!(sets(&server), "a");
    // So does the plan of that.
    let (server, file) = restored_to("claims-plan", other());
    let update = ["objects", "restore", shown(&file), "--existing", "update"];
    let plan = place("claims-plan.json");
    ends(
        &server.run(&[&update[..], &["--dry-run", "--save", shown(&plan)]].concat()),
        0,
        &["label"],
    );
    ends(&server.run(&[&update[..], &["--accept", shown(&plan)]].concat()), 0, &["label"]);
    assert_eq!(sets(&server), "a");
    // What is no longer in it makes another one.
    let text = std::fs::read_to_string(&plan).expect("the plan");
    let more =
        text.replace("\"objects\":[", "\"objects\":[[\"pods/x in namespace shop\",\"create\"],");
    std::fs::write(&plan, more).expect("the plan");
    let accept = [&update[..], &["--accept", shown(&plan)]].concat();
    fails(&server, &accept, 2, &["pods/x in namespace shop: not there instead of create"]);
}

/// Somebody else writes meanwhile: it is looked at again, and not for ever.
#[test]
fn a_claim_that_others_change_is_looked_at_again() {
    for (times, code) in [(1, 0), (100, 1)] {
        let mut answers = claim_is(there(json!({})));
        answers[1].1 = Answer::Contended(AtomicU32::new(times), there(json!({ "game": "a" })));
        let (server, file) = restored_to(&format!("claims-contended-{times}"), answers);
        ends(&server.run(&["objects", "restore", shown(&file)]), code, &[]);
        let all = written(&server);
        let made = all.iter().filter(|(method, ..)| method == "POST").count();
        assert_eq!(made > 0, code == 0, "{all:?}");
    }
}

/// An older program kept what an operator runs, and gave other reasons for leaving claims out.
#[test]
fn a_file_of_an_older_program_is_restored_by_todays_rules() {
    let (server, file) = restored_to("claims-older", Vec::new());
    let text = std::fs::read_to_string(&file).expect("the file");
    let (reason, older) = (
        "its data is in a backup: restore brings both",
        ["it belongs to an operation of mover", "its owner makes it"],
    );
    for older in older {
        std::fs::write(&file, text.replace(reason, older)).expect("the file");
        let dry = server.run(&["objects", "restore", shown(&file), "--dry-run", "-o", "json"]);
        ends(&dry, 2, &[]);
        assert_eq!(result(&dry, CLAIM), "missing", "{older}");
    }
    // The ConfigMap becomes a pod that a game runs.
    let owner = "\"ownerReferences\":[{\"apiVersion\":\"example.com/v1\",\"controller\":true,\
        \"kind\":\"Game\",\"name\":\"a\",\"uid\":\"uid-a\"}],";
    let pods = text
        .replace("\"kind\":\"ConfigMap\"", "\"kind\":\"Pod\"")
        .replace("\"resource\":\"configmaps\"", "\"resource\":\"pods\"")
        .replace("\"configmaps\":{", "\"pods\":{")
        .replace("{\"name\":\"settings\",", &format!("{{\"name\":\"settings\",{owner}"));
    assert!(pods.contains(owner), "{pods}");
    std::fs::write(&file, pods).expect("the file");
    let output = server.run(&["objects", "restore", shown(&file), "--ignore-claims", "-o", "json"]);
    ends(&output, 0, &[]);
    assert!(items(&output).iter().all(|row| row["object"] != "pods/settings in namespace shop"));
}
