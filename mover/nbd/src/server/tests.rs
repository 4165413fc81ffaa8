//! The server against clients of the test's own making, right ones and wrong ones, and against the
//! client of this crate.

#![allow(clippy::cast_possible_truncation)] // volumes of some MiB

mod reading;
mod writing;

use super::*;
use crate::wire::{CHUNK_ERROR, MAGIC, OPTION_GO, OPTION_MAGIC, REP_ACK, REP_ERROR_UNKNOWN};
use bytes::Bytes;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;

const SIZE: usize = 3 << 20;
const BLOCK: usize = 64 << 10;

/// Data in every second block, and one that cannot be read.
struct Memory {
    bytes: Mutex<Vec<u8>>,
    /// As the last flush left them.
    durable: Mutex<Vec<u8>>,
    bad: Mutex<Option<u64>>,
    /// Holds the thread of each change: tells that it has come, and goes on when it is told to.
    gate: Mutex<Option<(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>)>>,
    /// What each change fails with.
    fails: Mutex<Option<io::ErrorKind>>,
    /// In the order in which the server told of them.
    expected: Mutex<Vec<Range<u64>>>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let byte =
            |at: usize| if (at / BLOCK).is_multiple_of(2) { ((at * 7) >> 3) as u8 | 1 } else { 0 };
        let bytes: Vec<u8> = (0..SIZE).map(byte).collect();
        Arc::new(Self {
            durable: Mutex::new(bytes.clone()),
            bytes: Mutex::new(bytes),
            bad: Mutex::default(),
            gate: Mutex::default(),
            fails: Mutex::default(),
            expected: Mutex::default(),
        })
    }

    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.bytes.lock().unwrap()[range].to_vec()
    }

    fn change(&self, offset: u64, change: impl FnOnce(&mut [u8])) -> io::Result<()> {
        if let Some((come, go)) = &*self.gate.lock().unwrap() {
            come.send(()).unwrap();
            go.recv().unwrap();
        }
        if let Some(kind) = *self.fails.lock().unwrap() {
            return Err(kind.into());
        }
        change(&mut self.bytes.lock().unwrap()[offset as usize..]);
        Ok(())
    }
}

impl Volume for Arc<Memory> {
    fn expect(&self, range: &Range<u64>) {
        self.expected.lock().unwrap().push(range.clone());
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<Vec<Range<usize>>> {
        let (start, end) = (offset as usize, offset as usize + buf.len());
        if self.bad.lock().unwrap().is_some_and(|bad| (start..end).contains(&(bad as usize))) {
            return Err(io::Error::other("chunk 3 is damaged"));
        }
        buf.copy_from_slice(&self.bytes(start..end));
        let blocks = start / BLOCK..end.div_ceil(BLOCK);
        let whole = |block: &usize| self.bytes(block * BLOCK..(block + 1) * BLOCK);
        let zeros = blocks.filter(|block| whole(block).iter().all(|byte| *byte == 0));
        let cut = |block: usize| {
            (block * BLOCK).max(start) - start..((block + 1) * BLOCK).min(end) - start
        };
        Ok(zeros.map(cut).collect())
    }

    async fn states(
        &self,
        context: usize,
        range: Range<u64>,
    ) -> io::Result<Vec<(Range<u64>, u32)>> {
        if context == 1 {
            return Ok(vec![(range, 1)]);
        }
        let block = BLOCK as u64;
        let blocks = range.start / block..range.end.div_ceil(block);
        let cut = |n: u64| (n * block).max(range.start)..((n + 1) * block).min(range.end);
        Ok(blocks.map(|n| (cut(n), if n % 2 == 1 { 3 } else { 0 })).collect())
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.change(offset, |bytes| bytes[..data.len()].copy_from_slice(&data))
    }

    async fn zero(&self, range: Range<u64>, _: Holes) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        self.change(range.start, |bytes| bytes[..len].fill(0))
    }

    fn is_zero_fast(&self, _: &Range<u64>, holes: Holes) -> bool {
        holes == Holes::Allowed
    }

    async fn trim(&self, range: Range<u64>) -> io::Result<()> {
        self.zero(range, Holes::Allowed).await
    }

    async fn flush(&self) -> io::Result<()> {
        let bytes = self.bytes(0..SIZE);
        *self.durable.lock().unwrap() = bytes;
        Ok(())
    }
}

/// A server on a thread of its own, until it is dropped.
struct Running {
    directory: tempfile::TempDir,
    server: Arc<NbdServer<Arc<Memory>>>,
    volume: Arc<Memory>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(memory_bytes: u64) -> Self {
        Self::with(memory_bytes, Access::ReadOnly)
    }

