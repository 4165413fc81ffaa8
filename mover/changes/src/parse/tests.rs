#![allow(clippy::single_range_in_vec_init)]

use super::*;
use proptest::prelude::*;
use std::ops::Range;

mod csi_records;

const MIB: u64 = 1 << 20;
const VOLUME: u64 = 16 * MIB;

fn options() -> ParseOptions {
    ParseOptions::new("list.json", VOLUME)
}

fn with_kind(kind: ChangeKind) -> ParseOptions {
    ParseOptions { kind_override: Some(kind), ..options() }
}

fn parse(text: &str) -> ChangedBlocks {
    parse_changed_blocks(text.as_bytes(), &options()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The error of a list, which names the file and says what to do.
fn refuse_as(text: &str, options: &ParseOptions) -> Error {
    let error = match parse_changed_blocks(text.as_bytes(), options) {
        Ok(list) => panic!("{text} was taken for {list:?}"),
        Err(error) => error,
    };
    assert!(error.to_string().starts_with("read changed-block list list.json: "), "{error}");
    assert!(error.hint_text().is_some(), "{error}");
    error
}

#[track_caller]
fn assert_refused(text: &str, kind: ErrorKind, parts: &[&str]) {
    let error = refuse_as(text, &options());
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is not in: {error}");
    }
}

fn csi(ranges: &str) -> String {
    format!(
        r#"{{"block_metadata_type":2,"volume_capacity_bytes":16777216,"block_metadata":[{ranges}]}}"#
    )
}

fn data(list: &ChangedBlocks) -> &[Range<u64>] {
    list.data.as_slice()
}

fn zero(list: &ChangedBlocks) -> &[Range<u64>] {
    list.zero.as_slice()
}

#[test]
fn own_shape() {
    let list = parse(
        r#"{"volume_size": 16777216, "kind": "allocated",
            "extents": [{"offset": 8192, "len": 4096}, {"offset": 0, "len": 1}, {"offset": 1, "len": 99}],
            "zero": [{"offset": 50, "len": 100}]}"#,
    );
    assert_eq!((list.kind, list.origin), (ChangeKind::Allocated, ListOrigin::Mover));
    assert_eq!(list.volume_bytes, Some(VOLUME));
    assert_eq!(data(&list), [0..100, 8192..12288]);
    assert_eq!(zero(&list), [100..150], "data wins over zero");
    assert_eq!((list.listed_bytes(), list.listed_extents()), (4096 + 150, 3));
}

#[test]
fn own_shape_in_any_order_and_without_optional_members() {
    let list = parse(r#"{"zero":[],"extents":[],"kind":"delta"}"#);
    assert_eq!((list.kind, list.volume_bytes), (ChangeKind::Delta, None));
    assert!(list.data.is_empty() && list.zero.is_empty());
    let list = parse(r#"{"extents":[{"len":512,"offset":0,"zero_out":true}]}"#);
    assert_eq!((list.kind, zero(&list)), (ChangeKind::Delta, &[0..512][..]));
}

#[test]
fn bare_ranges() {
    let list = parse(
        r#"[{"offset":4096,"size":4096},{"offset":"0","length":"4096"},{"offset":100,"len":0},
            {"Offset":1048576,"Size":4096,"ZeroOut":true},{"offset":2097152,"length":1,"zero_out":false,"context":"AA=="}]"#,
    );
    assert_eq!(
        (list.kind, list.origin, list.volume_bytes),
        (ChangeKind::Delta, ListOrigin::Extents, None)
    );
    assert_eq!(data(&list), [0..8192, 2 * MIB..2 * MIB + 1]);
    assert_eq!(zero(&list), [MIB..MIB + 4096]);
}

#[test]
fn an_empty_array_is_an_empty_list() {
    let list = parse(" [ ] \n");
    assert_eq!((list.kind, list.origin), (ChangeKind::Delta, ListOrigin::Extents));
    assert!(list.data.is_empty() && list.zero.is_empty() && list.notes.is_empty());
}

#[test]
fn an_empty_allocated_list_is_taken_with_a_note() {
    let list = parse_changed_blocks(&b"[]"[..], &with_kind(ChangeKind::Allocated)).unwrap();
    assert_eq!(list.notes, ["list.json names no allocated block: the whole volume counts as zero"]);
}

#[test]
fn rbd_diff() {
    let list = parse(
        r#"[{"offset":0,"length":4194304,"exists":"true"},{"offset":8388608,"length":4194304,"exists":"false"},
            {"offset":4194304,"length":512,"exists":true},{"offset":12582912,"length":512,"exists":false}]"#,
    );
    assert_eq!((list.kind, list.origin), (ChangeKind::Delta, ListOrigin::Rbd));
    assert_eq!(data(&list), [0..4 * MIB + 512]);
    assert_eq!(zero(&list), [8 * MIB..12 * MIB + 512]);
    let list = parse_changed_blocks(
        &br#"[{"offset":0,"length":1,"exists":"true"}]"#[..],
        &with_kind(ChangeKind::Allocated),
    );
    assert_eq!(list.unwrap().kind, ChangeKind::Allocated);
}

