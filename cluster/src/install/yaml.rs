//! Objects as documents of YAML: in the order of their members, with texts of several lines as
//! blocks. Texts are in double quotes where they could be taken for something else, never in single
//! ones: a template may put single quotes into them.

use serde_json::Value;
use std::fmt::Write as _;

/// These objects, each as one document.
#[must_use]
pub fn documents<'a>(objects: impl IntoIterator<Item = &'a Value>) -> String {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&document(object));
    }
    text
}

/// One object.
pub(super) fn document(object: &Value) -> String {
    let mut text = String::new();
    collection(&mut text, object, 0);
    text
}

/// What people look for first.
const FIRST: [&str; 4] = ["apiVersion", "kind", "metadata", "name"];

fn members(object: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut all: Vec<_> = object.iter().collect();
    let rank = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    all.sort_by_key(|(name, _)| rank(name));
    all
}

fn collection(text: &mut String, it: &Value, depth: usize) {
    let pad = "  ".repeat(depth);
    match it {
        Value::Object(object) => {
            for (name, member) in members(object) {
                let _ = write!(text, "{pad}{}:", scalar(name));
                nested(text, member, depth);
            }
        }
        Value::Array(items) => {
            for item in items {
                let _ = write!(text, "{pad}-");
                item_of(text, item, depth);
            }
        }
        _ => unreachable!("scalars are written where they stand"),
    }
}

/// What follows the colon of a member.
fn nested(text: &mut String, member: &Value, depth: usize) {
    match member {
        Value::Object(object) if object.is_empty() => text.push_str(" {}\n"),
        Value::Array(items) if items.is_empty() => text.push_str(" []\n"),
        Value::Object(_) | Value::Array(_) => {
            text.push('\n');
            collection(text, member, depth + 1);
        }
        Value::String(line) if line.contains('\n') => block(text, line, depth + 1),
        other => {
            let _ = writeln!(text, " {}", plain(other));
        }
    }
}

/// What follows the hyphen of an item.
fn item_of(text: &mut String, item: &Value, depth: usize) {
    let mut inner = String::new();
    match item {
        Value::Object(object) if object.is_empty() => text.push_str(" {}\n"),
        Value::Array(items) if items.is_empty() => text.push_str(" []\n"),
        Value::Object(_) | Value::Array(_) => {
            collection(&mut inner, item, depth + 1);
            // The first member stands beside the hyphen.
            let skipped = 2 * (depth + 1);
            let _ = write!(text, " {}", &inner[skipped..]);
        }
        Value::String(line) if line.contains('\n') => block(text, line, depth + 1),
        other => {
            let _ = writeln!(text, " {}", plain(other));
        }
    }
}

/// A text of several lines. It must not begin with a space, and none of ours does.
fn block(text: &mut String, lines: &str, depth: usize) {
    let pad = "  ".repeat(depth);
    let (body, sign) = match lines.strip_suffix('\n') {
        Some(body) => (body, "|"),
        None => (lines, "|-"),
    };
    let _ = writeln!(text, " {sign}");
    for line in body.split('\n') {
        let _ = writeln!(text, "{}", format!("{pad}{line}").trim_end());
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// A text of one line, quoted unless it is a plain word or path.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let is_other = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_ascii_lowercase().as_str());
    if is_word && !is_other {
        return text.to_owned();
    }
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_are_read_as_they_were_written() {
        let object = json!({
            "kind": "K", "apiVersion": "v1", "metadata": { "name": "on", "labels": {} },
            "list": [{ "a": 1, "b": [true, null, "no", "x: y", "- z", "#", "é\"'{{"] }, [[1], []], {}],
            "block": "if a\n  then b\n", "bare": "one\ntwo", "empty": "", "number": "1e3",
            "a/b~c": "0x1", "deep": [{ "text": "x\n\ny", "more": { "of": "it" } }, "p\nq"],
        });
        let text = documents([&object, &object]);
        let all: Vec<Value> = text
            .split("---\n")
            .filter(|one| !one.is_empty())
            .map(|one| serde_saphyr::from_str(one).unwrap_or_else(|why| panic!("{why}\n{one}")))
            .collect();
        assert_eq!(all, [object.clone(), object], "{text}");
        assert!(text.starts_with("---\napiVersion: v1\nkind: K\nmetadata:\n  name: \"on\"\n"));
    }
}
