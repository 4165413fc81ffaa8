use super::*;
use chunkstore::{ChunkSize, Geometry};
use proptest::prelude::*;

const VOLUME: u64 = 1 << 20;

fn request(kind: ChangeKind, ranges_max: usize) -> ListRequest<'static> {
    ListRequest {
        kind,
        volume_bytes: VOLUME,
        ranges_max,
        granule_bytes: 4096,
        base: None,
        device: None,
        movement: None,
    }
}

proptest! {
    /// However little memory there is: what was named stays named, as data or as zero, and what
    /// counts as zero was named zero.
    #[test]
    fn a_coarser_list_loses_nothing(
        blocks in prop::collection::vec((0..VOLUME - 5000, 1..5000u64, any::<bool>()), 0..200),
        ranges_max in 2..64usize,
    ) {
        let mut list = Collector::new(&request(ChangeKind::Delta, ranges_max));
        for (start, len, zero) in &blocks {
            list.add(*start..start + len, *zero);
        }
        let list = list.finish("x", ListOrigin::Rest, Some(VOLUME)).unwrap();
        let of = |wanted| -> Extents {
            blocks.iter().filter(|b| b.2 == wanted).map(|b| b.0..b.0 + b.1).collect()
        };
        let (data, zero) = (of(false), of(true).subtract(&of(false)));
        prop_assert!(data.subtract(&list.data).is_empty());
        prop_assert!(zero.subtract(&list.data.union(&list.zero)).is_empty());
        prop_assert!(list.zero.subtract(&zero).is_empty());
        prop_assert!(list.data.is_disjoint(&list.zero));
        prop_assert!(list.data.count() + list.zero.count() <= 2 * ranges_max + 1);
    }
}

#[test]
fn the_first_step_of_coarseness_costs_a_backup_nothing() {
    let blocks = (0..VOLUME / 4096).step_by(16).flat_map(|n| [n, n + 2, n + 4]);
    let blocks: Vec<_> = blocks.map(|n| n * 4096..n * 4096 + 512).collect();
    let fine: Extents = blocks.iter().cloned().collect();
    let granule_bytes = 32 << 10;
    let wanted = ListRequest { granule_bytes, ..request(ChangeKind::Delta, 40) };
    let mut list = Collector::new(&wanted);
    blocks.iter().for_each(|b| list.add(b.clone(), false));
    let list = list.finish("x", ListOrigin::Rest, None).unwrap();
    let geometry = Geometry::new(VOLUME, ChunkSize::new(32 << 10).unwrap()).unwrap();
    assert!(fine.count() > 40 && list.data.count() <= 40);
    assert_eq!(list.data.to_chunks(geometry), fine.to_chunks(geometry));
    assert!(list.notes[0].contains("32 KiB"), "{:?}", list.notes);
}

#[test]
fn a_capacity_is_held_against_the_device() {
    let list = |capacity| {
        let mut list = Collector::new(&request(ChangeKind::Allocated, 100));
        list.add(0..4096, false);
        list.add(VOLUME - 4096..VOLUME + 4096, false);
        list.finish("x", ListOrigin::Rest, capacity)
    };
    assert_eq!(list(None).unwrap().data.end(), VOLUME);
    let mut beyond = Collector::new(&request(ChangeKind::Delta, 2));
    beyond.add(u64::MAX - 9..u64::MAX, false);
    assert_eq!(beyond.finish("x", ListOrigin::Rest, None).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(list(Some(VOLUME + 1)).unwrap_err().kind(), ErrorKind::Corrupt);
    let smaller = list(Some(8192)).unwrap();
    assert_eq!(smaller.data.as_slice(), [0..4096, 8192..VOLUME]);
    assert!(smaller.notes[0].contains("are read as well"));
}

#[test]
fn tokens_are_read_whole_and_bounded() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let read = |bytes: &[u8]| {
        std::fs::write(file.path(), bytes).unwrap();
        crate::sources::credentials::read_token(file.path()).map(|t| t.to_string())
    };
    assert_eq!(read(b" abc.def\n").unwrap(), "abc.def");
    for bad in [&b""[..], b" \n", b"a b", b"\xff", &vec![b'x'; 70_000]] {
        assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::Usage);
    }
}

