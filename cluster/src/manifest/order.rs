//! The order in which objects are made: owners before what they own.
//!
//! Objects whose owners lead in a circle are taken together. Within a circle the owners of
//! `ownerReferences` count and the soft ones do not; where those alone lead in a circle, too, the
//! usual order of kinds decides. Among objects that are free to be made, the usual order of kinds
//! decides as well, then namespace and name. So the order is the same each time.
//!
//! Namespaces and definitions of custom resources are owners of all that needs them, without being
//! named: nothing can be made without them.
//!
//! Secrets and ConfigMaps come before a custom resource that owns them, and get that owner later: its
//! controller makes new passwords and keys in the moment in which it finds none
//! (docs/decisions/0033-settings-come-before-custom-resources.md). Time is that of a sort.

use super::item::{ItemKind, ObjectManifest, Strength};
use super::kinds::{is_custom, is_setting, rank};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// In what order objects are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreOrder {
    /// All items, each once.
    pub sequence: Vec<u32>,
    /// Owners that come later, as they are of a circle: (item, owner). Custom resources that own
    /// settings are not among them.
    pub cut: Vec<(u32, u32)>,
}

/// What an item waits for.
#[derive(Debug, Clone, Copy)]
struct Edge {
    owner: u32,
    strength: Strength,
    /// It is no owner: what waits for it owns it.
    is_setting: bool,
}

/// The order of all items of a manifest.
pub fn restore_order(manifest: &ObjectManifest) -> RestoreOrder {
    let (nodes, edges) = graph(manifest);
    let place: Vec<u32> = by_preference(manifest, nodes);
    let all: Vec<u32> = (0..count(nodes)).collect();
    let mut sequence = Vec::with_capacity(nodes);
    // Circles of all owners, then those of hard ones within them.
    for circle in sorted(&all, &edges, &place, Strength::Soft) {
        match circle.len() {
            1 => sequence.extend(circle),
            _ => {
                for rest in sorted(&circle, &edges, &place, Strength::Hard) {
                    sequence.extend(rest);
                }
            }
        }
    }
    let mut at = vec![0_u32; nodes];
    for (place, item) in (0..).zip(&sequence) {
        at[*item as usize] = place;
    }
    let mut cut = Vec::new();
    for (item, owners) in (0..).zip(&edges) {
        for Edge { owner, is_setting, .. } in owners {
            if !is_setting && at[*owner as usize] > at[item as usize] {
                cut.push((item, *owner));
            }
        }
    }
    RestoreOrder { sequence, cut }
}

fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).expect("items are bounded")
}

fn graph(manifest: &ObjectManifest) -> (usize, Vec<Vec<Edge>>) {
    let items = &manifest.items;
    let mut namespaces: HashMap<&str, u32> = HashMap::new();
    let mut definitions: HashMap<&str, u32> = HashMap::new();
    for (at, item) in (0..).zip(items) {
        let ItemKind { group, resource, .. } = &*item.of;
        match (group.as_str(), resource.as_str()) {
            ("", "namespaces") => drop(namespaces.insert(&item.name, at)),
            ("apiextensions.k8s.io", "customresourcedefinitions") => {
                definitions.insert(&item.name, at);
            }
            _ => {}
        }
    }
    let mut full: HashMap<*const ItemKind, Option<u32>> = HashMap::new();
    let mut settings = Vec::new();
    let edges = (0..).zip(items).map(|(at, item)| {
        let mut edges = Vec::with_capacity(item.owners.len() + 2);
        for of in &item.owners {
            let (owner, strength) = (of.item, of.strength);
            // Whoever gave a rule says which comes first.
            let is_owned = strength == Strength::Hard || of.by.starts_with("label ");
            match is_owned && is_setting(&item.of) && is_custom(&items[owner as usize].of) {
                true => settings.push((owner, at)),
                false => edges.push(Edge { owner, strength, is_setting: false }),
            }
        }
        let definition = full
            .entry(std::sync::Arc::as_ptr(&item.of))
            .or_insert_with(|| definitions.get(item.of.full().as_str()).copied());
        let namespace = namespaces.get(&*item.namespace).copied();
        let needed = definition.iter().copied().chain(namespace);
        let is_setting = false;
        edges.extend(needed.map(|owner| Edge { owner, strength: Strength::Hard, is_setting }));
        edges
    });
    let mut edges: Vec<Vec<Edge>> = edges.collect();
    for (owner, setting) in settings {
        let strength = Strength::Soft;
        edges[owner as usize].push(Edge { owner: setting, strength, is_setting: true });
    }
    (items.len(), edges)
}

