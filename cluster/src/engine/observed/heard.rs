//! What watches tell, which may be late.

use super::super::object::{Key, Query, Selection};
use super::{Answer, Known, Meta, Observed, Text};
use serde_json::Value;

impl Observed {
    /// A watch tells that an object is this one, or that this one is gone. It may be late: what a
    /// read or a write told since then stays.
    pub fn hear_object(&mut self, key: Key, object: Value, gone: bool) {
        let query = Query::One(key.clone());
        let known = self.known.get(&query);
        let told = Meta::of(&object);
        if self.is_late(known.and_then(|known| known.version.as_deref()), &told) {
            return;
        }
        if let Some(Known { answer: Answer::Object(object), .. }) = known {
            let late = match gone {
                // Of another object that had the name before.
                true => object.uid() != told.uid,
                false => is_late(object.version(), &told),
            };
            if late {
                return;
            }
        }
        self.set_object(key, (!gone).then_some(object));
    }

    /// The same of one object of a selection.
    pub fn hear_member(&mut self, selection: &Selection, object: Value, gone: bool) {
        let told = Meta::of(&object);
        let Some(Known { answer: Answer::Many(many), version, .. }) =
            self.known.get(&Query::Many(selection.clone()))
        else {
            return;
        };
        let known = many.iter().find(|known| known.uid() == told.uid);
        let late = |known: &Text| is_late(known.version(), &told);
        if self.is_late(version.as_deref(), &told) || !gone && known.is_some_and(late) {
            return;
        }
        self.set_member(selection, object, gone);
    }

    /// Whether what was told was known already by a list of that version, or is of an object that
    /// is gone.
    fn is_late(&self, version: Option<&str>, told: &Meta) -> bool {
        self.gone.contains(&told.uid) || version.is_some_and(|version| is_late(version, told))
    }
}

/// Whether it was told of a version that is no newer. Versions of one resource may be compared as
/// numbers; of others nothing is known, and the newer telling counts
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
fn is_late(known: &str, told: &Meta) -> bool {
    match (known.parse::<u128>(), told.resource_version.parse::<u128>()) {
        (Ok(known), Ok(told)) => told <= known,
        _ => false,
    }
}
