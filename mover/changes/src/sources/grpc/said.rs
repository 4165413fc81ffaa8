//! What all calls for one list have said, held against each other.
//!
//! A list may take several calls: a stream breaks, or ends before the volume does. Each call says
//! something of every byte from where it starts to the end of its last range, and, if it ends well,
//! to the end of the volume: the byte is listed, or it is passed over. Everything that any call has
//! listed counts. Where two calls speak of the same bytes they must agree: a service that takes
//! back what it has listed, or lists what it has passed over, is wrong in one of the two, and
//! nobody knows where else. Pure: it sees messages, not a connection.
//!
//! Invariants: the list names what was listed, clipped to the capacity; every byte before `end`
//! was spoken of by a call; only a call that ends well makes a list complete.

use super::super::collector::Collector;
use crate::ChangeKind;
use mover_tracker::{BlockMetadataType, CsiStream, Message};
use std::ops::Range;

/// All calls so far.
#[derive(Debug)]
pub(super) struct Said {
    list: Collector,
    /// End of the last range.
    end: u64,
    /// Start of the last range.
    last_start: u64,
    /// Where the next call starts.
    next: u64,
    block_type: Option<BlockMetadataType>,
    capacity_bytes: Option<u64>,
}

/// One call, while it goes on.
#[derive(Debug)]
pub(super) struct Telling {
    stream: CsiStream,
    /// Where it was asked to start.
    asked: u64,
    /// End of what was said before it.
    before: u64,
    /// How far it has come.
    at: u64,
}

impl Said {
    pub(super) fn new(list: Collector) -> Self {
        let (block_type, capacity_bytes) = (None, None);
        Self { list, end: 0, last_start: 0, next: 0, block_type, capacity_bytes }
    }

    /// Where the next call starts.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// End of the last range: what is behind it is new.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn into_list(self) -> (Collector, Option<u64>) {
        (self.list, self.capacity_bytes)
    }

    /// A call, which starts at [`Self::next`].
    pub(super) fn begin(&self) -> Telling {
        let (asked, before) = (self.next, self.end);
        Telling { stream: CsiStream::default(), asked, before, at: asked }
    }

    /// Checks a message against all before it, and keeps what is new of it.
    pub(super) fn take(&mut self, telling: &mut Telling, message: Message) -> Result<(), String> {
        let number = |n: i64, what: &str| {
            u64::try_from(n).map_err(|_| format!("{what} is {n}, which is negative"))
        };
        self.list.moved();
        let capacity = number(message.capacity_bytes, "volume_capacity_bytes")?;
        for (offset, len) in message.blocks {
            let (offset, len) = (number(offset, "byte_offset")?, number(len, "size_bytes")?);
            let range = telling.stream.range(offset, len)?;
            // the last one may end behind the capacity
            let range = range.start..range.end.min(capacity);
            if !range.is_empty() {
                self.range(telling, range)?;
            }
        }
        let block_type = number(i64::from(message.block_type), "block_metadata_type")?;
        let block_type = BlockMetadataType::from_number(block_type);
        telling.stream.end_message(block_type, capacity)?;
        if let Some(now) = block_type
            && *self.block_type.get_or_insert(now) != now
        {
            return Err("block_metadata_type is another one than in the call before".to_owned());
        }
        match *self.capacity_bytes.get_or_insert(capacity) {
            before if before != capacity => Err(format!(
                "volume_capacity_bytes is {capacity}, and was {before} in the call before"
            )),
            _ => Ok(()),
        }
    }

    fn range(&mut self, telling: &mut Telling, range: Range<u64>) -> Result<(), String> {
        // it may start before the point that was asked for, and speaks of what lies between then
        let at = telling.at.min(range.start);
        self.check_passed_over(at..range.start.min(telling.before))?;
        let again = range.start..range.end.min(telling.before);
        if let Some(news) = self.list.unnamed(&again) {
            return Err(format!(
                "it lists bytes {} to {}, which it passed over in an earlier call",
                news.start, news.end
            ));
        }
        telling.at = range.end;
        let new = range.start.max(telling.before)..range.end;
        if !new.is_empty() {
            (self.last_start, self.end) = (range.start, new.end);
            self.list.add(new, false);
        }
        Ok(())
    }

    /// Nothing that was listed before may lie in what a call passes over.
    fn check_passed_over(&mut self, gap: Range<u64>) -> Result<(), String> {
        match self.list.named(&gap) {
            None => Ok(()),
            Some(lost) => Err(format!(
                "it passes over bytes {} to {}, which it listed in an earlier call",
                lost.start, lost.end
            )),
        }
    }

    /// The call ended well, so it has spoken of all up to the volume's end. Whether the list is
    /// complete: it is when no range can follow, or when the service, asked for what follows, had
    /// nothing. Without `tail_check` its word is enough.
    pub(super) fn end_well(&mut self, telling: &Telling, tail_check: bool) -> Result<bool, String> {
        self.check_passed_over(telling.at..telling.before)?;
        // of a delta that is true of snapshots without changes; here it would make all of it zero
        if self.list.kind() == ChangeKind::Allocated && self.capacity_bytes.is_none() {
            return Err("it ends without a message, so nothing says of which volume it is".into());
        }
        self.next = self.end;
        let to_the_end = self.capacity_bytes.is_some_and(|capacity| self.end >= capacity);
        let asked_behind = telling.asked == telling.before && self.end == telling.before;
        Ok(!tail_check || to_the_end || asked_behind)
    }

    /// The call failed. What it brought counts; that this was all does not follow.
    pub(super) fn end_badly(&mut self, telling: &Telling) {
        self.next = match telling.at {
            at if at < telling.before => at,
            // nothing can be asked for behind the end: the last range again, and an end behind it
            _ if self.capacity_bytes.is_some_and(|capacity| self.end >= capacity) => {
                self.last_start
            }
            _ => self.end,
        };
    }

    /// The service does not start in the middle: the next call starts at the beginning, and has to
    /// say the same.
    pub(super) fn restart(&mut self) {
        self.next = 0;
    }
}

#[cfg(test)]
mod tests;
