//! Writes the journals that the corpus starts from:
//! `cargo test -p fuzz --test journal_seeds -- --ignored`.

use mover_engine::live::{ChunkBits, JournalTerms, encode_base, encode_record};
use std::path::Path;

#[test]
#[ignore = "writes files"]
fn write_seeds() {
    let terms = JournalTerms {
        chunk_bytes: 4096,
        size_bytes: 20 * 4096 - 7,
        token: [0x5a; 16],
        identity: b"{}".to_vec(),
    };
    let mut done = ChunkBits::none(20);
    done.insert(3..5);
    let base = encode_base(&terms, &done, 8);
    let records =
        [encode_record(&terms, 9, &[0..2, 7..8]), encode_record(&terms, 10, &[10..12, 19..20])];
    let whole = [base.clone(), records.concat()].concat();
    let mut torn = whole.clone();
    torn.truncate(whole.len() - 9);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/journal");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{e}"));
    for (name, bytes) in [("base", base), ("records", whole), ("torn", torn)] {
        std::fs::write(folder.join(name), bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
