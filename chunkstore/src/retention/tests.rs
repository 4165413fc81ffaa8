use super::*;
use crate::format::manifest::{
    BackupStats, ChangeKind, Manifest, MapRoot, SnapshotInfo, SourceInfo,
};
use crate::ids::{BackupId, VolumeName};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).unwrap().to_utc()
}

fn now() -> DateTime<Utc> {
    at("2026-02-01T00:00:00Z")
}

fn backup(volume: &str, id: &str, finished: DateTime<Utc>, labels: &[(&str, &str)]) -> BackupEntry {
    let manifest = Manifest {
        volume: VolumeName::new(volume).unwrap(),
        backup_id: BackupId::new(id).unwrap(),
        attempt: 0,
        size_bytes: 4096,
        map: MapRoot { depth: 1, root: None },
        parent: None,
        snapshot: SnapshotInfo::default(),
        source: SourceInfo {
            path: "/dev/test".into(),
            kind: ChangeKind::Whole,
            origin: "test".into(),
            listed_bytes: 0,
            listed_extents: 0,
            identity: None,
        },
        started: finished,
        finished,
        ordered: finished,
        clock_offset_ms: None,
        stats: BackupStats::default(),
        tool: "test".into(),
        labels: labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        degraded: Vec::new(),
        copied_from: None,
        attachments: Vec::new(),
    };
    BackupEntry { manifest, stored: finished }
}

