//! Objects as a backup carries them: the file that `save` writes, compressed.

use super::archive::write_objects;
use super::objects_file::{PLAIN_RATIO, plain_bytes_max};
use super::spool::Spool;
use crate::engine::{CARRIED_BYTES_MAX, Failure, Payload, exit};
use crate::manifest::ObjectManifest;
use std::io::Write;

/// Some 40 MB/s. The same objects are the same bytes, so a backup stores them once.
const LEVEL: i32 = 9;

/// A frame that is skipped begins with it, and then its length.
const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

struct Bounded {
    bytes: Vec<u8>,
    most: usize,
    is_over: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            self.is_over = true;
            return Err(std::io::Error::other("too many bytes"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The file, and how many objects it has.
///
/// # Errors
///
/// More than a backup of a cluster can carry.
pub fn pack(manifest: &ObjectManifest, spool: &mut Spool) -> Result<(Payload, usize), Failure> {
    pack_within(manifest, spool, CARRIED_BYTES_MAX)
}

fn pack_within(
    manifest: &ObjectManifest,
    spool: &mut Spool,
    most: usize,
) -> Result<(Payload, usize), Failure> {
    let mut bounded = Bounded { bytes: Vec::new(), most, is_over: false };
    let written = write(manifest, spool, &mut bounded);
    if bounded.is_over {
        let plain = plain_bytes_max(u64::MAX) >> 30;
        let what =
            format!("the objects take more than {} MiB, compressed, or {plain} GiB", most >> 20);
        return Err(Failure::new(exit::USAGE, what).hint(
            "choose fewer of them by --objects-selector; or save them by `kubectl mover objects save`, \
             and keep that file with a backup by `mover backup --attach`",
        ));
    }
    let digest = blake3::hash(&bounded.bytes).to_hex().to_string();
    Ok((Payload::new(bounded.bytes, digest), written?))
}

fn write(manifest: &ObjectManifest, spool: &mut Spool, to: &mut Bounded) -> Result<usize, Failure> {
    let failed =
        |why: std::io::Error| Failure::new(exit::BUG, format!("compress the objects: {why}"));
    let mut to = zstd::stream::write::Encoder::new(to, LEVEL).map_err(failed)?;
    to.include_checksum(true).map_err(failed)?;
    let mut to = Counted { to, bytes: 0 };
    let count = write_objects(manifest, spool, &mut to, failed)?;
    let plain_bytes = to.bytes;
    let to = to.to.finish().map_err(failed)?;
    pad(to, plain_bytes).map_err(failed)?;
    Ok(count)
}

struct Counted<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Objects that are nearly all alike come to more than who reads them takes of a file of that size: a
/// frame that is skipped, of RFC 8878, makes it longer.
fn pad(to: &mut Bounded, plain_bytes: u64) -> std::io::Result<()> {
    let bytes = to.bytes.len() as u64;
    if plain_bytes <= plain_bytes_max(bytes) {
        return Ok(());
    }
    if plain_bytes > plain_bytes_max(u64::MAX) {
        to.is_over = true;
        return Err(std::io::Error::other("too many bytes"));
    }
    let missing = (plain_bytes / PLAIN_RATIO + 1).saturating_sub(bytes);
    let missing = u32::try_from(missing).map_err(std::io::Error::other)?;
    to.write_all(&SKIPPABLE)?;
    to.write_all(&missing.to_le_bytes())?;
    to.write_all(&vec![0; missing as usize])
}

#[cfg(test)]
mod tests {
    use super::super::{Archive, ObjectsFile};
    use super::*;
    use crate::manifest::{ItemKind, ManifestBuilder, ManifestScope};
    use serde_json::{Value, json};
    use std::sync::Arc;
    use zeroize::Zeroizing;

    /// Some ConfigMaps, in a folder of the test.
    fn some(count: usize, name: &str) -> (ObjectManifest, Spool) {
        some_with(count, name, "")
    }

    fn some_with(count: usize, name: &str, text: &str) -> (ObjectManifest, Spool) {
        let path = std::env::temp_dir().join(format!("mover-pack-{}-{name}", std::process::id()));
        let mut spool = Spool::beside(&path).expect("a spool");
        let of = Arc::new(ItemKind {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            resource: "configmaps".into(),
            namespaced: true,
        });
        let mut builder = ManifestBuilder::new(Vec::new());
        for number in 0..count {
            let metadata = json!({
                "name": format!("c{number}"), "namespace": "shop", "uid": format!("u{number}"),
            });
            let object =
                json!({ "metadata": metadata, "data": { "a": number.to_string(), "t": text } });
            builder.add(&of, &object, true).expect("an object");
            spool.push(&of, object).expect("kept");
        }
        let scope =
            ManifestScope { namespaces: vec!["shop".into()], selector: None, rules: Vec::new() };
        (builder.finish(scope, Vec::new()), spool)
    }

    fn stored(bytes: Vec<u8>) -> ObjectsFile {
        ObjectsFile::Stored("db@1".into(), Arc::new(Zeroizing::new(bytes)))
    }

    fn objects(bytes: Vec<u8>) -> Result<Vec<Value>, Failure> {
        let mut archive = Archive::open(&stored(bytes))?;
        let mut all = Vec::new();
        while let Some((_, object)) = archive.next_object()? {
            all.push(object);
        }
        Ok(all)
    }

    fn bytes_of(payload: &Payload) -> Vec<u8> {
        let parts = 1..=payload.parts();
        parts.flat_map(|number| payload.part_bytes(number).to_vec()).collect()
    }

    #[test]
    fn what_is_packed_is_read_again_and_nothing_that_was_cut_or_changed() {
        let (manifest, mut spool) = some(50, "whole");
        let (payload, count) = pack(&manifest, &mut spool).expect("packed");
        assert_eq!(count, 50);
        let (again, _) = pack(&manifest, &mut spool).expect("packed");
        assert_eq!(again.digest(), payload.digest(), "the same objects are the same bytes");
        let whole = bytes_of(&payload);
        assert_eq!(blake3::hash(&whole).to_hex().as_str(), payload.digest());
        assert_eq!(objects(whole.clone()).expect("all").len(), 50);
        for len in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            assert!(objects(whole[..len].to_vec()).is_err(), "cut at {len}");
        }
        for at in (0..whole.len()).step_by(11) {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            assert!(objects(changed).is_err(), "changed at {at}");
        }
    }

    /// As the same certificates in each namespace are.
    #[test]
    fn objects_that_are_all_alike_are_read_again() {
        let (manifest, mut spool) = some_with(700, "alike", &"certificate ".repeat(20_000));
        let (payload, _) = pack(&manifest, &mut spool).expect("packed");
        let bytes = bytes_of(&payload);
        // 168 MB: more than that of which a file as small is taken for good
        assert!(bytes.windows(4).any(|four| four == SKIPPABLE), "{} bytes", bytes.len());
        assert_eq!(objects(bytes).expect("all").len(), 700);
    }

    /// What nobody would read again is not written.
    #[test]
    fn no_more_is_packed_than_is_read() {
        let mut to = Bounded { bytes: Vec::new(), most: CARRIED_BYTES_MAX, is_over: false };
        pad(&mut to, plain_bytes_max(u64::MAX)).expect("it is read");
        assert!(plain_bytes_max(to.bytes.len() as u64) == plain_bytes_max(u64::MAX));
        pad(&mut to, plain_bytes_max(u64::MAX) + 1).expect_err("it is not");
        assert!(to.is_over);
    }

    #[test]
    fn more_than_can_be_carried_is_refused_with_the_next_step() {
        let (manifest, mut spool) = some(50, "large");
        let why = pack_within(&manifest, &mut spool, 1000).expect_err("too large");
        assert_eq!(why.exit_code, exit::USAGE);
        assert!(why.hint.is_some_and(|hint| hint.contains("--objects-selector")));
    }

    #[test]
    fn a_frame_that_asks_for_much_memory_is_refused() {
        // Longer than the memory that a frame may ask for.
        let mut wide = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder");
        wide.window_log(28).expect("a window");
        wide.write_all(b"{}").expect("written");
        let why = objects(wide.finish().expect("compressed")).expect_err("too wide");
        assert!(why.message.contains("too much memory"), "{why}");
    }
}