    fn with(memory_bytes: u64, access: Access) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let volume = Memory::new();
        // half of it for payloads, where there are any
        let payload_bytes = if access == Access::Writable { memory_bytes / 2 } else { 0 };
        let memory = ServerMemory { answer_bytes: memory_bytes - payload_bytes, payload_bytes };
        let terms = ExportTerms {
            names: vec!["db@1".into(), String::new()],
            description: "a test".into(),
            size_bytes: SIZE as u64,
            access,
            preferred_bytes: BLOCK as u32,
            contexts: vec!["base:allocation".into(), "qemu:dirty-bitmap:b0".into()],
        };
        let export = ServedExport { terms, volume: Arc::clone(&volume) };
        let server = Arc::new(NbdServer::new(vec![export], memory, None));
        let (stop, stopped) = oneshot::channel();
        let (ready, wait) = std::sync::mpsc::channel();
        let (path, running) = (directory.path().join("s"), Arc::clone(&server));
        let thread = std::thread::spawn(move || {
            let rt = tokio::runtime::Builder::new_multi_thread();
            let rt = { rt }.worker_threads(2).enable_all().build().unwrap();
            rt.block_on(async {
                let doors = [Door::at_path(&path).unwrap()];
                ready.send(()).unwrap();
                tokio::select! {
                    () = running.run(&doors) => {}
                    _ = stopped => {}
                }
            });
        });
        wait.recv().unwrap();
        Self { directory, server, volume, stop: Some(stop), thread: Some(thread) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn connect(&self) -> Talk {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Talk(stream)
    }

    fn expect_left(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.server.counts().connected.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < until, "a client stays");
            std::thread::yield_now();
        }
    }

    /// It still serves others.
    fn expect_serves(&self) {
        let mut talk = self.connect();
        talk.go();
        assert_eq!(talk.read_simple(0, 100), self.volume.bytes(0..100));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        assert!(!self.path().exists(), "the socket stays");
    }
}

struct Talk(UnixStream);

impl Talk {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn number(&mut self, len: usize) -> u64 {
        self.bytes(len).into_iter().fold(0, |sum, byte| sum << 8 | u64::from(byte))
    }

    fn greet(&mut self) {
        assert_eq!((self.number(8), self.number(8)), (MAGIC, OPTION_MAGIC));
        assert_eq!(self.number(2), 3);
        self.0.write_all(&3_u32.to_be_bytes()).unwrap();
    }

    /// Asks, and gives the answers: type and data.
    fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.0.write_all(&OPTION_MAGIC.to_be_bytes()).unwrap();
        self.0.write_all(&option.to_be_bytes()).unwrap();
        self.0.write_all(&u32::try_from(data.len()).unwrap().to_be_bytes()).unwrap();
        self.0.write_all(data).unwrap();
        let mut answers = Vec::new();
        loop {
            assert_eq!(self.number(8), 0x0003_e889_0455_65a9);
            assert_eq!(self.number(4), u64::from(option));
            let (kind, len) = (self.number(4) as u32, self.number(4) as usize);
            answers.push((kind, self.bytes(len)));
            if kind == REP_ACK || kind >> 31 == 1 {
                return answers;
            }
        }
    }

    fn go(&mut self) {
        self.greet();
        assert_eq!(self.option(OPTION_GO, &[0; 6]).last().unwrap().0, REP_ACK);
    }

    fn request(&mut self, command: u16, cookie: u64, offset: u64, len: u32) {
        let mut head = 0x2560_9513_u32.to_be_bytes().to_vec();
        head.extend(0_u16.to_be_bytes());
        head.extend(command.to_be_bytes());
        head.extend(cookie.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(len.to_be_bytes());
        self.0.write_all(&head).unwrap();
    }

    fn simple(&mut self, cookie: u64) -> u32 {
        assert_eq!(self.number(4), 0x6744_6698);
        let errno = self.number(4) as u32;
        assert_eq!(self.number(8), cookie);
        errno
    }

    fn read_simple(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.request(0, 7, offset, len);
        assert_eq!(self.simple(7), 0);
        self.bytes(len as usize)
    }
}

