//! What a request waits for, filled from the wire piece by piece and checked piece by piece. Over
//! any stream.

use super::wire::{
    CHUNK_BLOCK_STATUS, CHUNK_DATA, CHUNK_ERROR, CHUNK_HOLE, CHUNK_NONE, ReplyBody, ServerError,
    TEXT_BYTES_MAX, broken, read_u16, read_u32, read_u64, shown,
};
use std::io::{self, Read};
use std::ops::Range;

/// Pieces of one read that are not merged with their neighbours. Servers cut at holes, in order.
const PIECES_MAX: usize = 4096;
/// One answer about the state of blocks; servers send at most some ten thousand.
const DESCRIPTORS_MAX: u32 = 1 << 20;

/// Answers that a request of one kind may have.
#[derive(Debug)]
pub(super) enum Wanted<'a> {
    /// Only whether it was done.
    Nothing,
    /// Bytes of the volume from `offset` on.
    Data { offset: u64, buf: &'a mut [u8] },
    /// The state of the blocks from `offset` on.
    States(States<'a>),
}

/// A question about the state of blocks, and what came as an answer.
#[derive(Debug)]
pub(super) struct States<'a> {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Size of the export.
    pub(super) size_bytes: u64,
    /// Of these contexts an answer may come.
    pub(super) contexts: &'a [(String, u32)],
    /// Of this one it must, and is kept: ranges, one behind the other from `offset` on, and their
    /// state.
    pub(super) context: u32,
    pub(super) found: Vec<(Range<u64>, u32)>,
    /// Contexts that have been answered.
    pub(super) seen: Vec<u32>,
}

/// A request's reply while it comes.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    wanted: Wanted<'a>,
    covered: Covered,
    error: Option<ServerError>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(wanted: Wanted<'a>) -> Self {
        Self { wanted, covered: Covered::default(), error: None }
    }

    /// Reads what belongs to this head, which is one of this request's. True: that was all. An
    /// error means that the stream cannot be understood any more; what the server says of the
    /// request itself comes out of [`finish`](Self::finish).
    pub(super) fn take(
        &mut self,
        body: ReplyBody,
        structured: bool,
        from: &mut impl Read,
    ) -> io::Result<bool> {
        match body {
            ReplyBody::Simple { errno: 0 } => match &mut self.wanted {
                Wanted::Nothing => Ok(true),
                Wanted::Data { buf, .. } if !structured => {
                    from.read_exact(buf)?;
                    self.covered.add(0..buf.len())?;
                    Ok(true)
                }
                _ => Err(broken("a simple reply came where a structured one was agreed on")),
            },
            ReplyBody::Simple { errno } => {
                if structured && !matches!(self.wanted, Wanted::Nothing) {
                    return Err(broken("a simple reply came where a structured one was agreed on"));
                }
                self.error = Some(ServerError { errno, offset: None, message: String::new() });
                Ok(true)
            }
            ReplyBody::Chunk { .. } if !structured => {
                Err(broken("a structured reply came, and none was agreed on"))
            }
            ReplyBody::Chunk { last, kind, len } => {
                self.chunk(kind, len, last, from)?;
                Ok(last)
            }
        }
    }

    fn chunk(&mut self, kind: u16, len: u32, last: bool, from: &mut impl Read) -> io::Result<()> {
        match (kind, &mut self.wanted) {
            (CHUNK_NONE, _) if len == 0 && last => Ok(()),
            (CHUNK_DATA, Wanted::Data { offset, buf }) if len > 8 => {
                let at = read_u64(from)?;
                let place = self.covered.place(*offset, buf.len(), at, u64::from(len) - 8)?;
                from.read_exact(&mut buf[place])
            }
            (CHUNK_HOLE, Wanted::Data { offset, buf }) if len == 12 => {
                let (at, len) = (read_u64(from)?, read_u32(from)?);
                let place = self.covered.place(*offset, buf.len(), at, u64::from(len))?;
                buf[place].fill(0);
                Ok(())
            }
            (CHUNK_BLOCK_STATUS, Wanted::States(states)) => states.take(len, from),
            (kind, _) if kind & CHUNK_ERROR != 0 => {
                let error = read_error(kind, len, from)?;
                // the first is the one that matters
                self.error.get_or_insert(error);
                Ok(())
            }
            (kind, _) => {
                Err(broken(format_args!("a chunk of type {kind} and {len} bytes makes no sense")))
            }
        }
    }

    /// What became of the request, once `take` said that it was all: the error that the server
    /// gave.
    pub(super) fn finish(&self) -> io::Result<Result<(), ServerError>> {
        if let Some(error) = &self.error {
            return Ok(Err(error.clone()));
        }
        match &self.wanted {
            Wanted::Data { buf, .. } if !self.covered.is(buf.len()) => {
                Err(broken("a read ended well without all of its bytes"))
            }
            Wanted::States(states) if states.found.is_empty() => {
                Err(broken("a block status ended well without any block"))
            }
            _ => Ok(Ok(())),
        }
    }

    pub(super) fn into_wanted(self) -> Wanted<'a> {
        self.wanted
    }
}

