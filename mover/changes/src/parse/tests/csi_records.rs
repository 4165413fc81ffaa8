//! Records of the CSI snapshot-metadata lister.

use super::*;

#[test]
fn csi_records_in_every_arrangement() {
    let records = CSI.trim_matches(['[', ']'].as_slice());
    let records = format!("{records}]}}");
    let (first, second) = records.split_once(",{\"block_metadata_type").unwrap();
    let second = format!("{{\"block_metadata_type{}", second.trim_end_matches("]}"));
    let second = format!("{}]}}", second.trim_end_matches("]}"));
    let second = second.as_str();
    let by_name = |s: &str| {
        s.replace("\"block_metadata_type\":1", "\"block_metadata_type\":\"FIXED_LENGTH\"")
    };
    let strings = r#"{"blockMetadataType": "VARIABLE_LENGTH",
        "volumeCapacityBytes": "16777216", "blockMetadata": [{"sizeBytes": "8192"}, {"byteOffset": "65536", "sizeBytes": "4096"}]}"#;
    let late = r#"{"block_metadata":[{"size_bytes":8192},{"byte_offset":65536,"size_bytes":4096}],"block_metadata_type":2,"volume_capacity_bytes":16777216}"#;
    let empty = r#"{"block_metadata_type":1,"volume_capacity_bytes":16777216,"block_metadata":null,"later_field":[[{}]]}"#;
    for text in [
        CSI.to_string(),
        format!("{first}\n{second}\n"),
        format!("{first}{second}"),
        format!("{}\n\n  {}", by_name(first), second),
        format!("{empty}{first}{empty}{second}{empty}"),
        format!("[{empty},{first},{second}]"),
        strings.to_string(),
        late.to_string(),
    ] {
        let list = parse(&text);
        assert_eq!((list.kind, list.origin), (ChangeKind::Delta, ListOrigin::Csi), "{text}");
        assert_eq!(list.volume_bytes, Some(VOLUME));
        assert_eq!(data(&list), [0..8192, 65536..69632], "{text}");
        assert!(list.zero.is_empty() && list.notes.is_empty());
    }
}

#[test]
fn csi_last_range_is_cut_at_the_devices_end() {
    let text = r#"{"block_metadata_type":1,"volume_capacity_bytes":5000,"block_metadata":[{"size_bytes":4096},{"byte_offset":4096,"size_bytes":4096}]}"#;
    let list =
        parse_changed_blocks(text.as_bytes(), &ParseOptions::new("list.json", 5000)).unwrap();
    assert_eq!((data(&list), list.volume_bytes), (&[0..5000][..], Some(5000)));
}

