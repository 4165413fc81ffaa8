//! On files; block devices are in `tests/device.rs`.

use super::*;
use crate::volume::device::{Source, SourceOptions, ZeroMethod};
use std::os::unix::fs::MetadataExt;

fn options(size_bytes: u64) -> TargetOptions {
    TargetOptions::new(size_bytes)
}

fn refused(path: &Path, options: &TargetOptions) -> String {
    let e = Target::open(path, options).unwrap_err();
    assert!(e.to_string().contains(&path.display().to_string()), "{e} names no device");
    assert!(e.hint_text().is_some(), "{e} has no hint");
    e.to_string()
}

#[test]
fn a_file_is_created_and_extended_and_a_longer_ones_tail_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    let target = Target::open(&path, &options(10_001)).unwrap();
    assert!(target.created());
    target.write_all_at(&[7; 10], 9_991).unwrap();
    target.flush().unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o777), (10_001, 0o600));
    drop(target);

    // another size: not an image of that volume
    let forced = |size_bytes| TargetOptions { force: true, ..options(size_bytes) };
    for size_bytes in [20_000, 5_000] {
        let text = refused(&path, &options(size_bytes));
        assert!(text.contains("10001 bytes") && text.contains("`force`"), "{text}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_001);
    let text = refused(&path, &options(10_001));
    assert!(text.contains("data at offset 9991 ") && text.contains("`force`"), "{text}");
    Target::open(&path, &forced(10_001)).unwrap();
    let target = Target::open(&path, &forced(20_000)).unwrap();
    assert!(!target.created() && target.device_bytes() == 20_000);
    drop(target);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 20_000);

    std::fs::write(&path, vec![9; 30_000]).unwrap();
    let target = Target::open(&path, &forced(5_000)).unwrap();
    assert_eq!((target.size_bytes(), target.device_bytes()), (5_000, 30_000));
    target.deallocate_or_zero(0..5_000).unwrap();
    target.flush().unwrap();
    let now = std::fs::read(&path).unwrap();
    assert!(now.len() == 30_000 && now[..5_000].iter().all(|b| *b == 0));
    assert!(now[5_000..].iter().all(|b| *b == 9));
}

#[test]
fn what_must_be_there_is_neither_made_nor_made_longer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let there = TargetOptions { must_exist: true, force: true, ..options(4096) };
    assert!(Target::open(&path, &there).is_err() && !path.exists());
    std::fs::write(&path, vec![9; 4095]).unwrap();
    assert!(refused(&path, &there).contains("it has 4095 bytes, the volume has 4096"));
    assert_eq!(std::fs::read(&path).unwrap(), vec![9; 4095]);
    std::fs::write(&path, vec![9; 4096]).unwrap();
    assert_eq!(Target::open(&path, &there).unwrap().device_bytes(), 4096);
}

#[test]
fn what_holds_something_is_refused_without_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut bytes = vec![0; 1 << 20];
    bytes[..4].copy_from_slice(b"XFSB");
    std::fs::write(&path, &bytes).unwrap();
    let text = refused(&path, &options(1000));
    assert!(text.contains("holds an XFS file system; ") && text.contains("`force`"), "{text}");
    assert!(std::fs::read(&path).unwrap() == bytes, "nothing was touched");
    let forced = TargetOptions { force: true, ..options(1000) };
    Target::open(&path, &forced).unwrap();
}

#[test]
fn a_file_is_taken_without_force_if_it_is_empty_or_zero() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for bytes in [vec![], vec![0; 3 << 20]] {
        std::fs::write(&path, bytes).unwrap();
        Target::open(&path, &options(3 << 20)).unwrap();
    }
    // the last byte
    let mut bytes = vec![0; 3 << 20];
    bytes[(3 << 20) - 1] = 1;
    std::fs::write(&path, &bytes).unwrap();
    let text = refused(&path, &options(3 << 20));
    assert!(text.contains("data at offset 3145727 "), "{text}");
    // whoever knows more of it says so
    let ours: &Look<'_> = &|there| Ok((there.size_bytes() != 3 << 20).then_some(0));
    Target::open_if(&path, &options(3 << 20), ours).unwrap();
    let failing: &Look<'_> = &|_| Err(Error::new(ErrorKind::Cancelled, "look", "stopped"));
    let e = Target::open_if(&path, &options(3 << 20), failing).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
    assert!(std::fs::read(&path).unwrap() == bytes, "it was changed");
}

