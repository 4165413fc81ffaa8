//! A client's bytes without a client: the whole of what a server understands of them, for tests and
//! fuzz targets.

use super::decode::PAYLOAD_BYTES_MAX;
use super::decode::{
    ClientRequest, EXTENDED_REQUEST_BYTES, OPTION_HEAD_BYTES, OptionHead, REQUEST_BYTES,
};
use super::handshake::{ExportTerms, Handshake, Next, Replies, Secrecy};
use super::request::{Change, Ground, Task, judge};
use std::ops::Range;

/// What was understood.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Overheard {
    /// Options that were answered.
    pub options: usize,
    /// Bytes of the answers to them.
    pub answered_bytes: usize,
    /// Which export was chosen.
    pub export: Option<usize>,
    /// Bytes that were to be read, by request.
    pub reads: Vec<Range<u64>>,
    /// Blocks whose state was asked for.
    pub states: Vec<Range<u64>>,
    /// Bytes that came to be written, by request.
    pub writes: Vec<Range<u64>>,
    /// Zeros and trims, by request.
    pub clears: Vec<Range<u64>>,
    /// Flushes that were asked for.
    pub flushes: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// The client said goodbye, or was left.
    pub ended: bool,
}

/// Takes the bytes for all that a client sends, from its flags on.
pub fn overhear(exports: &[ExportTerms], bytes: &[u8]) -> Overheard {
    let mut heard = Overheard::default();
    // all is over where the bytes end
    let _ = listen(exports, bytes, &mut heard);
    heard
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (first, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(first)
}

fn listen(exports: &[ExportTerms], mut bytes: &[u8], heard: &mut Overheard) -> Option<()> {
    let flags = u32::from_be_bytes(take(&mut bytes, 4)?.try_into().ok()?);
    let mut handshake = Handshake::begin((exports, PAYLOAD_BYTES_MAX), flags, Secrecy::None)?;
    let agreed = loop {
        let head = take(&mut bytes, OPTION_HEAD_BYTES)?.try_into().ok()?;
        let OptionHead { option, len } = OptionHead::decode(&head).ok()?;
        let (answer, next) = handshake.answer(option, take(&mut bytes, len as usize)?);
        heard.options += 1;
        heard.answered_bytes += answer.len();
        match next {
            Next::More => {}
            Next::Serve(agreed) => break agreed,
            Next::Close | Next::StartTls => {
                heard.ended = true;
                return None;
            }
        }
    };
    heard.export = Some(agreed.export);
    let ground = Ground::new(
        &exports[agreed.export],
        PAYLOAD_BYTES_MAX,
        agreed.replies,
        !agreed.contexts.is_empty(),
    );
    let extended = agreed.replies == Replies::Extended;
    let head_bytes = if extended { EXTENDED_REQUEST_BYTES } else { REQUEST_BYTES };
    loop {
        let request = ClientRequest::decode(take(&mut bytes, head_bytes)?, extended).ok()?;
        match judge(&request, &ground) {
            Task::Read { range, .. } => heard.reads.push(range),
            Task::Status { range, .. } => heard.states.push(range),
            Task::Change { range, change: Change::Write, .. } => {
                take(&mut bytes, usize::try_from(range.end - range.start).ok()?)?;
                heard.writes.push(range);
            }
            Task::Change { range, .. } => heard.clears.push(range),
            Task::Flush => heard.flushes += 1,
            Task::Refuse { skip_bytes, .. } => {
                heard.refused += 1;
                take(&mut bytes, usize::try_from(skip_bytes).ok()?)?;
            }
            Task::Disconnect | Task::Close(_) => {
                heard.ended = true;
                return None;
            }
        }
    }
}
