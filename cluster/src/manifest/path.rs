//! Rules of the user: which field or label of a kind names which owner.
//!
//! A rule is `KIND.GROUP:PATH=KIND.GROUP`. The path is the part of JSONPath (RFC 9535) that names
//! members and elements: `spec.databases[*].name`, `metadata.labels['app.example.com/of']`. It may
//! begin with `$.` and stand in braces, as kubectl writes it. It leads to a name, or to a map with
//! `name` and maybe `namespace`.

use crate::engine::{Failure, exit};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Element(usize),
    All,
}

/// Which objects own which, as a user says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRule {
    text: String,
    of: (String, String),
    path: Vec<Step>,
    owner: (String, String),
}

const FORM: &str = "write KIND.GROUP:PATH=KIND.GROUP, such as \
    Backup.example.com:spec.clusterRef.name=Cluster.example.com";

impl OwnerRule {
    /// Reads a rule.
    ///
    /// # Errors
    ///
    /// One that is none, with the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let wrong =
            |why: &str| Failure::new(exit::USAGE, format!("--owner-rule {text}: {why}")).hint(FORM);
        let (of, rest) = text.split_once(':').ok_or_else(|| wrong("there is no colon"))?;
        // Values in brackets may have the sign, the kind of the owner never has.
        let (path, owner) = rest.rsplit_once('=').ok_or_else(|| wrong("it names no owner"))?;
        let kind = |text: &str| {
            let (kind, group) = text.split_once('.').unwrap_or((text, ""));
            let plain = |text: &str| {
                text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-')
            };
            let is_kind = kind.starts_with(|c: char| c.is_ascii_uppercase());
            match is_kind && plain(kind) && plain(group) {
                true => Ok((kind.to_owned(), group.to_owned())),
                false => Err(wrong(&format!("{text:?} is no kind"))),
            }
        };
        let path = steps(path).map_err(|why| wrong(&why))?;
        Ok(Self { text: text.to_owned(), of: kind(of)?, path, owner: kind(owner)? })
    }

    /// As it was typed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Group and kind of the owners.
    pub(super) fn owner(&self) -> (&str, &str) {
        (&self.owner.1, &self.owner.0)
    }

    /// Whether it is about objects of this kind.
    pub(super) fn is_about(&self, group: &str, kind: &str) -> bool {
        self.of.0 == kind && self.of.1 == group
    }

    /// Namespace, if it is named, and name of each owner of an object.
    pub(super) fn owners<'a>(&self, object: &'a Value) -> Vec<(Option<&'a str>, &'a str)> {
        let mut found = vec![object];
        for step in &self.path {
            found = found
                .into_iter()
                .flat_map(|value| -> Vec<&Value> {
                    match (step, value) {
                        (Step::Member(name), _) => value.get(name).into_iter().collect(),
                        (Step::Element(at), _) => value.get(*at).into_iter().collect(),
                        (Step::All, Value::Array(all)) => all.iter().collect(),
                        (Step::All, Value::Object(all)) => all.values().collect(),
                        (Step::All, _) => Vec::new(),
                    }
                })
                .collect();
        }
        let name = |value: &'a Value| match value {
            Value::String(name) => Some((None, name.as_str())),
            _ => Some((value["namespace"].as_str(), value["name"].as_str()?)),
        };
        found.into_iter().filter_map(name).filter(|(_, name)| !name.is_empty()).collect()
    }
}

fn steps(text: &str) -> Result<Vec<Step>, String> {
    let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let text = text.strip_prefix('$').unwrap_or(text);
    let mut rest = text.strip_prefix('.').unwrap_or(text);
    let mut all = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let quote = after.chars().next().filter(|c| "'\"".contains(*c));
            let end = match quote {
                Some(quote) => format!("{quote}]"),
                None => "]".to_owned(),
            };
            let inside = after.get(quote.map_or(0, char::len_utf8)..).unwrap_or_default();
            let Some((inside, after)) = inside.split_once(end.as_str()) else {
                return Err("a bracket is not closed".to_owned());
            };
            all.push(match (quote, inside) {
                (Some(_), name) => Step::Member(name.to_owned()),
                (None, "*") => Step::All,
                (None, number) => Step::Element(
                    number.parse().map_err(|_| format!("[{number}] is neither number nor *"))?,
                ),
            });
            rest = after;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            match name {
                "" => return Err("a name between two dots is missing".to_owned()),
                "*" => all.push(Step::All),
                name => all.push(Step::Member(name.to_owned())),
            }
            rest = after;
        }
        if let Some(after) = rest.strip_prefix('.') {
            if after.is_empty() {
                return Err("a name after the last dot is missing".to_owned());
            }
            rest = after;
        }
    }
    match all.is_empty() {
        true => Err("it has no path".to_owned()),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_names() {
        let object = json!({
            "metadata": { "labels": { "a.example.com/of": "one" } },
            "spec": { "all": [{ "name": "x" }, { "name": "y", "namespace": "n" }], "one": "z" },
        });
        for (path, found) in [
            ("metadata.labels['a.example.com/of']", vec![(None, "one")]),
            ("$.spec.all[*].name", vec![(None, "x"), (None, "y")]),
            ("{.spec.all[*]}", vec![(None, "x"), (Some("n"), "y")]),
            ("spec.all[1]", vec![(Some("n"), "y")]),
            ("spec['one']", vec![(None, "z")]),
            ("spec.none.at.all", vec![]),
            ("spec.all", vec![]),
        ] {
            let rule = OwnerRule::parse(&format!("A.example.com:{path}=B")).expect(path);
            assert_eq!(rule.owners(&object), found, "{path}");
            assert!(rule.is_about("example.com", "A"));
            assert_eq!(rule.owner(), ("", "B"));
        }
    }

    #[test]
    fn what_is_no_rule_is_an_error_with_its_form() {
        for (text, said) in [
            ("A", "no colon"),
            ("A:spec.x", "names no owner"),
            ("A:=B", "no path"),
            ("A:a..b=B", "between two dots"),
            ("A:a.=B", "after the last dot"),
            ("A:a[b]=B", "neither number"),
            ("A:a['b=B", "not closed"),
            ("a:b=B", "is no kind"),
            ("A:b=b c", "is no kind"),
        ] {
            let why = OwnerRule::parse(text).expect_err(text);
            assert!(why.message.contains(said), "{why}");
            assert!(why.hint.is_some());
        }
    }
}
