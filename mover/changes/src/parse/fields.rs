//! Names and values of members, read without allocation.
//!
//! A number is a whole one from 0 to 2^64-1, or the same in decimal digits in a string, as
//! protocol-buffer JSON writes 64-bit numbers. Negative, fractional and larger ones are refused,
//! never rounded.

use super::super::ChangeKind;
use mover_tracker::BlockMetadataType;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Unexpected, Visitor};
use std::fmt;

/// A member's name, with the spellings that occur.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Offset,
    Length,
    Start,
    Exists,
    ZeroOut,
    Data,
    Zero,
    BlockMetadataType,
    VolumeCapacityBytes,
    BlockMetadata,
    ByteOffset,
    SizeBytes,
    VolumeSize,
    Kind,
    Extents,
    Other,
}

impl Key {
    fn of(name: &str) -> Self {
        match name {
            "offset" | "Offset" => Self::Offset,
            "len" | "length" | "size" | "Length" | "Size" => Self::Length,
            "start" => Self::Start,
            "exists" => Self::Exists,
            "zero_out" | "zeroOut" | "ZeroOut" => Self::ZeroOut,
            "data" => Self::Data,
            "zero" => Self::Zero,
            "block_metadata_type" | "blockMetadataType" => Self::BlockMetadataType,
            "volume_capacity_bytes" | "volumeCapacityBytes" => Self::VolumeCapacityBytes,
            "block_metadata" | "blockMetadata" => Self::BlockMetadata,
            "byte_offset" | "byteOffset" => Self::ByteOffset,
            "size_bytes" | "sizeBytes" => Self::SizeBytes,
            "volume_size" => Self::VolumeSize,
            "kind" => Self::Kind,
            "extents" => Self::Extents,
            _ => Self::Other,
        }
    }
}

impl<'de> de::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a member")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
                Ok(Key::of(name))
            }
        }
        d.deserialize_identifier(Name)
    }
}

/// Reads the value of the member `name` into its slot; a second one for the same member is refused.
pub(super) fn set<'de, S, A>(
    map: &mut A,
    slot: &mut Option<S::Value>,
    name: &str,
    seed: S,
) -> Result<(), A::Error>
where
    S: DeserializeSeed<'de>,
    A: MapAccess<'de>,
{
    if slot.is_some() {
        return Err(de::Error::custom(format!("{name} is given twice")));
    }
    *slot = Some(map.next_value_seed(seed)?);
    Ok(())
}

/// A whole number from 0 to 2^64-1, the value of the member that it names.
#[derive(Clone, Copy)]
pub(super) struct Num(pub(super) &'static str);

impl Num {
    fn bad<T, E: de::Error>(self, value: impl fmt::Display) -> Result<T, E> {
        Err(E::custom(format!("{} is {value}, not a whole number from 0 to 2^64-1", self.0)))
    }
}

impl Visitor<'_> for Num {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number for {}", self.0)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<u64, E> {
        Ok(n)
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<u64, E> {
        u64::try_from(n).map_err(|_| E::custom(format!("{} is {n}, which is negative", self.0)))
    }

    fn visit_f64<E: de::Error>(self, n: f64) -> Result<u64, E> {
        self.bad(n)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.map_or_else(|| self.bad(format_args!("{text:?}")), Ok)
    }
}

/// A truth value, or its name as `rbd` writes it, the value of the member that it names.
#[derive(Clone, Copy)]
pub(super) struct Flag(pub(super) &'static str);

impl Visitor<'_> for Flag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "true or false for {}", self.0)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(E::custom(format!("{} is {text:?}, neither true nor false", self.0))),
        }
    }
}

/// The block type of a record; `None` for `UNKNOWN` and for numbers and names that the protocol
/// does not have.
#[derive(Clone, Copy)]
pub(super) struct BlockType;

impl Visitor<'_> for BlockType {
    type Value = Option<BlockMetadataType>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FIXED_LENGTH (1) or VARIABLE_LENGTH (2) for block_metadata_type")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(BlockMetadataType::from_number(number))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(BlockMetadataType::from_name(name))
    }
}

/// The `kind` of our own shape.
#[derive(Clone, Copy)]
pub(super) struct KindName;

impl Visitor<'_> for KindName {
    type Value = ChangeKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"delta\", \"allocated\" or \"whole\" for kind")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ChangeKind, E> {
        let known = [ChangeKind::Delta, ChangeKind::Allocated, ChangeKind::Whole];
        let kind = known.into_iter().find(|kind| kind.as_str() == text);
        kind.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

macro_rules! seed {
    ($($visitor:ident),*) => {$(
        impl<'de> DeserializeSeed<'de> for $visitor {
            type Value = <$visitor as Visitor<'de>>::Value;

            fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
                d.deserialize_any(self)
            }
        }
    )*};
}

seed!(Num, Flag, BlockType, KindName);
