//! A manifest as JSON, in the structure of the manifest proposal: kinds → namespaces → items, an
//! index by uid, and the set of texts. Index, set and children follow from the items; they are
//! written for others, and not read.

use super::item::{
    Identity, Item, ItemKind, ItemOwner, ManifestScope, OBJECTS_MAX, ObjectManifest, Pairs,
    Strength, Unread, is_object_name,
};
use crate::engine::{Failure, exit};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{Read, Write};
use std::sync::Arc;

/// Says what such a file is.
pub const FORMAT: &str = "mover.dev/object-manifest/v1";

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Pairs;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut all = Vec::new();
                while let Some(pair) = map.next_entry::<Box<str>, Box<str>>()? {
                    all.push(pair);
                }
                Ok(Pairs::of(all))
            }
        }
        from.deserialize_map(Texts)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireScope {
    namespaces: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    owner_rules: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct WireUnread {
    what: String,
    why: String,
}

/// How an owner is known. Its uid stands in `owners`, at the same place.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireItem<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    resource: &'a str,
    namespaced: bool,
    namespace: &'a str,
    name: &'a str,
    labels: &'a Pairs,
    annotations: &'a Pairs,
    uid: &'a str,
    owners: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    owned_by: Vec<&'a str>,
    children: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<&'a str>,
}

struct Kinds<'a>(&'a ObjectManifest, Vec<Vec<u32>>);
struct Namespaces<'a>(&'a Kinds<'a>, std::ops::Range<usize>);

impl<'a> Kinds<'a> {
    /// The items from one place on that are alike.
    fn run(
        &self,
        of: std::ops::Range<usize>,
        alike: impl Fn(&Item, &Item) -> bool,
    ) -> std::ops::Range<usize> {
        let items = &self.0.items[of.clone()];
        let len = items.iter().take_while(|item| alike(&items[0], item)).count();
        of.start..of.start + len
    }

    fn item(&'a self, at: usize) -> WireItem<'a> {
        let item = &self.0.items[at];
        let uid = |at: u32| &*self.0.items[at as usize].uid;
        WireItem {
            group: &item.of.group,
            version: &item.of.version,
            kind: &item.of.kind,
            resource: &item.of.resource,
            namespaced: item.of.namespaced,
            namespace: &item.namespace,
            name: &item.name,
            labels: &item.labels,
            annotations: &item.annotations,
            uid: &item.uid,
            owners: item.owners.iter().map(|owner| uid(owner.item)).collect(),
            owned_by: item.owners.iter().map(|owner| &*owner.by).collect(),
            children: self.1[at].iter().map(|child| uid(*child)).collect(),
            left_out: item.left_out.as_deref(),
        }
    }
}

impl Serialize for Kinds<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        let mut at = 0;
        while at < self.0.items.len() {
            let kind = |item: &Item| (item.of.group.clone(), item.of.resource.clone());
            let run = self.run(at..self.0.items.len(), |one, other| kind(one) == kind(other));
            map.serialize_entry(&self.0.items[at].of.full(), &Namespaces(self, run.clone()))?;
            at = run.end;
        }
        map.end()
    }
}

impl Serialize for Namespaces<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        let mut at = self.1.start;
        while at < self.1.end {
            let run = self.0.run(at..self.1.end, |one, other| one.namespace == other.namespace);
            map.serialize_key(&*self.0.0.items[at].namespace)?;
            map.serialize_value(&Sequence(self.0, run.clone()))?;
            at = run.end;
        }
        map.end()
    }
}

struct Sequence<'a>(&'a Kinds<'a>, std::ops::Range<usize>);

impl Serialize for Sequence<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.1.clone().map(|at| self.0.item(at)))
    }
}

struct Index<'a>(&'a ObjectManifest);

impl Serialize for Index<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let items = self.0.items.iter().filter(|item| !item.uid.is_empty());
        to.collect_map(items.map(|item| {
            (&*item.uid, [item.of.full().as_str(), &item.namespace, &item.name].join("/"))
        }))
    }
}

/// Writes a manifest, on one line.
///
/// # Errors
///
/// Those of the writer.
pub fn write_manifest(manifest: &ObjectManifest, to: impl Write) -> std::io::Result<()> {
    #[derive(Serialize)]
    struct Wire<'a> {
        format: &'a str,
        scope: WireScope,
        kinds: Kinds<'a>,
        index: Index<'a>,
        set: BTreeSet<String>,
        unread: Vec<WireUnread>,
        notes: &'a [String],
    }
    let scope = manifest.scope.clone();
    let wire = Wire {
        format: FORMAT,
        scope: WireScope {
            namespaces: scope.namespaces,
            selector: scope.selector,
            owner_rules: scope.rules,
        },
        kinds: Kinds(manifest, manifest.children()),
        index: Index(manifest),
        set: manifest.items.iter().map(Item::text).collect(),
        unread: (manifest.unread.iter().cloned())
            .map(|Unread { what, why }| WireUnread { what, why })
            .collect(),
        notes: &manifest.notes,
    };
    serde_json::to_writer(to, &wire)?;
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadItem {
    group: String,
    version: String,
    kind: String,
    resource: String,
    namespaced: bool,
    namespace: String,
    name: Box<str>,
    labels: Pairs,
    annotations: Pairs,
    uid: Box<str>,
    owners: Vec<Box<str>>,
    #[serde(default)]
    owned_by: Vec<String>,
    #[serde(default)]
    left_out: Option<String>,
}