#[test]
fn csi_capacity_below_the_device_reads_the_rest_and_says_so() {
    let text = r#"{"block_metadata_type":2,"volume_capacity_bytes":8388608,"block_metadata":[{"size_bytes":4096}]}"#;
    let list = parse(text);
    assert_eq!(data(&list), [0..4096, 8 * MIB..VOLUME]);
    assert_eq!(list.notes.len(), 1);
    let error =
        parse_changed_blocks(text.as_bytes(), &ParseOptions::new("list.json", 4096)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(
        error.to_string().contains("is 8388608, but the device has only 4096 bytes"),
        "{error}"
    );
}

#[test]
fn csi_streams_that_break_their_promises() {
    let good = csi(r#"{"byte_offset":4096,"size_bytes":4096}"#);
    let corrupt = |text: &str, parts: &[&str]| assert_refused(text, ErrorKind::Corrupt, parts);
    corrupt(
        &csi(r#"{"byte_offset":8192,"size_bytes":1},{"size_bytes":1}"#),
        &["record 1, range 2", "out of order"],
    );
    corrupt(
        &csi(r#"{"size_bytes":2},{"byte_offset":1,"size_bytes":1}"#),
        &["record 1, range 2", "overlaps"],
    );
    corrupt(&format!("{good}\n{good}"), &["record 2, range 1", "line 2", "overlaps"]);
    corrupt(&csi(r#"{"byte_offset":8192}"#), &["record 1, range 1", "no size"]);
    corrupt(&csi(r#"{"byte_offset":8192,"size_bytes":0}"#), &["no size"]);
    corrupt(
        &csi(r#"{"byte_offset":8192,"size_bytes":-1}"#),
        &["size_bytes is -1, which is negative"],
    );
    corrupt(&csi(r#"{"byte_offset":-8192,"size_bytes":1}"#), &["byte_offset is -8192"]);
    corrupt(&csi(r#"{"byte_offset":18446744073709551615,"size_bytes":1}"#), &["64 bits"]);
    corrupt(&csi(r#"{"byte_offset":16777216,"size_bytes":1}"#), &["behind the volume's capacity"]);
    corrupt(&good.replace(":2,", ":0,"), &["record 1", "UNKNOWN"]);
    corrupt(&good.replace(":2,", ":7,"), &["UNKNOWN"]);
    corrupt(&good.replace(":2,", ":\"UNKNOWN\","), &["UNKNOWN"]);
    corrupt(
        r#"{"volume_capacity_bytes":16777216}"#,
        &["record 1", "block_metadata_type is missing"],
    );
    corrupt(r#"{"block_metadata_type":1}"#, &["volume_capacity_bytes is missing"]);
    corrupt(&format!("{good}{{}}"), &["record 2", "block_metadata_type is missing"]);
    corrupt(&format!("[{good},{{}}]"), &["record 2", "block_metadata_type is missing"]);
    corrupt(
        &format!("{good}{}", csi("").replace(":2,", ":1,")),
        &["record 2", "another one than before"],
    );
    corrupt(
        &format!("{good}{}", csi("").replace("16777216", "16777217")),
        &["record 2", "was 16777216"],
    );
    let fixed =
        csi(r#"{"size_bytes":1},{"byte_offset":4096,"size_bytes":2}"#).replace(":2,", ":1,");
    corrupt(&fixed, &["FIXED_LENGTH", "1 bytes", "2"]);
    corrupt(&format!("{good} x"), &["not JSON", "line 1"]);
    corrupt(&format!("{good},{good}"), &["not JSON"]);
    corrupt(&format!("{good}[]"), &["expected another record"]);
    corrupt(&format!("[{good}]{good}"), &["something follows"]);
    corrupt(&format!("[{good},[]]"), &["record 2", "invalid type: sequence"]);
    corrupt(&format!("[{good},{{\"offset\":1,\"size\":2}}]"), &["mixes"]);
    corrupt(&good[..good.len() - 1], &["ends in the middle", "cut off"]);
    corrupt(&csi("5"), &["record 1, range 1", "invalid type: integer `5`"]);
    corrupt(&csi("").replace("[]", "{}"), &["invalid type: map", "block_metadata"]);
}

/// What a tool of another dialect writes is not a list of which nearly all is zero.
#[test]
fn what_may_stand_for_something_that_is_missing_is_refused() {
    let head = r#""block_metadata_type":2,"volume_capacity_bytes":16777216"#;
    for (list, what) in [
        (csi(r#"{"offset":4096,"size_bytes":4096}"#), "byte_offset is missing"),
        (csi(r#"{"start":4096,"size_bytes":4096}"#), "byte_offset is missing"),
        (csi(r#"{"byte_offset":null,"size_bytes":4096}"#), "a whole number for byte_offset"),
        (
            format!(r#"[{{{head},"blocks":[{{"byte_offset":0,"size_bytes":1}}]}}]"#),
            "may stand for it",
        ),
        (format!(r#"[{{{head},"offset":4096}}]"#), "may stand for it"),
    ] {
        assert_refused(&list, ErrorKind::Corrupt, &[what]);
    }
    for fine in [
        csi(r#"{"size_bytes":4096}"#),
        csi(r#"{"byte_offset":4096,"size_bytes":4096,"zone":"x"}"#),
        format!("[{{{head}}}]"),
        format!(r#"{{{head},"block_metadata":[],"node":"x"}}"#),
        // by its own name: fields of a later protocol may be beside it
        format!(r#"{{{head},"block_metadata":null,"node":"x"}}"#),
    ] {
        parse(&fine);
    }
}
