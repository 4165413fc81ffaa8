//! An export: the volume as its readers and writers see it, whatever the server's block size and
//! largest request.

use super::connection::Connection;
use super::error::{Error, ErrorKind, Result};
use super::handshake::{self, Contexts, Refusal};
use super::reply::{Answer, States, Wanted};
use super::socket::StopFlag;
use super::uri::{NbdUri, needs_tls};
use super::wire::Command;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// The context that tells which blocks are zero.
pub const BASE_ALLOCATION: &str = handshake::BASE_ALLOCATION;
/// What the contexts of dirty bitmaps begin with.
pub const DIRTY_BITMAP: &str = handshake::DIRTY_BITMAP;
/// In the state of a block of `base:allocation`: it reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;
/// In the state of a block of a dirty bitmap: it was written.
pub const STATE_DIRTY: u32 = 1;

/// A server that serves one client at a time lets others connect and says nothing: not worth much
/// of a wait.
const EXTRA_TIMEOUT: Duration = Duration::from_secs(3);
/// One question about the state of blocks, one order to zero them: less than what 32 bits count,
/// and a whole number of blocks.
const STEP_BYTES: u64 = 1 << 30;

/// Ranges of a volume, one behind the other, and the state of each.
pub type BlockStatus = Vec<(Range<u64>, u32)>;

/// An open export of an NBD server.
#[derive(Debug)]
pub struct Export {
    uri: NbdUri,
    first: Arc<Connection>,
    /// Those beside the first.
    more: RwLock<Vec<Arc<Connection>>>,
    /// Held by whoever changes a part of a block.
    in_part: Mutex<()>,
    stop: StopFlag,
}

impl Export {
    /// Connects to the server and opens the export.
    pub fn open(path: &Path) -> Result<Self> {
        let uri = NbdUri::of_path(path)?;
        let stop = StopFlag::default();
        let first = Connection::open(&uri, uri.timeout, Contexts::All, &stop)
            .map_err(|refusal| explain(&uri, refusal))?;
        let (more, in_part) = (RwLock::default(), Mutex::default());
        Ok(Self { uri, first: Arc::new(first), more, in_part, stop })
    }

    /// From now on calls that wait for the server end, with an error, soon after `flag` is up.
    pub fn set_cancel_flag(&self, flag: Arc<AtomicBool>) {
        self.stop.set(flag);
    }

    /// Its address.
    pub fn uri(&self) -> &NbdUri {
        &self.uri
    }

