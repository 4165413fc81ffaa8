use super::*;
use crate::extents::Range;

fn faults(text: &str) -> (tempfile::TempDir, Faults) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("faults.json");
    std::fs::write(&file, text).expect("a file");
    (folder, Faults::new(Some(file)))
}

fn active(text: &str) -> Active {
    faults(text).1.read().expect("faults")
}

#[test]
fn no_file_is_no_fault_and_a_bad_file_is_an_error() {
    assert!(Faults::new(None).read().expect("none").entries.is_empty());
    assert!(Faults::new(Some("/nowhere/at/all".into())).read().expect("none").entries.is_empty());
    let error = |text: &str| {
        let (_folder, faults) = faults(text);
        faults.read().expect_err("an error").message().to_owned()
    };
    let misspelt = error(r#"[{"fault": "refuses", "call": "Probe"}]"#);
    assert!(misspelt.contains("faults.json") && misspelt.contains("entry 1"), "{misspelt}");
    error(r#"[{"fault": "refuse", "call": "Probe", "code": "BAD"}]"#);
    error(r#"[{"fault": "refuse", "call": "Probe", "code": "ABORTED", "time": 3}]"#);
    let call = error(r#"[{"fault": "refuse", "call": "Prob", "code": "ABORTED"}]"#);
    assert!(call.contains("no call Prob"), "{call}");
    let nobody = error(r#"[{"fault": "delay", "call": "Probe", "ms": 1, "times": 3}]"#);
    assert!(nobody.contains("id"), "{nobody}");
    let twice = error(
        r#"[{"fault": "unready", "id": "a", "times": 1},
        {"fault": "unready", "id": "a", "times": 1}]"#,
    );
    assert!(twice.contains("two entries"), "{twice}");
    error(r#"[{"fault": "no_lists", "about": "x"}]"#);
}

#[test]
fn a_limited_fault_is_got_over_and_counted_by_its_id() {
    let text = |id: &str| {
        format!(
            r#"[{{"fault": "refuse", "call": "NodePublishVolume", "code": "UNAVAILABLE",
            "times": 2, "about": "vol-1", "id": "{id}"}}]"#
        )
    };
    let (folder, faults) = faults(&text("first"));
    let strike = |call: &str, request: &str| {
        let active = faults.read().expect("faults");
        active.refusal(call, request).map(|status| status.code())
    };
    assert_eq!(strike("NodeStageVolume", "vol-1"), None);
    assert_eq!(strike("NodePublishVolume", "vol-2"), None);
    assert_eq!(strike("NodePublishVolume", "vol-1"), Some(Code::Unavailable));
    assert_eq!(strike("NodePublishVolume", "vol-1"), Some(Code::Unavailable));
    assert_eq!(strike("NodePublishVolume", "vol-1"), None);
    std::fs::write(folder.path().join("faults.json"), text("second")).expect("a file");
    assert_eq!(strike("NodePublishVolume", "vol-1"), Some(Code::Unavailable));
}

#[test]
fn readiness_is_late_or_never_or_an_error() {
    let taken = SystemTime::UNIX_EPOCH;
    let later = |ms: u64| taken + Duration::from_millis(ms);
    let never = active(r#"[{"fault": "unready", "about": "snap-1"}]"#);
    assert!(!never.ready("snap-1", taken, later(1 << 40)).unwrap());
    assert!(never.ready("snap-2", taken, later(0)).unwrap());
    let slow = active(r#"[{"fault": "unready", "ms": 100}]"#);
    assert!(
        !slow.ready("", taken, later(99)).unwrap() && slow.ready("", taken, later(100)).unwrap()
    );
    let twice = active(r#"[{"fault": "unready", "id": "a", "times": 2}]"#);
    let answers: Vec<_> = (0..3).map(|_| twice.ready("", taken, taken).unwrap()).collect();
    assert_eq!(answers, [false, false, true]);
    let fails = active(r#"[{"fault": "unready", "ms": 100, "then": "INTERNAL"}]"#);
    let error = fails.ready("", taken, later(100)).expect_err("an error");
    assert_eq!(error.code(), Code::Internal);
}

#[test]
fn every_tracker_reads_and_bends() {
    let right: Vec<_> = (0..5).map(|n| Range { start: n * 20, bytes: 10 }).collect();
    let bend = |text: &str| {
        let active = active(&format!(r#"[{{"fault": "tracker", {text}}}]"#));
        let bent = active.tracker("").expect("a tracker").bend(right.clone(), 90);
        let starts: Vec<_> = bent.ranges.iter().map(|range| range.start).collect();
        assert_eq!(bent.size, if text.contains("capacity") { 7 } else { 90 });
        (starts, bent.error.map(|status| status.code()))
    };
    assert_eq!(bend(r#""kind": "gone""#), (vec![], Some(Code::Unimplemented)));
    let refuses = r#""kind": "refuses", "code": "FAILED_PRECONDITION""#;
    assert_eq!(bend(refuses), (vec![], Some(Code::FailedPrecondition)));
    assert_eq!(bend(r#""kind": "empty""#), (vec![], None));
    assert_eq!(bend(r#""kind": "omits", "every": 2"#), (vec![0, 40, 80], None));
    assert_eq!(bend(r#""kind": "shifts", "bytes": 10"#), (vec![10, 30, 50, 70], None));
    let overlaps = vec![0, 7, 20, 27, 40, 47, 60, 67, 80, 87];
    assert_eq!(bend(r#""kind": "overlaps", "bytes": 3"#), (overlaps, None));
    assert_eq!(bend(r#""kind": "descends""#), (vec![80, 60, 40, 20, 0], None));
    assert_eq!(bend(r#""kind": "beyond", "bytes": 5"#), (vec![0, 20, 40, 60, 80, 90], None));
    assert_eq!(bend(r#""kind": "capacity", "bytes": 7"#), (vec![0, 20, 40, 60, 80], None));
    assert_eq!(bend(r#""kind": "breaks_off", "after": 1"#), (vec![0], Some(Code::Unavailable)));
    assert_eq!(bend(r#""kind": "truncates", "after": 2"#), (vec![0, 20], None));
}

#[test]
fn a_tracker_may_be_wrong_about_one_snapshot_only_or_for_a_while() {
    let one = active(
        r#"[{"fault": "tracker", "kind": "gone", "about": "snap-1", "id": "a", "times": 1}]"#,
    );
    assert!(one.tracks() && one.tracker("snap-2").is_none());
    assert!(one.tracker("snap-1").is_some() && one.tracker("snap-1").is_none());
    assert!(!active(r#"[{"fault": "tracker", "kind": "gone"}]"#).tracks());
}

#[test]
fn the_rest_is_as_it_says() {
    let active = active(
        r#"[{"fault": "no_lists"}, {"fault": "round_up", "bytes": 5000},
        {"fault": "vanish", "snapshot": "snap-a"}, {"fault": "delay", "call": "Probe", "ms": 7}]"#,
    );
    assert!(!active.lists());
    assert_eq!(active.grain(4096), 8192);
    assert!(active.vanishes("snap-abc", "x") && !active.vanishes("snap-b", "x"));
    assert_eq!(active.delay("Probe", ""), Duration::from_millis(7));
    assert_eq!(active.delay("GetPluginInfo", ""), Duration::ZERO);
}
