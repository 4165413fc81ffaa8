//! The bytes of replies: pure.

use super::handshake::{Replies, context_number};
use crate::wire::{
    CHUNK_BLOCK_STATUS, CHUNK_BLOCK_STATUS_EXTENDED, CHUNK_DATA, CHUNK_DONE, CHUNK_ERROR_OFFSET,
    CHUNK_ERROR_PLAIN, CHUNK_HOLE, CHUNK_NONE, EXTENDED_REPLY_MAGIC, SIMPLE_MAGIC,
    STRUCTURED_MAGIC,
};
use std::ops::Range;

/// What clients are shown of an error.
const TEXT_BYTES_MAX: usize = 1000;
/// Longest stretch of one descriptor of 32 bits: whole pages of it.
const STRETCH_BYTES_MAX: u64 = 0xffff_0000;

/// To whom: the request, and where it began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replier {
    pub(super) replies: Replies,
    pub(super) cookie: u64,
    pub(super) offset: u64,
}

/// State of blocks, as the protocol numbers it.
pub(super) type States = Vec<(Range<u64>, u32)>;

impl Replier {
    /// The head of a simple reply; the bytes read follow if there is no error.
    pub(super) fn simple(&self, errno: u32) -> Vec<u8> {
        [&SIMPLE_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &self.cookie.to_be_bytes()].concat()
    }

    /// The head of one chunk of a reply, with the first part of its payload; `more` bytes follow.
    fn chunk(&self, last: bool, kind: u16, payload: &[u8], more: usize) -> Vec<u8> {
        let flags = if last { CHUNK_DONE } else { 0 };
        let len = payload.len() + more;
        let mut bytes = Vec::with_capacity(32 + payload.len());
        let extended = self.replies == Replies::Extended;
        bytes.extend(if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_MAGIC }.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        if extended {
            bytes.extend(self.offset.to_be_bytes());
            bytes.extend((len as u64).to_be_bytes());
        } else {
            // pieces and answers are limited where they are made
            bytes.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
        }
        bytes.extend(payload);
        bytes
    }

    /// All is said.
    pub(super) fn done(&self) -> Vec<u8> {
        match self.replies {
            Replies::Simple => self.simple(0),
            _ => self.chunk(true, CHUNK_NONE, &[], 0),
        }
    }

    /// The head of so many bytes of data at an offset.
    pub(super) fn data(&self, last: bool, offset: u64, len: usize) -> Vec<u8> {
        self.chunk(last, CHUNK_DATA, &offset.to_be_bytes(), len)
    }

    /// Zeros at an offset.
    pub(super) fn hole(&self, last: bool, offset: u64, len: usize) -> Vec<u8> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.chunk(last, CHUNK_HOLE, &[&offset.to_be_bytes()[..], &len.to_be_bytes()].concat(), 0)
    }

    /// The end of a request that failed, at this offset where one is known.
    pub(super) fn error(&self, errno: u32, offset: Option<u64>, text: &str) -> Vec<u8> {
        if self.replies == Replies::Simple {
            return self.simple(errno);
        }
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        let len = u16::try_from(text.len()).unwrap_or(0);
        let mut payload = [&errno.to_be_bytes()[..], &len.to_be_bytes(), text].concat();
        payload.extend(offset.map(u64::to_be_bytes).iter().flatten());
        let kind = if offset.is_some() { CHUNK_ERROR_OFFSET } else { CHUNK_ERROR_PLAIN };
        self.chunk(true, kind, &payload, 0)
    }

    /// The state of blocks by one context, side by side from the start of what was asked for.
    pub(super) fn states(&self, last: bool, context: usize, states: &States) -> Vec<u8> {
        let mut payload = context_number(context).to_be_bytes().to_vec();
        if self.replies == Replies::Extended {
            payload.extend(u32::try_from(states.len()).unwrap_or(u32::MAX).to_be_bytes());
            for (range, state) in states {
                payload.extend((range.end - range.start).to_be_bytes());
                payload.extend(u64::from(*state).to_be_bytes());
            }
            return self.chunk(last, CHUNK_BLOCK_STATUS_EXTENDED, &payload, 0);
        }
        for (range, state) in states {
            let mut left = range.end - range.start;
            while left > 0 {
                let len = left.min(STRETCH_BYTES_MAX);
                payload.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
                payload.extend(state.to_be_bytes());
                left -= len;
            }
        }
        self.chunk(last, CHUNK_BLOCK_STATUS, &payload, 0)
    }
}
