//! One page of a list, made of the messages of one call.
//!
//! A call begins where the page begins, and its messages are held to the promises of the protocol.
//! A page ends where it is full, where its time is over, or where the call ends. Whether it is the
//! last one follows from the end of the call: only a call that ended well *and* brought nothing new,
//! or reached the volume's end, completes a list. Else the next page asks from there on, so a
//! driver that cuts its lists off, or sends one message a call, loses nothing. Pure: it sees
//! messages, not a connection.

use super::offset::{Listing, Place};
use mover_tracker::{BlockMetadataType, CsiStream, Message};
use std::fmt::Write as _;
use std::ops::Range;

/// A block of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    range: Range<u64>,
    zero: bool,
}

/// Why no more messages are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// The page is full.
    Full,
    /// The driver broke its protocol.
    Broken(String),
}

/// A page while it is made.
#[derive(Debug)]
pub(super) struct Draft {
    listing: Listing,
    entries_max: usize,
    stream: CsiStream,
    blocks: Vec<Block>,
    /// Where it began.
    start: u64,
    /// All before this is told.
    at: u64,
    /// Start of the last range that is told.
    last_start: u64,
    /// Of the list, once a message or an earlier page said so.
    block_type: Option<u8>,
    capacity: Option<u64>,
    full: bool,
}

/// A page that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    blocks: Vec<Block>,
    /// Where the next one starts, with type and capacity; none behind the last one.
    pub(super) next: Option<(u64, u8, u64)>,
    /// Of the volume.
    pub(super) capacity: Option<u64>,
}

impl Draft {
    /// A page from a byte on, or behind another one.
    pub(super) fn new(
        listing: Listing,
        start: u64,
        behind: Option<&Place>,
        entries_max: usize,
    ) -> Self {
        Self {
            listing,
            entries_max: entries_max.max(1),
            stream: CsiStream::default(),
            blocks: Vec::new(),
            start,
            at: start,
            last_start: start,
            block_type: behind.map(|place| place.block_type),
            capacity: behind.map(|place| place.capacity),
            full: false,
        }
    }

    /// Takes what is new of a message.
    pub(super) fn take(&mut self, message: Message) -> Result<(), Halt> {
        let (capacity, ranges) = self.checked(message).map_err(Halt::Broken)?;
        for range in ranges {
            // The first one may start before the point that was asked for, and the last one may end
            // behind the volume.
            let range = range.start.max(self.start)..range.end.min(capacity);
            if range.is_empty() {
                continue;
            }
            let gap = self.at..range.start;
            if self.listing == Listing::AllChanged && !gap.is_empty() {
                self.add(gap, true)?;
            }
            self.add(range, false)?;
        }
        Ok(())
    }

    /// The ranges of a message that keeps the promises, and agrees with those before it.
    fn checked(&mut self, message: Message) -> Result<(u64, Vec<Range<u64>>), String> {
        let number = |n: i64, what: &str| {
            u64::try_from(n).map_err(|_| format!("{what} is {n}, which is negative"))
        };
        let capacity = number(message.capacity_bytes, "volume_capacity_bytes")?;
        let mut ranges = Vec::with_capacity(message.blocks.len());
        for (offset, len) in message.blocks {
            let (offset, len) = (number(offset, "byte_offset")?, number(len, "size_bytes")?);
            ranges.push(self.stream.range(offset, len)?);
        }
        let kind = u64::try_from(message.block_type).unwrap_or(0);
        self.stream.end_message(BlockMetadataType::from_number(kind), capacity)?;
        let kind = u8::try_from(kind).unwrap_or(0);
        if *self.block_type.get_or_insert(kind) != kind {
            return Err("block_metadata_type is another one than in the page before".to_owned());
        }
        match *self.capacity.get_or_insert(capacity) {
            before if before != capacity => Err(format!(
                "volume_capacity_bytes is {capacity}, and was {before} in the page before"
            )),
            _ => Ok((capacity, ranges)),
        }
    }

    /// One more block; ranges that touch are one.
    fn add(&mut self, range: Range<u64>, zero: bool) -> Result<(), Halt> {
        let is_full = self.blocks.len() >= self.entries_max;
        match self.blocks.last_mut() {
            Some(last) if last.zero == zero && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ if is_full => {
                self.full = true;
                return Err(Halt::Full);
            }
            _ => self.blocks.push(Block { range: range.clone(), zero }),
        }
        (self.last_start, self.at) = (range.start, range.end);
        Ok(())
    }

    /// The page is as long as it may be, or its time is over, or the call failed: what there is, if
    /// it says anything new.
    pub(super) fn cut(mut self) -> Option<Page> {
        let (block_type, capacity) = (self.block_type?, self.capacity?);
        if self.at >= capacity {
            // Nothing can be asked for behind the end: the last range once more, and how the call
            // ends behind it.
            let last = self.blocks.last_mut()?;
            last.range.end = self.last_start;
            if last.range.is_empty() {
                self.blocks.pop();
            }
            self.at = self.last_start;
        }
        if self.at <= self.start {
            return None;
        }
        let next = Some((self.at, block_type, capacity));
        Some(Page { blocks: self.blocks, next, capacity: self.capacity })
    }

    /// The call ended well.
    pub(super) fn ended_well(mut self) -> Result<Page, String> {
        let (Some(block_type), Some(capacity)) = (self.block_type, self.capacity) else {
            // Of a delta that is true of snapshots without changes; else all would count as zero.
            return match self.listing {
                Listing::Delta => Ok(Page { blocks: Vec::new(), next: None, capacity: None }),
                _ => {
                    Err("it ends without a message, so nothing says how large its volume is".into())
                }
            };
        };
        if self.at >= capacity {
            return Ok(Page { blocks: self.blocks, next: None, capacity: self.capacity });
        }
        if self.at > self.start {
            let next = Some((self.at, block_type, capacity));
            return Ok(Page { blocks: self.blocks, next, capacity: self.capacity });
        }
        if self.listing == Listing::AllChanged {
            self.blocks.push(Block { range: self.at..capacity, zero: true });
        }
        Ok(Page { blocks: self.blocks, next: None, capacity: self.capacity })
    }

    /// Whether no more messages are taken as it is full.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }
}

impl Page {
    /// The page behind the end of a list.
    pub(super) fn behind(capacity: u64) -> Self {
        Self { blocks: Vec::new(), next: None, capacity: Some(capacity) }
    }

    /// As JSON, with the names of the proposal.
    pub(super) fn json(&self, next: &str, expiry: u64) -> String {
        let mut text = String::with_capacity(128 + 96 * self.blocks.len());
        text.push_str("{\"changeBlockList\":[");
        for (n, Block { range, zero }) in self.blocks.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let (offset, size) = (range.start, range.end - range.start);
            let _ = write!(
                text,
                "{comma}{{\"offset\":{offset},\"size\":{size},\"context\":\"\",\"zeroOut\":{zero}}}"
            );
        }
        let size = self.capacity.unwrap_or_default();
        // The texts of an offset need no escapes.
        let _ = write!(
            text,
            "],\"nextOffset\":\"{next}\",\"volumeSize\":{size},\"timeout\":{expiry},\
             \"state\":\"Success\",\"error\":\"\"}}"
        );
        text
    }
}

#[cfg(test)]
mod tests;
