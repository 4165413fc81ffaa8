//! Exports below other things: a server of QEMU's and one of nbdkit's that serve them on, an image
//! of QEMU's that lies over one, a file system of one that is mounted.

use super::overlay::{Attached, copied, qemu_io};
use super::{CHUNK, MIB, Server, Stage, text};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tests::{Filesystem, LoopDevice, Mount, run, run_ok};

/// A server of another kind, ended when dropped.
struct Other(Child);

impl Other {
    /// Once it listens.
    fn start(program: &str, arguments: &[&str], socket: &Path) -> Self {
        let child = Command::new(program).args(arguments).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let mut this = Self(child);
        while UnixStream::connect(socket).is_err() {
            let ended = this.0.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{program}: {ended:?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        this
    }

    /// By a signal, once it has written what it still holds.
    fn end(mut self) {
        run("kill", [self.0.id().to_string()]);
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // it has ended, where all went well
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every kind of write, and what is then to be read.
fn changes(stage: &Stage) -> (Vec<&'static str>, Vec<u8>) {
    let commands = vec![
        "write -P 0x5a 1000 5000",
        "write -z 3M 300k",
        "write -z -u 5M 256k",
        "discard 8M 1M",
        "write -f -P 0x11 10M 3M",
        "flush",
    ];
    let mut wanted = stage.images[0].clone();
    let mut fill = |at: u64, len: u64, byte| {
        wanted[usize::try_from(at).unwrap()..][..usize::try_from(len).unwrap()].fill(byte);
    };
    fill(1000, 5000, 0x5a);
    fill(3 * MIB, 300 << 10, 0);
    fill(5 * MIB, 256 << 10, 0);
    fill(8 * MIB, MIB, 0);
    fill(10 * MIB, 3 * MIB, 0x11);
    (commands, wanted)
}

fn writes_through(stage: &Stage, server: &Server, other: Other, socket: &Path) {
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let (commands, wanted) = changes(stage);
    assert!(copied(&uri, &stage.path("copied")) == stage.images[0]);
    qemu_io(&uri, &commands).unwrap();
    assert!(copied(&uri, &stage.path("copied")) == wanted);
    other.end();
    assert!(copied(&server.uri(""), &stage.path("copied")) == wanted);
}

#[test]
fn servers_of_others_serve_it_on() {
    let programs = ["qemu-io", "qemu-nbd", "nbdkit", "nbdcopy"];
    let Some(stage) = Stage::new("serve-chain", &programs) else { return };
    let line = ["db@b1", "--overlay", "temp"];
    let server = stage.serve(&line);
    let socket = stage.sockets.path().join("qemu");
    let options = format!(
        "driver=raw,discard=unmap,file.driver=nbd,file.server.type=unix,file.server.path={}",
        server.socket().display()
    );
    let arguments =
        ["--image-opts", "--discard=unmap", "--persistent", "--shared=4", "-k", text(&socket)];
    let other = Other::start("qemu-nbd", &[&arguments[..], &[&options]].concat(), &socket);
    writes_through(&stage, &server, other, &socket);
    drop(server);
    let server = stage.serve(&line);
    let socket = stage.sockets.path().join("nbdkit");
    let below = format!("socket={}", server.socket().display());
    let arguments = ["--foreground", "--unix", text(&socket), "nbd", &below];
    let other = Other::start("nbdkit", &arguments, &socket);
    writes_through(&stage, &server, other, &socket);
}

/// The other way to write over a backup: QEMU's own image keeps what is written.
#[test]
fn an_image_of_qemu_lies_over_a_backup() {
    let Some(stage) = Stage::new("serve-backing", &["qemu-img", "qemu-io"]) else { return };
    let server = stage.serve(&["db@b1", "db@b2"]);
    let uri = server.uri("db@b1");
    let (image, flat) = (stage.path("image"), stage.path("flat"));
    run_ok("qemu-img", ["create", "-f", "qcow2", "-b", &uri, "-F", "raw", text(&image)]);
    let (commands, wanted) = changes(&stage);
    let mut line = vec!["-f", "qcow2"];
    commands.iter().for_each(|command| line.extend(["-c", command]));
    run_ok("qemu-io", [&line[..], &[text(&image)]].concat());
    run_ok("qemu-img", ["convert", "-f", "qcow2", "-O", "raw", text(&image), text(&flat)]);
    assert!(fs::read(&flat).unwrap() == wanted);
    run_ok("qemu-img", ["check", "-f", "qcow2", text(&image)]);
    // it is as it was, and another than the next one
    let first = stage.path("first");
    fs::write(&first, &stage.images[0]).unwrap();
    let compare =
        |uri: &str| run("qemu-img", ["compare", "-f", "raw", "-F", "raw", text(&first), uri]);
    assert!(compare(&uri).status.success());
    let differs = compare(&server.uri("db@b2"));
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    let said = String::from_utf8_lossy(&differs.stdout).into_owned();
    let at = said.rsplit(' ').next().unwrap().trim().trim_end_matches('!').parse::<u64>().unwrap();
    // by whole sectors
    assert_eq!(at, (3 * CHUNK + 100) / 512 * 512, "{said}");
    // and moved to it: only what differs between the two is copied
    let rebase = ["rebase", "-f", "qcow2", "-b", &server.uri("db@b2"), "-F", "raw", text(&image)];
    run_ok("qemu-img", rebase);
    run_ok("qemu-img", ["convert", "-f", "qcow2", "-O", "raw", text(&image), text(&flat)]);
    assert!(fs::read(&flat).unwrap() == wanted);
}

/// The commands of the manual.
#[test]
fn a_file_system_is_mounted_to_be_read() {
    tests::require_root!();
    let Some(stage) = Stage::new("serve-mounted", &["nbdfuse"]) else { return };
    let image = stage.path("fs");
    fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    Filesystem::Ext4.make(&image);
    let (fuse, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let content: Vec<u8> =
        (0..5 * MIB).flat_map(|at| (at / 7).to_le_bytes().into_iter().take(1)).collect();
    {
        let device = LoopDevice::attach(&image);
        let mount = Mount::new(device.path(), files.path(), "ext4", "rw");
        fs::write(mount.path().join("file"), &content).unwrap();
    }
    stage.mover.ok(["backup", text(&image), "--volume", "fs", "--quiet"]);
    let server = stage.serve(&["fs@latest"]);
    let attached = Attached::new(&server.uri(""), fuse.path());
    let device = LoopDevice::attach_read_only(&attached.0.join("nbd"));
    let mount = Mount::new(device.path(), files.path(), "ext4", "ro,noload");
    assert!(fs::read(mount.path().join("file")).unwrap() == content);
    assert!(fs::write(mount.path().join("file"), b"x").is_err());
}
