//! The client against servers of the test's own making: right ones that answer in any order, and
//! wrong ones.

use super::ErrorKind;
use super::export::{BASE_ALLOCATION, Export, STATE_ZERO};
use super::replay::replay;
use super::wire::{MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;
const CONTEXT: u32 = 7;

fn byte_at(offset: u64) -> u8 {
    u8::try_from((offset / 7 + offset / 4096) % 251).unwrap()
}

fn content(offset: u64, len: u32) -> Vec<u8> {
    (offset..offset + u64::from(len)).map(byte_at).collect()
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [option, kind, u32::try_from(data.len()).unwrap()] {
        reply.extend(number.to_be_bytes());
    }
    reply.extend(data);
    reply
}

fn greeting() -> Vec<u8> {
    [&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &3_u16.to_be_bytes()].concat()
}

fn export_info(size: u64, flags: u16) -> Vec<u8> {
    [&0_u16.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn sizes_info(sizes: [u32; 3]) -> Vec<u8> {
    let mut info = 3_u16.to_be_bytes().to_vec();
    sizes.iter().for_each(|size| info.extend(size.to_be_bytes()));
    info
}

/// What a server says in the handshake, in the order of the client's options, whatever those say.
fn handshake(flags: u16, sizes: [u32; 3]) -> [Vec<u8>; 4] {
    let base = [&CONTEXT.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat();
    [
        option_reply(8, 1, &[]),
        option_reply(9, 1, &[]),
        [option_reply(10, 4, &base), option_reply(10, 1, &[])].concat(),
        [
            option_reply(7, 3, &export_info(SIZE, flags)),
            option_reply(7, 3, &sizes_info(sizes)),
            option_reply(7, 1, &[]),
        ]
        .concat(),
    ]
}

fn chunk(last: bool, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut reply = 0x668e_33ef_u32.to_be_bytes().to_vec();
    reply.extend(u16::from(last).to_be_bytes());
    reply.extend(kind.to_be_bytes());
    reply.extend(cookie.to_be_bytes());
    reply.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    reply.extend(payload);
    reply
}

fn data(last: bool, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(last, 1, cookie, &[&offset.to_be_bytes()[..], bytes].concat())
}

fn states(cookie: u64, context: u32, blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    for (len, state) in blocks {
        payload.extend(len.to_be_bytes());
        payload.extend(state.to_be_bytes());
    }
    chunk(true, 5, cookie, &payload)
}

#[derive(Debug, Clone, Copy)]
struct Request {
    command: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

/// `None` once the client has gone.
fn next_request(stream: &mut UnixStream) -> Option<Request> {
    let mut head = [0; 28];
    stream.read_exact(&mut head).ok()?;
    let number = |from: usize, to: usize| {
        head[from..to].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let command = u16::try_from(number(6, 8)).unwrap();
    let (cookie, offset) = (number(8, 16), number(16, 24));
    let len = u32::try_from(number(24, 28)).unwrap();
    (command != 2).then_some(Request { command, cookie, offset, len })
}

struct Server {
    directory: tempfile::TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves one client: greets it, answers its options with these bytes, then does as it is told.
    fn start(options: Vec<Vec<u8>>, serve: impl FnOnce(&mut UnixStream) + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&greeting()).unwrap();
            let mut flags = [0; 4];
            stream.read_exact(&mut flags).unwrap();
            for reply in options {
                let mut head = [0; 16];
                stream.read_exact(&mut head).unwrap();
                let len = u32::from_be_bytes(head[12..].try_into().unwrap());
                stream.read_exact(&mut vec![0; len as usize]).unwrap();
                if stream.write_all(&reply).is_err() {
                    return;
                }
            }
            serve(&mut stream);
        });
        Self { directory, thread: Some(thread) }
    }

    fn usual(serve: impl FnOnce(&mut UnixStream) + Send + 'static) -> Self {
        Self::start(handshake(1, [1, 4096, 1 << 20]).into(), serve)
    }

    fn uri(&self) -> PathBuf {
        self.uri_within(1)
    }

    fn uri_within(&self, seconds: u64) -> PathBuf {
        let socket = self.directory.path().join("s");
        format!("nbd+unix:///x?socket={}&x-timeout={seconds}", socket.display()).into()
    }

    fn open(&self) -> Export {
        Export::open(&self.uri()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

#[test]
fn requests_of_many_threads_are_answered_in_any_order() {
    const CALLERS: u64 = 8;
    const LEN: u32 = 3000;
    let server = Server::usual(|stream| {
        // all of a round are under way before the first is answered, the last one first and in
        // pieces
        loop {
            let round: Vec<Request> = (0..CALLERS).map_while(|_| next_request(stream)).collect();
            for r in round.iter().rev() {
                let bytes = content(r.offset, r.len);
                let (one, two) = bytes.split_at(1000);
                let hole = [&(r.offset + 2000).to_be_bytes()[..], &1000_u32.to_be_bytes()].concat();
                let reply = [
                    data(false, r.cookie, r.offset + 1000, &two[..1000]),
                    chunk(false, 2, r.cookie, &hole),
                    data(true, r.cookie, r.offset, one),
                ];
                if stream.write_all(&reply.concat()).is_err() {
                    return;
                }
            }
            if round.len() < usize::try_from(CALLERS).unwrap() {
                return;
            }
        }
    });
    let export = server.open();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let export = &export;
            scope.spawn(move || {
                for round in 0..50 {
                    let offset = (caller * 50 + round) * 2500 % (SIZE - u64::from(LEN));
                    let mut buf = vec![0xee; LEN as usize];
                    assert_eq!(export.read_at(&mut buf, offset).unwrap(), LEN as usize);
                    let mut wanted = content(offset, LEN);
                    wanted[2000..].fill(0);
                    assert!(buf == wanted, "caller {caller}, round {round}");
                }
            });
        }
    });
    drop(export);
}

/// A server of a volume that only moves whole blocks of 4096 bytes, two at a time.
fn disk_of_blocks() -> Server {
    let disk: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
    *disk.lock().unwrap() = content(0, u32::try_from(SIZE).unwrap());
    Server::start(handshake(1, [4096, 4096, 8192]).into(), move |stream| {
        while let Some(r) = next_request(stream) {
            assert!(r.offset % 4096 == 0 && r.len % 4096 == 0 && r.len <= 8192, "{r:?}");
            let place = usize::try_from(r.offset).unwrap();
            let place = place..place + r.len as usize;
            let reply = match r.command {
                0 => data(true, r.cookie, r.offset, &disk.lock().unwrap()[place]),
                1 => {
                    stream.read_exact(&mut disk.lock().unwrap()[place]).unwrap();
                    chunk(true, 0, r.cookie, &[])
                }
                other => panic!("command {other}"),
            };
            stream.write_all(&reply).unwrap();
        }
    })
}

#[test]
fn two_who_write_parts_of_one_block_keep_what_the_other_wrote() {
    let server = disk_of_blocks();
    let export = server.open();
    std::thread::scope(|scope| {
        for writer in 0..2_u8 {
            let export = &export;
            scope.spawn(move || {
                let offset = 8192 + u64::from(writer) * 100;
                for round in 0..=255 {
                    let bytes = [round; 10];
                    assert_eq!(export.write_at(&bytes, offset).unwrap(), 10);
                    let mut there = [0; 10];
                    assert_eq!(export.read_at(&mut there, offset).unwrap(), 10);
                    assert_eq!(there, bytes, "writer {writer}, round {round}");
                }
            });
        }
    });
}

#[test]
fn blocks_and_largest_requests_of_the_server_are_kept_to() {
    let server = disk_of_blocks();
    let export = server.open();
    let mut buf = vec![0; 20_000];
    // from the middle of a block to the end of the largest request
    assert_eq!(export.read_at(&mut buf, 5000).unwrap(), 8192 - 904);
    assert!(buf[..7288] == content(5000, 7288));
    assert_eq!(export.write_at(&[9; 10], 4090).unwrap(), 10);
    assert_eq!(export.read_at(&mut buf[..20], 4085).unwrap(), 20);
    let mut wanted = content(4085, 20);
    wanted[5..15].fill(9);
    assert_eq!(buf[..20], wanted);
    assert_eq!(export.read_at(&mut buf, SIZE - 5).unwrap(), 5);
    assert_eq!(export.read_at(&mut buf, SIZE).unwrap(), 0);
}

#[test]
fn an_error_of_the_server_is_told_and_the_next_request_goes_well() {
    let server = Server::usual(|stream| {
        let first = next_request(stream).unwrap();
        let error = [&5_u32.to_be_bytes()[..], &3_u16.to_be_bytes(), b"bad", &77_u64.to_be_bytes()];
        let failed = [
            data(false, first.cookie, 0, &[1; 10]),
            chunk(true, 0x8002, first.cookie, &error.concat()),
        ];
        stream.write_all(&failed.concat()).unwrap();
        let second = next_request(stream).unwrap();
        stream.write_all(&data(true, second.cookie, 0, &[2; 100])).unwrap();
        assert!(next_request(stream).is_none());
    });
    let export = server.open();
    let error = export.read_at(&mut [0; 100], 0).unwrap_err().to_string();
    assert_eq!(error, "the NBD server answers EIO (error 5) for offset 77: bad");
    let mut buf = [0; 100];
    assert_eq!(export.read_at(&mut buf, 0).unwrap(), 100);
    assert_eq!(buf, [2; 100]);
}

/// What the server sends in answer to a read of 100 bytes at 0 with cookie 1, and what is said of
/// it.
#[test]
fn replies_that_break_the_protocol_end_the_connection() {
    let simple = |errno: u32, cookie: u64| {
        [&0x6744_6698_u32.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes()].concat()
    };
    let hole = |at: u64, len: u32| [&at.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("begins with", vec![0xaa; 64]),
        ("request 99, which is none", data(true, 99, 0, &[0; 100])),
        ("were not asked for", data(true, 1, 0, &[0; 101])),
        ("were not asked for", data(true, 1, 50, &[0; 51])),
        ("were not asked for", data(true, 1, u64::MAX, &[0; 10])),
        ("were not asked for", chunk(true, 2, 1, &hole(0, u32::MAX))),
        ("were not asked for", chunk(true, 2, 1, &hole(0, 0))),
        ("came twice", [data(false, 1, 0, &[0; 60]), data(true, 1, 59, &[0; 41])].concat()),
        ("without all of its bytes", data(true, 1, 0, &[0; 99])),
        ("without all of its bytes", chunk(true, 0, 1, &[])),
        ("makes no sense", chunk(false, 0, 1, &[])),
        ("makes no sense", data(true, 1, 0, &[])),
        ("makes no sense", chunk(true, 2, 1, &[0; 13])),
        ("makes no sense", chunk(true, 99, 1, &[0; 13])),
        ("makes no sense", states(1, CONTEXT, &[(100, 0)])),
        ("structured one was agreed", [simple(0, 1), vec![0; 100]].concat()),
        ("structured one was agreed", simple(5, 1)),
        ("an error has", chunk(true, 0x8001, 1, &[0; 5])),
        ("an error has", chunk(true, 0x8001, 1, &[0, 0, 0, 5, 0, 9, 1])),
        ("an error has", chunk(true, 0x8001, 1, &vec![1; 70_000])),
        ("the number 0", chunk(true, 0x8001, 1, &[0; 6])),
        ("closed the connection", data(true, 1, 0, &[0; 100])[..60].to_vec()),
        ("closed the connection", Vec::new()),
    ];
    for (what, reply) in cases {
        let server = Server::usual(move |stream| {
            let request = next_request(stream).unwrap();
            assert_eq!((request.cookie, request.len), (1, 100));
            // the client may have enough before it has all
            let _ = stream.write_all(&reply);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = io::copy(stream, &mut io::sink());
        });
        let export = server.open();
        let error = export.read_at(&mut [0; 100], 0).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
        // nothing is asked of it again, and the reason stays
        let again = export.read_at(&mut [0; 100], 0).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        drop(export);
    }
}

#[test]
fn states_of_blocks_are_checked() {
    let ask = |reply: Vec<u8>| {
        let server = Server::usual(move |stream| {
            let request = next_request(stream).unwrap();
            assert_eq!((request.command, request.offset), (7, 4096));
            stream.write_all(&reply).unwrap();
            let _ = io::copy(stream, &mut io::sink());
        });
        let export = server.open();
        let found = export.block_status(BASE_ALLOCATION, 4096);
        drop(export);
        found
    };
    let rest = u32::try_from(SIZE - 4096).unwrap();
    let found = ask(states(1, CONTEXT, &[(4096, 0), (4096, 0), (8192, STATE_ZERO | 1)])).unwrap();
    assert_eq!(found, [(4096..12_288, 0), (12_288..20_480, 3)]);
    assert_eq!(ask(states(1, CONTEXT, &[(rest, 2)])).unwrap(), [(4096..SIZE, 2)]);
    let twice = states(1, CONTEXT, &[(4096, 0)]);
    let mut first = twice.clone();
    // without the flag that it is the last
    first[5] = 0;
    for (what, reply) in [
        ("behind the export's end", states(1, CONTEXT, &[(rest + 1, 0)])),
        ("behind the export's end", states(1, CONTEXT, &[(u32::MAX, 0), (u32::MAX, 0)])),
        ("of no bytes", states(1, CONTEXT, &[(0, 0)])),
        ("of no bytes", states(1, CONTEXT, &[(4096, 0), (0, 0)])),
        ("unasked", states(1, CONTEXT, &[(rest, 0), (1, 0)])),
        ("not agreed on", states(1, CONTEXT + 1, &[(4096, 0)])),
        ("came twice", [first, twice].concat()),
        ("without any block", chunk(true, 0, 1, &[])),
        ("a block status has", chunk(true, 5, 1, &CONTEXT.to_be_bytes())),
        ("a block status has", chunk(true, 5, 1, &[0; 11])),
    ] {
        let error = ask(reply).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    let server = Server::usual(|stream| {
        let _ = io::copy(stream, &mut io::sink());
    });
    let export = server.open();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let error = export.read_at(&mut [0; 100], 0).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_stop_ends_what_waits_for_a_silent_server() {
    const CALLERS: usize = 4;
    let (all_asked, asked) = mpsc::channel();
    let server = Server::usual(move |stream| {
        for _ in 0..CALLERS {
            next_request(stream).unwrap();
        }
        all_asked.send(Instant::now()).unwrap();
        let _ = io::copy(stream, &mut io::sink());
    });
    let export = Export::open(&server.uri_within(600)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    export.set_cancel_flag(Arc::clone(&stop));
    let refused = || {
        let error = export.read_at(&mut [0; 100], 0).unwrap_err().to_string();
        assert!(error.contains("the run is to stop"), "{error}");
    };
    let stopped = std::thread::scope(|scope| {
        (0..CALLERS).for_each(|_| drop(scope.spawn(refused)));
        let since = asked.recv().unwrap();
        stop.store(true, Ordering::SeqCst);
        since
    });
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
    refused();
}

#[test]
fn handshakes_that_go_wrong_say_what_is_wrong() {
    let export = |kind: u32, words: &str| {
        let [structured, list, set, _] = handshake(1, [1, 1, 1 << 20]);
        vec![structured, list, set, option_reply(7, kind, words.as_bytes())]
    };
    let go = |info: Vec<u8>| {
        let [structured, list, set, _] = handshake(1, [1, 1, 1 << 20]);
        let last = [option_reply(7, 3, &info), option_reply(7, 1, &[])].concat();
        vec![structured, list, set, last]
    };
    let many = option_reply(9, 4, b"\0\0\0\x01x").repeat(2000);
    let error = 1_u32 << 31;
    for (what, kind, options) in [
        ("wants TLS", ErrorKind::Unsupported, vec![option_reply(8, error + 5, &[])]),
        ("wants TLS", ErrorKind::Unsupported, export(error + 5, "")),
        ("no export \"x\": none here", ErrorKind::NotFound, export(error + 6, "none here")),
        ("refuses: go away", ErrorKind::Denied, export(error + 2, "go away")),
        ("too old", ErrorKind::Unsupported, export(error + 1, "")),
        ("how large", ErrorKind::Corrupt, export(1, "")),
        ("18446744073709551615 bytes", ErrorKind::Corrupt, go(export_info(u64::MAX, 1))),
        ("information has 9", ErrorKind::Corrupt, go(export_info(SIZE, 1)[..11].to_vec())),
        ("no type", ErrorKind::Corrupt, go(vec![0])),
        ("smallest block", ErrorKind::Corrupt, {
            let [a, b, c, _] = handshake(1, [3, 4096, 4096]);
            vec![a, b, c, handshake(1, [3, 4096, 4096])[3].clone()]
        }),
        ("largest request", ErrorKind::Corrupt, handshake(1, [4096, 4096, 512]).into()),
        ("asked for option 8 it answers 7", ErrorKind::Corrupt, vec![option_reply(7, 1, &[])]),
        ("with 20000 bytes", ErrorKind::Corrupt, vec![option_reply(8, 1, &[0; 20_000])]),
        ("another number", ErrorKind::Corrupt, vec![vec![0; 20]]),
        ("without end", ErrorKind::Corrupt, vec![option_reply(8, 1, &[]), many]),
        (
            "closed the connection",
            ErrorKind::Unavailable,
            vec![option_reply(8, 1, &[])[..9].to_vec()],
        ),
    ] {
        let server = Server::start(options, |stream| {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = io::copy(stream, &mut io::sink());
        });
        let error = Export::open(&server.uri()).unwrap_err();
        let text = format!("{error} {:?}", std::error::Error::source(&error));
        assert!(text.contains(what), "{what}: {text}");
        assert_eq!(error.kind(), kind, "{text}");
        assert!(error.hint_text().is_some() || kind == ErrorKind::Unavailable, "{text}");
    }
}

#[test]
fn a_whole_conversation_is_understood_from_its_bytes() {
    let mut bytes = greeting();
    handshake(1, [1, 4096, 1 << 20]).iter().for_each(|reply| bytes.extend(reply));
    bytes.extend(data(true, 1, 0, &content(0, 4096)));
    bytes.extend(states(2, CONTEXT, &[(65_536, 0), (4096, 3)]));
    let heard = replay(&bytes);
    assert_eq!(heard.error, None);
    assert_eq!(heard.export, Some((SIZE, 1, 1 << 20)));
    assert_eq!(heard.data, Some(content(0, 4096)));
    assert_eq!(heard.states, Some(vec![(0..65_536, 0), (65_536..69_632, 3)]));
    for cut in 0..bytes.len() {
        assert!(replay(&bytes[..cut]).error.is_some(), "cut at {cut}");
    }
}
