//! Builds a manifest: one object after the other, of which little is kept.

use super::item::{
    Item, ItemKind, ItemOwner, ManifestScope, OBJECTS_MAX, ObjectManifest, Pairs, Strength, Unread,
};
use super::left_out::left_out;
use super::path::OwnerRule;
use super::references::{By, references};
use crate::engine::{Failure, exit};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// An annotation that repeats the whole object.
const REPEATED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Notes about odd objects, at most: an application of a hostile cluster may be all odd.
const NOTES_MAX: usize = 100;

/// A reference that waits for the others to be read.
#[derive(Debug)]
enum Waiting {
    Uid { uid: Box<str>, name: Box<str>, kind: u32 },
    Name { kind: u32, namespace: Option<Box<str>>, name: Box<str>, by: Arc<str> },
}

#[derive(Debug)]
struct Entry {
    item: Item,
    waiting: Vec<Waiting>,
    /// Whether it has the labels that were asked for.
    chosen: bool,
}

/// Gets objects, and makes a manifest of them.
#[derive(Debug, Default)]
pub struct ManifestBuilder {
    rules: Vec<OwnerRule>,
    entries: Vec<Entry>,
    /// Group and kind as a number.
    kinds: HashMap<(String, String), u32>,
    names: Vec<(String, String)>,
    texts: HashSet<Arc<str>>,
}

impl ManifestBuilder {
    /// Soft owners are also those of these rules.
    pub fn new(rules: Vec<OwnerRule>) -> Self {
        Self { rules, ..Self::default() }
    }

    /// How many objects it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all after the first ones: a list that has to be begun again.
    pub fn rewind(&mut self, len: usize) {
        self.entries.truncate(len);
    }

    /// One object as the API has it. `chosen` is false for one that counts only if another one
    /// needs it, or is its owner.
    ///
    /// # Errors
    ///
    /// An object without a name, or more than [`OBJECTS_MAX`].
    pub fn add(&mut self, of: &Arc<ItemKind>, object: &Value, chosen: bool) -> Result<(), Failure> {
        if self.entries.len() >= OBJECTS_MAX {
            let what = format!("there are more than {OBJECTS_MAX} objects");
            return Err(Failure::new(exit::USAGE, what).hint("choose fewer namespaces, or labels"));
        }
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().filter(|name| !name.is_empty()).ok_or_else(|| {
            Failure::new(exit::RETRYABLE, format!("list {}: an object has no name", of.full()))
        })?;
        let namespace = metadata["namespace"].as_str().filter(|_| of.namespaced);
        let item = Item {
            of: Arc::clone(of),
            namespace: self.text(namespace.unwrap_or_default()),
            name: name.into(),
            uid: metadata["uid"].as_str().unwrap_or_default().into(),
            labels: pairs(&metadata["labels"]),
            annotations: pairs(&metadata["annotations"]),
            owners: Vec::new(),
            left_out: left_out(&of.group, &of.kind, object).map(Into::into),
        };
        let waiting = self.waiting(of, object);
        self.entries.push(Entry { item, waiting, chosen });
        Ok(())
    }

