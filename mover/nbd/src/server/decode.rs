//! What clients say, taken apart: pure functions over bytes, which trust nothing.
//!
//! A length that a client names is checked before anything is read or kept for it. What does not
//! follow the protocol is either an answer to that client (an option, a request) or the end of its
//! connection, where nothing behind it could be understood.

use crate::wire::{
    EXTENDED_REQUEST_MAGIC, OPTION_ABORT, OPTION_EXPORT_NAME, OPTION_EXTENDED_HEADERS, OPTION_GO,
    OPTION_INFO, OPTION_LIST, OPTION_LIST_META_CONTEXT, OPTION_MAGIC, OPTION_SET_META_CONTEXT,
    OPTION_STARTTLS, OPTION_STRUCTURED_REPLY, REQUEST_MAGIC,
};

/// Data of one option: a name and some queries.
pub(super) const OPTION_BYTES_MAX: u32 = 64 << 10;
/// The protocol's own bound on names and queries.
const NAME_BYTES_MAX: usize = 4096;
pub(super) const OPTION_HEAD_BYTES: usize = 16;
pub(super) const REQUEST_BYTES: usize = 28;
pub(super) const EXTENDED_REQUEST_BYTES: usize = 32;
/// Longest read or write, as the protocol wants it where nothing else is agreed on.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Nothing that comes behind can be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Garbage(pub(super) &'static str);

/// Number and length of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OptionHead {
    pub(super) option: u32,
    pub(super) len: u32,
}

impl OptionHead {
    pub(super) fn decode(bytes: &[u8; OPTION_HEAD_BYTES]) -> Result<Self, Garbage> {
        let mut from = Fields(bytes);
        let (magic, option, len) = (from.u64(), from.u32(), from.u32());
        match (magic, option, len) {
            (Some(OPTION_MAGIC), Some(option), Some(len)) if len <= OPTION_BYTES_MAX => {
                Ok(Self { option, len })
            }
            (Some(OPTION_MAGIC), ..) => Err(Garbage("an option is too long")),
            _ => Err(Garbage("an option does not begin with IHAVEOPT")),
        }
    }
}

/// What a client wants to agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientOption {
    ExportName(String),
    Abort,
    List,
    StartTls,
    /// Of an export, with the numbers of what else is to be told; whether it is then used.
    Open {
        export: String,
        infos: Vec<u16>,
        go: bool,
    },
    StructuredReplies,
    ExtendedHeaders,
    /// Contexts of an export; whether they are asked for from now on, or only listed.
    Contexts {
        export: String,
        queries: Vec<String>,
        set: bool,
    },
    Unknown,
}

impl ClientOption {
    /// An error is what to tell the client.
    pub(super) fn decode(option: u32, data: &[u8]) -> Result<Self, &'static str> {
        let mut from = Fields(data);
        let decoded = match option {
            OPTION_EXPORT_NAME => {
                let name = from.0;
                from.0 = &[];
                Self::ExportName(text(name).ok_or("the name of an export is not text")?)
            }
            OPTION_ABORT => return Ok(Self::Abort),
            OPTION_LIST => Self::List,
            OPTION_STARTTLS => Self::StartTls,
            OPTION_STRUCTURED_REPLY => Self::StructuredReplies,
            OPTION_EXTENDED_HEADERS => Self::ExtendedHeaders,
            OPTION_GO | OPTION_INFO => {
                let export = from.text().ok_or("the name of an export is cut short")?;
                let count = from.u16().ok_or("the number of informations is missing")?;
                let infos = (0..count).map(|_| from.u16()).collect::<Option<_>>();
                let infos = infos.ok_or("an information is missing")?;
                Self::Open { export, infos, go: option == OPTION_GO }
            }
            OPTION_LIST_META_CONTEXT | OPTION_SET_META_CONTEXT => {
                let export = from.text().ok_or("the name of an export is cut short")?;
                let count = from.u32().ok_or("the number of queries is missing")?;
                // each takes four bytes at least, so the data bounds them
                let mut queries = Vec::new();
                for _ in 0..count {
                    queries.push(from.text().ok_or("a query is cut short")?);
                }
                Self::Contexts { export, queries, set: option == OPTION_SET_META_CONTEXT }
            }
            _ => return Ok(Self::Unknown),
        };
        if from.0.is_empty() { Ok(decoded) } else { Err("an option is longer than what it says") }
    }
}

/// A request, before it is held against the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientRequest {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl ClientRequest {
    /// With 28 bytes, or 32 where long ones were agreed on.
    pub(super) fn decode(head: &[u8], extended: bool) -> Result<Self, Garbage> {
        let mut from = Fields(head);
        let wanted = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut decoded = || {
            let magic = from.u32()?;
            let (flags, command) = (from.u16()?, from.u16()?);
            let (cookie, offset) = (from.u64()?, from.u64()?);
            let len = if extended { from.u64()? } else { from.u32()?.into() };
            Some((magic, Self { flags, command, cookie, offset, len }))
        };
        match decoded() {
            Some((magic, request)) if magic == wanted => Ok(request),
            Some(_) => Err(Garbage("a request begins with another number")),
            None => Err(Garbage("a request is cut short")),
        }
    }
}

/// Bytes that are taken from the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A length, and as many bytes.
    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        text(bytes)
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    if bytes.len() > NAME_BYTES_MAX || bytes.contains(&0) {
        return None;
    }
    String::from_utf8(bytes.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(option: u32, len: u32) -> [u8; OPTION_HEAD_BYTES] {
        let mut bytes = [0; OPTION_HEAD_BYTES];
        bytes[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&option.to_be_bytes());
        bytes[12..].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    #[test]
    fn long_options_and_other_words_end_the_talk() {
        assert_eq!(OptionHead::decode(&head(7, 100)), Ok(OptionHead { option: 7, len: 100 }));
        assert!(OptionHead::decode(&head(7, u32::MAX)).is_err());
        assert!(OptionHead::decode(b"GET / HTTP/1.1\r\n").is_err());
    }

    #[test]
    fn options_are_exactly_as_long_as_they_say() {
        let go = [&2_u32.to_be_bytes()[..], b"db", &1_u16.to_be_bytes(), &3_u16.to_be_bytes()];
        let go = go.concat();
        let open = ClientOption::Open { export: "db".into(), infos: vec![3], go: true };
        assert_eq!(ClientOption::decode(OPTION_GO, &go), Ok(open));
        for cut in 0..go.len() {
            assert!(ClientOption::decode(OPTION_GO, &go[..cut]).is_err(), "{cut}");
        }
        assert!(ClientOption::decode(OPTION_GO, &[&go[..], &[0]].concat()).is_err());
        assert!(ClientOption::decode(OPTION_LIST, &[0]).is_err());
        assert_eq!(ClientOption::decode(4711, &[1, 2, 3]), Ok(ClientOption::Unknown));
        let many = [&0_u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
        assert!(ClientOption::decode(OPTION_SET_META_CONTEXT, &many).is_err());
        let long = vec![b'x'; 5000];
        assert!(ClientOption::decode(OPTION_EXPORT_NAME, &long).is_err());
    }

    #[test]
    fn requests_have_their_own_magic_each() {
        let mut head = [0; EXTENDED_REQUEST_BYTES];
        head[..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        head[24..].copy_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(ClientRequest::decode(&head, true).unwrap().len, u64::MAX);
        assert!(ClientRequest::decode(&head[..REQUEST_BYTES], false).is_err());
        assert!(ClientRequest::decode(&head[..REQUEST_BYTES], true).is_err());
    }
}
