//! Every constant of the repository format, in one place. `docs/format.md`, section 1, is the same
//! table; a test compares them.

/// Version in every header and JSON body.
pub const FORMAT_VERSION: u16 = 1;
/// Smallest chunk size, bytes.
pub const CHUNK_BYTES_MIN: u32 = 4096;
/// Largest chunk size, bytes.
pub const CHUNK_BYTES_MAX: u32 = 4 << 20;
/// Most chunks in one entry.
pub const ENTRY_CHUNKS_MAX: u16 = 1024;
/// Most plaintext in one entry of chunks, bytes.
pub const ENTRY_PLAIN_BYTES_MAX: u32 = 16 << 20;
/// Fewest children a full page has.
pub const PAGE_FANOUT_MIN: u16 = 16;
/// Most children of a page.
pub const PAGE_FANOUT_MAX: u16 = 1024;
/// Most plaintext of one map page, bytes.
pub const PAGE_PLAIN_BYTES_MAX: u32 = 1 << 20;
/// Most levels of a volume map.
pub const MAP_DEPTH_MAX: u8 = 13;
/// Largest volume, bytes.
pub const VOLUME_BYTES_MAX: u64 = 1 << 56;
/// Largest pack, bytes.
pub const PACK_BYTES_MAX: u32 = u32::MAX;
/// Most entries of a pack.
pub const PACK_ENTRIES_MAX: u32 = 1 << 20;
/// Most ids in the directory of a pack.
pub const PACK_CHUNKS_MAX: u32 = 1 << 22;
/// Header of a pack, bytes.
pub const PACK_HEADER_BYTES: u32 = 64;
/// Trailer of a pack, bytes.
pub const PACK_TRAILER_BYTES: u32 = 64;
/// Header of an entry, bytes.
pub const ENTRY_HEADER_BYTES: u32 = 8;
/// Authentication tag or checksum, bytes.
pub const TAG_BYTES: u32 = 16;
/// Header of a record, bytes.
pub const RECORD_HEADER_BYTES: u32 = 64;
/// Most bytes in the clear part of a record.
pub const RECORD_CLEAR_BYTES_MAX: u32 = 65536;
/// Most bytes in the body of a manifest.
pub const MANIFEST_BYTES_MAX: u32 = 65536;
/// Most bytes in the body of a lease.
pub const LEASE_BYTES_MAX: u32 = 16 << 20;
/// Most packs that a checkpoint lists; a list of this length counts as incomplete.
pub const CHECKPOINT_PACKS_MAX: u32 = 8192;
/// Most bytes in the body of a stub, a condemned list, blockers or a verdict.
pub const GC_BYTES_MAX: u32 = 256 << 20;
/// Most bytes in the body of any other record.
pub const SMALL_RECORD_BYTES_MAX: u32 = 1 << 20;
/// Header of a segment, bytes.
pub const SEGMENT_HEADER_BYTES: u32 = 64;
/// Trailer of a segment, bytes.
pub const SEGMENT_TRAILER_BYTES: u32 = 64;
/// One record of a segment, bytes.
pub const SEGMENT_RECORD_BYTES: u32 = 50;
/// Records in every block of a segment but the last.
pub const SEGMENT_BLOCK_RECORDS: u32 = 1310;
/// Most records of a segment.
pub const SEGMENT_RECORDS_MAX: u32 = 1 << 26;
/// Longest volume name, bytes of UTF-8.
pub const VOLUME_NAME_BYTES_MAX: u32 = 200;
/// Longest volume name after escaping, bytes.
pub const VOLUME_KEY_BYTES_MAX: u32 = 240;
/// Longest backup id, bytes.
pub const BACKUP_ID_BYTES_MAX: u32 = 64;
/// Most labels of a backup.
pub const LABELS_MAX: u32 = 64;
/// Longest label name, bytes.
pub const LABEL_NAME_BYTES_MAX: u32 = 63;
/// Longest label value, bytes.
pub const LABEL_VALUE_BYTES_MAX: u32 = 255;
/// Most attachments of a backup.
pub const ATTACHMENTS_MAX: u32 = 16;
/// Longest name of an attachment, bytes.
pub const ATTACHMENT_NAME_BYTES_MAX: u32 = 63;
/// Largest attachment, bytes.
pub const ATTACHMENT_BYTES_MAX: u64 = 1 << 30;
/// Longest name of a feature, bytes.
pub const FEATURE_NAME_BYTES_MAX: u32 = 63;
/// Most stubs that are followed for one location.
pub const STUB_HOPS_MAX: u32 = 64;
/// Most Argon2id memory accepted from a key object, KiB.
pub const KDF_MEMORY_KIB_MAX: u32 = 1 << 20;
/// Most Argon2id passes accepted from a key object.
pub const KDF_PASSES_MAX: u32 = 16;
/// Most Argon2id lanes accepted from a key object.
pub const KDF_LANES_MAX: u32 = 16;

/// First bytes of `format`.
pub const MAGIC_FORMAT: [u8; 8] = *b"MVRFORM1";
/// First bytes of a key object.
pub const MAGIC_KEY: [u8; 8] = *b"MVRKEYW1";
/// First bytes of a manifest or of a fence in its place.
pub const MAGIC_MANIFEST: [u8; 8] = *b"MVRMANI1";
/// First bytes of a lease.
pub const MAGIC_LEASE: [u8; 8] = *b"MVRLEAS1";
/// First bytes of a forgotten record.
pub const MAGIC_FORGOTTEN: [u8; 8] = *b"MVRFORG1";
/// First bytes of a damage record.
pub const MAGIC_DAMAGED: [u8; 8] = *b"MVRDAMG1";
/// First bytes of a feature.
pub const MAGIC_FEATURE: [u8; 8] = *b"MVRFEAT1";
/// First bytes of a forwarding stub.
pub const MAGIC_STUB: [u8; 8] = *b"MVRMOVD1";
/// First bytes of a condemned list or of a fence in its place.
pub const MAGIC_CONDEMNED: [u8; 8] = *b"MVRCOND1";
/// First bytes of a collection's blockers.
pub const MAGIC_BLOCKERS: [u8; 8] = *b"MVRBLOC1";
/// First bytes of a collection's verdict.
pub const MAGIC_VERDICT: [u8; 8] = *b"MVRVERD1";
/// First bytes of a pack.
pub const MAGIC_PACK: [u8; 8] = *b"MVRPACK1";
/// In the trailer of a pack.
pub const MAGIC_PACK_END: [u8; 8] = *b"MVRPACKE";
/// First bytes of a segment.
pub const MAGIC_SEGMENT: [u8; 8] = *b"MVRSEGM1";
/// In the trailer of a segment.
pub const MAGIC_SEGMENT_END: [u8; 8] = *b"MVRSEGME";

/// Derivation context of the chunk-id key.
pub const CONTEXT_CHUNK_ID: &str = "mover repository v1 chunk id";
/// Derivation context of the page-id key.
pub const CONTEXT_PAGE_ID: &str = "mover repository v1 page id";
/// Derivation context of the data key.
pub const CONTEXT_DATA: &str = "mover repository v1 data";
/// Derivation context of the metadata key.
pub const CONTEXT_METADATA: &str = "mover repository v1 metadata";
/// Derivation context of the segment key.
pub const CONTEXT_SEGMENT: &str = "mover repository v1 segment";
/// Derivation context of the format key.
pub const CONTEXT_FORMAT: &str = "mover repository v1 format";
/// Derivation context of a key file's wrapping key.
pub const CONTEXT_KEY_FILE: &str = "mover repository v1 key file";

#[cfg(test)]
mod tests;