fn read_error(kind: u16, len: u32, from: &mut impl Read) -> io::Result<ServerError> {
    let bad = || broken(format_args!("an error has {len} bytes"));
    let rest =
        (len as usize).checked_sub(6).filter(|n| *n <= TEXT_BYTES_MAX + 8).ok_or_else(bad)?;
    let (errno, text_bytes) = (read_u32(from)?, usize::from(read_u16(from)?));
    let mut bytes = vec![0; rest];
    from.read_exact(&mut bytes)?;
    let (text, behind) = bytes.split_at_checked(text_bytes).ok_or_else(bad)?;
    if errno == 0 {
        return Err(broken("an error has the number 0"));
    }
    // of the known types only the second says where
    let offset = match (kind, <[u8; 8]>::try_from(behind)) {
        (0x8002, Ok(offset)) => Some(u64::from_be_bytes(offset)),
        (0x8002, Err(_)) => return Err(bad()),
        _ => None,
    };
    Ok(ServerError { errno, offset, message: shown(text) })
}

impl States<'_> {
    fn take(&mut self, len: u32, from: &mut impl Read) -> io::Result<()> {
        let bad = || broken(format_args!("a block status has {len} bytes"));
        let bytes = len.checked_sub(4).filter(|n| *n > 0 && n.is_multiple_of(8)).ok_or_else(bad)?;
        if bytes / 8 > DESCRIPTORS_MAX {
            return Err(bad());
        }
        let context = read_u32(from)?;
        if !self.contexts.iter().any(|(_, number)| *number == context) {
            let what = format_args!("a block status of context {context}, which was not agreed on");
            return Err(broken(what));
        }
        if self.seen.contains(&context) {
            return Err(broken("a context's block status came twice"));
        }
        self.seen.push(context);
        let mut at = self.offset;
        let asked_end = self.offset.saturating_add(self.len);
        for _ in 0..bytes / 8 {
            let (len, state) = (read_u32(from)?, read_u32(from)?);
            if len == 0 {
                return Err(broken(format_args!("a block status of no bytes at offset {at}")));
            }
            if at >= asked_end {
                return Err(broken(format_args!("a block status goes on at {at}, unasked")));
            }
            // the last one may reach behind what was asked for
            let end = at.checked_add(u64::from(len)).filter(|end| *end <= self.size_bytes);
            let Some(end) = end else {
                let what = format!(
                    "a block status of {len} bytes at offset {at} reaches behind the export's end"
                );
                return Err(broken(what));
            };
            if context == self.context {
                match self.found.last_mut() {
                    Some((range, last)) if *last == state => range.end = end,
                    _ => self.found.push((at..end, state)),
                }
            }
            at = end;
        }
        Ok(())
    }
}

/// Which bytes of a read have come.
#[derive(Debug, Default)]
struct Covered(Vec<Range<usize>>);

impl Covered {
    /// Where `len` bytes from `at` on go in a buffer of `room` bytes that begins at `offset`.
    fn place(&mut self, offset: u64, room: usize, at: u64, len: u64) -> io::Result<Range<usize>> {
        let bad = || broken(format_args!("{len} bytes from offset {at} on were not asked for"));
        let start = at.checked_sub(offset).and_then(|s| usize::try_from(s).ok()).ok_or_else(bad)?;
        let len = usize::try_from(len).map_err(|_| bad())?;
        let end = start.checked_add(len).filter(|end| *end <= room && len > 0).ok_or_else(bad)?;
        self.add(start..end)?;
        Ok(start..end)
    }

    fn add(&mut self, new: Range<usize>) -> io::Result<()> {
        let at = self.0.partition_point(|range| range.end < new.start);
        let twice = self.0.iter().skip(at).take(2).any(|r| r.start < new.end && new.start < r.end);
        if twice {
            return Err(broken("bytes of a read came twice"));
        }
        match self.0.get_mut(at) {
            Some(range) if range.end == new.start => {
                range.end = new.end;
                let end = range.end;
                if self.0.get(at + 1).is_some_and(|next| next.start == end) {
                    let next = self.0.remove(at + 1);
                    self.0[at].end = next.end;
                }
            }
            Some(range) if range.start == new.end => range.start = new.start,
            _ => self.0.insert(at, new),
        }
        if self.0.len() > PIECES_MAX {
            return Err(broken("a read comes in too many pieces"));
        }
        Ok(())
    }

    fn is(&self, len: usize) -> bool {
        len == 0 || self.0.as_slice() == std::slice::from_ref(&(0..len))
    }
}
