//! The promises of a CSI snapshot-metadata stream, checked as it comes.
//!
//! The service promises ascending ranges that do not overlap, within a message and across messages,
//! one block type and one capacity for the whole stream, and equal sizes where the type is
//! `FIXED_LENGTH`. The sidecar passes a driver's messages on unchecked, so a client must check.
//! What breaks a promise makes the stream unusable: a tracker that is wrong here may be wrong
//! elsewhere. Tolerated, because drivers do it: ranges that touch, empty messages, and a last range
//! that ends behind the capacity (a block-sized tail of an odd-sized volume). Pure: it sees
//! numbers, not JSON and not a connection.
//!
//! Source: `snapshotmetadata` and `csi.v1` protocol definitions, comments on `BlockMetadata` and on
//! the two responses.

use std::ops::Range;

/// How the ranges of a stream are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockMetadataType {
    /// All ranges have one size.
    FixedLength,
    /// Ranges have any size.
    VariableLength,
}

impl BlockMetadataType {
    /// From its number in the protocol; 0 is `UNKNOWN` and refused like any other.
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::FixedLength),
            2 => Some(Self::VariableLength),
            _ => None,
        }
    }

    /// From its name in the protocol.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "FIXED_LENGTH" => Some(Self::FixedLength),
            "VARIABLE_LENGTH" => Some(Self::VariableLength),
            _ => None,
        }
    }
}

/// State of one stream. The errors say what is wrong, not where: the caller knows the place.
#[derive(Debug, Default)]
pub struct CsiStream {
    block_type: Option<BlockMetadataType>,
    capacity_bytes: Option<u64>,
    last: Option<Range<u64>>,
    /// Size of the first range, and the first size that differs from it.
    first_bytes: Option<u64>,
    other_bytes: Option<u64>,
}

impl CsiStream {
    /// The next range of the stream.
    pub fn range(&mut self, offset: u64, len: u64) -> Result<Range<u64>, String> {
        if len == 0 {
            return Err(format!("the range at byte {offset} has no size"));
        }
        let end = offset.checked_add(len).ok_or_else(|| {
            format!("offset {offset} and size {len} add up to more than 64 bits hold")
        })?;
        if let Some(last) = self.last.as_ref().filter(|last| offset < last.end) {
            let what = if offset >= last.start { "overlaps" } else { "is out of order behind" };
            return Err(format!(
                "the range of bytes {offset} to {end} {what} that of bytes {} to {} before it",
                last.start, last.end
            ));
        }
        let first = *self.first_bytes.get_or_insert(len);
        if first != len {
            self.other_bytes.get_or_insert(len);
        }
        self.last = Some(offset..end);
        Ok(offset..end)
    }

    /// The end of a message that had these fields; they may come behind the message's ranges.
    pub fn end_message(
        &mut self,
        block_type: Option<BlockMetadataType>,
        capacity_bytes: u64,
    ) -> Result<(), String> {
        let block_type = block_type.ok_or(
            "block_metadata_type is missing or UNKNOWN; it must be FIXED_LENGTH or VARIABLE_LENGTH",
        )?;
        if capacity_bytes == 0 {
            return Err("volume_capacity_bytes is missing or 0".into());
        }
        if *self.block_type.get_or_insert(block_type) != block_type {
            return Err("block_metadata_type is another one than before in the same stream".into());
        }
        let capacity = *self.capacity_bytes.get_or_insert(capacity_bytes);
        if capacity != capacity_bytes {
            return Err(format!(
                "volume_capacity_bytes is {capacity_bytes}, and was {capacity} before in the same stream"
            ));
        }
        if let (BlockMetadataType::FixedLength, Some(first), Some(other)) =
            (block_type, self.first_bytes, self.other_bytes)
        {
            return Err(format!(
                "the type is FIXED_LENGTH, but one range has {first} bytes and another {other}"
            ));
        }
        match &self.last {
            Some(last) if last.start >= capacity => Err(format!(
                "the range at byte {} starts behind the volume's capacity of {capacity} bytes",
                last.start
            )),
            _ => Ok(()),
        }
    }

    /// Capacity of the volume; `None` when the stream had no message.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BlockMetadataType::{FixedLength, VariableLength};

    #[test]
    fn only_the_last_range_may_pass_the_capacity() {
        let mut stream = CsiStream::default();
        stream.range(0, 4096).unwrap();
        stream.range(4096, 4096).unwrap();
        stream.end_message(Some(FixedLength), 5000).unwrap();
        stream.end_message(Some(FixedLength), 5000).unwrap();
        stream.range(8192, 4096).unwrap();
        let error = stream.end_message(Some(FixedLength), 5000).unwrap_err();
        assert!(error.contains("starts behind the volume's capacity"), "{error}");
    }

    #[test]
    fn overlap_and_order_hold_across_messages() {
        let mut stream = CsiStream::default();
        stream.range(4096, 4096).unwrap();
        stream.end_message(Some(VariableLength), 1 << 20).unwrap();
        assert!(stream.range(8191, 10).unwrap_err().contains("overlaps"));
        assert!(stream.range(0, 4096).unwrap_err().contains("out of order"));
        assert!(stream.range(8192, u64::MAX).unwrap_err().contains("64 bits"));
        assert!(stream.range(8192, 0).unwrap_err().contains("no size"));
        stream.range(8192, 1).unwrap();
    }

    #[test]
    fn type_and_capacity_are_constant() {
        let mut stream = CsiStream::default();
        assert!(stream.end_message(None, 5).unwrap_err().contains("UNKNOWN"));
        assert!(stream.end_message(Some(FixedLength), 0).unwrap_err().contains("capacity"));
        stream.end_message(Some(FixedLength), 8192).unwrap();
        assert!(
            stream.end_message(Some(VariableLength), 8192).unwrap_err().contains("another one")
        );
        assert!(stream.end_message(Some(FixedLength), 8193).unwrap_err().contains("was 8192"));
        stream.range(0, 512).unwrap();
        stream.range(512, 513).unwrap();
        assert!(stream.end_message(Some(FixedLength), 8192).unwrap_err().contains("FIXED_LENGTH"));
    }
}
