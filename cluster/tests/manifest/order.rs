//! The order of a restore, for graphs of all forms.

use super::{built, object, owned, sequence};
use mover_cluster::manifest::{
    Item, ItemKind, ItemOwner, ObjectManifest, Pairs, RANKS, Strength, restore_order,
};
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;

/// Items with owners by their places: (item, owner, strength).
fn graph(items: u32, edges: &[(u32, u32, bool)]) -> ObjectManifest {
    let of = Arc::new(ItemKind {
        group: "example.com".into(),
        resource: "things".into(),
        version: "v1".into(),
        kind: "Thing".into(),
        namespaced: true,
    });
    let mut all = ObjectManifest::default();
    for at in 0..items {
        all.items.push(Item {
            of: Arc::clone(&of),
            namespace: "shop".into(),
            name: format!("t{at:06}").into(),
            uid: format!("u{at}").into(),
            labels: Pairs::default(),
            annotations: Pairs::default(),
            owners: Vec::new(),
            left_out: None,
        });
    }
    for (item, owner, hard) in edges {
        let strength = if *hard { Strength::Hard } else { Strength::Soft };
        let owner = ItemOwner { item: *owner, strength, by: "test".into() };
        all.items[*item as usize].owners.push(owner);
    }
    all
}

/// What each node reaches, by owners that are at least so strong.
fn reach(nodes: usize, edges: &[(u32, u32, bool)], hard: bool) -> Vec<Vec<bool>> {
    let mut all = vec![vec![false; nodes]; nodes];
    for (item, owner, is_hard) in edges {
        if !hard || *is_hard {
            all[*item as usize][*owner as usize] = true;
        }
    }
    for middle in 0..nodes {
        let further = all[middle].clone();
        for row in all.iter_mut().filter(|row| row[middle]) {
            row.iter_mut().zip(&further).for_each(|(to, from)| *to |= from);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Each object stands once. An owner comes first unless it is of a circle with what it owns; a
    /// hard one also then, unless hard ones alone lead in that circle. What is cut is what comes
    /// later, and the order is the same whatever the order of owners was.
    #[test]
    fn owners_come_first(
        nodes in 1_u32..14,
        edges in prop::collection::vec((0_u32..14, 0_u32..14, any::<bool>()), 0..40),
    ) {
        let mut edges: Vec<(u32, u32, bool)> =
            edges.into_iter().map(|(one, other, hard)| (one % nodes, other % nodes, hard)).collect();
        edges.retain(|(item, owner, _)| item != owner);
        let order = restore_order(&graph(nodes, &edges));
        let mut sorted = order.sequence.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..nodes).collect::<Vec<_>>());
        let nodes = nodes as usize;
        let (all, hard) = (reach(nodes, &edges, false), reach(nodes, &edges, true));
        let at = |item: u32| order.sequence.iter().position(|of| *of == item).expect("it is there");
        for (item, owner, is_hard) in &edges {
            let (one, other) = (*item as usize, *owner as usize);
            let is_first = at(*owner) < at(*item);
            if !all[other][one] || *is_hard && !hard[other][one] {
                prop_assert!(is_first, "{item} comes before its owner {owner}: {:?}", order);
            }
            prop_assert_eq!(!is_first, order.cut.contains(&(*item, *owner)));
        }
        edges.reverse();
        let again = restore_order(&graph(u32::try_from(nodes).expect("few"), &edges));
        prop_assert_eq!(again.sequence, order.sequence);
    }
}

/// A chain as long as a hostile cluster can make it: nothing recurses.
#[test]
fn a_chain_of_a_hundred_thousand_owners_is_an_order() {
    let nodes = 100_000;
    // Each is owned by the one after it, so that all of them have to be turned round.
    let edges: Vec<_> = (0..nodes - 1).map(|at| (at, at + 1, true)).collect();
    let order = restore_order(&graph(nodes, &edges));
    assert!(order.cut.is_empty());
    assert!(order.sequence.iter().copied().eq((0..nodes).rev()));
    // And as one circle.
    let mut edges = edges;
    edges.push((nodes - 1, 0, true));
    let order = restore_order(&graph(nodes, &edges));
    assert_eq!(order.sequence.len(), nodes as usize);
    assert!(!order.cut.is_empty());
}

