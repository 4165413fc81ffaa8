//! The work for a Repository, on a cluster in memory: its Jobs, its record, the objects that it makes.

mod clocks;
mod crashes;
mod ends;
mod lists;
mod rules;

use super::fake::Fake;
use chrono::{DateTime, TimeDelta, Utc};
use mover_cluster::controller::repositories::{
    Act, Calendar, Ended, Facts, Present, ScheduleOf, changes, ended, plan, read,
};
use mover_cluster::engine::{Key, Kind, MAINTENANCE, Meta, Next, Observed, ROLE, Step, Stop};
use mover_cluster::kinds::{self, RepositoryStatus};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const HOME: &str = "vault";

/// A cluster, and the time of day that its controllers believe in.
struct World {
    fake: Fake,
    begin: DateTime<Utc>,
    /// What their clock is off by.
    skew: TimeDelta,
}

fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).expect("a time").to_utc()
}

fn key() -> Key {
    Key::new(Kind::Repository, HOME, "main")
}

/// A Repository that is looked after by night: collected at 1, checked at 2.
fn spec() -> Value {
    json!({
        "url": "s3://bucket/prefix",
        "keySecretRef": { "name": "key" },
        "credentials": { "secretRef": { "name": "store" } },
        "keep": { "daily": 7 },
        "gc": { "cron": "0 1 * * *" },
        "check": { "cron": "0 2 * * *" },
        "sync": { "cron": "0 3 * * *" },
        "allowedNamespaces": ["shop"],
        "jobTemplate": { "image": "mover:1" },
    })
}

fn world(spec: Value) -> World {
    let mut fake = Fake::default();
    for name in ["kube-system", "shop", HOME] {
        fake.create(&json!({ "kind": "Namespace", "metadata": { "name": name } }));
    }
    let metadata = json!({ "namespace": HOME, "name": "main", "generation": 1 });
    fake.create(&json!({ "kind": "Repository", "metadata": metadata, "spec": spec }));
    fake.alone.ends.insert("init".into(), (0, json!({ "repository_id": "abc" })));
    fake.alone
        .ends
        .insert("check".into(), (0, json!({ "backups": 2, "packs": 1, "pack_bytes": 1024 })));
    fake.alone.ends.insert("forget".into(), (0, json!({ "kept": 3, "forgotten": 1 })));
    fake.alone.ends.insert("gc".into(), (0, json!({ "deleted_bytes": 10, "pack_bytes": 2048 })));
    fake.alone.list = vec![backup("c1/shop/db", "b1"), backup("c1/shop/db", "b2")];
    World { fake, begin: at("2026-03-01T12:00:30Z"), skew: TimeDelta::zero() }
}

/// The same shortly before the first night.
fn night() -> World {
    World { begin: at("2026-03-01T00:30:30Z"), ..world(spec()) }
}

fn backup(volume: &str, id: &str) -> Value {
    json!({
        "type": "backup", "volume": volume, "backup_id": id,
        "finished": format!("2026-02-01T00:00:00Z {id}"), "size_bytes": 1, "labels": {},
    })
}

/// A controller, with all that it forgets when it dies.
#[derive(Default)]
struct Controller {
    seen: Observed,
    listed: Option<Ended>,
    calendar: Calendar,
    /// Writes until now.
    writes: usize,
    /// It dies at this one: before it, or after it.
    dies: Option<(usize, bool)>,
}

#[derive(Debug, PartialEq)]
enum Turn {
    Did,
    /// It waits, for so long at most.
    Waits(Duration),
    Died,
}

fn seal(key: &Key, text: &str) -> String {
    format!("seal of {key} {}", text.bytes().map(u64::from).sum::<u64>())
}

impl World {
    fn now(&self) -> DateTime<Utc> {
        self.begin + TimeDelta::from_std(self.fake.now).expect("small") + self.skew
    }

    fn repository(&self) -> &Value {
        self.fake.get(&key()).expect("it is there")
    }

    fn spec(&self) -> kinds::RepositorySpec {
        serde_json::from_value(self.repository()["spec"].clone()).expect("a spec")
    }

    fn status(&self) -> RepositoryStatus {
        serde_json::from_value(self.repository()["status"].clone()).unwrap_or_default()
    }

    /// Status, reason and message of a condition.
    fn condition(&self, kind: &str) -> (String, String, String) {
        let found = self.status().conditions.into_iter().find(|at| at.kind == kind);
        found.map(|at| (at.status, at.reason, at.message)).unwrap_or_default()
    }

    fn schedules(&self) -> Vec<ScheduleOf> {
        let one = |(key, raw): (Key, Value)| ScheduleOf {
            namespace: key.namespace.expect("one"),
            name: key.name,
            spec: serde_json::from_value(raw["spec"].clone()).expect("a spec"),
        };
        self.fake.of_kind(Kind::BackupSchedule).into_iter().map(one).collect()
    }