#[test]
fn an_old_client_reads_by_export_name() {
    let running = Running::start(8 << 20);
    let mut talk = running.connect();
    talk.greet();
    talk.0.write_all(&OPTION_MAGIC.to_be_bytes()).unwrap();
    talk.0.write_all(&[0, 0, 0, 1, 0, 0, 0, 4]).unwrap();
    talk.0.write_all(b"db@1").unwrap();
    assert_eq!(talk.number(8), SIZE as u64);
    // flags: has flags, read-only, many connections
    assert_eq!(talk.number(2), 0x103);
    for (offset, len) in [(0, 1), (65_535, 2), (1 << 20, 2 << 20), (SIZE as u64 - 1, 1)] {
        let wanted = running.volume.bytes(offset as usize..SIZE);
        assert!(talk.read_simple(offset, len) == wanted[..len as usize], "{offset} {len}");
    }
    talk.request(0, 9, SIZE as u64, 1);
    assert_eq!(talk.simple(9), 22);
    // what cannot be read is an error of its own, also where the reply is long
    *running.volume.bad.lock().unwrap() = Some(1 << 20);
    talk.request(0, 10, 0, SIZE as u32);
    assert_eq!(talk.simple(10), 5);
    assert!(talk.read_simple(0, 1 << 20) == running.volume.bytes(0..1 << 20));
    talk.request(2, 0, 0, 0);
    drop(talk);
    running.expect_left();
    assert_eq!(running.server.counts().errors.load(Ordering::Relaxed), 1);
}

#[test]
fn reads_are_told_of_in_the_order_in_which_they_were_asked_for() {
    const BYTES: u64 = 4096;
    let running = Running::start(8 << 20);
    let mut talk = running.connect();
    talk.go();
    let reads = 0..200_u64;
    for n in reads.clone() {
        talk.request(0, n, n * BYTES, BYTES as u32);
    }
    for _ in reads.clone() {
        // simple replies, in any order
        assert_eq!((talk.number(4), talk.number(4)), (0x6744_6698, 0));
        talk.bytes(8 + BYTES as usize);
    }
    let asked: Vec<_> = reads.map(|n| n * BYTES..(n + 1) * BYTES).collect();
    assert_eq!(*running.volume.expected.lock().unwrap(), asked);
}

#[test]
fn options_are_answered_as_the_protocol_says() {
    let running = Running::start(8 << 20);
    let mut talk = running.connect();
    talk.greet();
    // a list; an option that nobody knows; contexts before structured replies; no such export
    let list = talk.option(3, &[]);
    assert_eq!(list[0], (2, b"\0\0\0\x04db@1a test".to_vec()));
    assert_eq!(talk.option(99, b"what")[0].0, REP_ERROR_UNKNOWN - 5);
    let base = |name: &str, query: &str| {
        let text = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        [text(name), 1_u32.to_be_bytes().to_vec(), text(query)].concat()
    };
    assert_eq!(talk.option(10, &base("", "base:allocation"))[0].0 >> 31, 1);
    assert_eq!(talk.option(8, &[]), [(REP_ACK, vec![])]);
    assert_eq!(talk.option(9, &base("db@1", "qemu:"))[0].1, b"\0\0\0\0qemu:dirty-bitmap:b0");
    assert_eq!(talk.option(9, &base("db@1", "nobody:x")), [(REP_ACK, vec![])]);
    assert_eq!(talk.option(10, &base("db@1", "qemu:dirty-bitmap:b0"))[0].1[..4], [0, 0, 0, 1]);
    assert_eq!(talk.option(OPTION_GO, b"\0\0\0\x02no\0\0")[0].0, REP_ERROR_UNKNOWN);
    assert_eq!(talk.option(OPTION_GO, b"\0\0\0\x02n")[0].0 >> 31, 1);
    // sizes are told to who asks; contexts were chosen under another name of the same export
    let go = talk.option(OPTION_GO, b"\0\0\0\0\0\x01\0\x03");
    assert_eq!(go[1].1, [&[0, 3][..], &[0, 0, 0, 1], &[0, 1, 0, 0], &[2, 0, 0, 0]].concat());
    talk.request(7, 3, 0, SIZE as u32);
    assert_eq!((talk.number(4), talk.number(2), talk.number(2)), (0x668e_33ef, 1, 5));
    assert_eq!((talk.number(8), talk.number(4), talk.number(4)), (3, 12, 1));
    assert_eq!((talk.number(4), talk.number(4)), (SIZE as u64, 1));
}

