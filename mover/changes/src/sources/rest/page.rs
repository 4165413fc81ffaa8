//! One page of the REST draft: JSON whose key spelling and number forms are tolerated as they come.
//!
//! Keys are matched without regard to case, `_` and `-`, as Go's decoder does for structures
//! without tags; a number may be a string of digits, as protocol-buffer JSON writes it. The same
//! meaning twice in one object is an error: one of the two would be lost. What is not known is
//! skipped, unless its name says that it may matter (`page/unknown.rs`). What would make a short
//! list out of a page that was not understood is refused: a page without its list, an offset that
//! is missing for any reason but that Go leaves out a 0, a list that is `null` although there is
//! more to say of it.

mod unknown;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Longest `nextOffset`, bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Fields of a page beside its blocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// Where the next page starts; `None` behind the last one.
    pub(super) next: Option<String>,
    pub(super) volume_bytes: Option<u64>,
    /// Seconds since 1970 until which the result can be had.
    pub(super) expiry: Option<u64>,
    pub(super) error: Option<String>,
    pub(super) blocks: u64,
    /// Blocks of the whole list, as the server states them.
    pub(super) total: Option<u64>,
    /// Pages of the whole list, as the server states them.
    pub(super) total_pages: Option<u64>,
}

/// A block of a page.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) zero: bool,
    /// Base64 text, as it came.
    pub(super) context: Option<String>,
    /// It has no offset, which stands for 0.
    pub(super) implied: bool,
}

/// Reads a page and hands on each block as it goes by; the error of `each` ends it.
pub(super) fn read_page(
    json: &[u8],
    each: &mut dyn FnMut(Block) -> Result<(), String>,
) -> Result<Page, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let page = PageSeed(each).deserialize(&mut json)?;
    json.end()?;
    Ok(page)
}

/// A name without case, `_` and `-`, and as it was.
struct Name(String, String);

impl<'de> de::Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Plain;
        impl Visitor<'_> for Plain {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a member")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Name, E> {
                let plain = name.chars().filter(|c| !matches!(c, '_' | '-'));
                Ok(Name(plain.map(|c| c.to_ascii_lowercase()).collect(), name.to_owned()))
            }
        }
        d.deserialize_identifier(Plain)
    }
}

/// Sets a member that may not come twice under different spellings.
fn once<T, E: de::Error>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::custom(format!("{name} is given twice"))),
    }
}

struct PageSeed<'a>(&'a mut dyn FnMut(Block) -> Result<(), String>);

impl<'de> DeserializeSeed<'de> for PageSeed<'_> {
    type Value = Page;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Page, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PageSeed<'_> {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a page, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Page, A::Error> {
        let mut m = Members::default();
        while let Some(name) = map.next_key::<Name>()? {
            match name.0.as_str() {
                "changeblocklist" | "changedblocklist" | "changedblocks" => {
                    let count = map.next_value_seed(Blocks(&mut *self.0))?;
                    once(&mut m.blocks, "the list of blocks", count)?;
                }
                "nextoffset" => once(&mut m.next, "nextOffset", map.next_value_seed(Token)?)?,
                "volumesize" | "volumesizebytes" => {
                    once(&mut m.volume, "volumeSize", map.next_value_seed(Num("volumeSize"))?)?;
                }
                "timeout" => once(&mut m.expiry, "timeout", map.next_value_seed(Num("timeout"))?)?,
                "error" => once(&mut m.error, "error", map.next_value_seed(Token)?)?,
                "total" | "totalcount" | "totalblocks" | "totalentries" | "totalitems" => {
                    once(&mut m.total, "total", map.next_value_seed(Num("total"))?)?;
                }
                "totalpages" | "pagecount" => {
                    once(&mut m.pages, "totalPages", map.next_value_seed(Num("totalPages"))?)?;
                }
                _ => m.note(&name, map.next_value_seed(unknown::Other)?)?,
            }
        }
        m.page()
    }
}

/// Members of a page as they come.
#[derive(Default)]
struct Members {
    next: Option<Option<String>>,
    volume: Option<Option<u64>>,
    expiry: Option<Option<u64>>,
    error: Option<Option<String>>,
    /// Inside: how many, or `null`.
    blocks: Option<Option<u64>>,
    total: Option<Option<u64>>,
    pages: Option<Option<u64>>,
    /// It says how the making of the list stands.
    state: bool,
}

impl Members {
    fn note<E: de::Error>(&mut self, name: &Name, value: unknown::Value) -> Result<(), E> {
        let Name(plain, given) = name;
        match value.matters(plain, given) {
            Some(what) => Err(E::custom(what)),
            None => {
                self.state |= unknown::is_state(plain) && !value.is_empty();
                Ok(())
            }
        }
    }

