//! From a fresh connection to an export that may be read: the fixed newstyle handshake, over any
//! stream.
//!
//! What the server sends is bounded here: the length of each reply to an option, their number, the
//! names of contexts.

use super::wire::{
    FLAG_CAN_MULTI_CONN, FLAG_READ_ONLY, FLAG_SEND_FLUSH, FLAG_SEND_WRITE_ZEROES,
    HANDSHAKE_FIXED_NEWSTYLE, HANDSHAKE_NO_ZEROES, INFO_BLOCK_SIZE, INFO_EXPORT, MAGIC,
    OLDSTYLE_MAGIC, OPTION_ABORT, OPTION_GO, OPTION_LIST_META_CONTEXT, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OPTION_SET_META_CONTEXT, OPTION_STARTTLS, OPTION_STRUCTURED_REPLY, REP_ACK,
    REP_ERROR, REP_ERROR_POLICY, REP_ERROR_SHUTDOWN, REP_ERROR_TLS_REQD, REP_ERROR_UNKNOWN,
    REP_ERROR_UNSUP, REP_INFO, REP_META_CONTEXT, broken, read_u16, read_u32, read_u64, shown,
};
use std::io::{self, Read, Write};

/// No reply to an option that is asked here needs more.
const REPLY_BYTES_MAX: u32 = 16 << 10;
const REPLIES_MAX: usize = 1024;
/// Dirty bitmaps whose state is asked for along with the allocation: each makes every answer
/// longer.
const BITMAPS_MAX: usize = 16;
/// What the protocol wants clients to assume where the server names no sizes.
const BLOCK_BYTES_DEFAULT: u32 = 512;
const PAYLOAD_BYTES_DEFAULT: u32 = 32 << 20;
const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// The query for all bitmaps, and what their names begin with.
pub(super) const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";
pub(super) const BASE_ALLOCATION: &str = "base:allocation";

/// Why there is no export.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The connection, or the protocol.
    Io(io::Error),
    /// The server wants TLS first.
    Tls,
    /// There is no export of this name.
    Unknown(String),
    /// The server does not want to.
    Denied(String),
    /// The server cannot, for now.
    ShuttingDown(String),
    /// The server, or this client, lacks something.
    Unsupported(String),
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// What was agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) size_bytes: u64,
    flags: u16,
    /// All offsets and lengths are multiples of it, but for the export's end.
    pub(super) block_bytes: u32,
    /// A multiple of `block_bytes`.
    pub(super) payload_bytes_max: u32,
    /// Replies come in chunks.
    pub(super) structured: bool,
    /// Contexts that the state of blocks can be asked for, with their numbers.
    pub(super) contexts: Vec<(String, u32)>,
}

impl Negotiated {
    pub(super) fn read_only(&self) -> bool {
        self.flags & FLAG_READ_ONLY != 0
    }

    pub(super) fn flushes(&self) -> bool {
        self.flags & FLAG_SEND_FLUSH != 0
    }

    pub(super) fn writes_zeroes(&self) -> bool {
        self.flags & FLAG_SEND_WRITE_ZEROES != 0
    }

    pub(super) fn multi_conn(&self) -> bool {
        self.flags & FLAG_CAN_MULTI_CONN != 0
    }
}

/// Which contexts to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contexts {
    None,
    /// Allocation, and each dirty bitmap that the server has.
    All,
}

/// Agrees on TLS, once the server has greeted; what follows on the stream is its handshake.
pub(super) fn start_tls<S: Read + Write>(stream: &mut S) -> Result<(), Refusal> {
    match (Options { stream }).ask(OPTION_STARTTLS, &[])? {
        OptionAnswer::Acknowledged(_) => Ok(()),
        OptionAnswer::Refused(_, words) => {
            Err(Refusal::Unsupported(format!("the server has no TLS: {words}")))
        }
    }
}