/// Where owners say nothing, the usual order of kinds does.
#[test]
fn kinds_have_their_usual_order() {
    let all = [
        object("apps/v1", "Deployment", "web", json!({})),
        object("example.com/v1", "Game", "chess", json!({})),
        object("v1", "Service", "web", json!({})),
        object("v1", "ConfigMap", "web", json!({})),
        object("v1", "Secret", "web", json!({})),
        object("rbac.authorization.k8s.io/v1", "RoleBinding", "web", json!({})),
        object("v1", "ServiceAccount", "web", json!({})),
        object("rbac.authorization.k8s.io/v1", "Role", "web", json!({})),
        object("storage.k8s.io/v1", "StorageClass", "fast", json!({})),
        object(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "games.example.com",
            json!({}),
        ),
        object("v1", "Namespace", "shop", json!({})),
    ];
    let kinds: Vec<String> = sequence(&built(&all, &[]));
    let expected: Vec<&str> = vec![
        "Namespace/shop",
        "CustomResourceDefinition/games.example.com",
        "StorageClass/fast",
        "Role/web",
        "ServiceAccount/web",
        "RoleBinding/web",
        "Secret/web",
        "ConfigMap/web",
        "Service/web",
        "Game/chess",
        "Deployment/web",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(RANKS[0].0, "namespaces");
}

/// A definition and a namespace come before what needs them, even if that would come first.
#[test]
fn nothing_comes_before_its_definition_and_its_namespace() {
    let definition = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "games.example.com",
        json!({}),
    );
    // A definition that belongs to an object of another kind, as of an operator that is told to.
    let reference = json!([owned("v1", "ConfigMap", "z")]);
    let definition = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "games.example.com",
        json!({ "metadata": { "ownerReferences": reference, "uid": definition["metadata"]["uid"] } }),
    );
    let all = [
        object("example.com/v1", "Game", "a", json!({})),
        object("v1", "Namespace", "shop", json!({})),
        definition,
    ];
    let order = sequence(&built(&all, &[]));
    assert_eq!(order, ["Namespace/shop", "CustomResourceDefinition/games.example.com", "Game/a"]);
}

/// Whoever looks after a custom resource makes new passwords where it finds none.
#[test]
fn settings_come_before_the_custom_resource_that_owns_them() {
    let of = |kind: &str| json!([owned("example.com/v1", kind, "a")]);
    let refers = json!({ "spec": { "accountRef": { "kind": "ServiceAccount", "name": "a" } } });
    let mut class = object("example.com/v1", "GameClass", "a", json!({}));
    class["spec"] = refers["spec"].clone();
    for (kind, game) in
        [("Game", object("example.com/v1", "Game", "a", refers)), ("GameClass", class)]
    {
        let mut owners = of(kind);
        owners.as_array_mut().expect("a list").push(owned("v1", "Service", "web"));
        let all = [
            game,
            // In a circle with what refers to it, and of a kind that comes early.
            object(
                "v1",
                "ServiceAccount",
                "a",
                json!({ "metadata": { "ownerReferences": of(kind) } }),
            ),
            object("v1", "Secret", "s", json!({ "metadata": { "ownerReferences": of(kind) } })),
            // Another owner is waited for, as it is no custom resource.
            object("v1", "ConfigMap", "c", json!({ "metadata": { "ownerReferences": owners } })),
            object("v1", "Service", "web", json!({})),
        ];
        let manifest = built(&all, &[]);
        let order = sequence(&manifest);
        let at = |name: &str| order.iter().position(|of| of == name).expect("it is there");
        let game = format!("{kind}/a");
        assert!(at("Secret/s") < at(&game), "{order:?}");
        assert!(
            at("Service/web") < at("ConfigMap/c") && at("ConfigMap/c") < at(&game),
            "{order:?}"
        );
        // The reference to the account alone: settings are no circle.
        assert_eq!(restore_order(&manifest).cut.len(), 1);
    }
    // Whoever gives a rule says which comes first.
    let secret = object("v1", "Secret", "s", json!({ "spec": { "game": "a" } }));
    let all = [secret, object("example.com/v1", "Game", "a", json!({}))];
    let ruled = sequence(&built(&all, &["Secret:spec.game=Game.example.com"]));
    assert_eq!(ruled, ["Game/a", "Secret/s"]);
}
