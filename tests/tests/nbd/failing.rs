//! Servers that fail, dawdle, die, or are none: one clear error in bounded time, nothing committed,
//! nothing left at work.

use super::{MIB, Server, Stage, read_bytes};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What nbdkit's pattern plugin serves: each eight bytes say where they are.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).step_by(8).flat_map(u64::to_be_bytes).collect()
}

/// The offset that an error names, as one of the engine's reads.
fn named_offset(error: &str) -> u64 {
    let (_, rest) = error.split_once("at offset ").unwrap_or_else(|| panic!("none in {error}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn an_error_of_the_server_is_named_with_its_place() {
    let Some(stage) = Stage::new("nbd-error") else { return };
    let arguments = ["--filter=error", "pattern", "64M", "error-pread=EIO", "error-pread-rate=20%"];
    let server = Server::nbdkit(stage.socket("e"), &arguments);
    let line = ["backup", &server.uri(""), "--volume", "db"];
    let error = stage.expect_refused(&line, 1, &["read ", "EIO (error 5)", &server.uri("")]);
    assert!(named_offset(&error) < 64 * MIB, "{error}");
    drop(server);
    // a sound server, and the same command goes well
    let server = Server::nbdkit(stage.socket("e"), &["pattern", "64M"]);
    stage.mover.ok(line);
    drop(server);
    stage.expect_restores("db", &pattern(64 * MIB));
}

#[test]
fn a_slow_server_is_waited_for_with_many_requests_under_way() {
    let Some(stage) = Stage::new("nbd-delay") else { return };
    let arguments = ["--filter=delay", "pattern", "32M", "rdelay=500ms", "delay-extents=300ms"];
    let server = Server::nbdkit(stage.socket("d"), &arguments);
    let begun = Instant::now();
    let done = stage.mover.ok(["backup", &server.uri(""), "--volume", "db", "--json"]);
    let took = begun.elapsed();
    assert_eq!(read_bytes(&done), 32 * MIB);
    // one after the other, 32 reads of a MiB would take 16 s
    assert!(took < Duration::from_secs(14), "{took:?}");
    drop(server);
    stage.expect_restores("db", &pattern(32 * MIB));
}

/// A server that cannot be told to flush may lose what it took: that is never a plain success.
#[test]
fn a_server_that_cannot_flush_is_said_to_be_one() {
    let Some(stage) = Stage::new("nbd-no-flush") else { return };
    let image = stage.path("image");
    std::fs::write(&image, pattern(MIB)).unwrap();
    stage.mover.ok(["backup", image.to_str().unwrap(), "--volume", "db", "--quiet"]);
    let (file, bytes) = (stage.path("served"), format!("get_size=echo {MIB}"));
    std::fs::write(&file, vec![0; MIB as usize]).unwrap();
    let file = file.display();
    let copy = "iflag=count_bytes,skip_bytes oflag=seek_bytes bs=64k status=none";
    let pread = format!("pread=dd if={file} {copy} count=$3 skip=$4");
    let pwrite = format!("pwrite=dd of={file} {copy} conv=notrunc seek=$4");
    let eval = ["eval", &bytes, &pread, &pwrite];
    for (can, flushed) in [("can_flush=exit 0", true), ("can_flush=exit 3", false)] {
        let more = [can, "flush=exit 0"];
        let server = Server::nbdkit(stage.socket("f"), &[&eval[..], &more].concat());
        let line = |format: &str| {
            let line = ["restore", "db@latest", &server.uri(""), "--force", format];
            stage.mover.ok(line)
        };
        let done = line("--json").summary();
        assert_eq!(done["flushed"], flushed, "{done}");
        assert_eq!(done["warnings"].to_string().contains("not flushed"), !flushed, "{done}");
        assert_eq!(line("--no-progress").text().contains("not flushed"), !flushed);
    }
    assert!(std::fs::read(stage.path("served")).unwrap() == pattern(MIB));
}

/// Long before its time is over: a stop does not wait for a server that hangs.
#[test]
fn a_stop_does_not_wait_for_a_server_that_hangs() {
    let Some(stage) = Stage::new("nbd-hang") else { return };
    let arguments = ["--filter=delay", "pattern", "128M", "rdelay=500ms"];
    let server = Server::nbdkit(stage.socket("h"), &arguments);
    let uri = server.uri("");
    let line = ["backup", &uri, "--volume", "db", "--snapshot", "s1", "--json"];
    let mut command = stage.mover.command(line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(first["done_bytes"].as_u64().unwrap() < 128 * MIB, "{first}");
    server.signal("STOP");
    let begun = Instant::now();
    tests::run_ok("kill", ["-s", "TERM", &child.id().to_string()]);
    lines.for_each(drop);
    let (mut stderr, status) = (String::new(), child.wait().unwrap());
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(143), "{stderr}");
    // by its own doing, not because its time was over
    assert!(
        took < Duration::from_secs(8) && !stderr.contains("took too long"),
        "{took:?} {stderr}"
    );
    server.signal("CONT");
    stage.mover.ok(["backup", &uri, "--volume", "db", "--snapshot", "s1", "--quiet"]);
    drop(server);
    stage.expect_restores("db", &pattern(128 * MIB));
}

/// A server that kills itself when it is asked for the second half.
#[test]
fn a_server_that_dies_in_the_middle_ends_the_run() {
    let Some(stage) = Stage::new("nbd-death") else { return };
    let pread = "pread=if [ $4 -ge 33554432 ]; then kill -9 $PPID; exit 1; fi; \
                 head -c $3 /dev/urandom";
    let server = Server::nbdkit(stage.socket("x"), &["eval", "get_size=echo 64M", pread]);
    let line = ["backup", &server.uri(""), "--volume", "db"];
    let error = stage.expect_refused(&line, 1, &["read ", &server.uri("")]);
    assert!(named_offset(&error) < 64 * MIB, "{error}");
    assert!(error.contains("the NBD server closed the connection"), "{error}");
}

#[test]
fn what_is_no_export_is_told_apart() {
    let Some(stage) = Stage::new("nbd-refused") else { return };
    let backup = |uri: &str| ["backup".to_owned(), uri.to_owned(), "--volume=x".to_owned()];
    let refused = |uri: &str, code: i32, words: &[&str]| {
        let line = backup(uri);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        stage.expect_refused(&line, code, words);
    };
    let nowhere = stage.socket("nowhere");
    let uri = |path: &Path| format!("nbd+unix:///x?socket={}", path.display());
    refused(&uri(&nowhere), 2, &["is the server running"]);
    refused("nbds://localhost/x", 2, &["tls-certificates"]);
    refused("nbd+unix:///x", 2, &["socket is missing"]);

    let image = stage.path("disk.qcow2");
    let create = ["create", "-q", "-f", "qcow2", image.to_str().unwrap(), "1M"];
    tests::run_ok("qemu-img", create);
    let server = Server::qemu(stage.socket("q"), &image, &["--export-name=disk"]);
    refused(&server.uri("other"), 2, &["no export \"other\""]);
    stage.mover.ok(["backup", &server.uri("disk"), "--volume=x", "--quiet"]);
    let engine = ["backup", &server.uri("disk"), "--volume=x", "--engine=io_uring"];
    stage.expect_refused(&engine, 2, &["an NBD export is no file", "--engine auto"]);
    drop(server);

    let keys = stage.path("psk");
    std::fs::write(&keys, "alice:00112233445566778899aabbccddeeff\n").unwrap();
    let psk = format!("--tls-psk={}", keys.display());
    let server = Server::nbdkit(stage.socket("t"), &["--tls=require", &psk, "null", "1M"]);
    refused(&server.uri(""), 2, &["the server wants TLS", "nbdkit"]);
}

/// Servers of other protocols, servers that say nothing, servers that stop half way through a word.
#[test]
fn garbage_is_refused_in_bounded_time() {
    let Some(stage) = Stage::new("nbd-garbage") else { return };
    let greeting = [&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat();
    for (answer, stays, code, words) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), false, 3, "is it an NBD server"),
        (greeting[..9].to_vec(), false, 1, "closed the connection"),
        (greeting.clone(), false, 1, "closed the connection"),
        (greeting, true, 1, "says nothing for 2 s"),
        (Vec::new(), true, 1, "says nothing for 2 s"),
    ] {
        let socket = stage.socket("g");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&answer).unwrap();
            if stays {
                // until the client has gone
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let uri = format!("nbd+unix:///x?socket={}&x-timeout=2", socket.display());
        let begun = Instant::now();
        stage.expect_refused(&["backup", &uri, "--volume=x"], code, &[words]);
        assert!(begun.elapsed() < Duration::from_secs(60));
        server.join().unwrap();
        std::fs::remove_file(&socket).unwrap();
    }
    // over TCP, where nobody listens any more
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let uri = format!("nbd://127.0.0.1:{port}/x");
    stage.expect_refused(&["backup", &uri, "--volume=x"], 1, &["is the server running"]);
}

/// Over TCP, with several connections, as nbdkit offers them.
#[test]
fn several_connections_read_the_same_volume() {
    let Some(stage) = Stage::new("nbd-tcp") else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let pid_file = stage.socket("p.pid");
    let mut command = std::process::Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--ipaddr=127.0.0.1"]);
    command.args([format!("--port={port}"), format!("--pidfile={}", pid_file.display())]);
    command.args(["--filter=stats", "pattern", "64M"]);
    command.arg(format!("statsfile={}", stage.path("stats").display()));
    let server = Server::start(command, stage.socket("p"), &pid_file);
    let uri = format!("nbd://127.0.0.1:{port}/");
    let done = stage.mover.ok(["backup", &uri, "--volume", "db", "--json"]);
    assert_eq!(read_bytes(&done), 64 * MIB);
    drop(server);
    stage.expect_restores("db", &pattern(64 * MIB));
    // the server's own count: each byte once, and the first 68 KiB once more for what names the disk
    let stats = std::fs::read_to_string(stage.path("stats")).unwrap();
    let read =
        stats.lines().find(|line| line.starts_with("read:")).unwrap_or_else(|| panic!("{stats}"));
    assert!(read.contains(" 64.07 MiB"), "{stats}");
}