fn kept(policy: &KeepPolicy, backups: &[BackupEntry]) -> Vec<(String, String)> {
    let decisions = plan_forget(policy, backups, now()).unwrap();
    assert_eq!(decisions.len(), backups.len());
    let why = |d: &KeepDecision<'_>| d.reasons.iter().map(ToString::to_string).collect::<Vec<_>>();
    let kept = decisions.iter().filter(|d| d.keep());
    kept.map(|d| (d.backup.manifest.backup_id.to_string(), why(d).join(", "))).collect()
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn each_rule_keeps_the_newest_of_its_periods() {
    let backups = [
        backup("v", "a", at("2023-12-31T23:59:59Z"), &[]),
        backup("v", "b", at("2024-12-30T10:00:00Z"), &[("keep", "yes")]),
        backup("v", "c", at("2025-01-01T10:00:00Z"), &[]),
        backup("v", "d", at("2025-01-01T10:59:59Z"), &[]),
        backup("v", "e", at("2025-01-01T11:00:00Z"), &[("keep", "no")]),
    ];
    let policy = |change: fn(&mut KeepPolicy)| {
        let mut policy = KeepPolicy::default();
        change(&mut policy);
        policy
    };
    for (policy, expected) in [
        (policy(|p| p.last = 2), &[("d", "last 2"), ("e", "last 1")][..]),
        (
            policy(|p| p.hourly = 2),
            &[("d", "hourly 2025-01-01 10Z"), ("e", "hourly 2025-01-01 11Z")],
        ),
        (policy(|p| p.daily = 2), &[("b", "daily 2024-12-30"), ("e", "daily 2025-01-01")]),
        // one week, across the new year
        (policy(|p| p.weekly = 2), &[("a", "weekly 2023-W52"), ("e", "weekly 2025-W01")]),
        (policy(|p| p.monthly = 1), &[("e", "monthly 2025-01")]),
        (
            policy(|p| p.yearly = 9),
            &[("a", "yearly 2023"), ("b", "yearly 2024"), ("e", "yearly 2025")],
        ),
        (
            policy(|p| p.within = Some(CalendarSpan::parse("1h").unwrap())),
            &[("c", "within 1h"), ("d", "within 1h"), ("e", "within 1h")],
        ),
        (
            policy(|p| p.tags = vec![KeepTag::parse("keep").unwrap()]),
            &[("b", "tag keep"), ("e", "tag keep")],
        ),
        (policy(|p| p.tags = vec![KeepTag::parse("keep=yes").unwrap()]), &[("b", "tag keep=yes")]),
    ] {
        // "c" is exactly an hour older than "e"
        assert_eq!(kept(&policy, &backups), pairs(expected), "{policy:?}");
    }
}

#[test]
fn rules_add_up_and_volumes_are_apart() {
    let backups = [
        backup("w", "x", at("2020-01-01T00:00:00Z"), &[]),
        backup("v", "b", at("2025-01-02T00:00:00Z"), &[]),
        backup("v", "a", at("2025-01-01T00:00:00Z"), &[]),
    ];
    let policy = KeepPolicy { last: 1, daily: 2, ..KeepPolicy::default() };
    assert_eq!(
        kept(&policy, &backups),
        pairs(&[
            ("a", "daily 2025-01-01"),
            ("b", "last 1, daily 2025-01-02"),
            ("x", "last 1, daily 2020-01-01"),
        ])
    );
}

#[test]
fn a_policy_without_a_rule_is_refused_with_a_hint() {
    let nothing = CalendarSpan::default();
    for policy in
        [KeepPolicy::default(), KeepPolicy { within: Some(nothing), ..KeepPolicy::default() }]
    {
        let e = plan_forget(&policy, &[], now()).expect_err("no rule");
        assert_eq!(e.kind(), ErrorKind::Usage);
        assert!(e.hint_text().is_some_and(|hint| hint.contains("keep-daily")), "{e}");
    }
}

#[test]
fn the_last_backup_of_a_volume_goes_only_when_asked() {
    let backups = [
        backup("v", "a", at("2025-01-01T00:00:00Z"), &[]),
        backup("v", "b", at("2025-01-02T00:00:00Z"), &[]),
    ];
    let mut policy =
        KeepPolicy { tags: vec![KeepTag::parse("gold").unwrap()], ..KeepPolicy::default() };
    let why = "no rule keeps any, and it is the newest";
    assert_eq!(kept(&policy, &backups), pairs(&[("b", why)]));
    policy.allow_none = true;
    assert_eq!(kept(&policy, &backups), pairs(&[]));
}

#[test]
fn spans_are_read_and_shown() {
    for (text, span, shown) in [
        ("36h", CalendarSpan { months: 0, hours: 36 }, "1d12h"),
        ("2w", CalendarSpan { months: 0, hours: 336 }, "14d"),
        ("1y6m7d", CalendarSpan { months: 18, hours: 168 }, "1y6m7d"),
        ("0h", CalendarSpan::default(), "0h"),
    ] {
        assert_eq!(CalendarSpan::parse(text).unwrap(), span, "{text}");
        assert_eq!(span.to_string(), shown);
    }
    for text in ["", "d", "7", "7x", "-1d", "7d3", "4294967296h", "4294967295d", "٣d"] {
        assert_eq!(CalendarSpan::parse(text).expect_err(text).kind(), ErrorKind::Usage, "{text}");
    }
    assert_eq!(
        CalendarSpan { months: u32::MAX, hours: 0 }.before(at("2025-01-01T00:00:00Z")),
        None
    );
    // the last of February, not the third of March
    let month = CalendarSpan { months: 1, hours: 0 };
    assert_eq!(month.before(at("2025-03-31T00:00:00Z")), Some(at("2025-02-28T00:00:00Z")));
}

/// Said another way: which backups of one volume a rule keeps.
fn expected(policy: &KeepPolicy, backups: &[BackupEntry]) -> BTreeSet<String> {
    let newest = |list: &[&BackupEntry]| {
        let order = |b: &&&BackupEntry| (b.manifest.finished, b.manifest.backup_id.clone());
        list.iter().max_by_key(order).map(|b| b.manifest.backup_id.to_string())
    };
    let mut keep = BTreeSet::new();
    for (period, count) in policy.periods() {
        let names: BTreeSet<_> = backups.iter().map(|b| period.of(&b.manifest.finished)).collect();
        for name in names.into_iter().rev().take(count as usize) {
            let of_it: Vec<_> =
                backups.iter().filter(|b| period.of(&b.manifest.finished) == name).collect();
            keep.extend(newest(&of_it));
        }
    }
    let mut rest: Vec<&BackupEntry> = backups.iter().collect();
    for _ in 0..policy.last {
        let Some(id) = newest(&rest) else { break };
        rest.retain(|b| b.manifest.backup_id.as_str() != id);
        keep.insert(id);
    }
    keep
}

proptest! {
    #[test]
    fn what_stays_has_a_reason_and_no_rule_is_left_short(
        minutes in prop::collection::vec(0i64..3_000_000, 0..40),
        (last, hourly, daily, weekly, monthly, yearly) in (0u32..4, 0u32..4, 0u32..4, 0u32..4, 0u32..4, 0u32..4),
    ) {
        let policy = KeepPolicy { last, hourly, daily, weekly, monthly, yearly, ..KeepPolicy::default() };
        let backups: Vec<_> = minutes
            .iter()
            .enumerate()
            .map(|(n, minute)| {
                let time = at("2020-02-29T12:00:00Z") + TimeDelta::minutes(*minute);
                backup("v", &format!("{n:03}"), time, &[])
            })
            .collect();
        prop_assume!(policy.check().is_ok());
        let decisions = plan_forget(&policy, &backups, now()).unwrap();
        let kept: BTreeSet<_> = decisions
            .iter()
            .filter(|d| d.keep())
            .map(|d| d.backup.manifest.backup_id.to_string())
            .collect();
        prop_assert_eq!(kept, expected(&policy, &backups));
        prop_assert!(decisions.is_sorted_by_key(|d| d.backup.manifest.finished));
        prop_assert!(backups.is_empty() || decisions.last().unwrap().keep());
        // what was kept once is kept again: running a policy twice forgets no more
        let left: Vec<_> = decisions.iter().filter(|d| d.keep()).map(|d| d.backup.clone()).collect();
        prop_assert!(plan_forget(&policy, &left, now()).unwrap().iter().all(KeepDecision::keep));
    }
}

/// With another place in the order than its time has.
fn placed(backup: BackupEntry, ordered: &str) -> BackupEntry {
    let manifest = Manifest { ordered: at(ordered), ..backup.manifest };
    BackupEntry { manifest, ..backup }
}

fn ids(policy: &KeepPolicy, backups: &[BackupEntry]) -> Vec<String> {
    kept(policy, backups).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn the_newest_is_the_last_in_the_order_and_not_by_any_time() {
    let mut backups = [
        backup("v", "parent", at("2026-01-01T10:01:30Z"), &[]),
        placed(backup("v", "child", at("2026-01-01T10:00:10Z"), &[]), "2026-01-01T10:01:30.001Z"),
    ];
    let last = KeepPolicy { last: 1, ..KeepPolicy::default() };
    assert_eq!(kept(&last, &backups), pairs(&[("child", "last 1")]));
    let daily = KeepPolicy { daily: 5, ..KeepPolicy::default() };
    assert_eq!(kept(&daily, &backups), pairs(&[("child", "daily 2026-01-01")]));
    // copied to another store, in another order
    backups[0].stored = at("2027-01-01T00:00:02Z");
    backups[1].stored = at("2027-01-01T00:00:01Z");
    assert_eq!(kept(&last, &backups), pairs(&[("child", "last 1")]));
    let tags = KeepPolicy { tags: vec![KeepTag::parse("gold").unwrap()], ..KeepPolicy::default() };
    assert_eq!(ids(&tags, &backups), ["child"]);
}

/// One backup a day; of the fourth the store's clock was years ahead, and all that came after it
/// have their place behind it.
fn after_a_jump() -> Vec<BackupEntry> {
    let day = |n: i64| at("2026-01-01T10:00:00Z") + TimeDelta::days(n);
    let mut backups: Vec<_> = (0..8).map(|n| backup("v", &format!("d{n}"), day(n), &[])).collect();
    backups[3] = backup("v", "d3", at("2099-01-01T00:00:00Z"), &[]);
    for n in 4..8 {
        let ordered = at("2099-01-01T00:00:00Z") + TimeDelta::milliseconds(n - 3);
        backups[usize::try_from(n).unwrap()].manifest.ordered = ordered;
    }
    backups
}

#[test]
fn a_stores_clock_that_jumped_ahead_takes_no_day_from_the_others() {
    let backups = after_a_jump();
    let daily = |daily| KeepPolicy { daily, ..KeepPolicy::default() };
    assert_eq!(ids(&daily(8), &backups).len(), 8, "each has a day of its own");
    assert_eq!(ids(&daily(3), &backups), ["d5", "d6", "d7"]);
    assert_eq!(ids(&KeepPolicy { last: 1, ..KeepPolicy::default() }, &backups), ["d7"]);
    let within = |span| KeepPolicy {
        within: Some(CalendarSpan::parse(span).unwrap()),
        ..KeepPolicy::default()
    };
    assert_eq!(ids(&within("1d"), &backups), ["d6", "d7"]);
    // as old as the next newer one, so that it goes some day
    assert_eq!(ids(&within("3d"), &backups), ["d3", "d4", "d5", "d6", "d7"]);
    assert_eq!(ids(&within("5d"), &backups), ["d2", "d3", "d4", "d5", "d6", "d7"]);
    // while it is the newest, a span is counted from the one before it
    assert_eq!(ids(&within("1d"), &backups[..4]), ["d1", "d2", "d3"]);
    assert_eq!(ids(&daily(2), &backups[..4]), ["d2", "d3"]);
}

#[test]
fn a_clock_that_was_never_set_takes_the_time_of_the_one_before() {
    let mut backups = after_a_jump()[..3].to_vec();
    let unset = backup("v", "unset", at("1970-01-01T00:10:00Z"), &[]);
    backups.push(placed(unset, "2026-01-03T10:00:00.001Z"));
    backups.push(backup("v", "last", at("2026-01-04T09:00:00Z"), &[]));
    let within =
        KeepPolicy { within: Some(CalendarSpan::parse("1d").unwrap()), ..KeepPolicy::default() };
    assert_eq!(ids(&within, &backups), ["d2", "unset", "last"]);
}

proptest! {
    /// Whoever forgets may have any clock, and so may the store have had at any time: the newest
    /// stays. Where the store's clock was right, a wrong `now` only makes a policy keep more.
    #[test]
    fn no_clock_makes_a_policy_lose_the_newest(
        mut times in prop::collection::vec(0i64..40_000, 1..20),
        store_was_right in any::<bool>(),
        days in prop::array::uniform2(0i64..40_000),
        last in 0u32..3, daily in 0u32..4, span in 1u32..100_000,
    ) {
        if store_was_right {
            times.sort_unstable();
        }
        let day = |day: i64| DateTime::UNIX_EPOCH + TimeDelta::days(day);
        let of = |(n, time): (usize, &i64)| {
            let backup = backup("v", &format!("{n:02}"), day(*time), &[]);
            let ordered = day(50_000) + TimeDelta::milliseconds(i64::try_from(n).unwrap());
            BackupEntry { manifest: Manifest { ordered, ..backup.manifest }, ..backup }
        };
        let backups: Vec<_> = times.iter().enumerate().map(of).collect();
        let within = Some(CalendarSpan { months: 0, hours: span });
        let policy = KeepPolicy { last, daily, within, ..KeepPolicy::default() };
        let kept = |now: i64| -> BTreeSet<String> {
            let decisions = plan_forget(&policy, &backups, day(now)).unwrap();
            let kept = decisions.iter().filter(|d| d.keep());
            kept.map(|d| d.backup.manifest.backup_id.to_string()).collect()
        };
        let newest = format!("{:02}", backups.len() - 1);
        let [early, late] = [days[0].min(days[1]), days[0].max(days[1])];
        prop_assert!(kept(late).contains(&newest), "late");
        prop_assert!(kept(early).contains(&newest), "early");
        prop_assert!(!store_was_right || kept(early).is_superset(&kept(late)));
    }
}

fn rule(text: &str) -> VolumeRule {
    VolumeRule::parse(text).unwrap()
}

fn going(decisions: &[KeepDecision<'_>]) -> Vec<String> {
    let gone = decisions.iter().filter(|d| !d.keep());
    gone.map(|d| d.backup.manifest.backup_id.to_string()).collect()
}

#[test]
fn rules_of_one_volume_take_nothing_from_others() {
    let days = |volume: &str, prefix: &str, labels: &[(&str, &str)]| -> Vec<BackupEntry> {
        (1..=4)
            .map(|day| at(&format!("2026-01-0{day}T00:00:00Z")))
            .zip(1..)
            .map(|(time, number)| backup(volume, &format!("{prefix}{number}"), time, labels))
            .collect()
    };
    let mine = ("uid", "mine");
    let backups = [days("db", "m", &[mine]), days("db", "o", &[]), days("web", "w", &[mine])];
    let backups = backups.concat();
    let plan = |rest: Option<&KeepPolicy>, rules: &[&str]| {
        let rules: Vec<_> = rules.iter().map(|text| rule(text)).collect();
        let rest = rest.map(|policy| RestRule { policy, below: None });
        going(&plan_forget_by(rest, &rules, &backups, now()).unwrap())
    };
    let last = |last| KeepPolicy { last, ..KeepPolicy::default() };
    assert_eq!(plan(None, &["last=1,only=uid=mine:db"]), ["m1", "m2", "m3"]);
    assert_eq!(plan(None, &["last=1,only=uid=another:db"]), [""; 0]);
    // The others of that volume go by the rule for all.
    let both = plan(Some(&last(3)), &["last=2,only=uid=mine:db"]);
    assert_eq!(both, ["o1", "m1", "m2", "w1"]);
    // Of two rules each keeps what the other would let go.
    assert_eq!(plan(None, &["last=1:web", "last=3:web"]), ["w1"]);
    assert_eq!(plan(None, &["last=1:web", "within=2d:web"]), ["w1"]);
    assert_eq!(plan(Some(&last(1)), &["last=9:db", "last=9:web"]), [""; 0]);
    // By the rule for all alone it is the plan without rules.
    let plain = plan_forget(&last(2), &backups, now()).unwrap();
    let rest = Some(RestRule { policy: &last(2), below: None });
    assert_eq!(plan_forget_by(rest, &[], &backups, now()).unwrap(), plain);
}

/// Two clusters have one repository: neither forgets what is the other's.
#[test]
fn volumes_outside_of_the_prefix_stay_whole() {
    let days = |volume: &str, id: &str| -> Vec<BackupEntry> {
        let one = |n: i64| {
            let time = now() - TimeDelta::days(9 - n);
            backup(volume, &format!("{id}{n}"), time, &[])
        };
        (1..=3).map(one).collect()
    };
    // The last one begins alike, and is of another cluster.
    let backups = [days("c1/shop/db", "m"), days("c2/shop/db", "o"), days("c10/x", "x")].concat();
    let below = VolumePrefix::parse("c1/").unwrap();
    let policy = KeepPolicy { last: 1, ..KeepPolicy::default() };
    let rest = Some(RestRule { policy: &policy, below: Some(&below) });
    let decisions = plan_forget_by(rest, &[], &backups, now()).unwrap();
    assert_eq!(going(&decisions), ["m1", "m2"]);
    let outside = decisions.iter().filter(|at| at.reasons == [KeepReason::Outside(below.clone())]);
    assert_eq!(outside.count(), 6, "they are told to stay");
    // A rule of its own holds for any volume.
    let named = [rule("last=2:c2/shop/db")];
    let both = plan_forget_by(rest, &named, &backups, now()).unwrap();
    assert_eq!(going(&both), ["m1", "m2", "o1"]);
}

#[test]
fn a_prefix_of_volumes_ends_with_a_slash() {
    for text in ["", "c1", "/", "c1/shop"] {
        assert_eq!(VolumePrefix::parse(text).unwrap_err().kind(), ErrorKind::Usage, "{text:?}");
    }
    assert_eq!(VolumePrefix::parse("c1/shop/").unwrap().to_string(), "c1/shop/");
}

#[test]
fn rules_that_say_nothing_are_refused() {
    for text in ["", "db", "last=3", "last:db", "last=0:db", "last=x:db", "first=1:db", "last=1:"] {
        assert_eq!(VolumeRule::parse(text).unwrap_err().kind(), ErrorKind::Usage, "{text:?}");
    }
    assert!(VolumeRule::parse("only=a=b:db").is_err(), "a label alone keeps nothing");
    let got = rule("daily=7,within=14d,only=kubernetes/namespace-uid=1-2:c1/shop/db");
    assert_eq!(got.volume.as_str(), "c1/shop/db");
    let tag = KeepTag { name: "kubernetes/namespace-uid".into(), value: Some("1-2".into()) };
    assert_eq!(got.only, Some(tag));
    assert_eq!((got.policy.daily, got.policy.within), (7, CalendarSpan::parse("14d").ok()));
    let policy = KeepPolicy::default();
    let rest = Some(RestRule { policy: &policy, below: None });
    assert!(plan_forget_by(rest, &[], &[], now()).is_err(), "it would keep nothing");
}
