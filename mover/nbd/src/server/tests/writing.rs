//! Clients that write, to the end or not.

use super::*;
use crate::server::connection::{Served, serve};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZERO: u16 = 6;
const FUA: u16 = 1;

fn head(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut head = 0x2560_9513_u32.to_be_bytes().to_vec();
    head.extend(flags.to_be_bytes());
    head.extend(command.to_be_bytes());
    head.extend(cookie.to_be_bytes());
    head.extend(offset.to_be_bytes());
    head.extend(len.to_be_bytes());
    head
}

impl Talk {
    /// A request without a payload, and its answer.
    fn ask(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> u32 {
        self.0.write_all(&head(flags, command, 11, offset, len)).unwrap();
        self.simple(11)
    }

    fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let head = head(flags, WRITE, 12, offset, data.len() as u32);
        self.0.write_all(&[&head, data].concat()).unwrap();
        self.simple(12)
    }
}

#[test]
fn what_is_written_is_read_and_durable_when_the_protocol_says_so() {
    let running = Running::with(32 << 20, Access::Writable);
    let volume = &running.volume;
    let durable = |at: usize| volume.durable.lock().unwrap()[at];
    let mut talk = running.connect();
    talk.greet();
    let go = talk.option(OPTION_GO, b"\0\0\0\0\0\x01\0\x03");
    // has flags, flush, FUA, trim, zeros, many connections, fast zeros; not read-only
    assert_eq!(go[0].1[10..], 0x96d_u16.to_be_bytes());
    // the longest payload is told
    assert_eq!(go[1].1, [&[0, 3][..], &[0, 0, 0, 1], &[0, 1, 0, 0], &[0, 64, 0, 0]].concat());
    let before = volume.bytes(0..SIZE);
    assert_eq!(talk.write(0, 1000, &[0x5a; 3000]), 0);
    assert_eq!(
        talk.read_simple(999, 3002),
        [&before[999..1000], &[0x5a; 3000], &before[4000..4001]].concat()
    );
    assert_eq!(durable(1000), before[1000]);
    // a flush of another client is a flush of all
    let mut other = running.connect();
    other.go();
    assert_eq!(other.ask(0, FLUSH, 0, 0), 0);
    assert_eq!(durable(1000), 0x5a);
    assert_eq!(talk.write(FUA, 5000, &[1, 2, 3]), 0);
    assert_eq!(durable(5001), 2);
    assert_eq!(talk.ask(FUA, ZERO, 5000, 2), 0);
    assert_eq!((durable(5001), durable(5002)), (0, 3));
    // fast zeros where they are fast, and an answer at once where not
    assert_eq!(talk.ask(1 << 4, ZERO, 0, SIZE as u32), 0);
    assert_eq!(talk.ask(1 << 4 | 1 << 1, ZERO, 0, SIZE as u32), 95);
    assert_eq!(talk.ask(1 << 1, ZERO, 0, SIZE as u32), 0);
    assert!(volume.bytes(0..SIZE).iter().all(|byte| *byte == 0));
    assert_eq!(talk.write(0, 0, &vec![7; SIZE]), 0);
    assert_eq!(talk.ask(FUA, TRIM, 0, 1 << 20), 0);
    assert_eq!(durable(0), 0);
    assert_eq!(talk.read_simple((1 << 20) - 1, 2), [0, 7]);
    let counts = running.server.counts();
    assert_eq!(counts.changes.load(Ordering::Relaxed), 8);
    assert_eq!(counts.written_bytes.load(Ordering::Relaxed), 3003 + SIZE as u64);
    assert_eq!(counts.flushes.load(Ordering::Relaxed), 4);
}

#[test]
fn changes_that_cannot_be_are_refused_one_by_one() {
    let running = Running::with(8 << 20, Access::Writable);
    let before = running.volume.bytes(0..SIZE);
    let mut talk = running.connect();
    talk.go();
    assert_eq!(talk.write(0, SIZE as u64 - 1, &[1, 2]), 28);
    assert_eq!(talk.write(0, u64::MAX, &[1, 2]), 28);
    assert_eq!(talk.write(0, 0, &[]), 22);
    assert_eq!(talk.write(1 << 7, 0, &[1]), 22);
    assert_eq!(talk.ask(0, ZERO, 1, SIZE as u32), 28);
    assert_eq!(talk.ask(0, TRIM, 1, SIZE as u32), 22);
    assert_eq!(talk.ask(0, FLUSH, 0, 1), 22);
    // longer than what was told
    assert_eq!(talk.write(0, 0, &vec![1; (2 << 20) + 1]), 22);
    for (kind, errno) in [
        (io::ErrorKind::StorageFull, 28),
        (io::ErrorKind::QuotaExceeded, 28),
        (io::ErrorKind::PermissionDenied, 1),
        (io::ErrorKind::ConnectionAborted, 108),
        (io::ErrorKind::Unsupported, 22),
        (io::ErrorKind::Other, 5),
    ] {
        *running.volume.fails.lock().unwrap() = Some(kind);
        assert_eq!(talk.write(FUA, 0, &[1, 2]), errno, "{kind}");
        assert_eq!(talk.ask(0, ZERO, 0, 1), errno, "{kind}");
        let fast = if kind == io::ErrorKind::Unsupported { 95 } else { errno };
        assert_eq!(talk.ask(1 << 4, ZERO, 0, 1), fast, "{kind}");
    }
    *running.volume.fails.lock().unwrap() = None;
    assert_eq!(running.server.counts().flushes.load(Ordering::Relaxed), 0);
    assert!(running.volume.bytes(0..SIZE) == before);
    // and the talk goes on
    assert_eq!(talk.write(0, 0, &[1]), 0);
    assert_eq!(talk.read_simple(0, 1), [1]);
}

