//! The tables of `docs/format.md`, section 1, against the constants: names and values, both ways.

use super::*;
use std::collections::BTreeMap;

const DOC: &str = include_str!("../../../docs/format.md");
const CODE: &str = include_str!("../limits.rs");

/// A value as the documentation writes it.
trait Documented {
    fn documented(&self) -> String;
}

macro_rules! numbers {
    ($($int:ty),*) => {$(
        impl Documented for $int {
            fn documented(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

impl Documented for [u8; 8] {
    fn documented(&self) -> String {
        String::from_utf8(self.to_vec()).unwrap()
    }
}

impl Documented for &str {
    fn documented(&self) -> String {
        (*self).to_owned()
    }
}

macro_rules! values {
    ($($name:ident)*) => {
        BTreeMap::from([$((stringify!($name).to_owned(), $name.documented())),*])
    };
}

/// Every constant of the module. That none is left out is checked against its source.
fn in_code() -> BTreeMap<String, String> {
    values! {
        FORMAT_VERSION CHUNK_BYTES_MIN CHUNK_BYTES_MAX ENTRY_CHUNKS_MAX ENTRY_PLAIN_BYTES_MAX
        PAGE_FANOUT_MIN PAGE_FANOUT_MAX PAGE_PLAIN_BYTES_MAX MAP_DEPTH_MAX VOLUME_BYTES_MAX
        PACK_BYTES_MAX PACK_ENTRIES_MAX PACK_CHUNKS_MAX PACK_HEADER_BYTES PACK_TRAILER_BYTES
        ENTRY_HEADER_BYTES TAG_BYTES RECORD_HEADER_BYTES RECORD_CLEAR_BYTES_MAX MANIFEST_BYTES_MAX
        LEASE_BYTES_MAX CHECKPOINT_PACKS_MAX GC_BYTES_MAX SMALL_RECORD_BYTES_MAX SEGMENT_HEADER_BYTES
        SEGMENT_TRAILER_BYTES SEGMENT_RECORD_BYTES SEGMENT_BLOCK_RECORDS SEGMENT_RECORDS_MAX
        VOLUME_NAME_BYTES_MAX VOLUME_KEY_BYTES_MAX BACKUP_ID_BYTES_MAX ATTACHMENTS_MAX
        ATTACHMENT_NAME_BYTES_MAX ATTACHMENT_BYTES_MAX LABELS_MAX
        LABEL_NAME_BYTES_MAX LABEL_VALUE_BYTES_MAX FEATURE_NAME_BYTES_MAX STUB_HOPS_MAX KDF_MEMORY_KIB_MAX
        KDF_PASSES_MAX KDF_LANES_MAX
        MAGIC_FORMAT MAGIC_KEY MAGIC_MANIFEST MAGIC_LEASE MAGIC_FORGOTTEN MAGIC_DAMAGED
        MAGIC_FEATURE MAGIC_STUB MAGIC_CONDEMNED MAGIC_BLOCKERS MAGIC_VERDICT MAGIC_PACK MAGIC_PACK_END
        MAGIC_SEGMENT MAGIC_SEGMENT_END
        CONTEXT_CHUNK_ID CONTEXT_PAGE_ID CONTEXT_DATA CONTEXT_METADATA CONTEXT_SEGMENT
        CONTEXT_FORMAT CONTEXT_KEY_FILE
    }
}

/// The rows of the section's tables whose first cell is a name in capitals.
fn in_doc() -> BTreeMap<String, String> {
    let start = DOC.find("## 1. ").expect("section 1");
    let end = DOC.find("## 2. ").expect("section 2");
    let mut out = BTreeMap::new();
    for row in DOC[start..end].lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let before = out.insert(cells[1].to_owned(), cells[2].to_owned());
        assert!(before.is_none(), "{} stands twice in the documentation", cells[1]);
    }
    out
}

#[test]
fn the_documentation_says_what_the_code_does() {
    let names = CODE.lines().filter_map(|line| line.strip_prefix("pub const "));
    let names: Vec<_> = names.filter_map(|rest| Some(rest.split_once(':')?.0)).collect();
    let code = in_code();
    for name in &names {
        assert!(code.contains_key(*name), "add {name} to the list of this test");
    }
    assert_eq!(names.len(), code.len());
    let doc = in_doc();
    for (name, value) in &code {
        assert_eq!(doc.get(name), Some(value), "{name}: documentation (left), code (right)");
    }
    for name in doc.keys() {
        assert!(code.contains_key(name), "{name} is documented, but not in the code");
    }
}

#[test]
fn magic_values_and_contexts_differ() {
    let all = in_code();
    for prefix in ["MAGIC_", "CONTEXT_"] {
        let mut values: Vec<_> = all.iter().filter(|(n, _)| n.starts_with(prefix)).collect();
        let count = values.len();
        values.sort_by_key(|(_, value)| *value);
        values.dedup_by_key(|(_, value)| *value);
        assert_eq!(values.len(), count);
    }
}

/// What other limits follow from.
#[test]
fn the_limits_fit_each_other() {
    const {
        assert!(CHUNK_BYTES_MAX <= ENTRY_PLAIN_BYTES_MAX);
        assert!(ENTRY_CHUNKS_MAX as u32 * CHUNK_BYTES_MIN <= ENTRY_PLAIN_BYTES_MAX);
        // a page whose children are all in packs of their own
        assert!(8 + PAGE_FANOUT_MAX as u32 * (32 + 14 + 2 + 2 + 32) <= PAGE_PLAIN_BYTES_MAX);
    }
    let chunks = VOLUME_BYTES_MAX / u64::from(CHUNK_BYTES_MIN);
    let deepest = crate::units::map_depth(PAGE_FANOUT_MIN, chunks);
    assert!(deepest <= MAP_DEPTH_MAX, "{deepest}");
    assert!(crate::units::page_span(PAGE_FANOUT_MIN, deepest - 1) >= chunks);
}