    fn waiting(&mut self, of: &ItemKind, object: &Value) -> Vec<Waiting> {
        let mut waiting = Vec::new();
        for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let text = |name: &str| owner[name].as_str().unwrap_or_default();
            let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
            let kind = self.kind(group, text("kind"));
            waiting.push(Waiting::Uid { uid: text("uid").into(), name: text("name").into(), kind });
        }
        for found in references(&of.group, &of.kind, object) {
            let by = match &found.by {
                By::Field(field) => self.text(&format!("field {field}")),
                By::Path(path) => self.text(&format!("field {path}")),
                By::Label(label) => self.text(&format!("label {label}")),
            };
            let kind = self.kind(found.to.0, found.to.1);
            let namespace = found.namespace.map(Into::into);
            waiting.push(Waiting::Name { kind, namespace, name: found.name.into(), by });
        }
        let rules = std::mem::take(&mut self.rules);
        for rule in &rules {
            if !rule.is_about(&of.group, &of.kind) {
                continue;
            }
            let by = self.text(&format!("rule {}", rule.text()));
            let kind = self.kind(rule.owner().0, rule.owner().1);
            waiting.extend(rule.owners(object).into_iter().map(|(namespace, name)| {
                let namespace = namespace.map(Into::into);
                Waiting::Name { kind, namespace, name: name.into(), by: Arc::clone(&by) }
            }));
        }
        self.rules = rules;
        waiting.shrink_to_fit();
        waiting
    }

    fn kind(&mut self, group: &str, kind: &str) -> u32 {
        let of = (group.to_owned(), kind.to_owned());
        if let Some(number) = self.kinds.get(&of) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).expect("objects are bounded");
        self.names.push(of.clone());
        self.kinds.insert(of, number);
        number
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    /// Group, kind and name of objects that are referred to and not here: for kinds of the cluster,
    /// which are read one by one.
    pub fn missing(&self) -> BTreeSet<(&str, &str, &str)> {
        let here = self.by_name();
        let mut missing = BTreeSet::new();
        for entry in &self.entries {
            for waiting in &entry.waiting {
                let (Waiting::Name { kind, name, .. } | Waiting::Uid { kind, name, .. }) = waiting;
                if !here.contains_key(&(*kind, "", &**name)) {
                    let (group, of) = &self.names[*kind as usize];
                    missing.insert((group.as_str(), of.as_str(), &**name));
                }
            }
        }
        missing
    }

    /// Group and plural name of all kinds that have an object here.
    pub fn resources(&self) -> BTreeSet<(&str, &str)> {
        self.entries.iter().map(|at| (&*at.item.of.group, &*at.item.of.resource)).collect()
    }

    fn by_name(&self) -> HashMap<(u32, &str, &str), u32> {
        let mut here = HashMap::with_capacity(self.entries.len());
        for (at, Entry { item, .. }) in (0..).zip(&self.entries) {
            let of = (item.of.group.clone(), item.of.kind.clone());
            // A kind that nobody refers to has no number, and needs none.
            if let Some(kind) = self.kinds.get(&of) {
                here.entry((*kind, &*item.namespace, &*item.name)).or_insert(at);
            }
        }
        here
    }

    /// The manifest of all that was added.
    pub fn finish(mut self, scope: ManifestScope, unread: Vec<Unread>) -> ObjectManifest {
        let mut notes = Vec::new();
        let identity = |one: &Entry, other: &Entry| one.item.identity().cmp(&other.item.identity());
        self.entries.sort_by(identity);
        self.entries.dedup_by(|later, first| {
            let is_twice = later.item.identity() == first.item.identity();
            if is_twice {
                note(&mut notes, || format!("{} was told twice", first.item.identity()));
                first.chosen |= later.chosen;
            }
            is_twice
        });
        let owners = self.resolve(&mut notes);
        for (entry, owners) in self.entries.iter_mut().zip(owners) {
            entry.item.owners = owners;
            entry.waiting = Vec::new();
        }
        let chosen: Vec<bool> = self.entries.iter().map(|entry| entry.chosen).collect();
        let items = self.entries.into_iter().map(|entry| entry.item).collect();
        let all = ObjectManifest { scope, items, unread, notes };
        match chosen.iter().all(|chosen| *chosen) {
            true => all,
            false => with_kin(all, chosen),
        }
    }

    fn resolve(&self, notes: &mut Vec<String>) -> Vec<Vec<ItemOwner>> {
        let here = self.by_name();
        let mut by_uid: HashMap<&str, u32> = HashMap::with_capacity(self.entries.len());
        for (at, Entry { item, .. }) in (0..).zip(&self.entries) {
            if item.uid.is_empty() {
                continue;
            }
            if let Some(first) = by_uid.insert(&item.uid, at) {
                by_uid.insert(&item.uid, first);
                let other = self.entries[first as usize].item.identity();
                note(notes, || format!("{} has the uid of {other}", item.identity()));
            }
        }
        let hard: Arc<str> = "ownerReferences".into();
        let one = |at: u32, entry: &Entry, notes: &mut Vec<String>| {
            let mut owners: BTreeMap<u32, ItemOwner> = BTreeMap::new();
            for waiting in &entry.waiting {
                let found = match waiting {
                    Waiting::Uid { uid, name, kind } => {
                        let owner = by_uid.get(&**uid).copied();
                        let owner = owner.filter(|owner| self.may_own(*owner, at, (*kind, name)));
                        if owner.is_none() {
                            let identity = entry.item.identity();
                            let kind = &self.names[*kind as usize].1;
                            note(notes, || {
                                format!("{identity}: its owner {kind} {name} is not here")
                            });
                        }
                        owner.map(|item| (item, Strength::Hard, &hard))
                    }
                    Waiting::Name { kind, namespace, name, by } => {
                        let within = namespace.as_deref().unwrap_or(&entry.item.namespace);
                        let found = here.get(&(*kind, within, name));
                        let found = found.or_else(|| here.get(&(*kind, "", name)));
                        found.map(|item| (*item, Strength::Soft, by))
                    }
                };
                let Some((item, strength, by)) = found.filter(|(item, ..)| *item != at) else {
                    continue;
                };
                let by = Arc::clone(by);
                owners.entry(item).or_insert(ItemOwner { item, strength, by });
            }
            owners.into_values().collect()
        };
        (0..).zip(&self.entries).map(|(at, entry)| one(at, entry, notes)).collect()
    }

    /// An owner is of the cluster or of the same namespace, and is what the reference says.
    fn may_own(&self, owner: u32, of: u32, (kind, name): (u32, &str)) -> bool {
        let (owner, of) = (&self.entries[owner as usize].item, &self.entries[of as usize].item);
        let (group, word) = &self.names[kind as usize];
        (owner.namespace.is_empty() || owner.namespace == of.namespace)
            && *owner.name == *name
            && owner.of.kind == *word
            && owner.of.group == *group
    }
}