#[test]
fn of_a_payload_that_does_not_end_nothing_is_written() {
    let running = Running::with(8 << 20, Access::Writable);
    let before = running.volume.bytes(0..SIZE);
    for sent in [0, 1, 300 << 10, (1 << 20) - 1] {
        let mut talk = running.connect();
        talk.go();
        let head = head(0, WRITE, 1, 0, 1 << 20);
        talk.0.write_all(&[&head[..], &vec![0x5a; sent]].concat()).unwrap();
        drop(talk);
        running.expect_left();
        assert!(running.volume.bytes(0..SIZE) == before, "{sent} bytes were sent");
    }
    running.expect_serves();
}

#[test]
fn who_stops_within_a_payload_keeps_nobody_else_from_writing() {
    let running = Running::with(8 << 20, Access::Writable);
    let stopped: Vec<Talk> = (0..6)
        .map(|_| {
            let mut talk = running.connect();
            talk.go();
            talk.0.write_all(&head(0, WRITE, 1, 0, 2 << 20)).unwrap();
            talk.0.write_all(&[0x5a; 4096]).unwrap();
            talk
        })
        .collect();
    let mut talk = running.connect();
    talk.go();
    for at in 0..8 {
        assert_eq!(talk.write(FUA, at << 18, &vec![at as u8; 256 << 10]), 0);
    }
    assert_eq!(talk.read_simple(7 << 18, 1), [7]);
    drop((stopped, talk));
    running.expect_left();
}

#[test]
fn the_client_of_this_crate_writes() {
    let running = Running::with(16 << 20, Access::Writable);
    let uri = PathBuf::from(format!("nbd+unix:///?socket={}", running.path().display()));
    let export = crate::Export::open(&uri).unwrap();
    assert!(!export.read_only());
    let data: Vec<u8> = (0..SIZE).map(|at| (at / 3) as u8).collect();
    let mut at = 0;
    while at < SIZE {
        at += export.write_at(&data[at..], at as u64).unwrap();
    }
    export.zero(BLOCK as u64..3 * BLOCK as u64).unwrap();
    export.flush().unwrap();
    let durable = running.volume.durable.lock().unwrap();
    assert!(durable[..BLOCK] == data[..BLOCK] && durable[3 * BLOCK..] == data[3 * BLOCK..]);
    assert!(durable[BLOCK..3 * BLOCK].iter().all(|byte| *byte == 0));
}

