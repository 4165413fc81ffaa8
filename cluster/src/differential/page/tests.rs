//! Pages of messages, with all that a driver may do.

use super::*;

const CAPACITY: u64 = 1 << 20;

fn message(blocks: &[(i64, i64)]) -> Message {
    Message { block_type: 2, capacity_bytes: 1 << 20, blocks: blocks.to_vec() }
}

fn draft(listing: Listing, start: u64, entries: usize) -> Draft {
    Draft::new(listing, start, None, entries)
}

fn told(page: &Page) -> Vec<(u64, u64, bool)> {
    page.blocks.iter().map(|b| (b.range.start, b.range.end, b.zero)).collect()
}

#[test]
fn a_full_page_goes_on_where_it_ended() {
    let mut page = draft(Listing::Delta, 0, 2);
    // Ranges that touch are one, so this is two blocks and the beginning of a third.
    let ranges = [(0, 4096), (4096, 4096), (16384, 4096), (65536, 4096)];
    assert_eq!(page.take(message(&ranges)), Err(Halt::Full));
    assert!(page.is_full());
    let page = page.cut().expect("it says something");
    assert_eq!(told(&page), [(0, 8192, false), (16384, 20480, false)]);
    assert_eq!(page.next, Some((20480, 2, CAPACITY)));
}

#[test]
fn only_a_call_that_brings_nothing_new_is_the_last_one() {
    let mut page = draft(Listing::Delta, 0, 100);
    page.take(message(&[(0, 4096)])).unwrap();
    let page = page.ended_well().unwrap();
    assert_eq!(page.next, Some((4096, 2, CAPACITY)), "it may have been cut off");
    // asked again from there, the driver starts before the point
    let mut page = draft(Listing::Delta, 4096, 100);
    page.take(message(&[(0, 4096)])).unwrap();
    let page = page.ended_well().unwrap();
    assert_eq!((told(&page), page.next), (vec![], None));
    // to the volume's end, and behind it
    let mut page = draft(Listing::Delta, 4096, 100);
    page.take(message(&[(1 << 19, 1 << 20)])).unwrap();
    let page = page.ended_well().unwrap();
    assert_eq!((told(&page), page.next), (vec![(1 << 19, CAPACITY, false)], None));
}

#[test]
fn what_starts_before_the_page_is_clipped() {
    let mut page = draft(Listing::Allocated, 6000, 100);
    page.take(message(&[(4096, 4096), (12288, 4096)])).unwrap();
    let page = page.cut().unwrap();
    assert_eq!(told(&page), [(6000, 8192, false), (12288, 16384, false)]);
}

#[test]
fn all_of_a_volume_is_named_where_the_base_is_gone() {
    let mut page = draft(Listing::AllChanged, 0, 100);
    page.take(message(&[(4096, 4096), (16384, 4096)])).unwrap();
    let page = page.ended_well().unwrap();
    let wanted = [(0, 4096, true), (4096, 8192, false), (8192, 16384, true), (16384, 20480, false)];
    assert_eq!(told(&page), wanted);
    let (next, ..) = page.next.unwrap();
    let mut page = draft(Listing::AllChanged, next, 100);
    page.take(message(&[])).unwrap();
    let page = page.ended_well().unwrap();
    assert_eq!((told(&page), page.next), (vec![(20480, CAPACITY, true)], None));
    // a page that has room for a gap and nothing else
    let mut page = draft(Listing::AllChanged, 0, 1);
    assert_eq!(page.take(message(&[(4096, 4096)])), Err(Halt::Full));
    let page = page.cut().unwrap();
    assert_eq!((told(&page), page.next), (vec![(0, 4096, true)], Some((4096, 2, CAPACITY))));
}

#[test]
fn a_call_that_broke_is_no_end_even_at_the_volumes_end() {
    let mut page = draft(Listing::Delta, 0, 100);
    page.take(message(&[(0, 4096), (1 << 19, 1 << 19)])).unwrap();
    let page = page.cut().unwrap();
    assert_eq!(told(&page), [(0, 4096, false)]);
    assert_eq!(page.next, Some((1 << 19, 2, CAPACITY)));
    // nothing but the last range: nothing new can be said
    let mut page = draft(Listing::Delta, 1 << 19, 100);
    page.take(message(&[(1 << 19, 1 << 19)])).unwrap();
    assert_eq!(page.cut(), None);
    assert_eq!(draft(Listing::Delta, 0, 100).cut(), None);
}

#[test]
fn no_message_is_an_empty_delta_and_nothing_else() {
    let page = draft(Listing::Delta, 0, 100).ended_well().unwrap();
    assert_eq!((told(&page), page.next, page.capacity), (vec![], None, None));
    for listing in [Listing::Allocated, Listing::AllChanged] {
        assert!(draft(listing, 0, 100).ended_well().unwrap_err().contains("without a message"));
    }
}

#[test]
fn broken_promises_end_the_page() {
    let broken = |ranges: &[(i64, i64)]| draft(Listing::Delta, 0, 100).take(message(ranges));
    for ranges in [[(4096, 4096), (0, 4096)], [(0, 4096), (100, 1)], [(-1, 4096), (0, 1)]] {
        assert!(matches!(broken(&ranges), Err(Halt::Broken(_))), "{ranges:?}");
    }
    let place = Place {
        listing: Listing::Delta,
        block_type: 2,
        at: 4096,
        capacity: 1 << 21,
        expiry: 0,
        pair: [0; 16],
    };
    let mut page = Draft::new(Listing::Delta, 4096, Some(&place), 100);
    let Err(Halt::Broken(said)) = page.take(message(&[])) else { panic!("another capacity") };
    assert!(said.contains("was 2097152 in the page before"), "{said}");
    let mut page = Draft::new(Listing::Delta, 4096, Some(&Place { block_type: 1, ..place }), 100);
    assert!(matches!(page.take(message(&[])), Err(Halt::Broken(_))), "another type");
}

#[test]
fn a_page_is_written_in_the_names_of_the_proposal() {
    let mut page = draft(Listing::AllChanged, 0, 100);
    page.take(message(&[(4096, 4096)])).unwrap();
    let text = page.ended_well().unwrap().json("abc", 77);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "changeBlockList": [
                { "offset": 0, "size": 4096, "context": "", "zeroOut": true },
                { "offset": 4096, "size": 4096, "context": "", "zeroOut": false },
            ],
            "nextOffset": "abc", "volumeSize": CAPACITY, "timeout": 77,
            "state": "Success", "error": "",
        })
    );
}