fn note(notes: &mut Vec<String>, text: impl FnOnce() -> String) {
    match notes.len() {
        NOTES_MAX => notes.push("there are more notes of this kind".to_owned()),
        len if len < NOTES_MAX => notes.push(text()),
        _ => {}
    }
}

/// The chosen ones, what they need, and what they own.
fn with_kin(all: ObjectManifest, chosen: Vec<bool>) -> ObjectManifest {
    let children = all.children();
    let mut kept = chosen.clone();
    let mut open: Vec<u32> = (0..).zip(&chosen).filter(|(_, is)| **is).map(|(at, _)| at).collect();
    // What is owned by a chosen one is of the application as well; whoever refers to it is not.
    while let Some(at) = open.pop() {
        for child in &children[at as usize] {
            let owners = all.items[*child as usize].owners.iter();
            let is_owned = owners.clone().any(|of| of.item == at && of.strength == Strength::Hard);
            if is_owned && !std::mem::replace(&mut kept[*child as usize], true) {
                open.push(*child);
            }
        }
    }
    let mut open: Vec<u32> = (0..).zip(&kept).filter(|(_, is)| **is).map(|(at, _)| at).collect();
    while let Some(at) = open.pop() {
        for owner in &all.items[at as usize].owners {
            if !std::mem::replace(&mut kept[owner.item as usize], true) {
                open.push(owner.item);
            }
        }
    }
    let mut place = vec![u32::MAX; kept.len()];
    let kept_ones = kept.iter().enumerate().filter(|(_, is)| **is);
    for (new, (at, _)) in (0..).zip(kept_ones) {
        place[at] = new;
    }
    let mut items = all.items;
    let mut is_kept = kept.iter();
    items.retain(|_| *is_kept.next().unwrap_or(&false));
    for item in &mut items {
        for owner in &mut item.owners {
            owner.item = place[owner.item as usize];
        }
    }
    ObjectManifest { items, ..all }
}

fn pairs(map: &Value) -> Pairs {
    let all = map.as_object().into_iter().flatten();
    let all = all.filter(|(name, _)| name.as_str() != REPEATED);
    Pairs::of(
        all.filter_map(|(name, value)| Some((name.as_str().into(), value.as_str()?.into())))
            .collect(),
    )
}
