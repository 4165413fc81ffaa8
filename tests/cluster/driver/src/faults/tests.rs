use super::*;

fn faults(text: &str) -> (tempfile::TempDir, Faults) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("faults.json");
    std::fs::write(&file, text).expect("a file");
    (folder, Faults::new(Some(file)))
}

#[test]
fn no_file_is_no_fault_and_a_bad_file_is_an_error() {
    assert!(Faults::new(None).read().expect("none").0.is_empty());
    assert!(Faults::new(Some("/nowhere/at/all".into())).read().expect("none").0.is_empty());
    let (_folder, misspelt) = faults(r#"[{"fault": "refuses", "call": "Probe"}]"#);
    let error = misspelt.read().expect_err("an error");
    assert!(error.message().contains("faults.json"), "{error}");
    let (_folder, unknown) = faults(r#"[{"fault": "refuse", "call": "Probe", "code": "BAD"}]"#);
    assert!(unknown.read().is_err());
}

#[test]
fn a_limited_fault_is_got_over() {
    let text = r#"[{"fault": "refuse", "call": "NodePublishVolume", "code": "UNAVAILABLE",
        "times": 2, "about": "vol-1"}]"#;
    let (_folder, faults) = faults(text);
    let active = faults.read().expect("faults");
    let strike = |call: &str, request: &str| {
        faults.refusal(&active, call, request).map(|status| status.code())
    };
    assert_eq!(strike("NodeStageVolume", "vol-1"), None);
    assert_eq!(strike("NodePublishVolume", "vol-2"), None);
    assert_eq!(strike("NodePublishVolume", "vol-1"), Some(Code::Unavailable));
    assert_eq!(strike("NodePublishVolume", "vol-1"), Some(Code::Unavailable));
    assert_eq!(strike("NodePublishVolume", "vol-1"), None);
}

#[test]
fn readiness_is_late_or_never_or_an_error() {
    let taken = SystemTime::UNIX_EPOCH;
    let later = |ms: u64| taken + Duration::from_millis(ms);
    let (_folder, never) = faults(r#"[{"fault": "unready"}]"#);
    assert!(!never.read().unwrap().ready(taken, later(1 << 40)).unwrap());
    let (_folder, slow) = faults(r#"[{"fault": "unready", "ms": 100}]"#);
    let slow = slow.read().unwrap();
    assert!(!slow.ready(taken, later(99)).unwrap() && slow.ready(taken, later(100)).unwrap());
    let (_folder, fails) = faults(r#"[{"fault": "unready", "ms": 100, "then": "INTERNAL"}]"#);
    let error = fails.read().unwrap().ready(taken, later(100)).expect_err("an error");
    assert_eq!(error.code(), Code::Internal);
}

#[test]
fn every_tracker_reads_and_bends() {
    let right: Vec<_> = (0..5).map(|n| Range { start: n * 20, bytes: 10 }).collect();
    let bend = |text: &str| {
        let (_folder, faults) = faults(&format!(r#"[{{"fault": "tracker", {text}}}]"#));
        let active = faults.read().expect("faults");
        let (ranges, error) = active.tracker().expect("a tracker").bend(right.clone(), 90);
        let starts: Vec<_> = ranges.iter().map(|range| range.start).collect();
        (starts, error.map(|status| status.code()))
    };
    assert_eq!(bend(r#""kind": "gone""#), (vec![], Some(Code::Unimplemented)));
    let refuses = r#""kind": "refuses", "code": "FAILED_PRECONDITION""#;
    assert_eq!(bend(refuses), (vec![], Some(Code::FailedPrecondition)));
    assert_eq!(bend(r#""kind": "empty""#), (vec![], None));
    assert_eq!(bend(r#""kind": "omits", "every": 2"#), (vec![0, 40, 80], None));
    assert_eq!(bend(r#""kind": "shifts", "bytes": 10"#), (vec![10, 30, 50, 70], None));
    assert_eq!(bend(r#""kind": "breaks_off", "after": 1"#), (vec![0], Some(Code::Unavailable)));
    assert_eq!(bend(r#""kind": "truncates", "after": 2"#), (vec![0, 20], None));
}

#[test]
fn the_rest_is_as_it_says() {
    let text = r#"[{"fault": "no_lists"}, {"fault": "round_up", "bytes": 5000},
        {"fault": "vanish", "snapshot": "snap-a"}, {"fault": "delay", "call": "Probe", "ms": 7}]"#;
    let (_folder, faults) = faults(text);
    let active = faults.read().expect("faults");
    assert!(!active.lists());
    assert_eq!(active.grain(4096), 8192);
    assert!(active.vanishes("snap-abc", "x") && !active.vanishes("snap-b", "x"));
    assert_eq!(active.delay("Probe", ""), Duration::from_millis(7));
    assert_eq!(active.delay("GetPluginInfo", ""), Duration::ZERO);
}
