use super::*;
use crate::keys::{Encryption, MasterKey};
use proptest::prelude::*;

fn location(pack: u8, entry: u32, index: u16) -> Location {
    Location {
        pack: PackId::from_bytes([pack; 32]),
        entry,
        offset: 64 + entry * 100,
        stored_len: 100,
        index,
    }
}

fn child(pack: u8, entry: u32, index: u16) -> Option<Child> {
    Some(Child { id: [pack; 32], location: location(pack, entry, index) })
}

fn sample() -> Page {
    Page::new(0, vec![None, child(2, 0, 0), child(1, 5, 3), None, child(2, 0, 1), None, None])
}

#[test]
fn zeros_at_the_end_are_cut_off() {
    assert_eq!(sample().children().len(), 5);
    assert!(Page::new(0, vec![None; 10]).is_zero());
    assert_eq!(sample().child(4), child(2, 0, 1).as_ref());
    assert_eq!(sample().child(5), None);
    assert_eq!(sample().child(500), None);
    assert!(Page::new(0, vec![None]).encode().is_err());
}

#[test]
fn the_layout_is_as_documented() {
    let mut want = vec![0, 0, 5, 0, 2, 0, 2, 0];
    want.extend([2; 32]);
    want.extend([1; 32]);
    want.extend([0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 100, 0, 0, 0]);
    want.extend([1, 0, 5, 0, 0, 0, 0x34, 2, 0, 0, 100, 0, 0, 0]);
    want.extend([255, 255]);
    want.extend([0, 0, 0, 0]);
    want.extend([2; 32]);
    want.extend([1, 0, 3, 0]);
    want.extend([1; 32]);
    want.extend([255, 255]);
    want.extend([0, 0, 1, 0]);
    want.extend([2; 32]);
    assert_eq!(sample().encode().unwrap(), want);
    assert_eq!(Page::decode(&want, 16).unwrap(), sample());
}

#[test]
fn ids_do_not_depend_on_locations() {
    let keys = Keys::derive(&MasterKey::from_bytes([1; 32]), Encryption::None);
    let elsewhere = Page::new(
        0,
        sample()
            .children()
            .iter()
            .map(|c| c.map(|c| Child { location: location(9, 1, 1), ..c }))
            .collect(),
    );
    assert_eq!(sample().id(&keys), elsewhere.id(&keys));
    assert_ne!(sample().id(&keys), Page::new(1, sample().children().to_vec()).id(&keys));
}

#[test]
fn truncated_pages_are_refused() {
    let bytes = sample().encode().unwrap();
    for len in 0..bytes.len() {
        assert!(Page::decode(&bytes[..len], 16).is_err(), "{len}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Page::decode(&longer, 16).is_err());
}

/// A page stands inside a sealed entry, so a flip is found by the tag; here it must only never
/// panic, and never give a page that encodes to other bytes.
#[test]
fn there_is_one_encoding_of_each_page() {
    let bytes = sample().encode().unwrap();
    for i in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[i] ^= 1 << bit;
            if let Ok(page) = Page::decode(&bad, 16) {
                assert_eq!(page.encode().unwrap(), bad, "byte {i}, bit {bit}");
            }
        }
    }
}

#[test]
fn limits_are_enforced() {
    let page = Page::new(0, vec![child(1, 0, 0); 17]);
    let bytes = page.encode().unwrap();
    assert!(Page::decode(&bytes, 16).is_err());
    assert!(Page::decode(&bytes, 32).is_ok());
    assert!(Page::new(MAP_DEPTH_MAX, vec![child(1, 0, 0)]).encode().is_err());
    assert!(Page::new(0, vec![child(1, 0, 0); 1025]).encode().is_err());
    assert!(Page::new(0, vec![child(1, 0, 0); 1024]).encode().is_ok());
    assert!(Page::new(1, vec![child(1, 0, 1)]).encode().is_err());
    let outside = Location { offset: 63, ..location(1, 0, 0) };
    assert!(Page::new(0, vec![Some(Child { id: [0; 32], location: outside })]).encode().is_err());
}

#[test]
fn the_largest_page_fits_its_limit() {
    let children = (0..1024u32).map(|i| {
        let mut pack = [0; 32];
        pack[..4].copy_from_slice(&i.to_le_bytes());
        let pack = PackId::from_bytes(pack);
        Some(Child { id: [1; 32], location: Location { pack, ..location(0, 1, 0) } })
    });
    let bytes = Page::new(0, children.collect()).encode().unwrap();
    assert!(bytes.len() <= PAGE_PLAIN_BYTES_MAX as usize, "{}", bytes.len());
    assert_eq!(Page::decode(&bytes, 1024).unwrap().children().len(), 1024);
}

fn any_page() -> impl Strategy<Value = Page> {
    let location = (0u8..4, 0u32..6, 0u16..1024).prop_map(|(p, e, i)| location(p, e, i));
    let child = (any::<[u8; 32]>(), location).prop_map(|(id, location)| Child { id, location });
    let children = proptest::collection::vec(proptest::option::of(child), 1..64);
    (0u8..MAP_DEPTH_MAX, children).prop_map(|(level, mut children)| {
        if level > 0 {
            children.iter_mut().flatten().for_each(|c| c.location.index = 0);
        }
        Page::new(level, children)
    })
}

proptest! {
    #[test]
    fn pages_round_trip(page in any_page()) {
        prop_assume!(!page.is_zero());
        let bytes = page.encode().unwrap();
        prop_assert_eq!(Page::decode(&bytes, 64).unwrap(), page);
    }

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Page::decode(&bytes, 1024);
    }
}