    fn page<E: de::Error>(self) -> Result<Page, E> {
        // 0 is what a decoder makes of a number that was not set
        let set = |n: Option<Option<u64>>| n.flatten().filter(|n| *n > 0);
        let (error, expiry) = (self.error.flatten(), set(self.expiry));
        let blocks = match self.blocks {
            _ if error.is_some() => 0,
            // what was not understood must not pass for an empty list
            None => return Err(E::custom("it has no list of blocks")),
            Some(Some(count)) => count,
            Some(None) if expiry.is_some() || self.state => {
                return Err(E::custom(
                    "its list of blocks is null beside a timeout or a state, so it may still be made",
                ));
            }
            Some(None) => 0,
        };
        Ok(Page {
            next: self.next.flatten(),
            volume_bytes: set(self.volume),
            expiry,
            error,
            blocks,
            total: self.total.flatten(),
            total_pages: set(self.pages),
        })
    }
}

struct Blocks<'a>(&'a mut dyn FnMut(Block) -> Result<(), String>);

impl<'de> DeserializeSeed<'de> for Blocks<'_> {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Option<u64>, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Blocks<'_> {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of blocks")
    }

    /// A nil slice.
    fn visit_unit<E: de::Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<u64>, A::Error> {
        let mut count = 0;
        while let Some(block) = seq.next_element_seed(BlockSeed)? {
            count += 1;
            (self.0)(block).map_err(|what| de::Error::custom(format!("block {count}: {what}")))?;
        }
        Ok(Some(count))
    }
}

struct BlockSeed;

impl<'de> DeserializeSeed<'de> for BlockSeed {
    type Value = Block;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Block, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BlockSeed {
    type Value = Block;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a block, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Block, A::Error> {
        let (mut offset, mut len, mut zero, mut context) = (None, None, None, None);
        let mut unknown = None;
        while let Some(Name(name, given)) = map.next_key()? {
            match name.as_str() {
                "offset" | "byteoffset" => {
                    once(&mut offset, "offset", map.next_value_seed(Num("offset"))?)?;
                }
                "size" | "sizebytes" => once(&mut len, "size", map.next_value_seed(Num("size"))?)?,
                "zeroout" => once(&mut zero, "zeroOut", map.next_value::<Option<bool>>()?)?,
                "context" => once(&mut context, "context", map.next_value_seed(Token)?)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    unknown.get_or_insert(given);
                }
            }
        }
        let context = context.flatten();
        if context.as_ref().is_some_and(|text| !is_base64(text)) {
            return Err(de::Error::custom("context is not base64"));
        }
        let Some(len) = len.flatten() else {
            return Err(de::Error::custom("a block has no size"));
        };
        let implied = offset.is_none();
        let offset = match (offset, unknown) {
            (Some(Some(offset)), _) => offset,
            (Some(None), _) => return Err(de::Error::custom("the offset of a block is null")),
            // a Go structure with omitempty leaves an offset of 0 out
            (None, None) => 0,
            (None, Some(other)) => {
                let other: String = other.chars().take(unknown::QUOTED_CHARS_MAX).collect();
                let what = format!("a block has no offset, but {other:?}, which is not known");
                return Err(de::Error::custom(what));
            }
        };
        Ok(Block { offset, len, zero: zero.flatten().unwrap_or(false), context, implied })
    }
}

/// Of the standard or the URL alphabet, with or without padding.
fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let alphabet = |b: u8| b.is_ascii_alphanumeric() || b"+/-_".contains(&b);
    text.len() - body.len() <= 2 && body.len() % 4 != 1 && body.bytes().all(alphabet)
}

/// A number or a text as text; `null` and `""` are none.
struct Token;

impl<'de> DeserializeSeed<'de> for Token {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl Visitor<'_> for Token {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Self::Value, E> {
        Ok(Some(n.to_string()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(E::custom("a text in it is longer than 16 KiB"));
        }
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

/// A whole number from 0 to 2^64-1, or its digits as text; `null` is none.
struct Num(&'static str);

impl<'de> DeserializeSeed<'de> for Num {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl Visitor<'_> for Num {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to 2^64-1 for {}", self.0)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Self::Value, E> {
        Ok(Some(n))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.map(Some).ok_or_else(|| {
            E::custom(format!("{} is {text:?}, not a whole number from 0 to 2^64-1", self.0))
        })
    }
}

#[cfg(test)]
mod tests;