/// Goes through the options, once the server has greeted; what follows on the stream is the
/// transmission phase.
pub(super) fn negotiate<S: Read + Write>(
    stream: &mut S,
    export: &str,
    wanted: Contexts,
) -> Result<Negotiated, Refusal> {
    let mut options = Options { stream };
    let structured = match options.ask(OPTION_STRUCTURED_REPLY, &[])? {
        OptionAnswer::Acknowledged(_) => true,
        OptionAnswer::Refused(..) => false,
    };
    let mut contexts = Vec::new();
    if structured && wanted == Contexts::All {
        let query = meta_query(export, &[DIRTY_BITMAP.to_owned()]);
        let bitmaps = options.contexts(OPTION_LIST_META_CONTEXT, &query)?;
        let names = bitmaps.into_iter().map(|(name, _)| name);
        let bitmaps = names.filter(|name| name.starts_with(DIRTY_BITMAP)).take(BITMAPS_MAX);
        let queries: Vec<String> =
            std::iter::once(BASE_ALLOCATION.to_owned()).chain(bitmaps).collect();
        contexts = options.contexts(OPTION_SET_META_CONTEXT, &meta_query(export, &queries))?;
        contexts.retain(|(name, _)| queries.contains(name));
        let numbers: std::collections::HashSet<u32> = contexts.iter().map(|(_, id)| *id).collect();
        if numbers.len() != contexts.len() {
            return Err(broken("two metadata contexts have one number").into());
        }
    }
    let mut data = text(export);
    data.extend(1_u16.to_be_bytes());
    data.extend(INFO_BLOCK_SIZE.to_be_bytes());
    match options.ask(OPTION_GO, &data)? {
        OptionAnswer::Acknowledged(replies) => agreed(&replies, structured, contexts),
        OptionAnswer::Refused(kind, message) => {
            // The connection is of no more use, and saying so is a courtesy.
            let _ = options.send(OPTION_ABORT, &[]);
            Err(match kind {
                REP_ERROR_UNKNOWN => Refusal::Unknown(message),
                REP_ERROR_POLICY => Refusal::Denied(message),
                REP_ERROR_SHUTDOWN => Refusal::ShuttingDown(message),
                REP_ERROR_UNSUP => Refusal::Unsupported(
                    "the server is too old: it does not know NBD_OPT_GO".into(),
                ),
                kind => {
                    let number = kind - REP_ERROR;
                    Refusal::Unsupported(format!("the server refuses (error {number}): {message}"))
                }
            })
        }
    }
}

/// Takes what a server says first.
pub(super) fn greet<S: Read + Write>(stream: &mut S) -> Result<(), Refusal> {
    if read_u64(stream)? != MAGIC {
        return Err(broken("it does not begin with NBDMAGIC; is it an NBD server?").into());
    }
    match read_u64(stream)? {
        OPTION_MAGIC => {}
        OLDSTYLE_MAGIC => {
            let what = "the server speaks only the oldstyle handshake";
            return Err(Refusal::Unsupported(what.into()));
        }
        other => return Err(broken(format_args!("the handshake begins with {other:#018x}")).into()),
    }
    let flags = read_u16(stream)?;
    if flags & HANDSHAKE_FIXED_NEWSTYLE == 0 {
        let what = "the server does not speak the fixed newstyle handshake";
        return Err(Refusal::Unsupported(what.into()));
    }
    let ours = flags & (HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES);
    stream.write_all(&u32::from(ours).to_be_bytes())?;
    Ok(())
}

/// How the server took an option.
enum OptionAnswer {
    /// With what it said before: type and data of each reply.
    Acknowledged(Vec<(u32, Vec<u8>)>),
    /// The error's type and the server's words.
    Refused(u32, String),
}

struct Options<'a, S> {
    stream: &'a mut S,
}

