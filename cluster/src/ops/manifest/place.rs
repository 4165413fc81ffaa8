//! Where an object is made: its path, and what people are told of it.

use crate::api::{Asked, escaped};
use crate::manifest::{Identity, ItemKind};

/// Where one object is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) of: ItemKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Place {
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.of.path(&self.namespace), escaped(&self.name))
    }

    /// As people have it.
    pub(super) fn shown(&self) -> String {
        let Self { of: ItemKind { group, resource, .. }, namespace, name } = self;
        Identity { group, resource, namespace, name }.to_string()
    }

    pub(super) fn asked(&self, word: &str, verb: &str) -> Asked {
        let full = self.of.full();
        let place = match self.namespace.as_str() {
            "" => "of the cluster".to_owned(),
            namespace => format!("in namespace {namespace}"),
        };
        let what = format!("{word} {full}/{} {place}", self.name);
        Asked::other(&what, &format!("{verb} {full} {place}"))
    }
}