/// For each item its place where owners say nothing.
fn by_preference(manifest: &ObjectManifest, nodes: usize) -> Vec<u32> {
    let mut ranks: HashMap<*const ItemKind, (usize, usize)> = HashMap::new();
    let mut keys: Vec<_> = (0..count(nodes))
        .map(|at| {
            let item = &manifest.items[at as usize];
            let of = std::sync::Arc::as_ptr(&item.of);
            let rank = *ranks.entry(of).or_insert_with(|| rank(&item.of));
            (rank, at)
        })
        .collect();
    keys.sort_by_key(|(rank, at)| {
        let item = &manifest.items[*at as usize];
        (*rank, &*item.of.group, &*item.of.resource, &*item.namespace, &*item.name, *at)
    });
    let mut place = vec![0; nodes];
    for (preferred, (_, at)) in (0..).zip(keys) {
        place[at as usize] = preferred;
    }
    place
}

/// The circles of these items, in order, by owners that count at least so much and are among them.
/// An item of no circle is one of its own.
fn sorted(among: &[u32], edges: &[Vec<Edge>], place: &[u32], least: Strength) -> Vec<Vec<u32>> {
    // Places within `among`.
    let mut local: HashMap<u32, u32> = HashMap::with_capacity(among.len());
    for (at, item) in (0..).zip(among) {
        local.insert(*item, at);
    }
    let owners: Vec<Vec<u32>> = among
        .iter()
        .map(|item| {
            let counted = edges[*item as usize].iter().filter(|edge| edge.strength >= least);
            let mut owners: Vec<u32> =
                counted.filter_map(|edge| local.get(&edge.owner).copied()).collect();
            owners.sort_unstable();
            owners.dedup();
            owners
        })
        .collect();
    let (circle_of, circles) = circles(&owners);
    // What waits for each circle, and for how many each one waits.
    let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); circles.len()];
    let mut left = vec![0_u32; circles.len()];
    for (at, of) in owners.iter().enumerate() {
        for owner in of {
            let (one, other) = (circle_of[at], circle_of[*owner as usize]);
            if one != other {
                waiting[other as usize].push(one);
                left[one as usize] += 1;
            }
        }
    }
    let first = |circle: u32| {
        let members = circles[circle as usize].iter();
        members.map(|at| place[among[*at as usize] as usize]).min().unwrap_or(0)
    };
    let mut free: BinaryHeap<Reverse<(u32, u32)>> = (0..count(circles.len()))
        .filter(|circle| left[*circle as usize] == 0)
        .map(|circle| Reverse((first(circle), circle)))
        .collect();
    let mut order = Vec::with_capacity(circles.len());
    while let Some(Reverse((_, circle))) = free.pop() {
        let members = circles[circle as usize].iter();
        let mut members: Vec<u32> = members.map(|at| among[*at as usize]).collect();
        members.sort_by_key(|item| place[*item as usize]);
        order.push(members);
        for next in &waiting[circle as usize] {
            let left = &mut left[*next as usize];
            *left -= 1;
            if *left == 0 {
                free.push(Reverse((first(*next), *next)));
            }
        }
    }
    order
}

/// Strongly connected components: for each node its component, and for each component its nodes
/// (Tarjan, "Depth-first search and linear graph algorithms", 1972, with a stack of its own).
fn circles(owners: &[Vec<u32>]) -> (Vec<u32>, Vec<Vec<u32>>) {
    const NEW: u32 = u32::MAX;
    let nodes = owners.len();
    let (mut number, mut low) = (vec![NEW; nodes], vec![0_u32; nodes]);
    let (mut on_path, mut component) = (vec![false; nodes], vec![NEW; nodes]);
    let (mut path, mut components): (Vec<u32>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
    let mut counter = 0;
    // A node, and which of its owners comes next.
    let mut calls: Vec<(u32, usize)> = Vec::new();
    for start in 0..count(nodes) {
        if number[start as usize] != NEW {
            continue;
        }
        calls.push((start, 0));
        while let Some((node, next)) = calls.last_mut() {
            let (node, at) = (*node as usize, *next);
            if at == 0 {
                number[node] = counter;
                low[node] = counter;
                counter += 1;
                path.push(count(node));
                on_path[node] = true;
            }
            if let Some(owner) = owners[node].get(at) {
                *next += 1;
                let of = *owner as usize;
                if number[of] == NEW {
                    calls.push((*owner, 0));
                } else if on_path[of] {
                    low[node] = low[node].min(number[of]);
                }
                // A node without a first owner would begin again.
                continue;
            }
            calls.pop();
            if let Some((below, _)) = calls.last() {
                let below = *below as usize;
                low[below] = low[below].min(low[node]);
            }
            if low[node] == number[node] {
                let mut members = Vec::new();
                while let Some(member) = path.pop() {
                    on_path[member as usize] = false;
                    component[member as usize] = count(components.len());
                    members.push(member);
                    if member as usize == node {
                        break;
                    }
                }
                components.push(members);
            }
        }
    }
    (component, components)
}
