//! How serving begins and ends; what it keeps, and what it refuses.

use super::{CHUNK, MIB, SIZE, Server, Stage, text};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tests::{run, run_ok};

#[test]
fn a_command_runs_as_long_as_it_serves() {
    let Some(stage) = Stage::new("serve-run", &["qemu-img"]) else { return };
    let serve = |command: &str| stage.mover.run(["serve", "db@latest", "--run", command]);
    let done = serve("qemu-img info --output=json \"$uri\"").expect_code(0);
    // what it prints is all that there is on stdout
    assert_eq!(done.document()["virtual-size"], 32 * MIB);
    assert!(done.stderr.contains("served"), "{}", done.stderr);
    let failed = serve("exit 3").expect_code(1);
    assert!(failed.stderr.contains("exit 3: it failed"), "{}", failed.stderr);
    // without a secret of ours
    let secret = stage
        .mover
        .command(["serve", "db@latest", "--run", "echo \"<$MOVER_PASSWORD>\""])
        .env("MOVER_PASSWORD", "hidden")
        .output()
        .unwrap();
    assert_eq!(secret.stdout, b"<>\n", "{secret:?}");
}

#[test]
fn the_last_client_ends_it_where_that_is_wished() {
    let Some(stage) = Stage::new("serve-idle", &["qemu-img"]) else { return };
    let mut server = stage.serve(&["db@latest", "--exit-when-idle"]);
    assert_eq!(fs::metadata(server.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    let pid = fs::read_to_string(server.pid_file()).unwrap();
    assert_eq!(pid, format!("{}\n", server.child().id()));
    run_ok("qemu-img", ["info", &server.uri("")]);
    let end = Instant::now() + Duration::from_secs(30);
    while server.child().try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it stays");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// What is served stays readable, though it was forgotten and collected meanwhile.
#[test]
fn a_lease_keeps_what_is_served() {
    let Some(stage) = Stage::new("serve-lease", &["qemu-img"]) else { return };
    assert!(stage.objects("leases").is_empty());
    let server = stage.serve(&["db@b2", "--changed-since", "db@b1", "--no-lease"]);
    assert!(stage.objects("leases").is_empty());
    drop(server);
    let server = stage.serve(&["db@b2", "--changed-since", "db@b1"]);
    assert_eq!(stage.objects("leases").len(), 2);
    for id in &stage.ids {
        stage.mover.ok(["forget", &format!("db@{id}"), "--quiet"]);
    }
    stage.mover.ok(["gc", "--quiet"]);
    let copied = stage.path("copied");
    run_ok("qemu-img", ["convert", "-f", "raw", "-O", "raw", &server.uri(""), text(&copied)]);
    assert!(fs::read(&copied).unwrap() == stage.images[1]);
    drop(server);
    assert!(stage.objects("leases").is_empty());
}

/// Damage is an error for the bytes that need it; the client, and others, read on.
#[test]
fn damage_fails_its_own_bytes_only() {
    let Some(stage) = Stage::new("serve-damage", &["qemu-io"]) else { return };
    // the first entry of each pack of chunks
    let packs = stage.objects("packs");
    for pack in &packs {
        let mut bytes = fs::read(pack).unwrap();
        if bytes[10] == 1 {
            bytes[64 + 20] ^= 1;
            fs::write(pack, bytes).unwrap();
        }
    }
    let server = stage.serve(&["db@b1"]);
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    let read = |chunk: u64| {
        let command = format!("read {} 4096", chunk * CHUNK);
        let output = run("qemu-io", ["-r", "-f", "raw", "-c", &command, &server.uri("")]);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let (bad, good): (Vec<_>, Vec<_>) =
        (0..512_u64).step_by(8).map(read).partition(|text| text.contains("rror"));
    assert!(!bad.is_empty() && good.len() > bad.len(), "{bad:?}");
    assert!(bad.iter().all(|text| text.contains("Input/output error")), "{bad:?}");
    // somebody who says nothing all the while
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
}

#[test]
fn tcp_is_for_loopback_and_for_who_says_so() {
    let Some(stage) = Stage::new("serve-tcp", &["qemu-img"]) else { return };
    let refused = |line: &[&str], words: &str| {
        let line = [&["serve", "db@latest"], line].concat();
        let output = stage.mover.run(line).expect_code(2);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    };
    refused(&[], "--socket PATH");
    refused(&["--listen", "localhost:0"], "say --insecure");
    refused(&["--listen", "0.0.0.0:0", "--insecure"], "without TLS");
    refused(&["--listen", "nowhere"], "localhost:10809");
    refused(&["--socket", text(&stage.path("key"))], "it exists, and is no socket");
    let socket = stage.path("s");
    refused(&["--socket", text(&socket), "--changed-since", "other@latest"], "other");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let server = stage.serve(&["db@latest", "--listen", &listen, "--insecure"]);
    run_ok("qemu-img", ["info", &format!("nbd://{listen}/db")]);
    drop(server);
}

/// A process that does not outlive a test that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // it has been waited for, where all went well
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_manager_gives_sockets_and_hears_of_it() {
    let Some(stage) = Stage::new("serve-manager", &["qemu-img"]) else { return };
    let Some(python) = tests::python() else {
        tests::skip("serve-manager needs the Python of tests/setup");
        return;
    };
    let (socket, manager) = (stage.sockets.path().join("given"), stage.sockets.path().join("m"));
    let heard = UnixDatagram::bind(&manager).unwrap();
    heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let script = "
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[2], sys.argv[2:])
";
    let mut command = std::process::Command::new(python);
    command.args(["-c", script, text(&socket), text(tests::mover_bin())]);
    command.args(["serve", "db@latest"]);
    stage.mover.dress(&mut command);
    command.env("NOTIFY_SOCKET", &manager).stdout(Stdio::null());
    let mut child = Killed(command.spawn().unwrap());
    let mut state = [0; 64];
    let len = heard.recv(&mut state).unwrap();
    assert_eq!(&state[..len], b"READY=1");
    run_ok("qemu-img", ["info", &format!("nbd+unix:///?socket={}", socket.display())]);
    run_ok("kill", [child.0.id().to_string()]);
    let len = heard.recv(&mut state).unwrap();
    assert_eq!(&state[..len], b"STOPPING=1");
    assert!(child.0.wait().unwrap().success());
    // it is the manager's to remove
    assert!(socket.exists());
}

/// What has the number and is no door is refused, and not waited at.
#[test]
fn a_socket_that_nobody_listens_on_is_no_door() {
    let Some(stage) = Stage::new("serve-no-door", &[]) else { return };
    let Some(python) = tests::python() else {
        tests::skip("serve-no-door needs the Python of tests/setup");
        return;
    };
    let script = "
import os, socket, sys
a, b = socket.socketpair()
os.dup2(a.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[1], sys.argv[1:])
";
    let mut command = std::process::Command::new(python);
    command.args(["-c", script, text(tests::mover_bin()), "serve", "db@latest"]);
    stage.mover.dress(&mut command);
    let refused = tests::MoverOutput::of(&mut command).expect_code(2);
    assert!(refused.stderr.contains("nobody listens on it"), "{}", refused.stderr);
}

/// A server whose figures can be asked for, at an address of its own.
pub(super) fn measured(stage: &Stage, arguments: &[&str]) -> (Server, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let server = stage.serve(&[arguments, &["--metrics-addr", &address]].concat());
    (server, address)
}

pub(super) fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

pub(super) fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn the_figures_say_what_was_served() {
    let Some(stage) = Stage::new("serve-metrics", &["qemu-io"]) else { return };
    let (server, address) = measured(&stage, &["db@latest"]);
    assert!(value(&scrape(&address), "mover_served_bytes_total") < 1.0);
    run_ok("qemu-io", ["-r", "-f", "raw", "-c", "read 0 1M", "-c", "read 0 1M", &server.uri("")]);
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let text = scrape(&address);
        // one figure is set after the other, and a scrape may come between them
        if value(&text, "mover_served_bytes_total") >= (2 * (MIB - CHUNK)) as f64
            && value(&text, "mover_cache_hits_total") >= 1.0
            && value(&text, "mover_fetched_bytes_total") >= 1.0
        {
            break;
        }
        assert!(Instant::now() < end, "{text}");
    }
}

/// Of what a client reads in order, most is there or under way when it is wanted, also below an
/// overlay.
#[test]
fn who_reads_in_order_is_read_ahead_of() {
    let Some(stage) = Stage::new("serve-ahead", &["qemu-io"]) else { return };
    let stored = stage.images[1].chunks(CHUNK as usize);
    let stored = stored.filter(|chunk| chunk.iter().any(|byte| *byte != 0)).count() as f64;
    let reads: Vec<String> =
        (0..SIZE / CHUNK).map(|n| format!("read {} {CHUNK}", n * CHUNK)).collect();
    for more in [&[][..], &["--overlay", "temp"]] {
        let (server, address) = measured(&stage, &[&["db@latest"], more].concat());
        let uri = server.uri("");
        let mut line = vec!["-r", "-f", "raw"];
        reads.iter().for_each(|read| line.extend(["-c", read]));
        run_ok("qemu-io", [&line[..], &[&uri]].concat());
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let text = scrape(&address);
            let (hits, misses) =
                (value(&text, "mover_cache_hits_total"), value(&text, "mover_cache_misses_total"));
            if hits + misses >= stored {
                // an entry has some 16 chunks: without it each of the 25 would be waited for
                assert!(misses <= 12.0, "{more:?}: {misses} misses of {stored} chunks");
                break;
            }
            assert!(Instant::now() < end, "{text}");
        }
    }
}
