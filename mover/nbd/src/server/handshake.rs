//! What is agreed on with a client: pure. Options in, the bytes of their answers and the next step
//! out.
//!
//! A client may ask for anything in any order. Contexts that it chose count for the export that it
//! chose them for, and for no other.

use super::decode::{ClientOption, PAYLOAD_BYTES_MAX};
use crate::wire::{
    FLAG_CAN_MULTI_CONN, FLAG_HAS_FLAGS, FLAG_READ_ONLY, FLAG_SEND_DF, FLAG_SEND_FAST_ZERO,
    FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES,
    HANDSHAKE_FIXED_NEWSTYLE, HANDSHAKE_NO_ZEROES, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT,
    INFO_NAME, MAGIC, OPTION_EXPORT_NAME, OPTION_MAGIC, OPTION_REPLY_MAGIC, REP_ACK, REP_ERROR,
    REP_ERROR_INVALID, REP_ERROR_TLS_REQD, REP_ERROR_UNKNOWN, REP_ERROR_UNSUP, REP_INFO,
    REP_META_CONTEXT, REP_SERVER,
};

/// Zeros behind the answer to an old client's choice.
const OLD_ZEROES: usize = 124;

/// What clients may do to an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and change.
    Writable,
}

/// What the handshake says of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTerms {
    /// What clients may call it. The first one is listed.
    pub names: Vec<String>,
    /// For a person.
    pub description: String,
    /// In bytes.
    pub size_bytes: u64,
    /// Whether its volume takes changes.
    pub access: Access,
    /// Reads of this size, at multiples of it, cost least. A power of two.
    pub preferred_bytes: u32,
    /// Contexts that the state of blocks can be asked for.
    pub contexts: Vec<String>,
}

/// How replies look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Replies {
    #[default]
    Simple,
    Structured,
    Extended,
}

/// What was agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Which export.
    pub(super) export: usize,
    pub(super) replies: Replies,
    /// Which of its contexts the state is told for; their numbers on the wire are the same.
    pub(super) contexts: Vec<usize>,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Another option.
    More,
    /// Requests.
    Serve(Agreed),
    /// TLS, and then options again.
    StartTls,
    /// The end.
    Close,
}

/// Whether the client and the server speak in secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// It is not needed, and not to be had.
    None,
    /// Before it nothing is told.
    Required,
    /// They do.
    Tls,
}

/// A client on its way to an export.
#[derive(Debug)]
pub(super) struct Handshake<'a> {
    exports: &'a [ExportTerms],
    /// Longest payload of a write that there is memory for.
    payload_bytes_max: u32,
    /// Exports that this client may see.
    visible: Vec<bool>,
    secrecy: Secrecy,
    no_zeroes: bool,
    replies: Replies,
    /// An export, and contexts of it.
    chosen: Option<(usize, Vec<usize>)>,
}