/// Whoever closes a volume waits for this: a change that is under way when clients are left ends.
#[test]
fn clients_are_gone_once_nothing_of_theirs_runs() {
    let rt = tokio::runtime::Builder::new_multi_thread();
    let rt = { rt }.worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (path, volume) = (directory.path().join("s"), Memory::new());
    let terms = served(&volume).exports[0].terms.clone();
    let export = ServedExport { terms, volume: Arc::clone(&volume) };
    let memory = ServerMemory { answer_bytes: 4 << 20, payload_bytes: 4 << 20 };
    let server = Arc::new(NbdServer::new(vec![export], memory, None));
    assert_eq!(server.gone().now_or_never(), Some(()), "nobody has come");
    let (running, at) = (Arc::clone(&server), path.clone());
    let run = rt.spawn(async move { running.run(&[Door::at_path(&at).unwrap()]).await });
    let stream = loop {
        if let Ok(stream) = UnixStream::connect(&path) {
            break stream;
        }
        std::thread::yield_now();
    };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut talk = Talk(stream);
    talk.go();
    let ((come, has_come), (go, goes)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    *volume.gate.lock().unwrap() = Some((come, goes));
    talk.0.write_all(&[&head(0, WRITE, 1, 0, 512)[..], &[0x5a; 512]].concat()).unwrap();
    has_come.recv().unwrap();
    run.abort();
    assert!(rt.block_on(run).unwrap_err().is_cancelled());
    assert_eq!(server.gone().now_or_never(), None, "a change is under way");
    go.send(()).unwrap();
    rt.block_on(server.gone());
    assert_eq!(volume.bytes(0..512), [0x5a; 512]);
}

fn served<V>(volume: &Arc<V>) -> Served<Arc<V>> {
    let terms = ExportTerms {
        names: vec![String::new()],
        description: String::new(),
        size_bytes: SIZE as u64,
        access: Access::Writable,
        preferred_bytes: BLOCK as u32,
        contexts: Vec::new(),
    };
    Served {
        exports: Arc::new([ServedExport { terms, volume: Arc::clone(volume) }]),
        counts: Arc::default(),
        memory: Pool::new(ServerMemory { answer_bytes: 4 << 20, payload_bytes: 4 << 20 })
            .of_connection(),
        sent_bytes: Arc::default(),
        _there: watch::Sender::new(()).subscribe(),
    }
}

/// The clock is the test's: it goes on whenever nobody has anything to do.
#[tokio::test(start_paused = true)]
async fn who_stops_within_a_payload_is_left_after_a_time() {
    for (offset, what) in [(0, "written"), (SIZE as u64, "refused")] {
        let volume = Memory::new();
        let before = volume.bytes(0..SIZE);
        let (mut client, stream) = tokio::io::duplex(1 << 20);
        let talk = tokio::spawn(serve(served(&volume), None, stream));
        let go = [&3_u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0"].concat();
        client.write_all(&go).await.unwrap();
        client.write_all(&head(0, WRITE, 1, offset, 1 << 20)).await.unwrap();
        client.write_all(&[0x5a; 5000]).await.unwrap();
        let begun = tokio::time::Instant::now();
        let ended = talk.await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut, "{what}: {ended}");
        assert!(begun.elapsed() >= Duration::from_secs(300), "{what}");
        assert!(volume.bytes(0..SIZE) == before);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
    }
}

/// Each write waits until the test lets it, and can be left meanwhile.
struct Waiting {
    lets: tokio::sync::Semaphore,
    come: tokio::sync::Semaphore,
    landed: Mutex<Vec<u64>>,
}

impl Volume for Arc<Waiting> {
    async fn read(&self, _: u64, _: &mut [u8]) -> io::Result<Vec<Range<usize>>> {
        Ok(Vec::new())
    }

    async fn states(&self, _: usize, _: Range<u64>) -> io::Result<Vec<(Range<u64>, u32)>> {
        Ok(Vec::new())
    }

    async fn write(&self, offset: u64, _: Bytes) -> io::Result<()> {
        self.come.add_permits(1);
        self.lets.acquire().await.unwrap().forget();
        self.landed.lock().unwrap().push(offset);
        Ok(())
    }
}

/// A client whose writes have all come to the volume.
async fn writer(writes: u32) -> (Arc<Waiting>, tokio::io::DuplexStream, Serving) {
    let volume = Arc::new(Waiting {
        lets: tokio::sync::Semaphore::new(0),
        come: tokio::sync::Semaphore::new(0),
        landed: Mutex::default(),
    });
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    let talk = tokio::spawn(serve(served(&volume), None, stream));
    let go = [&3_u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0"].concat();
    client.write_all(&go).await.unwrap();
    for at in 0..u64::from(writes) {
        client.write_all(&head(0, WRITE, at, at << 12, 512)).await.unwrap();
        client.write_all(&[0x5a; 512]).await.unwrap();
    }
    volume.come.acquire_many(writes).await.unwrap().forget();
    (volume, client, talk)
}

type Serving = tokio::task::JoinHandle<io::Result<()>>;

/// Somebody else may have written there since.
#[tokio::test(start_paused = true)]
async fn of_a_client_that_was_killed_nothing_lands_once_it_has_left() {
    // alone, behind a part of a request, and with all that may be under way
    for (writes, more) in [(1, 0), (1, 9), (64, 0)] {
        let (volume, mut client, talk) = writer(writes).await;
        client.write_all(&head(0, WRITE, 1, 0, 512)[..more]).await.unwrap();
        drop(client);
        let ended = timeout(Duration::from_secs(20), talk).await.expect("it stays");
        let ended = ended.unwrap().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof, "{writes} {more}: {ended}");
        volume.lets.add_permits(100);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(volume.landed.lock().unwrap().is_empty(), "{writes} {more}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_says_goodbye_is_answered_for_as_long_as_it_listens() {
    let (volume, mut client, talk) = writer(2).await;
    client.write_all(&head(0, DISCONNECT, 9, 0, 0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!talk.is_finished());
    volume.lets.add_permits(2);
    talk.await.unwrap().unwrap();
    assert_eq!(volume.landed.lock().unwrap().len(), 2);
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.unwrap();
    let simple = [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4]].concat();
    assert_eq!(answers.windows(8).filter(|at| **at == simple[..]).count(), 2);
    // the first answer cannot be written: nobody waits for the others
    let (volume, mut client, talk) = writer(2).await;
    client.write_all(&head(0, DISCONNECT, 9, 0, 0)).await.unwrap();
    drop(client);
    volume.lets.add_permits(1);
    let ended = timeout(Duration::from_secs(20), talk).await.expect("it stays");
    assert_eq!(ended.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(volume.landed.lock().unwrap().len(), 1);
}