#[test]
fn the_source_is_never_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, [1; 8192]).unwrap();
    let (soft, hard) = (dir.path().join("soft"), dir.path().join("hard"));
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    for name in [&path, &soft, &hard] {
        let mut options = options(8192);
        options.force = true;
        options.source_paths = vec![dir.path().join("other"), path.clone()];
        assert!(refused(name, &options).contains("which must stay"));
    }
    let mut options = options(8192);
    options.source_paths = vec![path];
    Target::open(dir.path().join("elsewhere"), &options).unwrap();
}

#[test]
fn what_is_no_volume_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(dir.path(), &options(1)).contains("it is a directory"));
    assert!(refused(Path::new("/dev/null"), &options(1)).contains("a character device"));
    assert!(
        refused(Path::new("/dev/no-such-device"), &options(1)).contains("no files are created")
    );
    let nowhere = dir.path().join("no/such/dir/image");
    assert!(refused(&nowhere, &options(1)).contains("check the path"));
    // a size that no file has: nothing is left behind
    let huge = dir.path().join("huge");
    assert!(refused(&huge, &options(1 << 63)).contains("extend"));
    assert!(!huge.exists());
}

#[test]
fn only_the_range_is_zeroed() {
    const SIZE: usize = 300_001;
    let dir = tempfile::tempdir().unwrap();
    for direct in [DirectIo::Auto, DirectIo::Never] {
        for range in [0..1, 0..4096, 1..SIZE, 4095..4097, 513..70_000, 8192..40_960, 299_000..SIZE]
        {
            let path = dir.path().join("image");
            std::fs::write(&path, vec![0x5A; SIZE]).unwrap();
            let options = TargetOptions { direct, force: true, ..options(SIZE as u64) };
            let target = Target::open(&path, &options).unwrap();
            let bytes = range.start as u64..range.end as u64;
            target.deallocate_or_zero(bytes).unwrap();
            target.flush().unwrap();
            let now = std::fs::read(&path).unwrap();
            for (at, b) in now.iter().enumerate() {
                assert_eq!(*b == 0, range.contains(&at), "{direct} {range:?}: byte {at}");
            }
        }
    }
}

#[test]
fn zeroed_files_are_thin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![1; 4 << 20]).unwrap();
    let options = TargetOptions { force: true, ..options(4 << 20) };
    let target = Target::open(&path, &options).unwrap();
    let method = target.deallocate_or_zero(0..4 << 20).unwrap();
    target.flush().unwrap();
    assert_eq!(method, ZeroMethod::Punched, "the file system of TMPDIR has no holes");
    assert!(std::fs::metadata(&path).unwrap().blocks() < 100);
    assert_eq!(target.deallocate_or_zero(5..5).unwrap(), ZeroMethod::Punched);
    let e = target.deallocate_or_zero(0..(4 << 20) + 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Bug);
}

#[test]
fn holes_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    let source = || Source::open(&path, SourceOptions::default()).unwrap();
    assert_eq!(source().data_ranges().unwrap(), Some(vec![]));
    for at in [0, 1 << 20, (1 << 30) - 65_536] {
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 65_536], at).unwrap();
    }
    file.sync_all().unwrap();
    let want = [0..65_536, 1 << 20..(1 << 20) + 65_536, (1 << 30) - 65_536..1 << 30];
    assert_eq!(source().data_ranges().unwrap().unwrap(), want);
    file.set_len((1 << 30) + 1).unwrap();
    file.sync_all().unwrap();
    assert_eq!(source().data_ranges().unwrap().unwrap(), want);
}

#[test]
fn sources_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("my volume.img");
    std::fs::write(&path, []).unwrap();
    let e = Source::open(&path, SourceOptions::default()).unwrap_err();
    assert!(e.kind() == ErrorKind::Usage && e.to_string().contains("it is empty"), "{e}");
    std::fs::write(&path, [5; 700]).unwrap();
    let source = Source::open(&path, SourceOptions::default()).unwrap();
    assert_eq!((source.size_bytes(), source.kind()), (700, DeviceKind::File));
    assert_eq!(source.default_volume_name().unwrap().as_str(), "my volume.img");
    assert_eq!(source.mounted_read_write().unwrap(), None);
    let mut buf = [0; 700];
    source.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [5; 700]);
    let e = source.read_exact_at(&mut buf, 1).unwrap_err();
    assert!(e.to_string().contains("read 700 bytes at offset 1 of "), "{e}");
    let mut head = vec![0; 70_000];
    head[1024 + 56..1024 + 58].copy_from_slice(b"\x53\xef");
    head[1024 + 104..1024 + 120].copy_from_slice(&[0xAB; 16]);
    std::fs::write(&path, head).unwrap();
    let source = Source::open(&path, SourceOptions::default()).unwrap();
    let name = source.default_volume_name().unwrap();
    assert_eq!(name.as_str(), "abababab-abab-abab-abab-abababababab");
}
