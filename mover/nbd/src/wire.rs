//! The protocol's numbers, and the fixed parts of its messages. Big-endian throughout.

use std::fmt;
use std::io::{self, Read};

pub(super) const MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

pub(super) const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1;
pub(super) const HANDSHAKE_NO_ZEROES: u16 = 2;

pub(super) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(super) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub(super) const OPTION_EXPORT_NAME: u32 = 1;
pub(super) const OPTION_ABORT: u32 = 2;
pub(super) const OPTION_LIST: u32 = 3;
pub(super) const OPTION_STARTTLS: u32 = 5;
pub(super) const OPTION_INFO: u32 = 6;
pub(super) const OPTION_GO: u32 = 7;
pub(super) const OPTION_STRUCTURED_REPLY: u32 = 8;
pub(super) const OPTION_LIST_META_CONTEXT: u32 = 9;
pub(super) const OPTION_SET_META_CONTEXT: u32 = 10;

pub(super) const OPTION_EXTENDED_HEADERS: u32 = 11;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_META_CONTEXT: u32 = 4;
pub(super) const REP_ERROR: u32 = 1 << 31;
pub(super) const REP_ERROR_UNSUP: u32 = REP_ERROR + 1;
pub(super) const REP_ERROR_POLICY: u32 = REP_ERROR + 2;
pub(super) const REP_ERROR_INVALID: u32 = REP_ERROR + 3;
pub(super) const REP_ERROR_TLS_REQD: u32 = REP_ERROR + 5;
pub(super) const REP_ERROR_UNKNOWN: u32 = REP_ERROR + 6;
pub(super) const REP_ERROR_SHUTDOWN: u32 = REP_ERROR + 7;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_DESCRIPTION: u16 = 2;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

pub(super) const FLAG_HAS_FLAGS: u16 = 1;
pub(super) const FLAG_READ_ONLY: u16 = 1 << 1;
pub(super) const FLAG_SEND_FLUSH: u16 = 1 << 2;
pub(super) const FLAG_SEND_FUA: u16 = 1 << 3;
pub(super) const FLAG_SEND_TRIM: u16 = 1 << 5;
pub(super) const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const FLAG_SEND_DF: u16 = 1 << 7;
pub(super) const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub(super) const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

pub(super) const REQUEST_FUA: u16 = 1;
pub(super) const REQUEST_NO_HOLE: u16 = 1 << 1;
pub(super) const REQUEST_DF: u16 = 1 << 2;
pub(super) const REQUEST_ONE: u16 = 1 << 3;
pub(super) const REQUEST_FAST_ZERO: u16 = 1 << 4;
pub(super) const REQUEST_PAYLOAD_LEN: u16 = 1 << 5;

/// What only a server takes: a client here never sends it.
pub(super) const COMMAND_TRIM: u16 = 4;

/// What is asked in the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    WriteZeroes = 6,
    BlockStatus = 7,
}

pub(super) const CHUNK_DONE: u16 = 1;
pub(super) const CHUNK_NONE: u16 = 0;
pub(super) const CHUNK_DATA: u16 = 1;
pub(super) const CHUNK_HOLE: u16 = 2;
pub(super) const CHUNK_BLOCK_STATUS: u16 = 5;
pub(super) const CHUNK_BLOCK_STATUS_EXTENDED: u16 = 6;
/// All types with this bit are errors, known or not.
pub(super) const CHUNK_ERROR: u16 = 1 << 15;
pub(super) const CHUNK_ERROR_PLAIN: u16 = CHUNK_ERROR + 1;
pub(super) const CHUNK_ERROR_OFFSET: u16 = CHUNK_ERROR + 2;

pub(super) const EPERM: u32 = 1;
pub(super) const EIO: u32 = 5;
pub(super) const EINVAL: u32 = 22;
pub(super) const ENOSPC: u32 = 28;
pub(super) const EOVERFLOW: u32 = 75;
pub(super) const ENOTSUP: u32 = 95;
pub(super) const ESHUTDOWN: u32 = 108;

/// Messages of a server are shown to people.
pub(super) const TEXT_BYTES_MAX: usize = 4096;

/// A promise of the protocol that the server broke.
pub(super) fn broken(what: impl fmt::Display) -> io::Error {
    let what = format!("the server breaks the NBD protocol: {what}");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A text from the server, fit to be shown.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

pub(super) fn read_u16(from: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    from.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

pub(super) fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

pub(super) fn read_u64(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The head of a request; the bytes to write follow it.
pub(super) fn request(command: Command, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut head = [0; 28];
    head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    // no flags
    head[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

/// The head of a reply, or of one chunk of a structured reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplyHead {
    pub(super) cookie: u64,
    pub(super) body: ReplyBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyBody {
    /// The bytes read follow if there is no error.
    Simple { errno: u32 },
    /// So many bytes of this type follow.
    Chunk { last: bool, kind: u16, len: u32 },
}

impl ReplyHead {
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        match read_u32(from)? {
            SIMPLE_MAGIC => {
                let errno = read_u32(from)?;
                Ok(Self { cookie: read_u64(from)?, body: ReplyBody::Simple { errno } })
            }
            STRUCTURED_MAGIC => {
                let (flags, kind) = (read_u16(from)?, read_u16(from)?);
                let (cookie, len) = (read_u64(from)?, read_u32(from)?);
                let last = flags & CHUNK_DONE != 0;
                Ok(Self { cookie, body: ReplyBody::Chunk { last, kind, len } })
            }
            other => Err(broken(format_args!("a reply begins with {other:#010x}"))),
        }
    }
}

/// An error that the server gave as its answer. The connection is as good as before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerError {
    pub(super) errno: u32,
    /// Where in the volume, if the server said so.
    pub(super) offset: Option<u64>,
    /// The server's words; may be empty.
    pub(super) message: String,
}

impl ServerError {
    /// The protocol's numbers are Linux's.
    fn name(&self) -> &'static str {
        match self.errno {
            1 => "EPERM",
            5 => "EIO",
            12 => "ENOMEM",
            22 => "EINVAL",
            28 => "ENOSPC",
            75 => "EOVERFLOW",
            95 => "ENOTSUP",
            108 => "ESHUTDOWN",
            _ => "unknown",
        }
    }

    pub(super) fn into_io(self) -> io::Error {
        let kind = match self.errno {
            1 => io::ErrorKind::PermissionDenied,
            28 => io::ErrorKind::StorageFull,
            22 | 75 | 95 => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the NBD server answers {} (error {})", self.name(), self.errno)?;
        if let Some(offset) = self.offset {
            write!(f, " for offset {offset}")?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}
