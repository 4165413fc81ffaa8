//! Reads the objects of an application into an [`ObjectManifest`], and keeps them in a file.
//!
//! Objects are read page by page; of each page the builder keeps what identifies an object, and the
//! spool, if there is one, the object itself. Nothing is written to the cluster.

mod archive;
mod change;
mod claims;
mod discovery;
mod late;
mod objects_file;
mod pack;
mod place;
mod restore;
mod spool;

pub use archive::{Archive, copy_archive, write_archive};
pub use discovery::{Served, discover};
pub use objects_file::ObjectsFile;
pub use pack::pack;
pub use restore::{Remade, RemadeObject, Remaking, Updates, remake};
pub use spool::Spool;

use crate::api::{Api, ApiError, Asked, escaped, selector_of};
use crate::engine::{Failure, exit};
use crate::manifest::{
    ItemKind, ManifestBuilder, ManifestScope, ObjectManifest, OwnerRule, Unread, is_object_name,
};
use http::Method;
use kube::core::{Selector, SelectorExt as _};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Objects of the first page of a list, and of all of them at most. Objects may have a MiB and a
/// half each, so later pages follow the size of those before.
const PAGE_FIRST: u64 = 20;
const PAGE_MOST: u64 = 500;
/// How large a page is meant to be.
const PAGE_BYTES: u64 = 4 << 20;
/// A list that the server forgets is begun anew so many times.
const ANEW: u32 = 5;
/// Objects of the cluster that lead to others of the cluster are followed so far.
const ROUNDS: u32 = 10;

/// What is read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Namespaces, at least one.
    pub namespaces: BTreeSet<String>,
    /// Only objects with these labels, what they own and what they need.
    pub selector: Option<String>,
    /// Soft owners of the user.
    pub rules: Vec<OwnerRule>,
    /// What cannot be read is named, and the rest is read all the same.
    pub skip_unreadable: bool,
}

struct Reader<'a> {
    api: &'a Api,
    selector: Option<Selector>,
    wanted: &'a Reading,
    builder: ManifestBuilder,
    unread: Vec<Unread>,
    spool: Option<&'a mut Spool>,
    tell: &'a dyn Fn(&str),
}

/// The manifest of what is in the cluster now. The objects that a restore makes again go into the
/// spool.
///
/// # Errors
///
/// A namespace that does not exist, labels that are none, or what cannot be read: all of it at once.
pub async fn read(
    api: &Api,
    wanted: &Reading,
    spool: Option<&mut Spool>,
    tell: &dyn Fn(&str),
) -> Result<ObjectManifest, Failure> {
    let selector = match &wanted.selector {
        None => None,
        Some(text) => Some(selector_of(text).ok_or_else(|| {
            let what = format!("--selector {text}: these are no labels");
            Failure::new(exit::USAGE, what).hint("write app=db,tier!=test")
        })?),
    };
    let builder = ManifestBuilder::new(wanted.rules.clone());
    let mut reader = Reader { api, selector, wanted, builder, unread: Vec::new(), spool, tell };
    let served = discover(api).await?;
    for (group, why) in &served.broken {
        reader.refused(format!("kinds of {group}"), why.clone())?;
    }
    reader.namespaces(&served).await?;
    for kind in served.kinds.iter().filter(|kind| kind.namespaced) {
        for namespace in &wanted.namespaces {
            reader.list(kind, namespace).await?;
        }
    }
    reader.bindings(&served).await?;
    reader.needed(&served).await?;
    let Reader { builder, unread, .. } = reader;
    if !unread.is_empty() && !wanted.skip_unreadable {
        let all: Vec<&str> = unread.iter().map(|at| at.what.as_str()).collect();
        let first = &unread[0].why;
        let what = format!("{} cannot be read: {first}", all.join(", "));
        return Err(Failure::new(exit::DENIED, what)
            .hint("get the rights to list them, or go without them: --skip-unreadable"));
    }
    let rules = wanted.rules.iter().map(|rule| rule.text().to_owned()).collect();
    let scope = ManifestScope {
        namespaces: wanted.namespaces.iter().cloned().collect(),
        selector: wanted.selector.clone(),
        rules,
    };
    Ok(builder.finish(scope, unread))
}

