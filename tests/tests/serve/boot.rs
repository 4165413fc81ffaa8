//! A virtual machine whose disk is an export: it boots from it, writes, and at last leaves it.

use super::live::until;
use super::machine::{Disk, Machine, Qmp};
use super::overlay::copied;
use super::{MIB, Server, Stage, text};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use tests::{Filesystem, LoopDevice};

/// So slow that the volume takes a minute and more; what a client waits for comes first.
const SLOW: [&str; 2] = ["--limit-download", "1MiB"];
const BACKUP: &str = "disk@d1";

/// A repository with a backup of a disk that boots.
fn stage(name: &str) -> Option<(Stage, Disk)> {
    if !Machine::can_run(name) {
        return None;
    }
    let stage = Stage::new(name, &["nbdcopy"])?;
    let disk = Disk::make(stage.directory.path());
    let image = stage.path("disk");
    fs::write(&image, &disk.bytes).unwrap();
    let line = ["backup", text(&image), "--volume", "disk", "--backup-id", "d1", "--quiet"];
    stage.mover.ok(line);
    fs::remove_file(image).unwrap();
    Some((stage, disk))
}

impl Stage {
    /// A live restore of the disk, until it is dropped.
    fn live_disk(&self, target: &Path, more: &[&str]) -> Server {
        let line = [&[BACKUP, text(target), "--live", "--quiet"], more].concat();
        Server::start_as("restore", &self.mover, &self.sockets.path().join("s"), &line)
    }
}

/// What a machine is told of a disk, as the manual has it.
fn drive(server: &Server, more: &str) -> String {
    format!("file={},format=raw,if=virtio,discard=unmap{more}", server.uri(""))
}

#[test]
fn a_machine_boots_from_a_backup_and_leaves_it_as_it_was() {
    let Some((stage, disk)) = stage("serve-boot") else { return };
    let server = stage.serve(&[BACKUP, "--overlay", "temp"]);
    let mut machine = Machine::start(stage.sockets.path(), &["-drive", &drive(&server, "")]);
    machine.waits_for_orders();
    let sum = machine.does("sha256sum </data");
    assert_eq!(sum.split(' ').next().unwrap(), disk.data_sum);
    let mut wanted = Disk { bytes: disk.bytes.clone(), data_sum: disk.data_sum.clone() };
    machine.does("cp /data /copy; echo written >/file; rm /bin/yes; sync");
    machine.does("ln -s busybox /bin/yes");
    machine.does(&wanted.fills("overlay", 3, 5));
    machine.does(&wanted.trims(16, 4));
    machine.does("echo 3 >/proc/sys/vm/drop_caches; cmp /data /copy");
    machine.ends();
    let seen = copied(&server.uri(""), &stage.path("copied"));
    wanted.expect(&seen, stage.directory.path(), &[("/file", "written\n")]);
    drop(server);
    let restored = stage.path("restored");
    stage.mover.ok(["restore", BACKUP, text(&restored), "--quiet"]);
    assert!(fs::read(&restored).unwrap() == disk.bytes);
}

/// The server ends and begins anew under a machine that writes, while most of the disk is not
/// there.
#[test]
fn a_machine_runs_while_its_disk_arrives() {
    let Some((stage, mut disk)) = stage("serve-boot-live") else { return };
    let target = stage.path("t");
    let server = stage.live_disk(&target, &SLOW);
    let drive = drive(&server, ",cache=none,file.reconnect-delay=300");
    let mut machine = Machine::boot(stage.sockets.path(), &["-drive", &drive]);
    let sum = machine.does("sha256sum </data");
    assert_eq!(sum.split(' ').next().unwrap(), disk.data_sum);
    machine.does("echo early >/early; sync");
    machine.does(&disk.fills("early", 3, 5));
    machine.does(&disk.trims(500, 4));
    assert!(stage.held(), "all of it is there: nothing is tested");
    // answered and not flushed, and then in the middle of it
    machine.does(&disk.fills("answered", 200, 16));
    machine.types(&disk.fills("across", 300, 64));
    assert_eq!(server.end(), Some(143), "it is not whole");
    let server = stage.live_disk(&target, &[]);
    machine.answers();
    machine.does("cp /data /copy; sync");
    until("all is there", || !stage.held());
    machine.does("echo late >/late; echo 3 >/proc/sys/vm/drop_caches; cmp /data /copy");
    machine.does(&disk.fills("late", 600, 5));
    machine.ends();
    assert_eq!(server.end(), Some(0));
    let files = [("/early", "early\n"), ("/late", "late\n")];
    disk.expect(&fs::read(&target).unwrap(), stage.directory.path(), &files);
}

