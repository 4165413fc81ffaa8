//! Targets that must not be written.

use crate::machine::{Loop, Mount, image, is_root, run, skip};
use mover_engine::volume::device::{Target, TargetOptions};
use std::path::Path;

/// Opens with force: what is refused all the same.
fn refused(path: &Path, options: TargetOptions) -> String {
    let options = TargetOptions { force: true, ..options };
    let e = Target::open(path, &options).unwrap_err();
    let text = e.to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    assert!(e.hint_text().is_some() && !text.contains('\n'), "{text}");
    text
}

fn any() -> TargetOptions {
    TargetOptions::new(4096)
}

#[test]
fn a_device_smaller_than_the_volume_is_refused() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(1 << 20), 512, &[]);
    let text = refused(device.path(), TargetOptions::new((1 << 20) + 1));
    assert!(text.contains("it has 1048576 bytes, the volume has 1048577"), "{text}");
    Target::open(device.path(), &TargetOptions::new(1 << 20)).unwrap();
}

#[test]
fn a_read_only_device_is_refused() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(1 << 20), 512, &["--read-only"]);
    let text = refused(device.path(), any());
    assert!(text.contains("read-only"), "{text}");
}

#[test]
fn a_mounted_device_is_refused_and_so_is_the_file_behind_it() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(32 << 20), 512, &[]);
    run("mkfs.ext4", &["-q"], device.path());
    let dir = tempfile::tempdir().unwrap();
    {
        let mount = Mount::new(device.path(), dir.path(), "ro,noload");
        for path in [device.path(), device.image()] {
            let text = refused(path, any());
            let place = format!("is mounted at {}", mount.path().display());
            assert!(text.contains(&place) && text.contains("unmount"), "{text}");
        }
    }
    Target::open(device.path(), &TargetOptions { force: true, ..any() }).unwrap();
    let e = Target::open(device.path(), &any()).unwrap_err().to_string();
    assert!(e.contains("it holds an ext2, ext3 or ext4 file system"), "{e}");
}

#[test]
fn a_disk_with_a_mounted_partition_is_refused() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(64 << 20), 512, &["--partscan"]);
    // by hand: this need not be a kernel that reads partition tables
    run("addpart", &[device.path().to_str().unwrap(), "1", "2048"], Path::new("65536"));
    let partition = format!("{}p1", device.path().display());
    let partition = Path::new(&partition);
    run("mkfs.ext4", &["-q"], partition);
    let dir = tempfile::tempdir().unwrap();
    {
        let _mount = Mount::new(partition, dir.path(), "rw");
        for path in [device.path(), partition, device.image()] {
            assert!(refused(path, any()).contains("is mounted at"), "{}", path.display());
        }
    }
    // a partition is a part of its disk, and of the file behind that
    for (target, source) in [
        (device.path(), partition),
        (partition, device.path()),
        (partition, device.image()),
        (device.image(), partition),
    ] {
        let options = TargetOptions { source_paths: vec![source.to_owned()], ..any() };
        let text = refused(target, options);
        assert!(text.contains("shares bytes with, "), "{text}");
    }
    run("delpart", &[device.path().to_str().unwrap()], Path::new("1"));
}

#[test]
fn swap_is_refused() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(16 << 20), 512, &[]);
    run("mkswap", &["-q"], device.path());
    let e = Target::open(device.path(), &any()).unwrap_err().to_string();
    assert!(e.contains("it holds swap space"), "{e}");
    run("swapon", &[], device.path());
    let texts = [device.path(), device.image()].map(|path| {
        Target::open(path, &TargetOptions { force: true, ..any() })
            .map(drop)
            .unwrap_err()
            .to_string()
    });
    run("swapoff", &[], device.path());
    assert!(texts.iter().all(|t| t.contains("it is swap")), "{texts:?}");
}

#[test]
fn the_source_and_what_it_lies_on_are_refused() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(1 << 20), 512, &[]);
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(device.path(), &link).unwrap();
    for (target, source) in [
        (device.path(), device.path()),
        (&*link, device.path()),
        (device.path(), &*link),
        (device.image(), device.path()),
        (device.path(), device.image()),
    ] {
        let options = TargetOptions { source_paths: vec![source.to_owned()], ..any() };
        assert!(refused(target, options).contains("shares bytes with, "));
    }
}

#[test]
fn a_device_that_somebody_claimed_is_refused() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(1 << 20), 512, &[]);
    let first = Target::open(device.path(), &any()).unwrap();
    let text = refused(device.path(), any());
    assert!(text.contains("in use"), "{text}");
    drop(first);
    Target::open(device.path(), &any()).unwrap();
}

#[test]
fn real_partition_tables_and_containers_are_recognised() {
    if !is_root() {
        return;
    }
    let mut tried = 0;
    for (tool, args, what) in [
        ("mkfs.ext2", &["-q"][..], "ext2, ext3 or ext4"),
        ("mkswap", &["-q"], "swap space"),
        ("mkfs.vfat", &[], "a FAT"),
        ("mkfs.ntfs", &["-q", "-F"], "an NTFS"),
        ("pvcreate", &["-q"], "an LVM physical volume"),
        ("mkfs.f2fs", &["-q"], "an F2FS"),
    ] {
        let device = Loop::new(image(64 << 20), 512, &[]);
        if crate::machine::try_run(tool, args, device.path()).is_none() {
            continue;
        }
        tried += 1;
        let e = Target::open(device.path(), &any()).unwrap_err().to_string();
        assert!(e.contains(what), "{tool}: {e}");
    }
    if tried < 2 {
        skip("hardly any file system tool is installed");
    }
}

/// There is no map of it; it is somebody's data all the same.
#[test]
fn a_target_with_exfat_asks_for_force() {
    if !is_root() {
        return;
    }
    let image = image(1 << 20);
    let mut bytes = vec![0; 1 << 20];
    bytes[..11].copy_from_slice(b"\xeb\x76\x90EXFAT   ");
    std::fs::write(&*image, bytes).unwrap();
    let device = Loop::new(image, 512, &[]);
    let e = Target::open(device.path(), &any()).unwrap_err().to_string();
    assert!(e.contains("it holds an exFAT file system"), "{e}");
    Target::open(device.path(), &TargetOptions { force: true, ..any() }).unwrap();
}