/// What a server says first.
pub(super) fn greeting() -> Vec<u8> {
    let flags = HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES;
    [&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
}

impl<'a> Handshake<'a> {
    /// With what a client answers to the greeting; `None`: it wants what is not known here.
    pub(super) fn begin(
        (exports, payload_bytes_max): (&'a [ExportTerms], u32),
        client_flags: u32,
        secrecy: Secrecy,
    ) -> Option<Self> {
        let known = u32::from(HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES);
        let no_zeroes = client_flags & u32::from(HANDSHAKE_NO_ZEROES) != 0;
        let visible = vec![true; exports.len()];
        let (replies, chosen) = (Replies::Simple, None);
        let begun =
            Self { exports, payload_bytes_max, visible, secrecy, no_zeroes, replies, chosen };
        (client_flags & !known == 0).then_some(begun)
    }

    /// After TLS, for a client that sees these exports. What was said before is forgotten.
    pub(super) fn secured(self, visible: Vec<bool>) -> Self {
        let (secrecy, replies, chosen) = (Secrecy::Tls, Replies::Simple, None);
        Self { visible, secrecy, replies, chosen, ..self }
    }

    /// Answers one option.
    pub(super) fn answer(&mut self, option: u32, data: &[u8]) -> (Vec<u8>, Next) {
        let mut out = Answer { option, bytes: Vec::new() };
        let decoded = ClientOption::decode(option, data);
        if self.secrecy == Secrecy::Required {
            let next = match decoded {
                Ok(ClientOption::StartTls) => {
                    out.acknowledge();
                    Next::StartTls
                }
                Ok(ClientOption::Abort) => {
                    out.acknowledge();
                    Next::Close
                }
                _ if option == OPTION_EXPORT_NAME => return (Vec::new(), Next::Close),
                _ => out.refuse(REP_ERROR_TLS_REQD, "say NBD_OPT_STARTTLS first"),
            };
            return (out.bytes, next);
        }
        let next = match decoded {
            // an old client's choice has no answer but an export
            Ok(ClientOption::ExportName(name)) => return self.export_name(&name),
            Err(_) if option == OPTION_EXPORT_NAME => Next::Close,
            Err(why) => out.refuse(REP_ERROR_INVALID, why),
            Ok(ClientOption::Abort) => {
                out.acknowledge();
                Next::Close
            }
            Ok(ClientOption::List) => self.list(&mut out),
            Ok(ClientOption::Open { export, infos, go }) => {
                self.open(&mut out, &export, &infos, go)
            }
            Ok(ClientOption::StructuredReplies) => {
                // long headers have structured replies, and are not taken back
                if self.replies == Replies::Simple {
                    self.replies = Replies::Structured;
                }
                out.acknowledge()
            }
            Ok(ClientOption::ExtendedHeaders) => {
                self.replies = Replies::Extended;
                out.acknowledge()
            }
            Ok(ClientOption::Contexts { export, queries, set }) => {
                self.contexts(&mut out, &export, &queries, set)
            }
            Ok(ClientOption::StartTls) if self.secrecy == Secrecy::Tls => {
                out.refuse(REP_ERROR_INVALID, "this is TLS already")
            }
            Ok(ClientOption::StartTls) => out.refuse(REP_ERROR_UNSUP, "there is no TLS here"),
            Ok(ClientOption::Unknown) => out.refuse(REP_ERROR_UNSUP, "this option is not known"),
        };
        (out.bytes, next)
    }

    fn find(&self, name: &str) -> Option<usize> {
        let named = |export: &ExportTerms| export.names.iter().any(|known| known == name);
        (0..self.exports.len()).find(|at| self.sees(*at) && named(&self.exports[*at]))
    }

    fn sees(&self, export: usize) -> bool {
        self.visible.get(export).copied().unwrap_or(false)
    }

    fn agreed(&self, export: usize) -> Agreed {
        let chosen = self.chosen.as_ref().filter(|(of, _)| *of == export);
        let contexts = chosen.map(|(_, contexts)| contexts.clone()).unwrap_or_default();
        Agreed { export, replies: self.replies, contexts }
    }

    fn export_name(&self, name: &str) -> (Vec<u8>, Next) {
        let Some(at) = self.find(name) else { return (Vec::new(), Next::Close) };
        let mut bytes = self.exports[at].size_bytes.to_be_bytes().to_vec();
        bytes.extend(self.flags(at).to_be_bytes());
        if !self.no_zeroes {
            bytes.extend([0; OLD_ZEROES]);
        }
        (bytes, Next::Serve(self.agreed(at)))
    }

    /// Nobody writes, or a flush is everybody's: every connection sees the same.
    fn flags(&self, export: usize) -> u16 {
        let df = if self.replies == Replies::Simple { 0 } else { FLAG_SEND_DF };
        let access = match self.exports[export].access {
            Access::ReadOnly => FLAG_READ_ONLY,
            Access::Writable => {
                let durable = FLAG_SEND_FLUSH | FLAG_SEND_FUA;
                durable | FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO
            }
        };
        FLAG_HAS_FLAGS | FLAG_CAN_MULTI_CONN | access | df
    }

    fn list(&self, out: &mut Answer) -> Next {
        for (at, export) in self.exports.iter().enumerate() {
            if !self.sees(at) {
                continue;
            }
            let name = export.names.first().map_or("", String::as_str);
            out.reply(REP_SERVER, &[&text(name), export.description.as_bytes()].concat());
        }
        out.acknowledge()
    }

    fn open(&self, out: &mut Answer, name: &str, infos: &[u16], go: bool) -> Next {
        let Some(at) = self.find(name) else { return out.refuse_export(name) };
        let export = &self.exports[at];
        let size = export.size_bytes.to_be_bytes();
        out.reply(
            REP_INFO,
            &[&INFO_EXPORT.to_be_bytes()[..], &size, &self.flags(at).to_be_bytes()].concat(),
        );
        // each that is known once, however often it is asked for
        for info in [INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE] {
            if !infos.contains(&info) {
                continue;
            }
            let of = info.to_be_bytes();
            match info {
                INFO_NAME => {
                    let name = export.names.first().map_or("", String::as_str);
                    out.reply(REP_INFO, &[&of[..], name.as_bytes()].concat());
                }
                INFO_DESCRIPTION if !export.description.is_empty() => {
                    out.reply(REP_INFO, &[&of[..], export.description.as_bytes()].concat());
                }
                INFO_BLOCK_SIZE => {
                    let most = match export.access {
                        Access::ReadOnly => PAYLOAD_BYTES_MAX,
                        Access::Writable => self.payload_bytes_max,
                    };
                    let sizes = [1, export.preferred_bytes.min(most), most];
                    let sizes = sizes.map(u32::to_be_bytes).concat();
                    out.reply(REP_INFO, &[&of[..], &sizes].concat());
                }
                _ => {}
            }
        }
        out.acknowledge();
        if go { Next::Serve(self.agreed(at)) } else { Next::More }
    }

    fn contexts(&mut self, out: &mut Answer, name: &str, queries: &[String], set: bool) -> Next {
        if set {
            // whatever comes of it, what was chosen before is gone
            self.chosen = None;
        }
        if self.replies == Replies::Simple {
            return out.refuse(REP_ERROR_INVALID, "ask for structured replies first");
        }
        let Some(at) = self.find(name) else { return out.refuse_export(name) };
        let all = &self.exports[at].contexts;
        let listed = |context: &String| {
            let of_namespace = |query: &String| {
                !set && query.ends_with(':') && context.starts_with(query.as_str())
            };
            (!set && queries.is_empty()) || queries.iter().any(|q| q == context || of_namespace(q))
        };
        let found: Vec<usize> = (0..all.len()).filter(|at| listed(&all[*at])).collect();
        for context in &found {
            let number = if set { context_number(*context) } else { 0 };
            let name = all[*context].as_bytes();
            out.reply(REP_META_CONTEXT, &[&number.to_be_bytes()[..], name].concat());
        }
        if set {
            self.chosen = Some((at, found));
        }
        out.acknowledge()
    }
}

/// The number of a context on the wire.
pub(super) fn context_number(context: usize) -> u32 {
    u32::try_from(context).unwrap_or(u32::MAX)
}

fn text(text: &str) -> Vec<u8> {
    // names are limited where exports are made
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes(), text.as_bytes()].concat()
}

struct Answer {
    option: u32,
    bytes: Vec<u8>,
}

impl Answer {
    fn reply(&mut self, kind: u32, data: &[u8]) {
        self.bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        for number in [self.option, kind, u32::try_from(data.len()).unwrap_or(u32::MAX)] {
            self.bytes.extend(number.to_be_bytes());
        }
        self.bytes.extend(data);
    }

    fn acknowledge(&mut self) -> Next {
        self.reply(REP_ACK, &[]);
        Next::More
    }

    fn refuse(&mut self, kind: u32, why: &str) -> Next {
        debug_assert!(kind & REP_ERROR != 0, "an error has its bit");
        self.reply(kind, why.as_bytes());
        Next::More
    }

    fn refuse_export(&mut self, name: &str) -> Next {
        let name: String = name.chars().take(100).collect();
        self.refuse(REP_ERROR_UNKNOWN, &format!("there is no export {name:?} here; list them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        OPTION_ABORT, OPTION_GO, OPTION_LIST, OPTION_SET_META_CONTEXT, OPTION_STARTTLS,
        OPTION_STRUCTURED_REPLY,
    };

    fn exports() -> [ExportTerms; 2] {
        ["db", "web"].map(|name| ExportTerms {
            names: vec![name.to_owned()],
            description: String::new(),
            size_bytes: 1 << 20,
            access: Access::ReadOnly,
            preferred_bytes: 4096,
            contexts: vec!["base:allocation".to_owned()],
        })
    }

    fn kinds(answer: &[u8]) -> Vec<u32> {
        let mut found = Vec::new();
        let mut rest = answer;
        while let Some((head, behind)) = rest.split_first_chunk::<20>() {
            let number = |at: usize| {
                let bytes = head[at..at + 4].try_into().unwrap();
                u32::from_be_bytes(bytes)
            };
            found.push(number(12));
            rest = &behind[number(16) as usize..];
        }
        found
    }

    const GO_DB: &[u8] = b"\0\0\0\x02db\0\0";

    #[test]
    fn before_tls_nothing_is_told() {
        let exports = exports();
        let mut talk = Handshake::begin((&exports, 1 << 20), 3, Secrecy::Required).unwrap();
        for (option, data) in [
            (OPTION_LIST, &b""[..]),
            (OPTION_GO, GO_DB),
            (OPTION_STRUCTURED_REPLY, b""),
            (4711, b"?"),
            (OPTION_STARTTLS, b"?"),
        ] {
            let (answer, next) = talk.answer(option, data);
            assert_eq!((kinds(&answer), next), (vec![REP_ERROR_TLS_REQD], Next::More), "{option}");
        }
        assert_eq!(talk.answer(OPTION_EXPORT_NAME, b"db"), (Vec::new(), Next::Close));
        assert_eq!(talk.answer(OPTION_ABORT, b"").1, Next::Close);
        let (answer, next) = talk.answer(OPTION_STARTTLS, b"");
        assert_eq!((kinds(&answer), next), (vec![REP_ACK], Next::StartTls));
    }

    #[test]
    fn after_tls_a_client_sees_its_exports_alone() {
        let exports = exports();
        let mut talk = Handshake::begin((&exports, 1 << 20), 3, Secrecy::None).unwrap();
        assert_eq!(kinds(&talk.answer(OPTION_STARTTLS, b"").0), [REP_ERROR_UNSUP]);
        talk.answer(OPTION_STRUCTURED_REPLY, b"");
        talk.answer(OPTION_SET_META_CONTEXT, b"\0\0\0\x02db\0\0\0\x01\0\0\0\x0fbase:allocation");
        let mut talk = talk.secured(vec![true, false]);
        assert_eq!(kinds(&talk.answer(OPTION_STARTTLS, b"").0), [REP_ERROR_INVALID]);
        assert_eq!(kinds(&talk.answer(OPTION_LIST, b"").0), [REP_SERVER, REP_ACK]);
        let (answer, next) = talk.answer(OPTION_GO, b"\0\0\0\x03web\0\0");
        assert_eq!((kinds(&answer), next), (vec![REP_ERROR_UNKNOWN], Next::More));
        // what was agreed on in plain text is not kept
        let agreed = Agreed { export: 0, replies: Replies::Simple, contexts: Vec::new() };
        assert_eq!(talk.answer(OPTION_GO, GO_DB).1, Next::Serve(agreed));
    }

    #[test]
    fn an_information_is_told_once_however_often_it_is_asked_for() {
        let exports = exports();
        let mut talk = Handshake::begin((&exports, 1 << 20), 0, Secrecy::None).unwrap();
        let mut many = b"\0\0\0\x02db\x7f\xff".to_vec();
        (0..0x7fff_u16).for_each(|n| many.extend((n % 5).to_be_bytes()));
        let (answer, _) = talk.answer(OPTION_GO, &many);
        // the export, its name, its sizes: it has no description
        assert_eq!(kinds(&answer), [REP_INFO, REP_INFO, REP_INFO, REP_ACK]);
    }
}