/// The commands of the manual, for a device and the machine's own name of the export.
fn leaves(qmp: &mut Qmp, device: &Path) {
    let nodes = qmp.execute(&json!({"execute": "query-named-block-nodes"}));
    let is_export =
        |node: &&Value| node["drv"] == "raw" && node["file"].to_string().contains("nbd");
    let export = nodes.as_array().unwrap().iter().find(is_export).expect("its disk is an export");
    let export = export["node-name"].as_str().unwrap();
    let manual = include_str!("../../../docs/live-restore.md");
    let lines = manual.lines().filter(|line| line.starts_with("{\"execute\""));
    for line in lines {
        let line = line
            .replace("/dev/vg0/db", text(device))
            .replace("\"export\"", &json!(export).to_string());
        let command: Value = serde_json::from_str(&line).unwrap();
        if command["execute"] == "job-complete" {
            qmp.event("BLOCK_JOB_READY");
        }
        qmp.execute(&command);
    }
    let done = qmp.event("BLOCK_JOB_COMPLETED");
    assert_eq!(done["data"].get("error"), None, "{done}");
}

#[test]
fn a_machine_leaves_for_the_device_and_goes_on() {
    tests::require_root!();
    let Some((stage, mut disk)) = stage("serve-boot-leave") else { return };
    let (file, journal) = (stage.path("device"), stage.path("j"));
    // longer than the volume, and full of something else
    fs::write(&file, vec![0xee; usize::try_from(Disk::SIZE + 3 * MIB).unwrap()]).unwrap();
    let device = LoopDevice::attach(&file);
    let line = ["--journal", text(&journal), "--whole-target"];
    let server = stage.live_disk(device.path(), &line);
    let drive = drive(&server, ",cache=none");
    let mut machine = Machine::boot(stage.sockets.path(), &["-drive", &drive]);
    machine.does(&disk.fills("before", 3, 5));
    machine.does("mkfifo /dev/done");
    // from here on it writes without a break
    machine.does(
        "(n=0; while ! [ -e /dev/stop ]; do n=$((n + 1)); echo $n >>/log; sync; done; \
         echo $n >/dev/done) &",
    );
    until("all is there", || !stage.held());
    let mut qmp = machine.qmp();
    leaves(&mut qmp, device.path());
    assert_eq!(server.end(), Some(0));
    machine.does(&disk.fills("after", 300, 20));
    machine.does(&disk.trims(500, 4));
    let written: u64 = machine.does("touch /dev/stop; cat /dev/done").parse().unwrap();
    machine.does("cp /data /copy; sync; echo 3 >/proc/sys/vm/drop_caches; cmp /data /copy");
    machine.ends();
    drop(device);
    let log: String = (1..=written).map(|n| format!("{n}\n")).collect();
    let found = fs::read(&file).unwrap();
    let (found, behind) = found.split_at(disk.bytes.len());
    disk.expect(found, stage.directory.path(), &[("/log", &log)]);
    assert!(behind.iter().all(|byte| *byte == 0));
}

/// The kernel of a machine as a client of its own, with two connections.
#[test]
fn the_client_of_the_kernel_mounts_it() {
    if !Machine::can_run("serve-kernel") {
        return;
    }
    let Some(stage) = Stage::new("serve-kernel", &["nbdcopy"]) else { return };
    let image = stage.path("fs");
    fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
    Filesystem::Ext4.make(&image);
    stage.mover.ok(["backup", text(&image), "--volume", "fs", "--backup-id", "f1", "--quiet"]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let line = ["fs@f1", "--overlay", "temp", "--listen", &listen, "--insecure"];
    let server = stage.serve(&line);
    let network = ["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n"];
    let mut machine = Machine::boot_without_disk(stage.sockets.path(), &network);
    machine.does("ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up");
    // the host's loopback, as the machine sees it
    let attach = format!("nbd-client 10.0.2.2 {port} /dev/nbd0 -name fs@f1 -connections 2");
    machine.does(&attach);
    machine.does("mount -t ext4 -o discard /dev/nbd0 /root");
    machine.does("seq 20000 >/root/file; cp /root/file /root/copy; sync; rm /root/copy; sync");
    machine.does("umount /root && nbd-client -d /dev/nbd0");
    machine.does(&attach);
    machine.does("mount -t ext4 /dev/nbd0 /root; seq 20000 | cmp - /root/file");
    machine.does("umount /root && nbd-client -d /dev/nbd0");
    machine.ends();
    let copy = stage.path("copy");
    copied(&server.uri(""), &copy);
    Filesystem::Ext4.check(&copy);
    let dump = format!("dump /file {}", stage.path("found").display());
    tests::run_ok("debugfs", ["-R", &dump, text(&copy)]);
    let numbers: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert!(fs::read_to_string(stage.path("found")).unwrap() == numbers);
}
