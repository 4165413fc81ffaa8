use super::*;
use std::os::unix::fs::symlink;

const MOUNTINFO: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 ro,errors=remount-ro
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
36 35 8:17 /sub /mnt/with\\040space ro,noatime master:1 propagate_from:2 - xfs /dev/sdb1 rw,attr2
40 22 0:44 /@ /data rw - btrfs /dev/no/such\\134device rw,space_cache
short line
41 22 bad / /x rw - tmpfs tmpfs rw
";

#[test]
fn mountinfo_is_understood() {
    let mounts = parse_mountinfo(MOUNTINFO);
    assert_eq!(mounts.len(), 5, "{mounts:?}");
    assert_eq!(mounts[0].device, DeviceNo::parse("254:0"));
    assert!(!mounts[0].read_write, "the file system's own options count, not the mount's");
    assert_eq!(mounts[2].at, Path::new("/mnt/with space"));
    assert_eq!((mounts[2].device, mounts[2].read_write), (DeviceNo::parse("8:17"), true));
    assert_eq!(mounts[3].source, Path::new("/dev/no/such\\device"));
    assert_eq!((mounts[4].device, mounts[4].kind.as_str()), (None, "tmpfs"));
}

#[test]
fn swaps_are_understood() {
    let text = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
        /dev/sda2                               partition\t8388604\t0\t-2\n\
        /swap\\040file                            file\t\t2097148\t0\t-3\n";
    assert_eq!(parse_swaps(text), [Path::new("/dev/sda2"), Path::new("/swap file")]);
    assert!(parse_swaps(b"").is_empty());
}

#[test]
fn odd_escapes_stay_as_they_are() {
    for (from, to) in [(r"a\", r"a\"), (r"\04", r"\04"), (r"\9990", r"\9990"), (r"\101b", "Ab")] {
        assert_eq!(unescape(from.as_bytes()), Path::new(to));
    }
}

/// A made-up machine: disk 8:0 with partition 8:1, device-mapper 253:0 on 8:1, loop 7:0 on a file.
struct Machine {
    dir: tempfile::TempDir,
    system: System,
}

impl Machine {
    fn new(mountinfo: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let system = System { proc: dir.path().join("proc"), sys: dir.path().join("sys") };
        let devices = system.sys.join("devices");
        for (path, number) in
            [("sda", "8:0"), ("sda/sda1", "8:1"), ("dm-0", "253:0"), ("loop0", "7:0")]
        {
            let device = devices.join(path);
            for sub in ["holders", "slaves"] {
                std::fs::create_dir_all(device.join(sub)).unwrap();
            }
            std::fs::write(device.join("dev"), format!("{number}\n")).unwrap();
            std::fs::create_dir_all(system.sys.join("dev/block")).unwrap();
            symlink(&device, system.sys.join("dev/block").join(number)).unwrap();
        }
        std::fs::write(devices.join("sda/sda1/partition"), "1\n").unwrap();
        symlink(devices.join("dm-0"), devices.join("sda/sda1/holders/dm-0")).unwrap();
        symlink(devices.join("sda/sda1"), devices.join("dm-0/slaves/sda1")).unwrap();
        std::fs::create_dir_all(devices.join("loop0/loop")).unwrap();
        let image = dir.path().join("an image");
        std::fs::write(&image, "x").unwrap();
        std::fs::write(devices.join("loop0/loop/backing_file"), format!("{}\n", image.display()))
            .unwrap();
        std::fs::create_dir_all(system.sys.join("block")).unwrap();
        symlink(devices.join("loop0"), system.sys.join("block/loop0")).unwrap();
        std::fs::create_dir_all(system.proc.join("self")).unwrap();
        std::fs::write(system.proc.join("self/mountinfo"), mountinfo).unwrap();
        std::fs::write(system.proc.join("swaps"), "Filename Type\n").unwrap();
        Self { dir, system }
    }

    fn image(&self) -> Identity {
        Identity::of_path(&self.dir.path().join("an image")).unwrap()
    }

    fn users(&self, identity: Identity) -> Option<String> {
        self.system.users_of(identity).unwrap().describe()
    }
}

fn block(text: &str) -> Identity {
    Identity::Block(DeviceNo::parse(text).unwrap())
}

#[test]
fn a_mount_of_a_partition_or_of_what_is_built_on_it_counts() {
    let machine = Machine::new("1 1 253:0 / /mnt/data rw - ext4 /dev/mapper/data rw\n");
    for id in ["8:0", "8:1", "253:0"] {
        let why = machine.users(block(id)).unwrap();
        assert!(why.contains("mounted at /mnt/data"), "{why}");
    }
    assert_eq!(machine.users(block("7:0")), None);
}

#[test]
fn a_file_behind_a_mounted_loop_device_is_in_use() {
    let machine = Machine::new("1 1 7:0 / /mnt/image ro - ext4 /dev/loop0 ro\n");
    assert!(machine.users(machine.image()).unwrap().contains("/mnt/image"));
    let machine = Machine::new("");
    assert_eq!(machine.users(machine.image()), None);
}

#[test]
fn a_server_that_may_hang_is_not_asked_about_files_of_others() {
    let mounts = parse_mountinfo(
        b"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        2 1 0:50 / /mnt rw - fuse.rclone remote: rw\n\
        3 2 0:51 / /mnt/in rw - xfs /dev/sda2 rw\n\
        4 1 0:52 / /over rw - ext4 /dev/sda3 rw\n\
        5 4 0:53 / /over rw - nfs4 server:/ rw\n",
    );
    let file = |minor| Identity::File { dev: rustix::fs::makedev(0, minor), ino: 1 };
    for (path, identity, asked) in [
        ("/image", file(50), true),
        ("/mnt/image", file(50), true),
        ("/mnt/image", file(51), false),
        ("/mnt/image", block("8:1"), false),
        ("/mnt/in/image", file(9), true),
        ("/mnt/inside", file(9), false),
        ("/over/image", file(52), false),
        ("/over/image", file(53), true),
    ] {
        assert_eq!(may_be(Path::new(path), identity, &mounts), asked, "{path} {identity:?}");
    }
    assert!(may_be(Path::new("/x"), block("8:1"), &[]));
}

#[test]
fn what_something_is_built_on_is_in_use() {
    let machine = Machine::new("");
    assert_eq!(machine.users(block("8:1")).unwrap(), "the device dm-0 is built on it");
    assert_eq!(machine.users(block("253:0")), None);
}

#[test]
fn a_swap_file_is_in_use() {
    let machine = Machine::new("");
    let image = machine.dir.path().join("an image");
    let escaped = image.to_str().unwrap().replace(' ', "\\040");
    std::fs::write(machine.system.proc.join("swaps"), format!("Filename\n{escaped} file 1 0 -2\n"))
        .unwrap();
    assert!(machine.users(machine.image()).unwrap().contains("swap"));
}

#[test]
fn a_part_lies_on_its_whole() {
    let machine = Machine::new("");
    let below = |id| machine.system.below(id);
    assert!(below(block("253:0")).contains(&block("8:0")));
    assert!(below(block("7:0")).contains(&machine.image()));
    assert_eq!(below(block("8:0")), HashSet::from([block("8:0")]));
}

#[test]
fn without_proc_nothing_is_assumed_free() {
    let machine = Machine::new("");
    std::fs::remove_file(machine.system.proc.join("self/mountinfo")).unwrap();
    let e = machine.system.users_of(block("8:0")).unwrap_err();
    assert!(e.to_string().contains("mount /proc"), "{e}");
    // a backup asks as well
    assert!(e.to_string().contains("before a volume is read"), "{e}");
}
