//! One line of a watch, as the hub keeps it.

use super::trim;
use crate::engine::{Kind, Meta};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type Labels = BTreeMap<String, String>;

/// What is kept besides the text: about so much.
const BESIDES: usize = 256;

/// A version as a number, where it is one.
pub(super) fn number(version: &str) -> Option<u128> {
    version.parse().ok()
}

/// An object that was changed or deleted. All subscribers and the ring share one; it holds the
/// object as text, which takes a quarter of the memory of a tree.
#[derive(Debug)]
pub(super) struct Event {
    /// It is deleted, or has left what is watched.
    pub(super) gone: bool,
    pub(super) version: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) labels: Arc<Labels>,
    /// Its labels before, where they are known and others.
    pub(super) before: Option<Arc<Labels>>,
    /// What an Event of the API is about.
    about: BTreeMap<String, String>,
    text: Box<str>,
}

/// What a line of a watch says.
#[derive(Debug)]
pub(super) enum Line {
    Event(Event),
    /// All until this version was told.
    Bookmark(String),
    /// The watch has failed, with this code.
    Error(u64, String),
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    ///
    /// It is not one of a watch, or not all of it.
    pub(super) fn parse(kind: Kind, text: &str) -> Result<Self, String> {
        let mut line: Value = serde_json::from_str(text).map_err(|why| why.to_string())?;
        let object = line["object"].take();
        let gone = match line["type"].as_str() {
            Some("ADDED" | "MODIFIED") => false,
            Some("DELETED") => true,
            Some("BOOKMARK") => {
                let version = object["metadata"]["resourceVersion"].as_str();
                let version = version.filter(|version| !version.is_empty());
                return Ok(Self::Bookmark(version.ok_or("a bookmark has no version")?.into()));
            }
            Some("ERROR") => {
                let code = object["code"].as_u64().unwrap_or_default();
                let message = object["message"].as_str().unwrap_or_default();
                return Ok(Self::Error(code, message.to_owned()));
            }
            _ => return Err("it has no known type".to_owned()),
        };
        Ok(Self::Event(Event::of(kind, object, gone)?))
    }
}

impl Event {
    /// An object as it is told.
    ///
    /// # Errors
    ///
    /// It lacks what every object has.
    pub(super) fn of(kind: Kind, mut object: Value, gone: bool) -> Result<Self, String> {
        trim(kind, &mut object);
        let meta = Meta::of(&object);
        if meta.name.is_empty() || meta.uid.is_empty() || meta.resource_version.is_empty() {
            return Err("an object has no name, uid or version".to_owned());
        }
        let about = object["involvedObject"].as_object().into_iter().flatten();
        let about = about.filter_map(|(name, value)| {
            let value = value.as_str()?.to_owned();
            Some((format!("involvedObject.{name}"), value))
        });
        Ok(Self {
            gone,
            version: meta.resource_version,
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid,
            labels: Arc::new(meta.labels),
            before: None,
            about: about.collect(),
            text: object.to_string().into(),
        })
    }

    /// The object, a copy for each subscriber.
    pub(super) fn object(&self) -> Value {
        serde_json::from_str(&self.text).expect("it was written by us")
    }

    /// One of the fields that a selection may name.
    pub(super) fn field(&self, name: &str) -> Option<&String> {
        match name {
            "metadata.name" => Some(&self.name),
            "metadata.namespace" => self.namespace.as_ref(),
            name => self.about.get(name),
        }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let of = |labels: &Labels| {
            labels.iter().map(|(name, value)| name.len() + value.len() + 64).sum::<usize>()
        };
        self.text.len() + of(&self.labels) + self.before.as_deref().map_or(0, of) + BESIDES
    }
}
