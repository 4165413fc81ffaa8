//! An object as it is kept: as text. A tree of the same takes ten times the memory, as each of its
//! members is a table of its own, and a controller has a thousand operations with a dozen objects
//! each.

use super::Meta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An object of the API.
#[derive(Debug, Clone)]
pub(super) struct Text {
    uid: Box<str>,
    name: Box<str>,
    namespace: Option<Box<str>>,
    version: Box<str>,
    json: Box<str>,
}

/// Members come in one order, so equal objects are equal texts.
impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Text {
    pub(super) fn of(object: &Value) -> Self {
        let text = |name: &str| object["metadata"][name].as_str().map(Box::from);
        Self {
            uid: text("uid").unwrap_or_default(),
            name: text("name").unwrap_or_default(),
            namespace: text("namespace"),
            version: text("resourceVersion").unwrap_or_default(),
            json: object.to_string().into(),
        }
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The object.
    pub(super) fn value(&self) -> Value {
        serde_json::from_str(&self.json).expect("it was written by us")
    }

    /// What every object has.
    pub(super) fn meta(&self) -> Meta {
        #[derive(Deserialize)]
        struct Object {
            metadata: Meta,
        }
        serde_json::from_str::<Object>(&self.json).map(|of| of.metadata).unwrap_or_default()
    }

    /// What is read of it.
    ///
    /// # Errors
    ///
    /// It is not as its kind is known.
    pub(super) fn body<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.json)
    }
}
