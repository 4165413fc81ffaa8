use super::*;
use crate::testkit::repositories::*;
use chrono::TimeDelta;
use std::sync::Arc;

fn at(time: &str) -> DateTime<Utc> {
    time.parse().unwrap()
}

/// A backup that began ten minutes before it finished.
fn made(id: &str, finished: &str, snapshot: Option<&str>) -> Manifest {
    let finished = at(finished);
    let mut m = manifest("db", id, 1);
    m.started = finished - TimeDelta::minutes(10);
    (m.finished, m.ordered) = (finished, finished);
    m.snapshot.id = snapshot.map(str::to_owned);
    m
}

async fn with(backups: &[Manifest]) -> Arc<Repository> {
    let (repo, _, _) = memory_repository().await;
    for backup in backups {
        put_manifest(&repo, backup).await;
    }
    repo
}

async fn found(repo: &Repository, spec: &str) -> String {
    repo.find_backup(spec).await.unwrap_or_else(|e| panic!("{spec}: {e}")).backup_id.to_string()
}

async fn refused(repo: &Repository, spec: &str, kind: ErrorKind, words: &[&str]) {
    let e = repo.find_backup(spec).await.expect_err(spec);
    assert_eq!(e.kind(), kind, "{spec}: {e}");
    for word in words {
        assert!(e.to_string().contains(word), "{spec}: no {word:?} in {e}");
    }
}

#[tokio::test]
async fn a_backup_is_found_by_snapshot_and_by_time() {
    let repo = with(&[
        made("monday-one", "2026-11-16T02:10:00Z", Some("snap-mon")),
        made("monday-two", "2026-11-16T20:10:00Z", Some("pool/db@s2")),
        made("tuesday", "2026-11-17T02:10:00Z", Some("snap-tue")),
        made("again", "2026-11-18T02:10:00Z", Some("snap-tue")),
    ])
    .await;
    for (spec, id) in [
        ("db@latest", "again"),
        ("db@tuesday", "tuesday"),
        ("db@tues", "tuesday"),
        ("db@id:tues", "tuesday"),
        ("db@snap-mon", "monday-one"),
        // the newest of a snapshot
        ("db@snap-tue", "again"),
        ("db@snapshot:snap-tue", "again"),
        ("db@snapshot:pool/db@s2", "monday-two"),
        // the newest of a day, an hour, a minute
        ("db@2026-11-16", "monday-two"),
        ("db@2026-11-16T02", "monday-one"),
        ("db@2026-11-16 02:10Z", "monday-one"),
        ("db@2026-11-16T03:10+01:00", "monday-one"),
        ("db@2026-11", "again"),
        ("db@time:2026-11-17", "tuesday"),
        ("again", "again"),
    ] {
        assert_eq!(found(&repo, spec).await, id, "{spec}");
    }
    refused(&repo, "db@monday", ErrorKind::Usage, &["fits 2 backups", "db@monday-one of 2026"])
        .await;
    let near = ["db@tuesday of 2026-11-17", "before it", "db@again of 2026-11-18", "after it"];
    refused(&repo, "db@2026-11-17T12", ErrorKind::NotFound, &near).await;
    refused(&repo, "db@2027-01", ErrorKind::NotFound, &["db@again of 2026", "before it"]).await;
    refused(&repo, "db@time:tuesday", ErrorKind::Usage, &["2026-11-22"]).await;
    refused(&repo, "db@snap-x", ErrorKind::NotFound, &["db@again", "newest"]).await;
    refused(&repo, "db@tue", ErrorKind::NotFound, &["4 characters"]).await;
    refused(&repo, "tue", ErrorKind::NotFound, &["4 characters"]).await;
    refused(&repo, "db@", ErrorKind::Usage, &["behind the @"]).await;
    refused(&repo, "db", ErrorKind::NotFound, &["db@latest"]).await;
}

#[tokio::test]
async fn a_text_with_two_meanings_is_refused() {
    let repo = with(&[
        // as a Job names both
        made("nightly-1", "2026-11-16T02:10:00Z", Some("nightly-1")),
        made("2026-11-17", "2026-11-17T02:10:00Z", Some("s2")),
        made("late", "2026-11-17T23:10:00Z", Some("2026-11-17")),
        made("s2-again", "2026-11-18T02:10:00Z", Some("s2-a")),
        made("s2-a", "2026-11-19T02:10:00Z", None),
    ])
    .await;
    assert_eq!(found(&repo, "db@nightly-1").await, "nightly-1");
    let both = ["as an id: db@2026-11-17 of", "as a snapshot: db@late of", "db@time:2026-11-17"];
    refused(&repo, "db@2026-11-17", ErrorKind::Usage, &both).await;
    assert_eq!(found(&repo, "db@id:2026-11-17").await, "2026-11-17");
    assert_eq!(found(&repo, "db@time:2026-11-17").await, "late");
    assert_eq!(found(&repo, "db@snapshot:2026-11-17").await, "late");
    refused(
        &repo,
        "db@s2-a",
        ErrorKind::Usage,
        &["as an id: db@s2-a", "as a snapshot: db@s2-again"],
    )
    .await;
    // one backup in two ways is no doubt
    assert_eq!(found(&repo, "db@2026-11-18").await, "s2-again");
    // without a volume only ids count
    assert_eq!(found(&repo, "2026-11-17").await, "2026-11-17");
}

