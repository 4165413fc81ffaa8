//! A disk that a machine boots from: a boot loader and its kernel, a root, and a place without a
//! file system.

use super::{KERNEL, part};
use crate::{CHUNK, MIB, text};
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Filesystem, Rng, run_ok};

/// Where each partition begins, the last one's end last.
const PARTITIONS: [u64; 4] = [MIB, 33 * MIB, 57 * MIB, 121 * MIB];
const SECTOR: u64 = 512;
const MBR: &str = "/usr/lib/syslinux/mbr/mbr.bin";

/// What is to be on a disk. Its root is compared by its files, all else by its bytes.
pub(crate) struct Disk {
    pub(crate) bytes: Vec<u8>,
    /// Of `/data`, as `sha256sum` prints it.
    pub(crate) data_sum: String,
}

impl Disk {
    pub(crate) const SIZE: u64 = PARTITIONS[3];

    /// Makes one, out of nothing but what `tests/setup` got.
    pub(crate) fn make(directory: &Path) -> Self {
        let boot = boot_partition(directory);
        let (root, data_sum) = root_partition(directory);
        let mut bytes = vec![0; usize::try_from(Self::SIZE).unwrap()];
        let mut put = |at: u64, part: &[u8]| {
            bytes[usize::try_from(at).unwrap()..][..part.len()].copy_from_slice(part);
        };
        put(0, &fs::read(MBR).unwrap());
        // active FAT16, then Linux, then neither
        for (number, kind) in [(0, 0x0e_u8), (1, 0x83), (2, 0xda)] {
            let (from, to) = (PARTITIONS[number], PARTITIONS[number + 1]);
            let flag = if number == 0 { 0x80 } else { 0 };
            let mut entry = vec![flag, 0xfe, 0xff, 0xff, kind, 0xfe, 0xff, 0xff];
            for number in [from / SECTOR, (to - from) / SECTOR] {
                entry.extend(u32::try_from(number).unwrap().to_le_bytes());
            }
            put(446 + 16 * number as u64, &entry);
        }
        put(510, &[0x55, 0xaa]);
        put(PARTITIONS[0], &boot);
        put(PARTITIONS[1], &root);
        let mut rng = Rng::new(0xd15c);
        let noise: Vec<u8> = (0..(PARTITIONS[3] - PARTITIONS[2]) / 8)
            .flat_map(|_| rng.next_u64().to_le_bytes())
            .collect();
        put(PARTITIONS[2], &noise);
        Self { bytes, data_sum }
    }

    /// A command that fills chunks of the last partition, each with lines of one word; nothing is
    /// flushed.
    pub(crate) fn fills(&mut self, word: &str, chunk: u64, chunks: u64) -> String {
        let line = format!("{word}\n");
        for at in chunk..chunk + chunks {
            let lines = line.bytes().cycle();
            self.raw(at, 1).iter_mut().zip(lines).for_each(|(to, from)| *to = from);
        }
        // `yes` is slow without the help of a processor
        format!(
            "yes {word} | head -c {CHUNK} >/dev/word; (while cat /dev/word; do :; done) 2>/dev/null \
             | dd of=/dev/vda3 bs={CHUNK} iflag=fullblock oflag=direct conv=notrunc seek={chunk} \
             count={chunks} 2>/dev/null"
        )
    }

    /// A command that makes zeros of chunks of the last partition, by a trim.
    pub(crate) fn trims(&mut self, chunk: u64, chunks: u64) -> String {
        self.raw(chunk, chunks).fill(0);
        format!("blkdiscard -o {} -l {} /dev/vda3", chunk * CHUNK, chunks * CHUNK)
    }

    fn raw(&mut self, chunk: u64, chunks: u64) -> &mut [u8] {
        let (at, len) = (PARTITIONS[2] + chunk * CHUNK, chunks * CHUNK);
        assert!(at + len <= Self::SIZE);
        &mut self.bytes[usize::try_from(at).unwrap()..][..usize::try_from(len).unwrap()]
    }

    /// Compares a disk with what is to be on it: the root is whole, and has files of such content.
    pub(crate) fn expect(&self, found: &[u8], directory: &Path, files: &[(&str, &str)]) {
        let [boot, root, end] = [0, 1, 2].map(|at| usize::try_from(PARTITIONS[at + 1]).unwrap());
        for (from, to) in [(0, boot), (root, end)] {
            let differs = (from..to).find(|at| found[*at] != self.bytes[*at]);
            assert_eq!(differs, None, "the first byte that differs");
        }
        let (image, read) = (directory.join("root-found"), directory.join("file-found"));
        fs::write(&image, &found[boot..root]).unwrap();
        Filesystem::Ext4.check(&image);
        for (path, content) in files {
            let dump = format!("dump {path} {}", read.display());
            run_ok("debugfs", ["-R", &dump, text(&image)]);
            assert_eq!(fs::read_to_string(&read).unwrap(), *content, "{path}");
        }
        let dump = format!("dump /data {}", read.display());
        run_ok("debugfs", ["-R", &dump, text(&image)]);
        assert_eq!(run_ok("sha256sum", [&read]).split(' ').next().unwrap(), self.data_sum);
    }
}

/// A file system of the BIOS's and the boot loader's kind, with the kernel.
fn boot_partition(directory: &Path) -> Vec<u8> {
    let (image, settings) = (directory.join("boot"), directory.join("syslinux.cfg"));
    fs::File::create(&image).unwrap().set_len(PARTITIONS[1] - PARTITIONS[0]).unwrap();
    let hidden = (PARTITIONS[0] / SECTOR).to_string();
    run_ok("mkfs.vfat", ["-F", "16", "-h", &hidden, text(&image)]);
    let lines = format!(
        "SERIAL 0\nDEFAULT linux\nLABEL linux\nKERNEL /vmlinuz\nINITRD /initrd.gz\n\
         APPEND {KERNEL} root=/dev/vda2\n"
    );
    fs::write(&settings, lines).unwrap();
    for file in [part("vmlinuz"), part("initrd.gz"), settings] {
        run_ok("mcopy", ["-i", text(&image), text(&file), "::"]);
    }
    run_ok("syslinux", ["--install", text(&image)]);
    fs::read(image).unwrap()
}

/// The root, and the sum of its file of data.
fn root_partition(directory: &Path) -> (Vec<u8>, String) {
    let (image, root) = (directory.join("root"), directory.join("root.d"));
    let inside = |name: &str| -> PathBuf { root.join(name) };
    for name in ["bin", "sbin", "dev", "proc", "sys"] {
        fs::create_dir_all(inside(name)).unwrap();
    }
    fs::copy("/bin/busybox", inside("bin/busybox")).unwrap();
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/init");
    fs::copy(init, inside("sbin/init")).unwrap();
    let mut rng = Rng::new(0xda7a);
    let data: Vec<u8> = (0..MIB / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    fs::write(inside("data"), data).unwrap();
    let sum = run_ok("sha256sum", [inside("data")]);
    fs::File::create(&image).unwrap().set_len(PARTITIONS[2] - PARTITIONS[1]).unwrap();
    run_ok("mkfs.ext4", ["-q", "-d", text(&root), text(&image)]);
    (fs::read(image).unwrap(), sum.split(' ').next().unwrap().to_owned())
}