    /// Size of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.first.agreed().size_bytes
    }

    /// The server's smallest unit.
    pub fn block_bytes(&self) -> u32 {
        self.first.agreed().block_bytes
    }

    /// Whether the server takes no writes.
    pub fn read_only(&self) -> bool {
        self.first.agreed().read_only()
    }

    /// Whether the server can make ranges zero.
    pub fn can_zero(&self) -> bool {
        self.first.agreed().writes_zeroes()
    }

    /// Whether the server can be told to make durable what was written.
    pub fn can_flush(&self) -> bool {
        self.first.agreed().flushes()
    }

    /// The contexts by which the server tells the state of its blocks.
    pub fn contexts(&self) -> impl Iterator<Item = &str> {
        self.first.agreed().contexts.iter().map(|(name, _)| name.as_str())
    }

    /// Opens more connections for `callers` threads, where the server says that all of them see the
    /// same. Fewer do the same work: what hinders one is no error.
    pub fn add_connections(&self, callers: usize) {
        let wanted = if self.first.agreed().multi_conn() {
            self.uri.connections_max.min(callers).saturating_sub(1)
        } else {
            0
        };
        let mut more = self.more.write().unwrap_or_else(PoisonError::into_inner);
        more.retain(|connection| !connection.is_broken());
        while more.len() < wanted {
            let timeout = self.uri.timeout.min(EXTRA_TIMEOUT);
            match Connection::open(&self.uri, timeout, Contexts::None, &self.stop) {
                // a server that is asked again may show another volume
                Ok(new) if new.agreed().size_bytes == self.size_bytes() => more.push(Arc::new(new)),
                _ => break,
            }
        }
    }

    /// Ends all connections, and so all calls that wait for the server.
    pub fn give_up(&self) {
        let more = self.more.read().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.first).chain(more.iter()).for_each(|c| c.give_up());
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        1 + self.more.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The one with the least to do.
    fn pick(&self) -> Arc<Connection> {
        let more = self.more.read().unwrap_or_else(PoisonError::into_inner);
        let all = std::iter::once(&self.first).chain(more.iter());
        Arc::clone(all.min_by_key(|connection| connection.in_flight()).unwrap_or(&self.first))
    }

    /// Fills the front of `buf` from `offset` on; gives how much. 0: that is behind the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(whole) = self.whole_blocks(offset, buf.len())? else { return Ok(0) };
        if whole.is_as_asked {
            self.read_blocks(&mut buf[..whole.len], offset)?;
            return Ok(whole.len);
        }
        let mut blocks = vec![0; whole.blocks_len()];
        self.read_blocks(&mut blocks, whole.blocks.start)?;
        buf[..whole.len].copy_from_slice(&blocks[whole.skip..whole.skip + whole.len]);
        Ok(whole.len)
    }

    /// Writes the front of `buf` at `offset`; gives how much. Blocks that are written in part are
    /// read before.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let Some(whole) = self.whole_blocks(offset, buf.len())? else { return Ok(0) };
        if whole.is_as_asked {
            self.write_blocks(&buf[..whole.len], offset)?;
            return Ok(whole.len);
        }
        // two who change one block must not put back what they read before
        let _alone = self.in_part.lock().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = vec![0; whole.blocks_len()];
        self.read_blocks(&mut blocks, whole.blocks.start)?;
        blocks[whole.skip..whole.skip + whole.len].copy_from_slice(&buf[..whole.len]);
        self.write_blocks(&blocks, whole.blocks.start)?;
        Ok(whole.len)
    }

    /// The blocks that hold the front of a range; no more than one request may move.
    fn whole_blocks(&self, offset: u64, len: usize) -> io::Result<Option<Whole>> {
        let agreed = self.first.agreed();
        let size = agreed.size_bytes;
        if offset >= size || len == 0 {
            return Ok(None);
        }
        let block = u64::from(agreed.block_bytes);
        let start = offset / block * block;
        let end = offset.saturating_add(len as u64).min(size);
        let end = end.next_multiple_of(block).min(size);
        let end = end.min(start + u64::from(agreed.payload_bytes_max));
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let skip = usize::try_from(offset - start).map_err(too_long)?;
        let len = usize::try_from(end - offset).map_err(too_long)?.min(len);
        let is_as_asked = skip == 0 && len as u64 == end - start;
        Ok(Some(Whole { blocks: start..end, skip, len, is_as_asked }))
    }

    fn read_blocks(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = request_len(buf.len() as u64)?;
        let mut answer = Answer::new(Wanted::Data { offset, buf });
        self.pick().call(Command::Read, offset, len, &[], &mut answer)
    }

    fn write_blocks(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let len = request_len(buf.len() as u64)?;
        let mut answer = Answer::new(Wanted::Nothing);
        self.pick().call(Command::Write, offset, len, buf, &mut answer)
    }

    /// Makes a range zero; the server may deallocate it. Unsupported where it cannot.
    pub fn zero(&self, range: Range<u64>) -> io::Result<()> {
        if !self.can_zero() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(STEP_BYTES));
            let len = request_len(end - at)?;
            let mut answer = Answer::new(Wanted::Nothing);
            self.pick().call(Command::WriteZeroes, at, len, &[], &mut answer)?;
            at = end;
        }
        Ok(())
    }

    /// Makes durable what was written, through whichever connection: where there are several the
    /// server says that one flush is enough. Nothing is done where the server cannot: see
    /// [`Export::can_flush`].
    pub fn flush(&self) -> io::Result<()> {
        if !self.can_flush() {
            return Ok(());
        }
        let mut answer = Answer::new(Wanted::Nothing);
        self.first.call(Command::Flush, 0, 0, &[], &mut answer)
    }

    /// The state of blocks from `offset` on, as far as the server tells at a time: at least one
    /// range, the first at `offset`.
    pub fn block_status(&self, context: &str, offset: u64) -> io::Result<BlockStatus> {
        let agreed = self.first.agreed();
        let number = agreed.contexts.iter().find(|(name, _)| name == context).map(|(_, n)| *n);
        let (Some(number), true) = (number, offset < agreed.size_bytes) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let len = (agreed.size_bytes - offset).min(STEP_BYTES);
        let states = States {
            offset,
            len,
            size_bytes: agreed.size_bytes,
            contexts: &agreed.contexts,
            context: number,
            found: Vec::new(),
            seen: Vec::new(),
        };
        let mut answer = Answer::new(Wanted::States(states));
        let len = request_len(len)?;
        self.first.call(Command::BlockStatus, offset, len, &[], &mut answer)?;
        match answer.into_wanted() {
            Wanted::States(states) => Ok(states.found),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// Where a range lies in whole blocks.
struct Whole {
    blocks: Range<u64>,
    /// Bytes before it in its first block.
    skip: usize,
    /// Bytes of it.
    len: usize,
    is_as_asked: bool,
}

impl Whole {
    fn blocks_len(&self) -> usize {
        // no more than one request's payload
        usize::try_from(self.blocks.end - self.blocks.start).unwrap_or(0)
    }
}

fn request_len(len: u64) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Why an export cannot be opened, in the user's words.
fn explain(uri: &NbdUri, refusal: Refusal) -> Error {
    let context = format!("open {uri}");
    match refusal {
        Refusal::Tls => needs_tls(context, "the server wants TLS"),
        Refusal::Unknown(words) => {
            let what = match uri.export.as_str() {
                "" => format!("the server has no default export, and none is named: {words}"),
                name => format!("the server has no export {name:?}: {words}"),
            };
            Error::new(ErrorKind::NotFound, context, what)
                .hint("nbdinfo --list shows the exports of a server")
        }
        Refusal::Denied(words) => {
            Error::new(ErrorKind::Denied, context, format!("the server refuses: {words}"))
                .hint("look into the server's settings and its log")
        }
        Refusal::ShuttingDown(words) => {
            Error::new(ErrorKind::Unavailable, context, format!("the server shuts down: {words}"))
        }
        Refusal::Unsupported(what) => Error::new(ErrorKind::Unsupported, context, what)
            .hint("attach it by other means (nbd-client, nbdfuse, qemu-nbd --connect) and name the device"),
        Refusal::Io(e) => {
            let (kind, hint) = match e.kind() {
                io::ErrorKind::NotFound => {
                    (ErrorKind::NotFound, "is the server running, and is the address right?")
                }
                io::ErrorKind::ConnectionRefused => {
                    (ErrorKind::Unavailable, "is the server running, and is the address right?")
                }
                io::ErrorKind::PermissionDenied if uri.tls.is_some() => {
                    (ErrorKind::Denied, "look at the certificates of both, and at the server's log")
                }
                io::ErrorKind::PermissionDenied => {
                    (ErrorKind::Denied, "run as a user who may write to the socket")
                }
                io::ErrorKind::InvalidInput if uri.tls.is_some() => {
                    (ErrorKind::Usage, "look at the directory of certificates")
                }
                io::ErrorKind::InvalidData => {
                    (ErrorKind::Corrupt, "check that the address is that of an NBD server")
                }
                _ => (ErrorKind::Unavailable, "look into the server's log"),
            };
            Error::new(kind, context, "").caused_by(e).hint(hint)
        }
    }
}
