//! Questions as the hub reads them: which event is about which question. Pure.
//!
//! A selection by labels is watched together with others that name the same labels: the server
//! leaves out whatever lacks one of them, and the values are compared here. An object that loses
//! such a label is told as deleted by the server, and as gone by the hub, which is true of the
//! selection. It would be false of the object, so questions about one object are never watched
//! through a selection.

use super::event::{Event, Labels};
use crate::engine::{Key, Kind, Query, Selection};
use kube::core::{Expression, Selector, SelectorExt as _};

/// Fields that no change of an object changes. Others, such as the phase of a pod, would have to be
/// known from before.
const FIXED: [&str; 6] = [
    "metadata.name",
    "metadata.namespace",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.uid",
];

/// Nodes write a Lease each every ten seconds; none of ours is among them.
const HEARTBEATS: &str = "kube-node-lease";

/// One watch: all objects of a kind, in a namespace or in all, that have certain labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) namespace: Option<String>,
    /// Names of labels, joined by commas; empty where labels do not matter.
    pub(super) labels: String,
}

impl Place {
    /// What the server is asked for.
    pub(super) fn selection(&self) -> Selection {
        let Self { kind, namespace, labels } = self.clone();
        // The namespace of an object is fixed, so this hides no change of one that is watched.
        let wide = kind == Kind::Lease && namespace.is_none();
        let fields = if wide { format!("metadata.namespace!={HEARTBEATS}") } else { String::new() };
        Selection { kind, namespace, labels, fields }
    }
}

/// What a subscriber wants to hear of.
#[derive(Debug, PartialEq)]
pub(super) enum Wanted {
    One { namespace: Option<String>, name: String },
    Many { namespace: Option<String>, labels: Selector, fields: Vec<(String, String)> },
}

/// How an event reads for one subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Set,
    Gone,
}

/// Where subscribers are found without a look at all of them: each is in one slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Slot {
    Name(Option<String>, String),
    Label(String, String),
    About(String),
    Namespace(String),
    All,
}

/// Where a question is watched, and what it asks; `None` where the hub cannot serve it.
pub(super) fn route(query: &Query) -> Option<(Place, Wanted)> {
    let (kind, namespace) = match query {
        Query::One(Key { kind, namespace, .. }) => (*kind, namespace),
        Query::Many(Selection { kind, namespace, .. }) => (*kind, namespace),
    };
    // No copies of secrets are kept; and nobody waits for one.
    if kind == Kind::Secret
        || kind == Kind::Lease && namespace.as_deref().is_none_or(|name| name == HEARTBEATS)
    {
        return None;
    }
    let (wanted, labels) = match query {
        Query::One(key) => {
            let Key { namespace, name, .. } = key.clone();
            (Wanted::One { namespace, name }, String::new())
        }
        Query::Many(selection) => {
            let (labels, needed) = parse_labels(&selection.labels)?;
            let fields = parse_fields(&selection.fields)?;
            let namespace = selection.namespace.clone();
            (Wanted::Many { namespace, labels, fields }, needed)
        }
    };
    Some((Place { kind, namespace: None, labels }, wanted))
}

/// The selector that a text is, as kubectl has it.
pub(crate) fn selector_of(text: &str) -> Option<Selector> {
    split(text).map(parse).collect()
}

/// The selector, and the labels that an object must have to be in it.
fn parse_labels(text: &str) -> Option<(Selector, String)> {
    let mut needed = Vec::new();
    let mut all = Vec::new();
    for part in split(text) {
        let expression = parse(part)?;
        match &expression {
            Expression::Equal(name, _) | Expression::In(name, _) | Expression::Exists(name) => {
                needed.push(name.clone());
            }
            Expression::NotEqual(..) | Expression::NotIn(..) | Expression::DoesNotExist(_) => {}
        }
        all.push(expression);
    }
    // Of all objects of a kind the labels would have to be known.
    if needed.is_empty() && !all.is_empty() {
        return None;
    }
    needed.sort_unstable();
    needed.dedup();
    Some((all.into_iter().collect(), needed.join(",")))
}

