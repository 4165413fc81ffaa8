//! A server's bytes without a server: the whole client, from the handshake on, over what was
//! recorded or made up.

use super::handshake::{Contexts, greet, negotiate};
use super::reply::{Answer, States, Wanted};
use super::wire::ReplyHead;
use std::io::{self, Read, Write};
use std::ops::Range;

/// How much of the volume is asked for.
const READ_BYTES: usize = 4096;

/// What a client made of a server's bytes: each part only if all before it was well.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Size, smallest block and largest request of the export.
    pub export: Option<(u64, u32, u32)>,
    /// Its first bytes.
    pub data: Option<Vec<u8>>,
    /// Blocks and their state, from the start of the volume on.
    pub states: Option<Vec<(Range<u64>, u32)>>,
    /// Why it ended before.
    pub error: Option<String>,
}

struct Script<'a>(&'a [u8]);

impl Read for Script<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes the bytes for all that a server sends to a client that opens an export, reads its first
/// bytes (cookie 1) and asks for the state of its blocks (cookie 2).
pub fn replay(bytes: &[u8]) -> Replayed {
    let mut done = Replayed::default();
    if let Err(error) = play(bytes, &mut done) {
        done.error = Some(error);
    }
    done
}

fn play(bytes: &[u8], done: &mut Replayed) -> Result<(), String> {
    let mut script = Script(bytes);
    greet(&mut script).map_err(|e| format!("{e:?}"))?;
    let agreed = negotiate(&mut script, "x", Contexts::All).map_err(|e| format!("{e:?}"))?;
    let size_bytes = agreed.size_bytes;
    done.export = Some((size_bytes, agreed.block_bytes, agreed.payload_bytes_max));
    let len = usize::try_from(size_bytes).unwrap_or(READ_BYTES).min(READ_BYTES);
    if len == 0 {
        return Ok(());
    }
    // what does not come must not look like what does
    let mut buf = vec![0xa5; len];
    let mut answer = Answer::new(Wanted::Data { offset: 0, buf: &mut buf });
    receive(&mut script, agreed.structured, 1, &mut answer)?;
    done.data = Some(buf);
    let Some((_, context)) = agreed.contexts.first() else { return Ok(()) };
    let states = States {
        offset: 0,
        len: size_bytes.min(1 << 30),
        size_bytes,
        contexts: &agreed.contexts,
        context: *context,
        found: Vec::new(),
        seen: Vec::new(),
    };
    let mut answer = Answer::new(Wanted::States(states));
    receive(&mut script, agreed.structured, 2, &mut answer)?;
    if let Wanted::States(states) = answer.into_wanted() {
        done.states = Some(states.found);
    }
    Ok(())
}

fn receive(
    script: &mut Script<'_>,
    structured: bool,
    cookie: u64,
    answer: &mut Answer<'_>,
) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    loop {
        let head = ReplyHead::read(script).map_err(text)?;
        if head.cookie != cookie {
            return Err(format!("a reply to request {}", head.cookie));
        }
        if answer.take(head.body, structured, script).map_err(text)? {
            return answer.finish().map_err(text)?.map_err(|e| e.to_string());
        }
    }
}
