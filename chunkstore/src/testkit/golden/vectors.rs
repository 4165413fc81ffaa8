//! The test vector of `docs/format.md`: each row is computed from those that are given.

use crate::format::damaged::Damaged;
use crate::format::page::Page;
use crate::ids::{PackId, PageId, RepositoryId};
use crate::keys::{Encryption, Keys, MasterKey};
use crate::pack::EntryKind;
use crate::seal::Opener;
use crate::units::{ChunkRef, Location};
use std::collections::BTreeMap;
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../../docs/format.md");
const RECORD: &str = "damaged/000102030405060708090a0b0c0d0e0f";

fn rows() -> BTreeMap<&'static str, Vec<u8>> {
    let section = &DOCUMENT[DOCUMENT.find("## 15. ").unwrap()..];
    let cells = section.lines().filter(|line| line.contains('`') && line.starts_with("| "));
    let row = |line: &'static str| {
        let mut cells = line.split('|').map(str::trim);
        (cells.nth(1).unwrap(), hex::decode(cells.next().unwrap().trim_matches('`')).unwrap())
    };
    cells.map(row).collect()
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap()
}

#[test]
fn the_document_has_the_right_bytes() {
    let rows = rows();
    assert_eq!(rows.len(), 21, "{:?}", rows.keys());
    let row = |name: &str| rows.get(name).unwrap_or_else(|| panic!("no row {name:?}")).as_slice();
    let master = MasterKey::from_bytes(array(row("master key")));
    let repository = RepositoryId::from_bytes(array(row("repository id")));
    let pack = PackId::from_bytes(array(row("pack id")));
    let [keys, clear] = [Encryption::Aes256Gcm, Encryption::None]
        .map(|encryption| Arc::new(Keys::derive(&master, encryption)));
    let chunk = row("chunk");
    let id = keys.chunk_id(chunk);
    assert_eq!(id.as_bytes(), row("chunk id"));
    for (keys, name) in
        [(&keys, "entry at offset 64, seal 1"), (&clear, "entry at offset 64, seal 0")]
    {
        let mut opener = Opener::new(Arc::clone(keys)).unwrap();
        let mut plain = Vec::new();
        opener.open_entry(EntryKind::Chunks, &pack, 64, row(name), &mut plain).unwrap();
        assert_eq!(plain, chunk, "{name}");
    }
    let stored_len = u32::try_from(row("entry at offset 64, seal 1").len()).unwrap();
    let location = Location { pack, entry: 0, offset: 64, stored_len, index: 0 };
    let page = Page::decode(row("page"), 16).unwrap();
    assert_eq!(page.children(), [None, Some(ChunkRef { id, location }.into())]);
    assert_eq!(page.encode().unwrap(), row("page"));
    assert_eq!(page.id(&keys), PageId::from_bytes(array(row("page id"))));
    let record = row("record, seal 1");
    let damaged = Damaged::decode(&keys, &repository, RECORD, record).unwrap();
    let body =
        super::damaged_of_body(row("record body"), &keys, &repository, RECORD, &array(row("salt")));
    assert_eq!(body.unwrap(), record);
    let again = super::damaged(&damaged, &keys, &repository, RECORD, &array(row("salt")));
    assert_eq!(again.unwrap(), record, "{damaged:?}");
}