impl Reader<'_> {
    /// What cannot be read is noted, or ends it where it may pass.
    fn refused(&mut self, what: String, why: ApiError) -> Result<(), Failure> {
        match why {
            ApiError::Unavailable(why) if !self.wanted.skip_unreadable => Err(why),
            why => {
                let why = Failure::from(why).message;
                self.unread.push(Unread { what, why });
                Ok(())
            }
        }
    }

    fn keep(&mut self, kind: &Arc<ItemKind>, object: Value, always: bool) -> Result<(), Failure> {
        let is_chosen = match &self.selector {
            None => true,
            Some(selector) => always || selector.matches(&labels(&object)),
        };
        self.builder.add(kind, &object, is_chosen)?;
        match &mut self.spool {
            Some(spool) => spool.push(kind, object),
            None => Ok(()),
        }
    }

    fn rewind(&mut self, len: usize) {
        self.builder.rewind(len);
        if let Some(spool) = &mut self.spool {
            spool.rewind(len);
        }
    }

    async fn namespaces(&mut self, served: &Served) -> Result<(), Failure> {
        let kind = served.find("", "Namespace").ok_or_else(|| {
            Failure::new(exit::RETRYABLE, "the API server serves no namespaces".to_owned())
        })?;
        for name in &self.wanted.namespaces {
            match one(self.api, kind, name).await {
                Ok(Some(object)) => self.keep(kind, object, true)?,
                Ok(None) => {
                    let what = format!("there is no namespace {name}");
                    return Err(Failure::new(exit::USAGE, what)
                        .hint("kubectl get namespaces lists those that are there"));
                }
                Err(why) => self.refused(format!("namespace {name}"), why)?,
            }
        }
        Ok(())
    }

    /// All objects of a kind in a namespace.
    async fn list(&mut self, kind: &Arc<ItemKind>, namespace: &str) -> Result<(), Failure> {
        let place = match namespace {
            "" => kind.full(),
            _ => format!("{} in namespace {namespace}", kind.full()),
        };
        (self.tell)(&format!("{} objects, now {place}", self.builder.len()));
        let begun = self.builder.len();
        let (mut token, mut limit, mut times) = (String::new(), PAGE_FIRST, 0);
        loop {
            let text = limit.to_string();
            let mut query = vec![("limit", text.as_str())];
            if !token.is_empty() {
                query.push(("continue", token.as_str()));
            }
            let asked = Asked::other(&format!("list {place}"), &format!("list {place}"));
            let page =
                self.api.request(Method::GET, &kind.path(namespace), &query, None, asked).await;
            let mut page = match page {
                Ok(page) => page,
                // Served a moment ago: the kind has gone, and its objects with it.
                Err(ApiError::Absent(_)) => {
                    self.rewind(begun);
                    return Ok(());
                }
                Err(ApiError::Expired(why)) => {
                    times += 1;
                    if times >= ANEW {
                        return Err(why.hint("its lists change too fast: run it again"));
                    }
                    self.rewind(begun);
                    token.clear();
                    continue;
                }
                Err(why) => {
                    self.rewind(begun);
                    return self.refused(place, why);
                }
            };
            let Value::Array(items) = page["items"].take() else { return Ok(()) };
            limit = next_limit(&items);
            for object in items {
                if !is_foreign(kind, &object, &self.wanted.namespaces) {
                    self.keep(kind, object, false)?;
                }
            }
            match page["metadata"]["continue"].as_str().filter(|text| !text.is_empty()) {
                Some(next) => next.clone_into(&mut token),
                None => return Ok(()),
            }
        }
    }

    /// Of the bindings of the whole cluster those that give an account of these namespaces a right.
    async fn bindings(&mut self, served: &Served) -> Result<(), Failure> {
        match served.find("rbac.authorization.k8s.io", "ClusterRoleBinding") {
            Some(kind) => self.list(&Arc::clone(kind), "").await,
            None => Ok(()),
        }
    }

    /// Objects of the cluster that those of the namespaces refer to, and definitions of their kinds.
    async fn needed(&mut self, served: &Served) -> Result<(), Failure> {
        let mut asked: BTreeSet<(Arc<ItemKind>, String)> = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut open: BTreeSet<(Arc<ItemKind>, String)> = BTreeSet::new();
            for (group, kind, name) in self.builder.missing() {
                let of = served.find(group, kind).filter(|of| !of.namespaced && is_needed(of));
                let of = of.filter(|_| is_object_name(name));
                open.extend(of.map(|of| (Arc::clone(of), name.to_owned())));
            }
            if let Some(definitions) =
                served.find("apiextensions.k8s.io", "CustomResourceDefinition")
            {
                let resources = self.builder.resources();
                let custom = resources.into_iter().filter(|(group, _)| group.contains('.'));
                let names = custom.map(|(group, resource)| format!("{resource}.{group}"));
                open.extend(names.map(|name| (Arc::clone(definitions), name)));
            }
            open.retain(|of| !asked.contains(of));
            if open.is_empty() {
                return Ok(());
            }
            for (kind, name) in open {
                match one(self.api, &kind, &name).await {
                    Ok(Some(object)) => self.keep(&kind, object, false)?,
                    Ok(None) => {}
                    Err(why) => self.refused(format!("{}/{name}", kind.full()), why)?,
                }
                asked.insert((kind, name));
            }
        }
        Ok(())
    }
}