#[test]
fn long_headers_have_long_lengths() {
    let running = Running::start(8 << 20);
    let mut talk = running.connect();
    talk.greet();
    assert_eq!(talk.option(11, &[]), [(REP_ACK, vec![])]);
    let contexts = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
    assert_eq!(talk.option(10, contexts).len(), 2);
    assert_eq!(talk.option(OPTION_GO, &[0; 6]).last().unwrap().0, REP_ACK);
    let ask = |talk: &mut Talk, command: u16, flags: u16, offset: u64, len: u64| {
        let mut head = 0x21e4_1c71_u32.to_be_bytes().to_vec();
        head.extend(flags.to_be_bytes());
        head.extend(command.to_be_bytes());
        [5, offset, len].iter().for_each(|n| head.extend(n.to_be_bytes()));
        talk.0.write_all(&head).unwrap();
        assert_eq!(talk.number(4), 0x6e8a_278c);
        let (flags, kind) = (talk.number(2), talk.number(2));
        assert_eq!((flags, talk.number(8), talk.number(8)), (1, 5, offset));
        let len = talk.number(8) as usize;
        (kind as u16, talk.bytes(len))
    };
    let (kind, states) = ask(&mut talk, 7, 8, 0, SIZE as u64);
    let first = [&[0, 0, 0, 0][..], &[0, 0, 0, 1], &(BLOCK as u64).to_be_bytes(), &[0; 8]].concat();
    assert_eq!((kind, states), (6, first));
    for (command, len) in [(0, u64::MAX), (7, u64::MAX), (6, u64::MAX), (4, u64::MAX), (0, 1 << 26)]
    {
        let (kind, error) = ask(&mut talk, command, 0, 0, len);
        assert!(kind & CHUNK_ERROR != 0, "{command} {len}");
        let errno = if command == 4 || command == 6 { 1 } else { 22 };
        assert_eq!(error[..4], u32::to_be_bytes(errno), "{command} {len}");
    }
    let (kind, bytes) = ask(&mut talk, 0, 0, 5, 10);
    assert_eq!((kind, &bytes[8..]), (1, &running.volume.bytes(5..15)[..]));
    running.expect_serves();
}

#[test]
fn the_client_of_this_crate_reads_all_of_it() {
    let running = Running::start(8 << 20);
    let uri = PathBuf::from(format!("nbd+unix:///?socket={}", running.path().display()));
    let export = crate::Export::open(&uri).unwrap();
    assert!(export.size_bytes() == SIZE as u64 && export.read_only());
    let mut buf = vec![0xa5; SIZE];
    let mut at = 0;
    while at < SIZE {
        at += export.read_at(&mut buf[at..], at as u64).unwrap();
    }
    assert!(buf == running.volume.bytes(0..SIZE));
    let status = export.block_status(crate::BASE_ALLOCATION, BLOCK as u64).unwrap();
    assert!(format!("{status:?}").contains("65536..131072"), "{status:?}");
}

#[test]
fn rubbish_and_silence_end_one_client_only() {
    let running = Running::start(8 << 20);
    let stalled: Vec<Talk> = (0..2)
        .map(|_| {
            let mut talk = running.connect();
            talk.go();
            // asks for all of it again and again, and takes nothing
            for cookie in 0..64 {
                talk.request(0, cookie, 0, SIZE as u32);
            }
            talk
        })
        .collect();
    for rubbish in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 400],
        &[0, 0, 0, 3, 0xff, 0xff],
        &[&[0, 0, 0, 3][..], &OPTION_MAGIC.to_be_bytes(), &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]]
            .concat(),
    ] {
        let mut talk = running.connect();
        talk.bytes(18);
        // it may be left before all is written
        let _ = talk.0.write_all(rubbish);
        let _ = talk.0.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = talk.0.read_to_end(&mut rest);
    }
    // in the middle of requests: a write of 4 GiB, and what is no request
    for (command, len) in [(1, u32::MAX), (0x4141, 5)] {
        let mut talk = running.connect();
        talk.go();
        talk.request(command, 1, 0, len);
        assert_ne!(talk.simple(1), 0);
    }
    running.expect_serves();
    drop(stalled);
    running.expect_left();
}

#[test]
fn writes_are_refused_and_what_comes_behind_is_understood() {
    let running = Running::start(8 << 20);
    let mut talk = running.connect();
    talk.go();
    talk.request(1, 1, 0, 1 << 20);
    talk.0.write_all(&vec![0x5a; 1 << 20]).unwrap();
    assert_eq!(talk.simple(1), 1);
    for command in [4, 6] {
        talk.request(command, 2, 0, 4096);
        assert_eq!(talk.simple(2), 1);
    }
    assert!(talk.read_simple(0, 4096) == running.volume.bytes(0..4096));
}

#[test]
fn a_socket_is_for_its_owner_and_replaces_dead_ones_only() {
    use std::os::unix::fs::PermissionsExt;
    let running = Running::start(8 << 20);
    let mode = std::fs::metadata(running.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = rt.enter();
    assert_eq!(Door::at_path(&running.path()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let file = running.directory.path().join("file");
    std::fs::write(&file, b"precious").unwrap();
    assert_eq!(Door::at_path(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let dead = running.directory.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert_eq!(Door::at_path(&dead).unwrap().unix_path().unwrap(), dead);
    assert!(!dead.exists());
}
