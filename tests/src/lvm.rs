//! LVM's own tools, which see some devices and nothing else, and need no device mapper.

use crate::{LoopDevice, run_ok};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> String {
    path.to_str().expect("a path of tests is text").to_owned()
}

/// Devices that LVM sees, and nothing else.
#[derive(Debug)]
pub struct Lvm {
    config: String,
    system: PathBuf,
    devices: Vec<LoopDevice>,
}

/// A configuration with which LVM sees these devices, and nothing else.
fn config(system: &Path, devices: &[&Path]) -> String {
    let own = devices.iter().map(|device| format!("\"a|^{}$|\",", text(device)));
    let filter = format!("[{}\"r|.*|\"]", own.collect::<String>());
    format!(
        "devices{{filter={filter} global_filter={filter} use_devicesfile=0 hints=\"none\" \
         obtain_device_list_from_udev=0 external_device_info_source=\"none\"}} \
         global{{locking_dir=\"{}\" use_lvmpolld=0}} \
         activation{{udev_sync=0 udev_rules=0 monitoring=0}} backup{{backup=0 archive=0}}",
        text(system)
    )
}

fn run_lvm(system: &Path, config: &str, command: &str, arguments: &[&str]) -> String {
    let system = format!("LVM_SYSTEM_DIR={}", text(system));
    let own = [&system, "LVM_SUPPRESS_FD_WARNINGS=1", command, "--driverloaded", "n", "-y"];
    let own = own.into_iter().chain(["--config", config]);
    run_ok("env", own.chain(arguments.iter().copied()))
}

impl Lvm {
    /// Attaches images; LVM's own files are in a directory that is made.
    pub fn new(system: &Path, images: &[PathBuf]) -> Self {
        let devices: Vec<LoopDevice> =
            images.iter().map(|image| LoopDevice::attach(image)).collect();
        fs::create_dir_all(system).expect("a directory for LVM");
        let paths: Vec<&Path> = devices.iter().map(LoopDevice::path).collect();
        Self { config: config(system, &paths), system: system.to_owned(), devices }
    }

    /// A command of LVM that sees one device.
    pub fn on_device(system: &Path, device: &Path, command: &str, arguments: &[&str]) -> String {
        fs::create_dir_all(system).expect("a directory for LVM");
        run_lvm(system, &config(system, &[device]), command, arguments)
    }

    /// A device's path.
    pub fn device(&self, number: usize) -> String {
        text(self.devices[number].path())
    }

    /// A command of LVM, that does not ask.
    pub fn ok(&self, command: &str, arguments: &[&str]) -> String {
        run_lvm(&self.system, &self.config, command, arguments)
    }

    /// Extents that are used, as LVM says.
    pub fn used(&self, number: usize) -> Vec<Range<u64>> {
        let fields = ["--noheadings", "--segments", "-o", "pvseg_start,pvseg_size,segtype"];
        let device = self.device(number);
        let output = self.ok("pvs", &[&fields[..], &[&device]].concat());
        let segment = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, len] =
                [words[0], words[1]].map(|word| word.parse::<u64>().expect("as LVM writes it"));
            (words[2] != "free").then_some(start..start + len)
        };
        output.lines().filter_map(segment).collect()
    }

    /// Writes a group whose description is edited.
    pub fn edit(&self, edit: impl Fn(String) -> String) {
        let file = text(&self.system.join("group"));
        self.ok("vgcfgbackup", &["-f", &file, "vg"]);
        fs::write(&file, edit(fs::read_to_string(&file).expect("as LVM writes it")))
            .expect("as LVM writes it");
        self.ok("vgcfgrestore", &["--force", "-f", &file, "vg"]);
    }
}
