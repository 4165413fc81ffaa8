//! Members of a page that the profile does not have.
//!
//! Most say nothing about the list, and are skipped. But a server of another dialect says by one of
//! them that there is more to come, that the list is not made yet, or that it failed; whoever skips
//! that takes a part for the whole. Such names are refused wherever they have a value, also within
//! objects and arrays. So are links to a next page, and a second list of ranges.

use super::Name;
use chunkstore::secrets::redact;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Longest part of a name or a value in a message, characters.
pub(super) const QUOTED_CHARS_MAX: usize = 100;

/// What such names hold.
const MATTERS: [&str; 14] = [
    "next",
    "error",
    "continu",
    "cursor",
    "more",
    "truncated",
    "incomplete",
    "partial",
    "remaining",
    "pagetoken",
    "fail",
    "pending",
    "inprogress",
    "notready",
];
/// What names hold which say how the making of a list stands.
const STATES: [&str; 3] = ["state", "status", "phase"];
/// Of a list that is made.
const MADE: [&str; 12] = [
    "success",
    "succeeded",
    "ready",
    "readytouse",
    "available",
    "complete",
    "completed",
    "done",
    "finished",
    "ok",
    "200",
    "true",
];
/// Names that say by `true` that the list is whole, with or without `is` before them.
const WHOLE: [&str; 8] =
    ["complete", "success", "succeeded", "ready", "done", "finished", "last", "final"];

/// Without what other dialects put into names beside letters and digits.
fn letters(plain: &str) -> String {
    plain.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Whether it says by `false` that the list is not whole.
fn says_whole(plain: &str) -> bool {
    let plain = plain.strip_prefix("is").unwrap_or(plain);
    WHOLE.iter().any(|start| plain.starts_with(start)) || plain == "ok"
}

/// Whether a member of this name says how the making of the list stands.
pub(super) fn is_state(plain: &str) -> bool {
    STATES.iter().any(|part| plain.contains(part))
}

/// The value of a member that is not known.
pub(super) enum Value {
    /// `null`, 0, or nothing in it.
    Empty,
    /// `false`.
    False,
    /// As it is shown, and as it would be written.
    Plain(String, String),
    /// Something in brackets, with what matters within it.
    Nested(Option<String>),
}

impl Value {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty | Self::False)
    }

    /// Why a member of this name and value cannot be skipped.
    pub(super) fn matters(&self, plain: &str, given: &str) -> Option<String> {
        let given: String = given.chars().take(QUOTED_CHARS_MAX).collect();
        let plain = letters(plain);
        let named = is_state(&plain) || MATTERS.iter().any(|part| plain.contains(part));
        match self {
            Self::False if says_whole(&plain) => {
                Some(format!("its member {given:?} is false, so the list may not be whole"))
            }
            Self::Empty | Self::False => None,
            Self::Plain(shown, text) if says_whole(&plain) && text == "false" => {
                Some(format!("its member {given:?} is {shown}, so the list may not be whole"))
            }
            Self::Plain(_, text) if is_state(&plain) && MADE.contains(&text.as_str()) => None,
            Self::Plain(_, text) if plain == "rel" && text == "next" => {
                Some("it has a link to a next page, which is not understood".to_owned())
            }
            Self::Plain(shown, _) if named => {
                Some(format!("its member {given:?} is {shown}, which is not understood"))
            }
            Self::Plain(..) => None,
            Self::Nested(Some(within)) => Some(within.clone()),
            Self::Nested(None) if named => {
                Some(format!("it has a member {given:?}, which is not understood"))
            }
            Self::Nested(None) => None,
        }
    }

    fn plain(shown: impl fmt::Display, text: impl fmt::Display) -> Self {
        let cut = |text: String| redact(&text).chars().take(QUOTED_CHARS_MAX).collect();
        Self::Plain(cut(shown.to_string()), cut(text.to_string().to_ascii_lowercase()))
    }
}

/// Reads one.
pub(super) struct Other;

impl<'de> DeserializeSeed<'de> for Other {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Other {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Empty)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(if value { Value::plain(value, value) } else { Value::False })
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Value, E> {
        Ok(if n == 0 { Value::Empty } else { Value::plain(n, n) })
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Value, E> {
        Ok(Value::plain(n, n))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
        Ok(Value::plain(n, n))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        let cut: String = redact(text).chars().take(QUOTED_CHARS_MAX).collect();
        Ok(if cut.is_empty() { Value::Empty } else { Value::plain(format!("{cut:?}"), cut) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let (mut empty, mut within) = (true, None);
        while let Some(value) = seq.next_element_seed(Self)? {
            empty = false;
            if let Value::Nested(what) = value {
                within = within.or(what);
            }
        }
        Ok(if empty { Value::Empty } else { Value::Nested(within) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (mut empty, mut within) = (true, None);
        let (mut offset, mut size) = (false, false);
        while let Some(Name(plain, given)) = map.next_key()? {
            empty = false;
            offset |= plain.ends_with("offset");
            size |= ["size", "sizebytes", "len", "length"].contains(&plain.as_str());
            let what = map.next_value_seed(Self)?.matters(&plain, &given);
            within = within.or(what);
        }
        if offset && size {
            within.get_or_insert_with(|| "it has ranges in a list that is not known".to_owned());
        }
        Ok(if empty { Value::Empty } else { Value::Nested(within) })
    }
}
