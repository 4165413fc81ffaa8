//! One page of the REST draft: JSON whose key spelling and number forms are tolerated as they come.
//!
//! Keys are matched without regard to case, `_` and `-`, as Go's decoder does for structures
//! without tags; a number may be a string of digits, as protocol-buffer JSON writes it. The same
//! meaning twice in one object is an error: one of the two would be lost. What is not known is
//! skipped.

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
}

/// A block of a page.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) zero: bool,
    /// Base64 text, as it came.
    pub(super) context: Option<String>,
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

/// A name without case, `_` and `-`.
struct Name(String);

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
                Ok(Name(plain.map(|c| c.to_ascii_lowercase()).collect()))
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
        let (mut next, mut volume, mut expiry, mut error, mut blocks) =
            (None, None, None, None, None);
        while let Some(Name(name)) = map.next_key()? {
            match name.as_str() {
                "changeblocklist" | "changedblocklist" | "changedblocks" => {
                    let count = map.next_value_seed(Blocks(&mut *self.0))?;
                    once(&mut blocks, "the list of blocks", count)?;
                }
                "nextoffset" => once(&mut next, "nextOffset", map.next_value_seed(Token)?)?,
                "volumesize" | "volumesizebytes" => {
                    once(&mut volume, "volumeSize", map.next_value_seed(Num("volumeSize"))?)?;
                }
                "timeout" => once(&mut expiry, "timeout", map.next_value_seed(Num("timeout"))?)?,
                "error" => once(&mut error, "error", map.next_value_seed(Token)?)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let error = error.flatten();
        // a page of another protocol has none of the members, and must not pass for an empty list
        if error.is_none() && blocks.is_none() && volume.is_none() && next.is_none() {
            return Err(de::Error::custom("it has none of the members of a page"));
        }
        // 0 is what a decoder makes of a number that was not set
        let set = |n: Option<Option<u64>>| n.flatten().filter(|n| *n > 0);
        Ok(Page {
            next: next.flatten(),
            volume_bytes: set(volume),
            expiry: set(expiry),
            error,
            blocks: blocks.unwrap_or(0),
        })
    }
}

struct Blocks<'a>(&'a mut dyn FnMut(Block) -> Result<(), String>);

impl<'de> DeserializeSeed<'de> for Blocks<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<u64, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Blocks<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of blocks")
    }

    /// A nil slice.
    fn visit_unit<E: de::Error>(self) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut count = 0;
        while let Some(block) = seq.next_element_seed(BlockSeed)? {
            count += 1;
            (self.0)(block).map_err(|what| de::Error::custom(format!("block {count}: {what}")))?;
        }
        Ok(count)
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
        while let Some(Name(name)) = map.next_key()? {
            match name.as_str() {
                "offset" | "byteoffset" => {
                    once(&mut offset, "offset", map.next_value_seed(Num("offset"))?)?;
                }
                "size" | "sizebytes" => once(&mut len, "size", map.next_value_seed(Num("size"))?)?,
                "zeroout" => once(&mut zero, "zeroOut", map.next_value::<Option<bool>>()?)?,
                "context" => once(&mut context, "context", map.next_value_seed(Token)?)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let context = context.flatten();
        if context.as_ref().is_some_and(|text| !is_base64(text)) {
            return Err(de::Error::custom("context is not base64"));
        }
        // a Go structure with omitempty leaves an offset of 0 out
        let offset = offset.flatten().unwrap_or(0);
        let Some(len) = len.flatten() else {
            return Err(de::Error::custom("a block has no size"));
        };
        Ok(Block { offset, len, zero: zero.flatten().unwrap_or(false), context })
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
mod tests {
    use super::*;

    fn read(json: &str) -> Result<(Page, Vec<Block>), String> {
        let mut blocks = Vec::new();
        let mut each = |b| {
            blocks.push(b);
            Ok(())
        };
        let page = read_page(json.as_bytes(), &mut each).map_err(|e| e.to_string())?;
        Ok((page, blocks))
    }

    #[test]
    fn spellings_and_number_forms_are_one() {
        let plain = r#"{"changeBlockList":[{"offset":4096,"size":512,"zeroOut":true,"context":"AQ=="}],
            "nextOffset":"7","volumeSize":8192,"timeout":9}"#;
        let block = Block { offset: 4096, len: 512, zero: true, context: Some("AQ==".into()) };
        let page = Page {
            next: Some("7".into()),
            volume_bytes: Some(8192),
            expiry: Some(9),
            error: None,
            blocks: 1,
        };
        for json in [
            plain.to_owned(),
            plain.replace("changeBlockList", "ChangeBlockList").replace("offset", "Offset"),
            plain.replace("changeBlockList", "changed_blocks").replace("\"7\"", "7"),
            plain
                .replace("8192", "\"8192\"")
                .replace("4096", "\"4096\"")
                .replace("size", "sizeBytes"),
            plain.replace("nextOffset", "nextOffSet").replace("volumeSize", "volume_size_bytes"),
            plain.replace("zeroOut", "zero-out").replace("\"offset", "\"byte_offset"),
            plain.replace("\"timeout\"", "\"more\":[{}],\"Timeout\""),
        ] {
            assert_eq!(read(&json), Ok((page_of(&page), vec![block.clone()])), "{json}");
        }
    }

    fn page_of(p: &Page) -> Page {
        Page { next: p.next.clone(), error: p.error.clone(), ..*p }
    }

    #[test]
    fn the_end_is_a_next_offset_that_is_absent_null_or_empty() {
        for json in [
            r#"{"changedBlockList":null}"#,
            r#"{"changedBlockList":[],"nextOffset":null}"#,
            r#"{"changedBlockList":[],"NextOffset":"","timeout":0,"volumeSize":0}"#,
        ] {
            assert_eq!(read(json), Ok((Page::default(), vec![])), "{json}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for (json, what) in [
            ("[]", "invalid type"),
            ("{}", "none of the members"),
            (r#"{"items":[]}"#, "none of the members"),
            (r#"{"changedBlocks":[],"changed_blocks":[]}"#, "twice"),
            (r#"{"changedBlocks":[{"size":1,"Size":1}]}"#, "size is given twice"),
            (r#"{"changedBlocks":[{"offset":1}]}"#, "has no size"),
            (r#"{"changedBlocks":[{"offset":-1,"size":1}]}"#, "invalid type"),
            (r#"{"changedBlocks":[{"offset":"1e3","size":1}]}"#, "\"1e3\""),
            (r#"{"changedBlocks":[{"offset":1.5,"size":1}]}"#, "invalid type"),
            (r#"{"changedBlocks":[{"offset":1,"size":1,"context":"%"}]}"#, "base64"),
            (r#"{"changedBlocks":[]"#, "EOF"),
            (r#"{"changedBlocks":[]} x"#, "trailing"),
        ] {
            let error = read(json).expect_err(json);
            assert!(error.contains(what), "{json}: {error}");
        }
        let stop = read_page(br#"{"changedBlocks":[{"size":1}]}"#, &mut |_| Err("no".into()));
        assert!(stop.unwrap_err().to_string().contains("block 1: no"));
    }

    #[test]
    fn an_error_in_the_body_is_kept() {
        let (page, _) = read(r#"{"error":"the snapshot is gone"}"#).unwrap();
        assert_eq!(page.error.as_deref(), Some("the snapshot is gone"));
    }
}