/// Output of qemu-img 10.0 for a qcow2 image with data, a zeroed and a discarded range.
const QEMU: &str = r#"[{ "start": 0, "length": 65536, "depth": 0, "present": false, "zero": true, "data": false, "compressed": false},
{ "start": 65536, "length": 131072, "depth": 0, "present": true, "zero": false, "data": true, "compressed": false, "offset": 327680},
{ "start": 196608, "length": 851968, "depth": 1, "present": false, "zero": true, "data": false, "compressed": false},
{ "start": 1048576, "length": 1048576, "depth": 0, "present": true, "zero": true, "data": false, "compressed": false},
{ "start": 2097152, "length": 14680064, "depth": 0, "present": false, "zero": true, "data": false, "compressed": false}]
"#;

#[test]
fn qemu_img_map() {
    let list = parse(QEMU);
    assert_eq!((list.kind, list.origin), (ChangeKind::Allocated, ListOrigin::Qemu));
    assert_eq!(data(&list), [65536..196608]);
    assert_eq!(zero(&list), [0..65536, 196608..VOLUME]);
}

#[test]
fn qemu_img_map_rounds_the_end_up_to_a_sector() {
    let text = r#"[{"start":0,"length":4096,"zero":false,"data":true},{"start":4096,"length":1024,"zero":true,"data":false}]"#;
    let list = |size| parse_changed_blocks(text.as_bytes(), &ParseOptions::new("list.json", size));
    assert_eq!(list(5120).unwrap().zero, Extents::of(4096..5120));
    assert_eq!(list(5120 - 511).unwrap().zero, Extents::of(4096..4609));
    assert_eq!(list(5120 - 512).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(list(5121).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn qemu_ranges_not_known_to_be_zero_are_read() {
    let list = parse(
        r#"[{"start":0,"length":8388608,"zero":false,"data":false},{"start":8388608,"length":8388608,"zero":true,"data":true}]"#,
    );
    assert_eq!((data(&list), zero(&list)), (&[0..8 * MIB][..], &[8 * MIB..VOLUME][..]));
}

#[test]
fn qemu_img_map_must_cover_everything_and_is_no_delta() {
    let short = QEMU.replace("14680064", "14680063");
    assert_refused(&short, ErrorKind::Usage, &["says nothing of bytes 16777215 to 16777216"]);
    let error = refuse_as(QEMU, &with_kind(ChangeKind::Delta));
    assert!(error.to_string().contains("it is allocated, not delta"), "{error}");
    let no_flags = r#"[{"start":0,"length":16777216,"data":true}]"#;
    assert_refused(no_flags, ErrorKind::Corrupt, &["range 1", "data or zero is missing"]);
}

/// What the reference lister writes.
const CSI: &str = r#"[{"block_metadata_type":1,"volume_capacity_bytes":16777216,"block_metadata":[{"size_bytes":4096},{"byte_offset":4096,"size_bytes":4096}]},{"block_metadata_type":1,"volume_capacity_bytes":16777216,"block_metadata":[{"byte_offset":65536,"size_bytes":4096}]}]"#;

#[test]
fn lists_that_are_not_lists() {
    let corrupt = |text: &str, parts: &[&str]| assert_refused(text, ErrorKind::Corrupt, parts);
    corrupt("", &["it is empty"]);
    corrupt(" \n\t ", &["it is empty"]);
    corrupt("hello", &["not JSON", "line 1, column 1"]);
    corrupt("\u{feff}[]", &["not JSON"]);
    corrupt("\0\0\0\0", &["not JSON"]);
    corrupt("5", &["invalid type", "changed-block list"]);
    corrupt("null", &["invalid type"]);
    corrupt("\"[]\"", &["invalid type"]);
    corrupt("{}", &["without \"extents\""]);
    corrupt(r#"{"changeBlockList":[{"offset":0,"size":5}]}"#, &["without \"extents\""]);
    corrupt("[5]", &["range 1", "invalid type: integer `5`"]);
    corrupt("[[]]", &["range 1", "invalid type: sequence"]);
    corrupt("[", &["ends in the middle"]);
    corrupt(r#"[{"offset":0,"len":5}"#, &["ends in the middle"]);
    corrupt(r#"[{"offset":0,"len":5},]"#, &["not JSON (trailing comma)"]);
    corrupt(r#"[{"offset":0,"len":5}] x"#, &["something follows", "line 1, column 24"]);
    corrupt(r#"[{"offset":0,"len":5}][]"#, &["something follows"]);
    corrupt(r#"{"extents":[]}{"extents":[]}"#, &["something follows"]);
    corrupt(r#"{"extents":[],"zeros":[]}"#, &["none of volume_size, kind, extents, zero"]);
    corrupt(r#"{"zeros":[],"extents":[]}"#, &["none of volume_size, kind, extents, zero"]);
    corrupt(r#"{"extents":[],"extents":[]}"#, &["extents is given twice"]);
    corrupt(r#"{"kind":"delta"}"#, &["without \"extents\""]);
    corrupt(
        r#"{"kind":"Delta","extents":[]}"#,
        &["\"Delta\"", "\"delta\", \"allocated\" or \"whole\""],
    );
    corrupt(r#"{"extents":{}}"#, &["invalid type: map"]);
    corrupt(r#"{"extents":[],"block_metadata":[]}"#, &["mixes"]);
    corrupt(r#"{"block_metadata_type":1,"extents":[]}"#, &["mixes"]);
}

#[test]
fn wrong_ranges() {
    let corrupt = |text: &str, parts: &[&str]| assert_refused(text, ErrorKind::Corrupt, parts);
    let first = r#"{"offset":0,"len":5}"#;
    corrupt(
        &format!("[{first},\n{{\"offset\":-4096,\"len\":5}}]"),
        &["range 2", "line 2", "offset is -4096, which is negative"],
    );
    corrupt(r#"[{"offset":0,"len":-1}]"#, &["range 1", "length is -1"]);
    corrupt(r#"[{"offset":0.5,"len":1}]"#, &["offset is 0.5, not a whole number"]);
    corrupt(r#"[{"offset":4096.0,"len":1}]"#, &["not a whole number"]);
    corrupt(r#"[{"offset":1e3,"len":1}]"#, &["offset is 1000, not a whole number"]);
    corrupt(r#"[{"offset":0,"len":18446744073709551616}]"#, &["length is 18446744073709552000"]);
    corrupt(r#"[{"offset":"-1","len":1}]"#, &["offset is \"-1\""]);
    corrupt(r#"[{"offset":"","len":1}]"#, &["offset is \"\""]);
    corrupt(r#"[{"offset":" 1","len":1}]"#, &["not a whole number"]);
    corrupt(r#"[{"offset":"18446744073709551616","len":1}]"#, &["not a whole number"]);
    corrupt(r#"[{"offset":null,"len":1}]"#, &["invalid type: null", "for offset"]);
    corrupt(r#"[{"offset":true,"len":1}]"#, &["invalid type: boolean"]);
    corrupt(r#"[{"len":1}]"#, &["range 1", "offset is missing"]);
    corrupt(r#"[{"offset":1}]"#, &["range 1", "length is missing"]);
    corrupt("[{}]", &["offset is missing"]);
    corrupt(r#"[{"offset":1,"offset":1,"len":1}]"#, &["offset is given twice"]);
    corrupt(r#"[{"offset":1,"len":1,"size":1}]"#, &["length is given twice"]);
    corrupt(
        &format!(r#"[{first},{{"offset":0,"length":5,"exists":"true"}}]"#),
        &["range 2", "mixes"],
    );
    corrupt(
        &format!(r#"[{{"offset":0,"length":5,"exists":"true"}},{first}]"#),
        &["range 2", "mixes"],
    );
    corrupt(
        r#"[{"offset":0,"length":5,"exists":"yes"}]"#,
        &["exists is \"yes\", neither true nor false"],
    );
    corrupt(r#"[{"offset":0,"length":5,"exists":1}]"#, &["for exists"]);
    corrupt(r#"{"extents":[{"offset":18446744073709551615,"len":1}]}"#, &["extent 1", "64 bits"]);
    corrupt(r#"{"extents":[],"zero":[{"offset":1}]}"#, &["zero range 1", "length is missing"]);
    corrupt(
        r#"{"extents":[{"byte_offset":0,"size_bytes":1}]}"#,
        &["extent 1", "offset is missing"],
    );
}

#[test]
fn lists_of_another_volume() {
    let usage = |text: &str, parts: &[&str]| assert_refused(text, ErrorKind::Usage, parts);
    usage(
        r#"{"volume_size":5,"kind":"delta","extents":[]}"#,
        &["volume_size is 5, but the volume has 16777216"],
    );
    usage(r#"{"kind":"delta","extents":[],"volume_size":16777217}"#, &["volume_size is 16777217"]);
    usage(
        r#"[{"offset":16777215,"len":2}]"#,
        &["range 1", "bytes 16777215 to 16777217 reach behind the end"],
    );
    usage(r#"[{"offset":16777216,"len":1}]"#, &["reach behind the end"]);
    usage(r#"[{"offset":16777217,"len":0}]"#, &["reach behind the end"]);
    usage(r#"[{"offset":16777215,"length":2,"exists":"true"}]"#, &["reach behind the end"]);
    usage(r#"[{"offset":16777215,"length":2,"exists":"false"}]"#, &["reach behind the end"]);
    usage(r#"{"extents":[{"offset":16777215,"len":2}]}"#, &["extent 1"]);
    usage(r#"{"extents":[],"zero":[{"offset":16777215,"len":2}]}"#, &["zero range 1"]);
    assert_eq!(data(&parse(r#"[{"offset":16777215,"len":1}]"#)), [VOLUME - 1..VOLUME]);
    assert!(parse(r#"[{"offset":16777216,"len":0}]"#).data.is_empty());
}

#[test]
fn kinds_that_contradict() {
    let own = r#"{"kind":"delta","extents":[]}"#;
    let error = refuse_as(own, &with_kind(ChangeKind::Allocated));
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("it is delta, not allocated"), "{error}");
    let list = parse_changed_blocks(own.as_bytes(), &with_kind(ChangeKind::Delta)).unwrap();
    assert_eq!(list.kind, ChangeKind::Delta);
}

#[test]
fn a_whole_list_names_every_byte() {
    let text = r#"{"kind":"whole","extents":[{"offset":0,"len":16777215}],"zero":[{"offset":16777215,"len":1}]}"#;
    assert_eq!(parse(text).kind, ChangeKind::Whole);
    assert_refused(
        &text.replace("\"len\":1}", "\"len\":0}"),
        ErrorKind::Usage,
        &["every byte", "16777215 to 16777216"],
    );
    let error = refuse_as("[]", &with_kind(ChangeKind::Whole));
    assert!(error.to_string().contains("says nothing of bytes 0 to 16777216"), "{error}");
}

/// A JSON array as a stream that was never in memory.
struct Generated<F> {
    next: F,
    left: u64,
    piece: Vec<u8>,
    at: usize,
}

impl<F: FnMut(u64) -> String> Generated<F> {
    fn new(count: u64, next: F) -> Self {
        Self { next, left: count, piece: b"[".to_vec(), at: 0 }
    }
}

impl<F: FnMut(u64) -> String> Read for Generated<F> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.piece.len() && self.left > 0 {
            self.left -= 1;
            let separator = if self.left == 0 { "]" } else { "," };
            (self.piece, self.at) =
                (format!("{}{separator}", (self.next)(self.left)).into_bytes(), 0);
        }
        let n = buf.len().min(self.piece.len() - self.at);
        buf[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[test]
fn too_many_ranges_are_refused_and_mergeable_ones_are_not() {
    let options = ParseOptions { ranges_max: 1000, ..ParseOptions::new("list.json", 1 << 40) };
    let blocks = |count: u64, place: fn(u64) -> u64| {
        let block = move |i: u64| format!(r#"{{"offset":{},"len":4096}}"#, place(i) * 4096);
        parse_changed_blocks(Generated::new(count, block), &options)
    };
    // descending: nothing merges as it comes, everything does when sorted
    assert_eq!(blocks(100_000, |i| i).unwrap().data, Extents::of(0..100_000 * 4096));
    // duplicates, shuffled
    let list = blocks(100_000, |i| (i * 7919) % 1000 * 2).unwrap();
    assert_eq!(list.data.count(), 1000);
    for place in [|i| i * 2, |i: u64| 1_000_000 - i * 2, |i: u64| (i * 7919) % 1001 * 2] {
        let error = blocks(2002, place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("more than 1000 ranges"), "{error}");
    }
    let list = blocks(1000, |i| i * 2).unwrap();
    assert_eq!(list.data.count(), 1000);
}

#[test]
fn hostile_strings_and_nesting_take_no_memory() {
    let long = format!(r#"[{{"{}":1}}]"#, "x".repeat(1 << 20));
    assert_refused(&long, ErrorKind::Corrupt, &["longer than 64 KiB"]);
    let long = format!(r#"[{{"offset":"{}"}}]"#, "\\\"".repeat(1 << 19));
    assert_refused(&long, ErrorKind::Corrupt, &["longer than 64 KiB"]);
    let deep = format!(r#"[{{"x":{}"#, "[".repeat(1 << 20));
    assert_refused(&deep, ErrorKind::Corrupt, &["deeper than 64"]);
    let odd = format!(r#"{{"kind":"{}"}}"#, "y".repeat(60_000));
    assert!(refuse_as(&odd, &options()).to_string().len() < 1000);
}

#[test]
fn a_failing_read_is_the_devices_fault() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("gone"))
        }
    }
    for start in
        ["", "[", r#"[{"offset":1,"#, r#"{"volume_capacity_bytes":1,"block_metadata_type":1}"#]
    {
        let error = parse_changed_blocks(start.as_bytes().chain(Broken), &options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(error.to_string().contains("gone"), "{error}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let own = r#"{"volume_size": 16777216, "kind": "delta", "extents": [{"offset": 0, "len": 4096}], "zero": []}"#;
    let rbd = r#"[{"offset":0,"length":4194304,"exists":"true"}]"#;
    for text in [own, rbd, CSI, QEMU.trim_end()] {
        parse(text);
        for end in 0..text.len() {
            refuse_as(&text[..end], &options());
        }
    }
}

fn some_ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
    prop::collection::vec(
        (0..VOLUME, 0..VOLUME / 4).prop_map(|(s, l)| s..(s + l).min(VOLUME)),
        0..30,
    )
}

fn kinds() -> impl Strategy<Value = ChangeKind> {
    prop_oneof![Just(ChangeKind::Delta), Just(ChangeKind::Allocated)]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        data in some_ranges(), zero in some_ranges(), kind in kinds(), sized in any::<bool>(), whole in any::<bool>(),
    ) {
        let mut data: Extents = data.into_iter().collect();
        let zero: Extents = zero.into_iter().collect();
        let mut kind = kind;
        if whole {
            kind = ChangeKind::Whole;
            data = Extents::of(0..VOLUME).subtract(&zero);
        }
        let zero = zero.subtract(&data);
        let list = ChangedBlocks {
            kind, origin: ListOrigin::Mover, volume_bytes: sized.then_some(VOLUME), data, zero, contexts: vec![],
            notes: vec![],
        };
        let mut back = parse(&list.to_json());
        back.notes.clear();
        prop_assert_eq!(back, list);
    }

    #[test]
    fn any_order_gives_the_same_list(
        ranges in some_ranges().prop_shuffle(), zeros in prop::collection::vec(any::<bool>(), 30),
    ) {
        let pick = |zero: bool| -> Extents {
            ranges.iter().zip(&zeros).filter(|(_, z)| **z == zero).map(|(r, _)| r.clone()).collect()
        };
        let (data, zero) = (pick(false), pick(true).subtract(&pick(false)));
        let ranges = ranges.iter().zip(&zeros);
        let bare: Vec<String> = ranges.clone()
            .map(|(r, z)| format!(r#"{{"offset":{},"size":{},"ZeroOut":{z}}}"#, r.start, r.end - r.start)).collect();
        let rbd: Vec<String> = ranges
            .map(|(r, z)| format!(r#"{{"offset":{},"length":{},"exists":"{}"}}"#, r.start, r.end - r.start, !z)).collect();
        for text in [bare, rbd] {
            let list = parse(&format!("[{}]", text.join(",")));
            prop_assert_eq!(&list.data, &data);
            prop_assert_eq!(&list.zero, &zero);
        }
    }

    #[test]
    fn damaged_lists_never_panic(which in 0..3usize, at in 0..10_000usize, byte in any::<u8>()) {
        let mut text = [CSI, QEMU, r#"{"volume_size":16777216,"kind":"delta","extents":[{"offset":0,"len":1}]}"#][which].as_bytes().to_vec();
        let at = at % text.len();
        text[at] = byte;
        if let Ok(list) = parse_changed_blocks(text.as_slice(), &options()) {
            prop_assert!(list.data.end() <= VOLUME && list.zero.end() <= VOLUME);
            prop_assert!(list.data.is_disjoint(&list.zero));
        }
    }
}

#[test]
fn examples_of_the_documentation() {
    let page = include_str!("../../../../docs/changed-blocks.md");
    let lists: Vec<_> = page
        .split("```json\n")
        .skip(1)
        .map(|rest| parse(rest.split_once("```").expect("a fence ends").0))
        .map(|list| (list.origin.as_str(), list.listed_extents()))
        .collect();
    assert_eq!(
        lists,
        [("mover", 3), ("extents", 2), ("csi", 3), ("csi", 2), ("rbd", 2), ("qemu", 2)]
    );
    for message in page.split("```text\n").nth(1).unwrap().lines().take(2) {
        let list = if message.contains("record") {
            let record = csi(r#"{"byte_offset":4096,"size_bytes":4096}"#);
            format!("{record}\n{record}")
        } else {
            "[{\"offset\":0,\"len\":1},\n{\"offset\":-4096,\"len\":1}]".into()
        };
        let name = if message.contains("record") { "standard input" } else { "changes.json" };
        let options = ParseOptions::new(name, VOLUME);
        let error = parse_changed_blocks(list.as_bytes(), &options).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