/// 5.24 million ranges whose pieces of 64 KiB touch: however often the room was filled again, they
/// stay pieces of 64 KiB.
#[test]
fn a_list_becomes_coarser_only_where_that_helps() {
    const RANGES: u64 = 5 << 20;
    let wanted = ListRequest {
        kind: ChangeKind::Delta,
        volume_bytes: RANGES << 13,
        ranges_max: 1 << 18,
        granule_bytes: 64 << 10,
        base: None,
        device: None,
        movement: None,
    };
    let mut list = Collector::new(&wanted);
    (0..RANGES).for_each(|n| list.add(n << 13..(n << 13) + 4096, false));
    let list = list.finish("x", ListOrigin::Rest, None).unwrap();
    let pieces = Geometry::new(RANGES << 13, ChunkSize::new(64 << 10).unwrap()).unwrap();
    assert_eq!(list.data.to_chunks(pieces), Extents::of(0..pieces.chunks()).into_vec());
    assert!(list.data.count() < 1 << 18 && list.data.end() <= RANGES << 13);
    assert!(list.notes[0].contains("pieces of 64 KiB"), "{:?}", list.notes);
}

proptest! {
    /// However a list begins and is asked for anew: what its beginnings named is in it, or it is
    /// refused, and it is refused for nothing else.
    #[test]
    fn beginnings_of_a_list_count(
        truth in prop::collection::vec((0..60u64, any::<bool>()), 0..40),
        begun in prop::collection::vec((0..40usize, prop::option::of(0..60u64)), 1..4),
        ranges_max in prop_oneof![Just(1000usize), 4..20usize],
    ) {
        let cell = |n: u64| n * 8192..n * 8192 + 4096;
        let mut list = Collector::new(&request(ChangeKind::Delta, ranges_max));
        let mut named: Vec<u64> = Vec::new();
        for (count, other) in &begun {
            for (n, zero) in truth.iter().take(*count) {
                list.add(cell(*n), *zero);
                named.push(*n);
            }
            if let Some(n) = other {
                list.add(cell(*n), false);
                named.push(*n);
            }
            list.restart();
        }
        truth.iter().for_each(|(n, zero)| list.add(cell(*n), *zero));
        let lost = named.iter().any(|n| truth.iter().all(|(m, _)| m != n));
        match list.finish("x", ListOrigin::Rest, Some(VOLUME)) {
            Ok(list) => {
                prop_assert!(!lost || ranges_max < 1000, "{named:?} {truth:?}");
                let all = list.data.union(&list.zero);
                let is = |n: &u64| all.covers(&cell(*n));
                prop_assert!(named.iter().all(is) && truth.iter().all(|(n, _)| is(n)));
                let data = |n: u64| truth.iter().any(|(m, zero)| *m == n && !zero);
                prop_assert!((0..60).filter(|n| data(*n)).all(|n| list.data.covers(&cell(n))));
            }
            Err(error) => prop_assert!(lost && error.to_string().contains("leaves out"), "{error}"),
        }
    }
}

#[test]
fn what_is_named_can_be_asked() {
    let mut list = Collector::new(&request(ChangeKind::Delta, 100));
    for range in [10..20, 20..30, 50..60] {
        list.add(range, false);
    }
    assert_eq!(list.unnamed(&(10..30)), None);
    assert_eq!(list.unnamed(&(12..12)), None);
    assert_eq!(list.unnamed(&(12..55)), Some(30..50));
    assert_eq!(list.unnamed(&(0..5)), Some(0..5));
    assert_eq!(list.unnamed(&(55..70)), Some(60..70));
    assert_eq!(list.named(&(30..50)), None);
    assert_eq!(list.named(&(0..11)), Some(10..11));
    assert_eq!(list.named(&(29..60)), Some(29..30));
    assert_eq!(list.named(&(60..VOLUME)), None);
    assert_eq!(list.named_bytes(), 30);
}
