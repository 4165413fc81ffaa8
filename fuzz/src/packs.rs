//! Packs: header, trailer, directory and entries, behind their hash and their tags.

use crate::kit::{REPOSITORY, must, plain_keys, split};
use chunkstore::testkit::fuzzing;
use chunkstore::{
    ChunkSize, Encryption, Opener, PackId, PackKind,
    pack::{
        Codec, EntryKind, PackTrailer, check_pack, decode_directory, decode_pack_header,
        decode_pack_trailer,
    },
};
use std::sync::Arc;

/// A whole pack, under the hash and the tags that its bytes ask for: it and its first entries.
pub fn pack(data: &[u8]) {
    if let Ok(header) = decode_pack_header(data) {
        assert!(data.starts_with(&fuzzing::encode_pack_header(&header)), "{header:?}");
        let _ = header.check(&plain_keys(), &REPOSITORY, &header.pack);
    }
    if let Ok(trailer) = decode_pack_trailer(data) {
        assert!(data.ends_with(&fuzzing::encode_pack_trailer(&trailer)), "{trailer:?}");
    }
    let mut bytes = data.to_vec();
    fuzzing::rehash_pack(&mut bytes);
    let Ok(summary) = check_pack(&bytes) else { return };
    let (header, trailer) = (summary.header, summary.trailer);
    if header.encryption != Encryption::None {
        return;
    }
    let keys = Arc::new(plain_keys());
    let start = trailer.directory_offset as usize;
    let stored = &bytes[start..start + trailer.directory_len as usize];
    let (pack, at) = (&header.pack, trailer.directory_offset);
    let Ok(stored) = fuzzing::reseal_entry(&keys, EntryKind::Directory, pack, at, stored) else {
        return;
    };
    let mut opener = must(Opener::new(keys));
    let Ok(entries) = opener.open_directory(&header, &trailer, &stored) else { return };
    assert_eq!(entries.len(), trailer.entries as usize);
    for entry in entries.iter().take(4) {
        // the directory fills the pack: this is in it
        let end = (entry.offset + entry.stored_len) as usize;
        let stored = &bytes[entry.offset as usize..end];
        check_entry(&mut opener, header.kind.entries(), pack, entry.offset, stored);
    }
}

/// The plaintext of a directory. Before it: the kind of the pack, and where the directory begins.
pub fn pack_directory(data: &[u8]) {
    let Some(([kind, offset @ ..], plain)) = split::<5>(data) else { return };
    let kind = if kind % 2 == 0 { PackKind::Chunks } else { PackKind::Pages };
    let entries = split::<4>(plain).map_or(0, |(count, _)| u32::from_le_bytes(count));
    let trailer = PackTrailer {
        directory_offset: u32::from_le_bytes(offset),
        directory_len: 0,
        entries,
        pack_len: 0,
        hash: [0; 16],
    };
    let Ok(found) = decode_directory(plain, kind, &trailer) else { return };
    assert_eq!(must(fuzzing::encode_pack_directory(&found)), plain);
    let mut end = chunkstore::limits::PACK_HEADER_BYTES;
    for entry in &found {
        assert_eq!(entry.offset, end, "a gap");
        end += entry.stored_len;
        assert!(kind == PackKind::Chunks || entry.ids.len() == 1, "{entry:?}");
    }
    assert_eq!(end, trailer.directory_offset);
}

/// A stored entry under the tag that its bytes ask for. Before it: its kind.
pub fn pack_entry(data: &[u8]) {
    let Some(([kind], stored)) = split::<1>(data) else { return };
    let kinds = [EntryKind::Chunks, EntryKind::Page, EntryKind::Directory];
    let kind = kinds[usize::from(kind) % kinds.len()];
    let mut opener = must(Opener::new(Arc::new(plain_keys())));
    check_entry(&mut opener, kind, &PackId::from_bytes([0x33; 32]), 64, stored);
}

fn check_entry(opener: &mut Opener, kind: EntryKind, pack: &PackId, offset: u32, stored: &[u8]) {
    let Ok(stored) = fuzzing::reseal_entry(&plain_keys(), kind, pack, offset, stored) else {
        return;
    };
    let mut plain = Vec::new();
    let Ok(header) = opener.open_entry(kind, pack, offset, &stored, &mut plain) else { return };
    assert_eq!(plain.len(), header.plain_len as usize);
    assert!(header.codec == Codec::Zstd || plain == stored[8..stored.len() - 16]);
    let mut again = vec![0; plain.len()];
    assert_eq!(must(opener.open_into(kind, pack, offset, &stored, &mut again)), header);
    assert_eq!(again, plain);
    assert!(opener.open_entry(kind, pack, offset + 1, &stored, &mut again).is_err(), "moved");
    for bytes in [4096, 1 << 20] {
        let chunk = must(ChunkSize::new(bytes));
        let mut end = 0;
        for index in 0..header.count {
            let Ok(range) = header.chunk(index, chunk) else { break };
            assert!(range.start == end && range.start < range.end, "{header:?} {range:?}");
            end = range.end;
            assert!(index + 1 < header.count || end == plain.len(), "{header:?}");
        }
        assert!(header.chunk(header.count, chunk).is_err(), "{header:?}");
    }
}