/// At commas outside of brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn parse(part: &str) -> Option<Expression> {
    if let Some((name, values)) = part.split_once('(') {
        let values = values.strip_suffix(')')?.split(',').map(|value| value.trim().to_owned());
        let mut words = name.split_whitespace();
        let (name, word, None) = (plain(words.next()?)?, words.next()?, words.next()) else {
            return None;
        };
        return match word {
            "in" => Some(Expression::In(name, values.collect())),
            "notin" => Some(Expression::NotIn(name, values.collect())),
            _ => None,
        };
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Some(Expression::NotEqual(plain(name)?, plain(value)?));
    }
    if let Some((name, value)) = part.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return Some(Expression::Equal(plain(name)?, plain(value)?));
    }
    match part.strip_prefix('!') {
        Some(name) => plain(name).map(Expression::DoesNotExist),
        None => plain(part).map(Expression::Exists),
    }
}

/// A name or a value; anything else is some form that is not known here.
fn plain(text: &str) -> Option<String> {
    let text = text.trim();
    let known = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    text.chars().all(known).then(|| text.to_owned())
}

fn parse_fields(text: &str) -> Option<Vec<(String, String)>> {
    let one = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let value = value.strip_prefix('=').unwrap_or(value);
        FIXED.contains(&name).then(|| (name.to_owned(), value.to_owned()))
    };
    split(text).map(one).collect()
}

impl Wanted {
    /// The slot that each event for this subscriber leads to.
    pub(super) fn slot(&self) -> Slot {
        match self {
            Self::One { namespace, name } => Slot::Name(namespace.clone(), name.clone()),
            Self::Many { namespace, labels, fields } => {
                let equal = labels.clone().into_iter().filter_map(|expression| match expression {
                    Expression::Equal(name, value) => Some((name, value)),
                    _ => None,
                });
                // The longest value has the fewest objects: most often it is a uid.
                if let Some((name, value)) = equal.max_by_key(|(_, value)| value.len()) {
                    return Slot::Label(name, value);
                }
                let about = fields.iter().find(|(name, _)| name == "involvedObject.name");
                match (about, namespace) {
                    (Some((_, value)), _) => Slot::About(value.clone()),
                    (None, Some(namespace)) => Slot::Namespace(namespace.clone()),
                    (None, None) => Slot::All,
                }
            }
        }
    }

    /// How an event reads, if it is about this.
    pub(super) fn telling(&self, event: &Event) -> Option<Told> {
        let told = if event.gone { Told::Gone } else { Told::Set };
        match self {
            Self::One { namespace, name } => {
                (*name == event.name && *namespace == event.namespace).then_some(told)
            }
            Self::Many { namespace, labels, fields } => {
                let of = |(name, value): &(String, String)| event.field(name) == Some(value);
                if namespace.is_some() && *namespace != event.namespace || !fields.iter().all(of) {
                    return None;
                }
                if labels.selects_all() || labels.matches(&event.labels) {
                    return Some(told);
                }
                let was = |before: &Labels| labels.matches(before);
                event.before.as_deref().is_some_and(was).then_some(Told::Gone)
            }
        }
    }
}

/// All slots that an event leads to.
pub(super) fn slots(event: &Event) -> impl Iterator<Item = Slot> {
    let pair = |(name, value): (&String, &String)| Slot::Label(name.clone(), value.clone());
    let before = event.before.iter().flat_map(|labels| labels.iter());
    let before = before.filter(|(name, value)| event.labels.get(*name) != Some(value));
    let name = Slot::Name(event.namespace.clone(), event.name.clone());
    let about = event.field("involvedObject.name").map(|name| Slot::About(name.to_owned()));
    let namespace = event.namespace.clone().map(Slot::Namespace);
    [name, Slot::All]
        .into_iter()
        .chain(about)
        .chain(namespace)
        .chain(event.labels.iter().map(pair))
        .chain(before.map(pair))
}
