//! Whether an object that is there is the one that was saved, and what makes it that one.
//!
//! Both come without what belongs to the cluster (`manifest/clean.rs`). Neither is deeper than JSON
//! that was parsed can be, which is 128 levels.

use serde_json::Value;

/// A merge patch (RFC 7396) that makes one object of another, of members that differ alone: so lists
/// that are the same without what belongs to the cluster stay as they are. Labels and annotations of
/// others stay, as controllers keep their own there.
pub(super) fn change(wanted: &Value, here: &Value) -> Option<Value> {
    changed(wanted, here, true)
}

fn changed(wanted: &Value, here: &Value, is_whole: bool) -> Option<Value> {
    let (Value::Object(all), Value::Object(old)) = (wanted, here) else {
        return (wanted != here).then(|| wanted.clone());
    };
    let mut patch = serde_json::Map::new();
    for (name, value) in all {
        let old = old.get(name).unwrap_or(&Value::Null);
        let part = match is_whole && name == "metadata" {
            true => added(value, old),
            false if is_nothing(value) && is_nothing(old) => None,
            false => changed(value, old, false),
        };
        patch.extend(part.map(|part| (name.clone(), part)));
    }
    let gone = old.iter().filter(|(name, old)| !all.contains_key(*name) && !is_nothing(old));
    patch.extend(gone.map(|(name, _)| (name.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The same without what is to go.
fn added(wanted: &Value, here: &Value) -> Option<Value> {
    let (Value::Object(all), Value::Object(old)) = (wanted, here) else {
        return (wanted != here).then(|| wanted.clone());
    };
    let part = |(name, value): (&String, &Value)| {
        let old = old.get(name).unwrap_or(&Value::Null);
        let part = if is_empty(value) && is_empty(old) { None } else { added(value, old) };
        part.map(|part| (name.clone(), part))
    };
    let patch: serde_json::Map<_, _> = all.iter().filter_map(part).collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// It says nothing. A map without members does: which of several it is, for instance.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// An API server keeps no such member, or may as well.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(all) => all.is_empty(),
        Value::Array(all) => all.is_empty(),
        other => other.is_null(),
    }
}

/// Whether all that one object says stands in the other, too: an API server adds defaults.
pub(super) fn is_within(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.iter().all(|(name, value)| match other.get(name) {
                Some(other) => is_within(value, other),
                None => is_empty(value),
            })
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_within(one, other))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_leads_from_one_object_to_the_other_and_is_none_where_they_are_the_same() {
        for (wanted, here, patch) in [
            // one of two, by a map without members
            (
                json!({ "spec": { "selfSigned": {} } }),
                json!({ "spec": { "ca": { "name": "x" } } }),
                json!({ "spec": { "selfSigned": {}, "ca": null } }),
            ),
            (
                json!({ "spec": { "ca": { "name": "x" } } }),
                json!({ "spec": { "selfSigned": {} } }),
                json!({ "spec": { "selfSigned": null, "ca": { "name": "x" } } }),
            ),
            // a selector that somebody has narrowed, and one that has become another
            (
                json!({ "spec": { "podSelector": {} } }),
                json!({ "spec": { "podSelector": { "matchLabels": { "a": "b" } } } }),
                json!({ "spec": { "podSelector": { "matchLabels": null } } }),
            ),
            // an element of a list
            (
                json!({ "spec": { "list": [{ "name": "a" }] } }),
                json!({ "spec": { "list": [{ "name": "a", "env": 1 }] } }),
                json!({ "spec": { "list": [{ "name": "a" }] } }),
            ),
            // labels of others stay, those that were saved come back
            (
                json!({ "metadata": { "labels": { "a": "1" } }, "data": { "k": "v" } }),
                json!({ "metadata": { "labels": { "a": "2", "b": "3" } }, "data": { "k": "v" } }),
                json!({ "metadata": { "labels": { "a": "1" } } }),
            ),
            // what says nothing is no difference
            (
                json!({ "metadata": { "annotations": {} }, "secrets": [], "spec": null }),
                json!({ "metadata": {} }),
                Value::Null,
            ),
            (
                json!({ "metadata": {} }),
                json!({ "metadata": { "labels": { "x": "y" } }, "secrets": [] }),
                Value::Null,
            ),
        ] {
            let made = change(&wanted, &here);
            assert_eq!(made.clone().unwrap_or_default(), patch, "{wanted} of {here}");
            let mut after = here.clone();
            merged(&mut after, &made.unwrap_or_default());
            assert_eq!(change(&wanted, &after), None, "{wanted} of {here}");
        }
    }

    /// As RFC 7396 has it.
    fn merged(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            if !patch.is_null() {
                *target = patch.clone();
            }
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let members = target.as_object_mut().expect("a map");
        for (name, value) in patch {
            match value {
                Value::Null => drop(members.remove(name)),
                value => merged(members.entry(name).or_insert(Value::Null), value),
            }
        }
    }
}
