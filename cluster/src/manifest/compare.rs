//! Two manifests beside each other: whether an application is still as it was listed, and which
//! objects two of them share.

use super::item::{Identity, Item, ObjectManifest};
use std::cmp::Ordering;

/// One way in which the cluster no longer matches a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Something else was asked for.
    Scope,
    /// It is there, and was not listed.
    New(String),
    /// It was listed, and is not there.
    Gone(String),
    /// Another object has its name.
    Replaced(String),
    /// Its owners, or what it refers to, are others.
    Owners(String),
    /// It is made again in one of them alone.
    LeftOut(String),
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scope => f.write_str("other namespaces, labels or rules were asked for"),
            Self::New(object) => write!(f, "{object} is new"),
            Self::Gone(object) => write!(f, "{object} is gone"),
            Self::Replaced(object) => write!(f, "{object} was deleted and made anew"),
            Self::Owners(object) => write!(f, "{object} has other owners"),
            Self::LeftOut(object) => {
                write!(f, "{object} was left out, and is not now, or the reverse")
            }
        }
    }
}

/// How the cluster differs from a manifest that was accepted. Objects that are left out of a restore
/// do not count: pods come and go by themselves. Nor do labels, annotations and contents, as an
/// application that runs writes those.
pub fn differences(accepted: &ObjectManifest, now: &ObjectManifest) -> Vec<Difference> {
    let mut all = Vec::new();
    if accepted.scope != now.scope {
        all.push(Difference::Scope);
    }
    both(accepted, now, |old, new| {
        let counts = |item: &Item| item.left_out.is_none();
        match (old, new) {
            (Some(old), None) if counts(old) => {
                all.push(Difference::Gone(old.identity().to_string()))
            }
            (None, Some(new)) if counts(new) => {
                all.push(Difference::New(new.identity().to_string()))
            }
            (Some(old), Some(new)) if counts(old) || counts(new) => {
                let text = new.identity().to_string();
                if counts(old) != counts(new) {
                    all.push(Difference::LeftOut(text));
                } else if old.uid != new.uid {
                    all.push(Difference::Replaced(text));
                } else if owners(accepted, old) != owners(now, new) {
                    all.push(Difference::Owners(text));
                }
            }
            _ => {}
        }
    });
    all
}

fn owners<'a>(of: &'a ObjectManifest, item: &Item) -> Vec<Identity<'a>> {
    item.owners.iter().map(|owner| of.items[owner.item as usize].identity()).collect()
}

/// The objects that both have, whatever version they were read in.
pub fn shared(one: &ObjectManifest, other: &ObjectManifest) -> Vec<String> {
    let mut all = Vec::new();
    both(one, other, |one, other| {
        if let (Some(one), Some(_)) = (one, other) {
            all.push(one.identity().to_string());
        }
    });
    all
}

/// Each object once, with its item in each of them.
fn both<'a>(
    one: &'a ObjectManifest,
    other: &'a ObjectManifest,
    mut each: impl FnMut(Option<&'a Item>, Option<&'a Item>),
) {
    let (mut left, mut right) = (one.items.iter().peekable(), other.items.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.identity().cmp(&right.identity()),
        };
        match order {
            Ordering::Less => each(left.next(), None),
            Ordering::Greater => each(None, right.next()),
            Ordering::Equal => each(left.next(), right.next()),
        }
    }
}