    /// What one controller does next.
    fn turn(&mut self, controller: &mut Controller) -> Turn {
        let Controller { seen, listed, calendar, .. } = controller;
        let (spec, status) = (self.spec(), self.status());
        let meta = Meta::of(self.repository());
        seen.set_now(self.fake.now);
        let facts = Facts {
            meta: &meta,
            generation: self.repository()["metadata"]["generation"].as_i64().expect("one"),
            created: self.begin,
            spec: &spec,
            status: &status,
            schedules: &self.schedules(),
            calendar,
            image: "mover:2",
            restricted: false,
            now: self.now(),
            seal: &seal,
            listed: listed.as_ref(),
        };
        match plan(&facts, seen) {
            Ok(Act::Status(status)) => {
                return self.write(controller, |world, _| {
                    // A merge patch leaves what it does not name.
                    for status in [Value::Null, json!(status)] {
                        world.fake.change(&key(), &json!({ "status": status }));
                    }
                });
            }
            Ok(Act::List { due, finished, place }) => {
                let log = self.fake.alone.logs[&finished.pod].clone();
                let list = read(&log, false, &finished.summary);
                let changes = changes(&meta, &place, &list, &self.present());
                for step in &changes.steps {
                    let done = self.write(controller, |world, seen| world.fake.execute(step, seen));
                    if done == Turn::Died {
                        return done;
                    }
                }
                controller.listed = Some(ended(&list, &changes, (due, self.now()), 1));
            }
            Err(Stop::Failure(why)) => panic!("it does not fail: {why}"),
            Err(Stop::Next(Next::Do(step))) => {
                return self.write(controller, |world, seen| world.fake.execute(&step, seen));
            }
            Err(Stop::Next(Next::Read(query))) => self.fake.read(&query, seen),
            Err(Stop::Next(Next::Refresh)) => seen.forget_all(),
            Err(Stop::Next(Next::Wait(wait))) => {
                seen.waited();
                for query in &wait.on {
                    self.fake.read(query, seen);
                }
                return Turn::Waits(wait.time);
            }
            Err(Stop::Next(other)) => panic!("{other:?}"),
        }
        Turn::Did
    }

    fn write(
        &mut self,
        controller: &mut Controller,
        act: impl FnOnce(&mut Self, &mut Observed),
    ) -> Turn {
        let dies = controller.dies.filter(|(at, _)| *at == controller.writes).map(|(_, done)| done);
        controller.writes += 1;
        if dies != Some(false) {
            act(self, &mut controller.seen);
        }
        if dies.is_some() { Turn::Died } else { Turn::Did }
    }

    fn present(&self) -> Present {
        let of = |kind| self.fake.of_kind(kind).into_iter().map(|(_, object)| object);
        let namespaces = of(Kind::Namespace).map(|at| (Meta::of(&at).name, Meta::of(&at).uid));
        Present {
            objects: of(Kind::VolumeBackup).collect(),
            namespaces: Some(namespaces.collect()),
            ..Present::default()
        }
    }

    /// Has controllers take turns until so much time is over.
    fn run(&mut self, controllers: &mut [Controller], time: Duration) {
        let end = self.fake.now + time;
        let mut idle = 0;
        let mut shortest = Duration::MAX;
        for number in 0.. {
            assert!(number < 200_000, "it does not come to rest: {:#?}", self.fake.written);
            let which = number % controllers.len();
            match self.turn(&mut controllers[which]) {
                Turn::Did => (idle, shortest) = (0, Duration::MAX),
                Turn::Died => controllers[which] = Controller::default(),
                Turn::Waits(wait) => {
                    (idle, shortest) = (idle + 1, shortest.min(wait));
                    // Each looks at what has changed before anything else does.
                    if idle < 2 * controllers.len() {
                        continue;
                    }
                    if self.fake.tick() {
                        (idle, shortest) = (0, Duration::MAX);
                        continue;
                    }
                    if self.fake.now >= end {
                        return;
                    }
                    self.fake.now +=
                        shortest.min(end - self.fake.now).max(Duration::from_millis(1));
                    (idle, shortest) = (0, Duration::MAX);
                }
            }
        }
    }

    /// How often each command ran.
    fn ran(&self) -> BTreeMap<&str, usize> {
        let mut all = BTreeMap::new();
        for (_, args) in &self.fake.alone.runs {
            *all.entry(args[0].as_str()).or_default() += 1;
        }
        all
    }

    /// No run was made twice, nothing is left of any, and all objects are there.
    fn assert_clean(&self, about: &str) {
        let mut owners: Vec<&String> = self.fake.alone.runs.iter().map(|(of, _)| of).collect();
        let all = owners.len();
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners.len(), all, "{about}: twice: {:#?}", self.fake.alone.runs);
        assert_eq!(self.fake.of_kind(Kind::Job), [], "{about}");
        let maintained = |(_, object): &(Key, Value)| {
            Meta::of(object).labels.get(ROLE).is_some_and(|role| role == MAINTENANCE)
        };
        let records = self.fake.of_kind(Kind::ConfigMap).into_iter().filter(maintained).count();
        assert_eq!(records, 1, "{about}");
    }
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// One controller for so long.
fn lone(world: &mut World, time: Duration) {
    world.run(&mut [Controller::default()], time);
}