#[derive(Deserialize)]
struct ReadWire {
    format: String,
    scope: WireScope,
    kinds: BTreeMap<String, BTreeMap<String, Vec<ReadItem>>>,
    #[serde(rename = "index")]
    _index: IgnoredAny,
    #[serde(rename = "set")]
    _set: IgnoredAny,
    #[serde(default)]
    unread: Vec<WireUnread>,
    #[serde(default)]
    notes: Vec<String>,
}

/// Reads a manifest.
///
/// # Errors
///
/// Text that is none, and why.
pub fn read_manifest(from: impl Read) -> Result<ObjectManifest, Failure> {
    let wrong = |why: String| Failure::new(exit::USAGE, why);
    let wire: ReadWire = serde_json::from_reader(from)
        .map_err(|why| wrong(format!("it is no list of objects: {why}")))?;
    if wire.format != FORMAT {
        let format = wire.format;
        return Err(wrong(format!("it has the format {format:?} instead of {FORMAT:?}")));
    }
    let mut items = Vec::new();
    let mut owners: Vec<(Vec<Box<str>>, Vec<String>)> = Vec::new();
    let mut kinds: HashSet<Arc<ItemKind>> = HashSet::new();
    let mut texts: HashSet<Arc<str>> = HashSet::new();
    let read = wire.kinds.into_values().flat_map(BTreeMap::into_values).flatten();
    let mut read: Vec<ReadItem> = read.collect();
    if read.len() > OBJECTS_MAX {
        return Err(wrong(format!("it has more than {OBJECTS_MAX} objects")));
    }
    read.sort_by(|one, other| identity(one).cmp(&identity(other)));
    if let Some(twice) = read.windows(2).find(|two| identity(&two[0]) == identity(&two[1])) {
        return Err(wrong(format!("it has {} twice", identity(&twice[0]))));
    }
    for item in read {
        let is_space = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !is_object_name(&item.name) || !item.namespace.chars().all(is_space) {
            let (name, namespace) = (&item.name, &item.namespace);
            return Err(wrong(format!("no object can be {name:?} in namespace {namespace:?}")));
        }
        let ReadItem { group, version, kind, resource, namespaced, .. } = item;
        let of = ItemKind { group, resource, version, kind, namespaced };
        if !of.is_served_so() {
            return Err(wrong(format!("no kind can be {} of {}", of.full(), of.api_version())));
        }
        let of = kept(&mut kinds, of);
        let namespace = texts_of(&mut texts, &item.namespace);
        owners.push((item.owners, item.owned_by));
        items.push(Item {
            of,
            namespace,
            name: item.name,
            uid: item.uid,
            labels: item.labels,
            annotations: item.annotations,
            owners: Vec::new(),
            left_out: item.left_out.map(Into::into),
        });
    }
    let places: HashMap<Box<str>, u32> =
        (0..).zip(&items).map(|(at, item)| (item.uid.clone(), at)).collect();
    for (item, (uids, by)) in items.iter_mut().zip(owners) {
        for (at, uid) in uids.iter().enumerate() {
            let owner = places.get(uid).ok_or_else(|| {
                wrong(format!("{} has the owner {uid}, which is not in it", item.identity()))
            })?;
            let by = by.get(at).map_or("ownerReferences", String::as_str);
            let strength = if by == "ownerReferences" { Strength::Hard } else { Strength::Soft };
            let by = texts_of(&mut texts, by);
            item.owners.push(ItemOwner { item: *owner, strength, by });
        }
        item.owners.sort_by_key(|owner| owner.item);
    }
    let WireScope { namespaces, selector, owner_rules: rules } = wire.scope;
    let unread = wire.unread.into_iter().map(|WireUnread { what, why }| Unread { what, why });
    Ok(ObjectManifest {
        scope: ManifestScope { namespaces, selector, rules },
        items,
        unread: unread.collect(),
        notes: wire.notes,
    })
}

fn identity(item: &ReadItem) -> Identity<'_> {
    let ReadItem { group, resource, namespace, name, .. } = item;
    Identity { group, resource, namespace, name }
}

fn kept(kinds: &mut HashSet<Arc<ItemKind>>, of: ItemKind) -> Arc<ItemKind> {
    if let Some(known) = kinds.get(&of) {
        return Arc::clone(known);
    }
    let new = Arc::new(of);
    kinds.insert(Arc::clone(&new));
    new
}

fn texts_of(texts: &mut HashSet<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(known) = texts.get(text) {
        return Arc::clone(known);
    }
    let new: Arc<str> = text.into();
    texts.insert(Arc::clone(&new));
    new
}