#[tokio::test]
async fn before_a_time_counts_the_data_and_not_the_run() {
    let mut live = made("live", "2026-11-17T02:10:00Z", None);
    live.started = at("2026-11-17T02:00:00Z");
    let repo = with(&[made("snap", "2026-11-16T02:10:00Z", Some("s1")), live]).await;
    let before = async |time: &str| repo.find_before(&volume("db"), at(time)).await;
    // a snapshot is older than its run, a live source is read until the end
    for (time, id) in [
        ("2026-11-16T02:00:00Z", "snap"),
        ("2026-11-17T02:05:00Z", "snap"),
        ("2026-11-17T02:10:00Z", "live"),
    ] {
        assert_eq!(before(time).await.unwrap().backup_id.as_str(), id, "{time}");
    }
    let e = before("2026-11-16T01:59:59Z").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert!(e.to_string().contains("db@snap, of 2026-11-16 02:00:00Z"), "{e}");
}

#[tokio::test]
async fn what_cannot_be_read_and_may_be_meant_is_an_error() {
    let now = Utc::now();
    let shown = now.format("%Y-%m-%d").to_string();
    let repo = with(&[
        made("old", "2026-11-16T02:10:00Z", Some("s1")),
        Manifest { ordered: now, finished: now, ..made("today", "2026-11-16T02:10:00Z", None) },
    ])
    .await;
    repo.store().put("backups/db/broken/0", "garbage").await.unwrap();
    for spec in ["db@latest".to_owned(), "db@s9".to_owned(), format!("db@{shown}")] {
        refused(&repo, &spec, ErrorKind::Corrupt, &["backups/db/broken/0"]).await;
    }
    for (spec, id) in [("db@old", "old"), ("db@s1", "old"), ("db@toda", "today")] {
        assert_eq!(found(&repo, spec).await, id);
    }
}

#[tokio::test]
async fn an_id_in_full_reads_one_manifest() {
    let id = BackupId::random();
    let mut all: Vec<_> =
        (0..20).map(|i| made(&format!("other-{i}"), "2026-11-16T02:10:00Z", None)).collect();
    all.push(made(id.as_str(), "2026-11-17T02:10:00Z", None));
    let repo = with(&all).await;
    let before = repo.store().counts();
    assert_eq!(found(&repo, &format!("db@{id}")).await, id.as_str());
    let counts = repo.store().counts();
    assert_eq!((counts.gets - before.gets, counts.lists - before.lists), (1, 2));
}

#[tokio::test]
async fn nothing_is_forgotten_by_what_may_mean_another_one() {
    let repo = with(&[
        made("monday", "2026-11-16T02:10:00Z", Some("snap-mon")),
        made("tuesday", "2026-11-17T02:10:00Z", None),
    ])
    .await;
    for spec in ["monday", "db@monday", "db@mond", "db@id:monday"] {
        assert_eq!(repo.find_to_forget(spec).await.unwrap().backup_id.as_str(), "monday", "{spec}");
    }
    for (spec, id) in [
        ("db@latest", "tuesday"),
        ("db@2026-11-16", "monday"),
        ("db@snap-mon", "monday"),
        ("db@snapshot:snap-mon", "monday"),
    ] {
        let e = repo.find_to_forget(spec).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
        assert!(e.to_string().contains(&format!("db@{id}")), "{e}");
    }
    let e = repo.find_to_forget("db@none-of-these").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
}

/// Members of a group are `u-m1` to `u-m10`: the first is forgotten, and asked for once more.
#[tokio::test]
async fn a_marked_id_forgets_none_that_only_begins_so() {
    let repo = with(&[made("u-m10", "2026-11-16T02:10:00Z", Some("u-m1"))]).await;
    assert_eq!(repo.find_to_forget("db@u-m1").await.unwrap().backup_id.as_str(), "u-m10");
    let e = repo.find_to_forget("db@id:u-m1").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    let found = repo.find_to_forget("db@id:u-m10").await.unwrap();
    assert_eq!(found.backup_id.as_str(), "u-m10");
    // what is read may be named by a beginning
    assert_eq!(repo.find_backup("db@id:u-m1").await.unwrap().backup_id.as_str(), "u-m10");
}

#[tokio::test]
async fn of_an_unknown_volume_the_likeliest_are_named_first() {
    let (repo, _, _) = memory_repository().await;
    let e = repo.find_backup("db@latest").await.unwrap_err();
    assert!(e.to_string().contains("nor of any other"), "{e}");
    for i in 0..14 {
        put_manifest(&repo, &manifest(&format!("other-volume-{i:02}"), "b", 1)).await;
    }
    put_manifest(&repo, &manifest("shop/mysql-data", "b", 1)).await;
    let e = repo.find_backup("shop/mysql-dta@latest").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    let text = e.to_string();
    let (_, names) = text.split_once("there are those of ").expect("the volumes");
    assert!(names.starts_with("shop/mysql-data, ") && names.contains(", 5 more; "), "{text}");
    let e = repo.no_such_volume(&volume("mysql")).await;
    assert!(e.to_string().contains("of shop/mysql-data, "), "{e}");
}

#[test]
fn the_distance_of_two_names() {
    for (a, b, expected) in [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("db", "bd", 2)]
    {
        assert_eq!(distance(a, b), expected, "{a} {b}");
        assert_eq!(distance(b, a), expected, "{b} {a}");
    }
}