impl<S: Read + Write> Options<'_, S> {
    fn send(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let len = u32::try_from(data.len()).map_err(|_| broken("an option is too long"))?;
        let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> Result<OptionAnswer, Refusal> {
        self.send(option, data)?;
        let mut replies = Vec::new();
        loop {
            let (kind, data) = self.reply(option)?;
            match kind {
                REP_ACK => return Ok(OptionAnswer::Acknowledged(replies)),
                REP_ERROR_TLS_REQD => return Err(Refusal::Tls),
                kind if kind & REP_ERROR != 0 => {
                    return Ok(OptionAnswer::Refused(kind, shown(&data)));
                }
                kind => replies.push((kind, data)),
            }
            if replies.len() > REPLIES_MAX {
                return Err(broken("it answers an option without end").into());
            }
        }
    }

    fn reply(&mut self, asked: u32) -> io::Result<(u32, Vec<u8>)> {
        if read_u64(self.stream)? != OPTION_REPLY_MAGIC {
            return Err(broken("the reply to an option begins with another number"));
        }
        let (option, kind) = (read_u32(self.stream)?, read_u32(self.stream)?);
        let len = read_u32(self.stream)?;
        if option != asked {
            return Err(broken(format_args!("asked for option {asked} it answers {option}")));
        }
        if len > REPLY_BYTES_MAX {
            return Err(broken(format_args!("it answers an option with {len} bytes")));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok((kind, data))
    }

    /// Names and numbers of contexts; none where the server has none or does not know what they
    /// are.
    fn contexts(&mut self, option: u32, query: &[u8]) -> Result<Vec<(String, u32)>, Refusal> {
        let OptionAnswer::Acknowledged(replies) = self.ask(option, query)? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for (kind, data) in replies {
            let (REP_META_CONTEXT, Some((number, name))) = (kind, data.split_first_chunk::<4>())
            else {
                return Err(broken("a metadata context has no name").into());
            };
            let name = String::from_utf8(name.to_vec())
                .map_err(|_| broken("a metadata context's name is not text"))?;
            found.push((name, u32::from_be_bytes(*number)));
        }
        Ok(found)
    }
}

fn text(text: &str) -> Vec<u8> {
    // names are limited where they are parsed
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes(), text.as_bytes()].concat()
}

fn meta_query(export: &str, queries: &[String]) -> Vec<u8> {
    let mut data = text(export);
    data.extend(u32::try_from(queries.len()).unwrap_or(u32::MAX).to_be_bytes());
    queries.iter().for_each(|query| data.extend(text(query)));
    data
}

fn agreed(
    replies: &[(u32, Vec<u8>)],
    structured: bool,
    contexts: Vec<(String, u32)>,
) -> Result<Negotiated, Refusal> {
    let (mut export, mut sizes) = (None, None);
    for (kind, mut data) in replies.iter().map(|(kind, data)| (*kind, data.as_slice())) {
        if kind != REP_INFO {
            return Err(broken(format_args!("it answers NBD_OPT_GO with type {kind}")).into());
        }
        let info = read_u16(&mut data).map_err(|_| broken("an information has no type"))?;
        match (info, data.len()) {
            (INFO_EXPORT, 10) => export = Some((read_u64(&mut data)?, read_u16(&mut data)?)),
            (INFO_BLOCK_SIZE, 12) => {
                let (least, _preferred) = (read_u32(&mut data)?, read_u32(&mut data)?);
                sizes = Some((least, read_u32(&mut data)?));
            }
            (INFO_EXPORT | INFO_BLOCK_SIZE, len) => {
                return Err(broken(format_args!("an information has {len} bytes")).into());
            }
            // not asked for, and of no use
            _ => {}
        }
    }
    let Some((size_bytes, flags)) = export else {
        return Err(broken("it does not say how large the export is").into());
    };
    if i64::try_from(size_bytes).is_err() {
        return Err(broken(format_args!("the export has {size_bytes} bytes")).into());
    }
    let whole = size_bytes.is_multiple_of(u64::from(BLOCK_BYTES_DEFAULT));
    let default = (if whole { BLOCK_BYTES_DEFAULT } else { 1 }, PAYLOAD_BYTES_DEFAULT);
    let (block_bytes, payload_bytes_max) = sizes.unwrap_or(default);
    if !block_bytes.is_power_of_two() || block_bytes > BLOCK_BYTES_MAX {
        return Err(broken(format_args!("its smallest block has {block_bytes} bytes")).into());
    }
    let payload_bytes_max = payload_bytes_max.min(PAYLOAD_BYTES_DEFAULT) & !(block_bytes - 1);
    if payload_bytes_max == 0 {
        return Err(broken("its largest request is smaller than its smallest block").into());
    }
    Ok(Negotiated { size_bytes, flags, block_bytes, payload_bytes_max, structured, contexts })
}