/// Namespaces and nodes are no part of an application because something names them.
fn is_needed(of: &ItemKind) -> bool {
    !(of.group.is_empty() && ["Namespace", "Node"].contains(&of.kind.as_str()))
}

async fn one(api: &Api, kind: &ItemKind, name: &str) -> Result<Option<Value>, ApiError> {
    let right = format!("get {}", kind.full());
    let asked = Asked::other(&format!("read {}/{name}", kind.full()), &right);
    let path = format!("{}/{}", kind.path(""), escaped(name));
    match api.request(Method::GET, &path, &[], None, asked).await {
        Ok(object) => Ok(Some(object)),
        Err(ApiError::Absent(_)) => Ok(None),
        Err(why) => Err(why),
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let all = object["metadata"]["labels"].as_object().into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Whether a binding of the cluster gives no account of these namespaces a right.
fn is_foreign(kind: &ItemKind, object: &Value, namespaces: &BTreeSet<String>) -> bool {
    if kind.kind != "ClusterRoleBinding" || kind.group != "rbac.authorization.k8s.io" {
        return false;
    }
    let mut subjects = object["subjects"].as_array().into_iter().flatten();
    !subjects.any(|subject| {
        let text = |name: &str| subject[name].as_str().unwrap_or_default();
        match text("kind") {
            "ServiceAccount" => namespaces.contains(text("namespace")),
            "Group" => text("name")
                .strip_prefix("system:serviceaccounts:")
                .is_some_and(|name| namespaces.contains(name)),
            _ => false,
        }
    })
}

/// How many objects the next page may have, for those of this one.
fn next_limit(items: &[Value]) -> u64 {
    let bytes: u64 = items.iter().map(size).sum();
    let each = bytes / u64::try_from(items.len().max(1)).unwrap_or(1);
    (PAGE_BYTES / each.max(1)).clamp(PAGE_FIRST, PAGE_MOST)
}

/// About so many bytes of JSON.
fn size(value: &Value) -> u64 {
    let mut bytes = 0;
    let mut stack = vec![value];
    while let Some(value) = stack.pop() {
        bytes += 8;
        match value {
            Value::String(text) => bytes += text.len() as u64,
            Value::Array(all) => stack.extend(all),
            Value::Object(all) => {
                bytes += all.keys().map(|name| name.len() as u64).sum::<u64>();
                stack.extend(all.values());
            }
            _ => {}
        }
    }
    bytes
}
