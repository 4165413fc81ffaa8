//! What is known of an object, and of all of them together.

use super::left_out::ITS_DATA;
use crate::engine::{ROLE, TARGET};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// More objects than this are refused: a list that large is a mistake, and its order would take
/// more memory than a command should.
pub const OBJECTS_MAX: usize = 500_000;

/// A kind as the API serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemKind {
    /// API group, empty for the core.
    pub group: String,
    /// Name in paths, plural.
    pub resource: String,
    /// Version that it was read in.
    pub version: String,
    /// As `kind` has it in objects.
    pub kind: String,
    /// Whether its objects lie in namespaces.
    pub namespaced: bool,
}

impl ItemKind {
    /// `deployments.apps`, and `pods` of the core.
    pub fn full(&self) -> String {
        match self.group.is_empty() {
            true => self.resource.clone(),
            false => format!("{}.{}", self.resource, self.group),
        }
    }

    /// As `apiVersion` has it in objects.
    pub fn api_version(&self) -> String {
        match self.group.is_empty() {
            true => self.version.clone(),
            false => format!("{}/{}", self.group, self.version),
        }
    }

    /// Whether group, version and resource are words of which the API makes paths.
    pub fn is_served_so(&self) -> bool {
        let is_word = |text: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
            text.chars().all(plain) && !text.contains("..")
        };
        let Self { group, resource, version, .. } = self;
        is_word(group) && [resource, version].iter().all(|text| !text.is_empty() && is_word(text))
    }

    /// Where the API serves it.
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let (version, resource) = (self.api_version(), &self.resource);
        match self.namespaced && !namespace.is_empty() {
            true => format!("{root}/{version}/namespaces/{namespace}/{resource}"),
            false => format!("{root}/{version}/{resource}"),
        }
    }
}

/// Whether an object can have this name: it is one segment of a path. Names come from references,
/// and from files that somebody may have changed; no request is to lead elsewhere by one.
pub fn is_object_name(name: &str) -> bool {
    !name.is_empty() && ![".", ".."].contains(&name) && !name.contains(['/', '%'])
}

/// What makes an object one and the same: the version does not count, as one object is served in
/// several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity<'a> {
    /// API group.
    pub group: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Empty for objects of the cluster.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        write!(f, "/{}", self.name)?;
        match self.namespace {
            "" => Ok(()),
            namespace => write!(f, " in namespace {namespace}"),
        }
    }
}

/// Names and values, sorted by name: a map of a few texts in as little memory as they take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(pub(super) Vec<(Box<str>, Box<str>)>);

impl Pairs {
    /// Of pairs in any order; the last of one name counts.
    pub(super) fn of(mut all: Vec<(Box<str>, Box<str>)>) -> Self {
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all.reverse();
        all.dedup_by(|one, other| one.0 == other.0);
        all.reverse();
        all.shrink_to_fit();
        Self(all)
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(of, _)| (**of).cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// How much an owner counts where owners lead in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strength {
    /// By a label, a reference by name, or a rule.
    Soft,
    /// By `ownerReferences`.
    Hard,
}

/// An object that is made before another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemOwner {
    /// Its place among the items.
    pub item: u32,
    /// How much it counts.
    pub strength: Strength,
    /// How it is known: `ownerReferences`, `label NAME`, `field PATH`, `rule TEXT`.
    pub by: Arc<str>,
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its kind.
    pub of: Arc<ItemKind>,
    /// Empty for objects of the cluster.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Box<str>,
    /// As the cluster gave it.
    pub uid: Box<str>,
    /// Its labels.
    pub labels: Pairs,
    /// Its annotations, but for `kubectl.kubernetes.io/last-applied-configuration`.
    pub annotations: Pairs,
    /// Owners and what it refers to: each once, by their place.
    pub owners: Vec<ItemOwner>,
    /// Why it is not made again, if it is not.
    pub left_out: Option<Cow<'static, str>>,
}

impl Item {
    /// What it is compared by.
    pub fn identity(&self) -> Identity<'_> {
        Identity {
            group: &self.of.group,
            resource: &self.of.resource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    /// `group/namespace/version/name`, as the manifest proposal has it: it lacks the kind.
    pub fn text(&self) -> String {
        format!("{}/{}/{}/{}", self.of.group, self.namespace, self.of.version, self.name)
    }
}

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestScope {
    /// Namespaces, sorted.
    pub namespaces: Vec<String>,
    /// Labels, or nothing.
    pub selector: Option<String>,
    /// Rules of the user, as they were typed.
    pub rules: Vec<String>,
}

/// What could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Resource and namespace, or a group.
    pub what: String,
    /// The words of the API server.
    pub why: String,
}

/// All objects of an application, sorted by identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectManifest {
    /// What was asked for.
    pub scope: ManifestScope,
    /// The objects.
    pub items: Vec<Item>,
    /// What is not in it, though it may be there.
    pub unread: Vec<Unread>,
    /// What is odd: owners that are none, objects that stand twice.
    pub notes: Vec<String>,
}

impl ObjectManifest {
    /// For each item, those that it owns.
    pub fn children(&self) -> Vec<Vec<u32>> {
        let mut all = vec![Vec::new(); self.items.len()];
        for (at, item) in (0..).zip(&self.items) {
            for owner in &item.owners {
                all[owner.item as usize].push(at);
            }
        }
        all
    }

    /// Somebody's claims, whose volumes a restore brings back. Files of older programs give other
    /// reasons for some of them.
    pub fn claims(&self) -> impl Iterator<Item = &Item> {
        let is_pod = |owner: &ItemOwner| {
            let of = &self.items[owner.item as usize].of;
            owner.strength == Strength::Hard && of.group.is_empty() && of.kind == "Pod"
        };
        self.items.iter().filter(move |item| {
            let is_claim = item.of.group.is_empty() && item.of.kind == "PersistentVolumeClaim";
            is_claim
                && match item.left_out.as_deref() {
                    Some(ITS_DATA | "its owner makes it") => !item.owners.iter().any(is_pod),
                    Some("it belongs to an operation of mover") => {
                        item.labels.get(ROLE) == Some(TARGET)
                    }
                    _ => false,
                }
        })
    }

    /// The place of an object.
    pub fn find(&self, identity: Identity<'_>) -> Option<usize> {
        self.items.binary_search_by(|item| item.identity().cmp(&identity)).ok()
    }
}
