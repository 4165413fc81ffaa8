//! Damaged and missing objects: clear errors, nothing wrong is ever written, forwarding stubs are
//! followed.

use super::*;
use crate::ops::verify::{VerifyOptions, VerifySummary, verify};

pub(super) fn verify_options(backup: &str) -> VerifyOptions {
    VerifyOptions {
        backup: backup.into(),
        device: None,
        lease: None,
        memory: MemoryBudget { total_bytes: 64 * MIB },
        engine: EngineChoice::Auto,
        direct: DirectIo::Auto,
        threads: Some(3),
    }
}

pub(super) fn run_verify(kit: &Kit, options: VerifyOptions) -> Result<VerifySummary> {
    verify(kit.rt.handle(), &kit.repo, options, &Progress::new(), &Cancel::new())
}

/// Packs of chunks or of pages.
pub(super) fn packs(kit: &Kit, kind: u8) -> Vec<String> {
    kit.keys_of("packs").into_iter().filter(|key| kit.object(key)[10] == kind).collect()
}

#[test]
fn a_whole_backup_verifies() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let summary = run_verify(&kit, verify_options("one")).unwrap();
    let data_bytes: u64 = image.chunks.values().map(|c| c.len() as u64).sum();
    assert_eq!(summary.checked_bytes, data_bytes);
    assert_eq!(summary.chunks, image.chunks.len() as u64);
    assert_eq!(summary.zero_bytes, image.size_bytes - data_bytes);
    assert!(kit.store.take().iter().all(|(what, key)| *what != "put" && !key.starts_with("dedup")));
}

/// A sixteenth of the 64 MiB.
#[test]
fn what_is_kept_between_reads_is_within_its_bound() {
    let kit = Kit::new(Shape { chunk_bytes: 65_536, pack_bytes: 4 << 20, ..Shape::default() });
    let mut image = kit.image(16 * MIB);
    (0..256).for_each(|chunk| image.set(chunk, chunk + 1));
    kit.backup("vol", "one", &image);
    let kept = || kit.repo.store().kept_buffer_bytes();
    assert_eq!(kept(), 0, "nobody has read");
    run_verify(&kit, verify_options("one")).unwrap();
    assert!((1..=4 * MIB).contains(&kept()), "{}", kept());
}

#[test]
fn a_device_is_compared_with_the_map() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("disk.img");
    run(&kit, options("one", &device)).unwrap();
    let against = || VerifyOptions { device: Some(device.clone()), ..verify_options("one") };
    kit.store.take();
    let summary = run_verify(&kit, against()).unwrap();
    assert_eq!(summary.read_bytes + summary.hole_bytes, image.size_bytes);
    assert!(summary.hole_bytes > 0);
    // a chunk, a zero, and the last byte
    let mut bytes = image.bytes();
    let last = bytes.len() - 1;
    let zero = bytes.chunks(4096).position(|c| c.iter().all(|b| *b == 0)).unwrap() * 4096;
    let chunk = bytes.chunks(4096).rposition(|c| c.len() == 4096 && c[9] != 0).unwrap() * 4096;
    for at in [zero + 3, chunk + 9, last] {
        bytes[at] ^= 0x10;
    }
    fs::write(&device, &bytes).unwrap();
    let error = run_verify(&kit, against()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    for range in [
        format!("offset {zero} +4096"),
        format!("offset {chunk} +4096"),
        "offset 4096000 +513".into(),
    ] {
        assert!(text.contains(&range), "{text}");
    }
    fs::write(&device, &bytes[..last]).unwrap();
    let error = run_verify(&kit, against()).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("bytes"), "{error}");
    // a larger device may hold anything behind the volume
    let mut larger = image.bytes();
    larger.extend_from_slice(&[1; 10_000]);
    fs::write(&device, &larger).unwrap();
    run_verify(&kit, against()).unwrap();
}

#[test]
fn a_missing_pack_is_named_and_nothing_else_is_lost() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let key = packs(&kit, 1)[1].clone();
    kit.remove(&key);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let error = run(&kit, options("one", &target)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&key) && text.contains("volume offset") && text.contains("chunk"),
        "{text}"
    );
    assert!(text.contains("new.img is incomplete") && text.contains("`force`"), "{text}");
    let error = run_out(&kit, &options("one", &target), &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    let error = run_verify(&kit, verify_options("one")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    assert!(error.to_string().contains("cannot be restored"), "{error}");
}

#[test]
fn damage_is_found_at_its_place_and_all_of_it() {
    for encryption in [chunkstore::Encryption::None, chunkstore::Encryption::Aes256Gcm] {
        let kit = Kit::new(Shape { encryption, ..Shape::default() });
        let mut image = kit.image(400 * 4096);
        (0..400).for_each(|c| image.set(c, c + 1));
        kit.backup("vol", "one", &image);
        let keys = packs(&kit, 1);
        // the first entry of each pack: its payload
        for key in &keys {
            let mut bytes = kit.object(key);
            bytes[64 + 20] ^= 1;
            kit.replace(key, bytes);
        }
        let error = run_verify(&kit, verify_options("one")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let expected = keys.len() * 8 * 4096;
        assert!(error.to_string().contains(&format!("{expected} bytes in ")), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("new.img");
        let error = run(&kit, options("one", &target)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        // whatever was written was right
        let (written, right) = (fs::read(&target).unwrap(), image.bytes());
        for (is, should) in written.chunks(4096).zip(right.chunks(4096)) {
            assert!(is == should || is.iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn a_damaged_or_missing_page_is_an_error_before_anything_changes() {
    let kit = Kit::new(Shape::default());
    let manifest = kit.backup("vol", "one", &some_image(&kit));
    let key = chunkstore::format::names::pack_key(&manifest.map.root.unwrap().location.pack);
    let whole = kit.object(&key);
    let at = manifest.map.root.unwrap().location.offset as usize + 30;
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let mut damaged = whole.clone();
    damaged[at] ^= 1;
    kit.replace(&key, damaged);
    let error = run(&kit, options("one", &target)).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("page"), "{error}");
    kit.replace(&key, whole[..at].to_vec());
    let error = run(&kit, options("one", &target)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    kit.remove(&key);
    let error = run(&kit, options("one", &target)).unwrap_err();
    assert!(error.kind() == ErrorKind::Missing && error.to_string().contains(&key), "{error}");
    assert!(!target.exists());
}

#[test]
fn rewritten_packs_are_followed_through_chains() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    for key in packs(&kit, 1) {
        let once = kit.rewrite(&key);
        kit.rewrite(&once);
    }
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let summary = run(&kit, options("one", &target)).unwrap();
    assert!(fs::read(&target).unwrap() == image.bytes());
    assert!(summary.moved_entries > 0);
    let mut out = Vec::new();
    run_out(&kit, &options("one", &target), &mut out).unwrap();
    assert!(out == image.bytes());
    run_verify(&kit, verify_options("one")).unwrap();
}
