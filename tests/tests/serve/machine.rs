//! A virtual machine of Debian's parts (`tests/guest`), run by QEMU without help of the processor.
//! It does what its serial line says.

mod disk;
mod qmp;

pub(crate) use disk::Disk;
pub(crate) use qmp::Qmp;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tests::target_dir;

/// A boot takes seconds; whoever shares the processor with ten others gets his minutes.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the kernel is told, by a boot loader or by QEMU. A panic ends the machine.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 mitigations=off";

pub(crate) struct Machine {
    child: Child,
    console: Receiver<String>,
    /// All that it has said, for whoever looks for the cause of a failure.
    seen: Vec<String>,
    qmp: PathBuf,
}

/// A part that `tests/guest/get` made.
fn part(name: &str) -> PathBuf {
    target_dir().join("test-guest").join(name)
}

impl Machine {
    /// Says what is missing, if something is.
    pub(crate) fn can_run(name: &str) -> bool {
        let programs = [&["qemu-system-x86_64", "--version"][..], &["syslinux", "--version"]];
        let has = |line: &[&str]| tests::run(line[0], &line[1..]).status.success();
        let all = programs.into_iter().all(has) && part("made").exists();
        if !all {
            tests::skip(&format!("{name} needs a virtual machine (tests/setup)"));
        }
        all
    }

    /// Turns it on; its sockets are in a directory with a short path.
    pub(crate) fn start(sockets: &Path, arguments: &[&str]) -> Self {
        let qmp = sockets.join("qmp");
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-accel", "tcg", "-m", "256", "-nodefaults", "-no-user-config"]);
        command.args(["-no-reboot", "-display", "none", "-serial", "stdio"]);
        command.args(["-device", "virtio-rng-pci"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, console) = channel();
        // it ends with the machine
        std::thread::spawn(move || {
            for line in output.split(b'\n') {
                let Ok(line) = line else { return };
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, console, seen: Vec::new(), qmp }
    }

    /// With the kernel from the host, and its root on the second partition of its first disk; until
    /// it waits for orders.
    pub(crate) fn boot(sockets: &Path, arguments: &[&str]) -> Self {
        let (kernel, initrd) = (part("vmlinuz"), part("initrd.gz"));
        let line = format!("{KERNEL} root=/dev/vda2");
        let own = ["-kernel", kernel.to_str().unwrap(), "-initrd", initrd.to_str().unwrap()];
        let mut this = Self::start(sockets, &[&own[..], &["-append", &line], arguments].concat());
        this.waits_for_orders();
        this
    }

    /// With nothing but what is in memory, and `nbd-client`.
    pub(crate) fn boot_without_disk(sockets: &Path, arguments: &[&str]) -> Self {
        let (kernel, initrd) = (part("vmlinuz"), part("initrd-nbd.gz"));
        let own = ["-kernel", kernel.to_str().unwrap(), "-initrd", initrd.to_str().unwrap()];
        let mut this = Self::start(sockets, &[&own[..], &["-append", KERNEL], arguments].concat());
        this.waits_for_orders();
        this
    }

    /// Until its first process is ready.
    pub(crate) fn waits_for_orders(&mut self) {
        while self.line() != "ready" {}
    }

    /// The next line of the console; none may be of a failure to read or to write.
    fn line(&mut self) -> String {
        let line = self.console.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|why| panic!("{why}\n{}", self.seen.join("\n")));
        self.seen.push(line.clone());
        let failed = ["I/O error", "EXT4-fs error", "no root", "Kernel panic"];
        let bad = failed.iter().any(|word| line.contains(word));
        assert!(!bad, "{}", self.seen.join("\n"));
        line
    }

    /// Types a command.
    pub(crate) fn types(&mut self, command: &str) {
        let keyboard = self.child.stdin.as_mut().unwrap();
        keyboard.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// What a command printed that was typed; it has gone well.
    pub(crate) fn answers(&mut self) -> String {
        let mut said = Vec::new();
        loop {
            let line = self.line();
            if let Some(code) = line.strip_prefix('@') {
                assert_eq!(code, "0", "{}", self.seen.join("\n"));
                return said.join("\n");
            }
            said.extend((!line.is_empty()).then_some(line));
        }
    }

    /// Does a command, and gives what it printed.
    pub(crate) fn does(&mut self, command: &str) -> String {
        self.types(command);
        self.answers()
    }

    /// Its root is left as a file system that is clean, and it is turned off.
    pub(crate) fn ends(mut self) {
        self.does("sync; ! grep -q ' / ext4 ' /proc/mounts || mount -o remount,ro /");
        self.types("poweroff -f");
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it stays on\n{}", self.seen.join("\n"));
            std::thread::park_timeout(Duration::from_millis(10));
        }
        assert!(self.child.wait().unwrap().success());
    }

    /// Its other socket.
    pub(crate) fn qmp(&self) -> Qmp {
        Qmp::connect(&self.qmp)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // it has ended by itself, where all went well
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
