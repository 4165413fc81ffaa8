//! The hub against a model: whatever happens in whatever order, a subscriber that reads again when
//! it is told to ends with the state of the server.

mod rules;

use super::event::{Event, Line};
use super::selector::{Place, route};
use super::topic::{Bounds, Labelled, Subscription, Topic, lock};
use crate::api::Change;
use crate::engine::{Key, Kind, Meta, Observed, Query, Selection};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const SPACE: &str = "shop";
const OWNER: &str = "mover.dev/owner";

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(most).expect("a number"))
            .expect("a number")
    }
}

/// A server of Pods: their state, and all that has happened.
struct Server {
    /// Versions are numbers.
    numbers: bool,
    version: u64,
    uids: u64,
    pods: BTreeMap<String, Value>,
    /// Version, the object before, and after.
    past: Vec<(u64, Option<Value>, Option<Value>)>,
    /// States that it may be set back to.
    saved: Option<(u64, BTreeMap<String, Value>)>,
}

impl Server {
    fn text(&self, version: u64) -> String {
        if self.numbers { version.to_string() } else { format!("v{version}x") }
    }

    fn write(&mut self, random: &mut Random) {
        let name = format!("pod-{}", random.below(4));
        self.version += 1 + u64::try_from(random.below(3)).expect("a number");
        let version = self.text(self.version);
        let before = self.pods.get(&name).cloned();
        let after = match (&before, random.below(4)) {
            (Some(_), 0) => None,
            _ => {
                let uid = before.as_ref().map_or_else(
                    || {
                        self.uids += 1;
                        format!("uid-{}", self.uids)
                    },
                    |pod| Meta::of(pod).uid,
                );
                let labels = match random.below(3) {
                    0 => json!({}),
                    other => json!({ OWNER: format!("owner-{other}") }),
                };
                let meta = json!({
                    "name": name, "namespace": SPACE, "uid": uid, "labels": labels,
                    "resourceVersion": version, "managedFields": [{ "manager": "somebody" }],
                });
                Some(json!({ "kind": "Pod", "apiVersion": "v1", "metadata": meta }))
            }
        };
        match &after {
            Some(pod) => drop(self.pods.insert(name, pod.clone())),
            None => drop(self.pods.remove(&name)),
        }
        self.past.push((self.version, before, after));
    }

    /// What a watch of this place tells of a write, as the API server does it.
    fn line(&self, place: &Place, at: usize) -> Option<String> {
        let (version, before, after) = &self.past[at];
        let is_in = |pod: &&Value| place.labels.is_empty() || is_labelled(pod);
        let (before, after) = (before.as_ref().filter(is_in), after.as_ref().filter(is_in));
        let (word, pod) = match (before, after) {
            (None, None) => return None,
            (None, Some(pod)) => ("ADDED", pod.clone()),
            (Some(_), Some(pod)) => ("MODIFIED", pod.clone()),
            (Some(pod), None) => {
                let mut pod = pod.clone();
                pod["metadata"]["resourceVersion"] = self.text(*version).into();
                ("DELETED", pod)
            }
        };
        Some(json!({ "type": word, "object": pod }).to_string())
    }

    fn list(&self, query: &Query) -> Vec<Value> {
        self.pods.values().filter(|pod| is_about(query, pod)).cloned().map(plain).collect()
    }

    /// The server is set back to an older state: what went since then is there again.
    fn set_back(&mut self) -> bool {
        let Some((version, pods)) = self.saved.take() else { return false };
        (self.version, self.pods) = (version, pods);
        self.past.retain(|(of, ..)| *of <= version);
        true
    }
}

fn is_labelled(pod: &Value) -> bool {
    pod["metadata"]["labels"][OWNER].is_string()
}

fn is_about(query: &Query, pod: &Value) -> bool {
    match query {
        Query::One(key) => pod["metadata"]["name"] == key.name.as_str(),
        Query::Many(Selection { labels, .. }) => match labels.split_once('=') {
            Some((_, value)) => pod["metadata"]["labels"][OWNER] == value,
            None => labels.is_empty() || is_labelled(pod),
        },
    }
}

fn plain(mut pod: Value) -> Value {
    pod["metadata"].as_object_mut().expect("an object").remove("managedFields");
    pod
}

/// What `source.rs` does with connections, one step at a time.
struct Hub {
    place: Place,
    topic: Arc<Mutex<Topic>>,
    /// How much of the past was told on this connection, if there is one.
    told: Option<usize>,
    lost: bool,
    begins: u32,
}

impl Hub {
    fn new(place: Place, bounds: Bounds) -> Self {
        let topic = Arc::new(Mutex::new(Topic::new(bounds, !place.labels.is_empty())));
        Self { place, topic, told: None, lost: false, begins: 0 }
    }

    /// A list, between two connections; the watch begins later.
    fn list(&mut self, server: &Server, read: u128) {
        self.told = None;
        let newest = server.text(server.version);
        let mut topic = lock(&self.topic);
        let read = Some(read).filter(|_| server.numbers);
        let may_resume = topic.may_resume(Some(&newest), read);
        if self.lost || !may_resume {
            let labelled = |pod: &Value| -> Labelled {
                let event = Event::of(Kind::Pod, pod.clone(), false).expect("a pod");
                (event.uid, event.labels)
            };
            let pods = server.pods.values().filter(|pod| is_labelled(pod));
            drop(topic.begin(Some(&newest), pods.map(labelled).collect()));
            self.lost = false;
            self.begins += 1;
        }
    }

    fn open(&mut self, server: &Server) {
        let head = lock(&self.topic).head().map(str::to_owned);
        let Some(head) = head.filter(|_| !self.lost) else { return };
        let is_old = |(version, ..): &(u64, _, _)| {
            server.text(*version) == head || number(&server.text(*version)) <= number(&head)
        };
        // Without numbers the server itself knows their order.
        self.told = Some(match server.numbers {
            true => server.past.partition_point(is_old),
            false => {
                let at: u64 = head.trim_matches(|c| c == 'v' || c == 'x').parse().expect("ours");
                server.past.partition_point(|(version, ..)| *version <= at)
            }
        });
    }

    fn deliver(&mut self, server: &Server) -> bool {
        let Some(told) = self.told.filter(|told| *told < server.past.len()) else { return false };
        self.told = Some(told + 1);
        if let Some(line) = server.line(&self.place, told) {
            self.publish(&line);
        }
        true
    }

    fn publish(&mut self, line: &str) {
        let Line::Event(event) = Line::parse(Kind::Pod, line).expect("a line") else {
            panic!("an event")
        };
        if lock(&self.topic).publish(event).is_err() {
            (self.lost, self.told) = (true, None);
        }
    }

    /// Once all was told; before that a server would name the last that was.
    fn bookmark(&mut self, server: &Server) {
        if self.told == Some(server.past.len()) {
            let back = lock(&self.topic).bookmark(server.text(server.version));
            assert!(back.is_ok(), "a server that is well");
        }
    }

    fn catch_up(&mut self, server: &Server, read: u128) {
        // A connection that contradicts itself is given up once, and another one begins.
        for _ in 0..2 {
            if self.told.is_none() {
                self.list(server, read);
                self.open(server);
            }
            while self.deliver(server) {}
        }
        assert!(!self.lost, "it is lost again and again");
    }
}

fn number(version: &str) -> Option<u128> {
    version.parse().ok()
}

/// A driver with one question.
struct Reader {
    query: Query,
    seen: Observed,
    subscription: Option<Subscription>,
    missed: bool,
    misses: u32,
}

impl Reader {
    fn new(random: &mut Random) -> Self {
        let many = |labels: &str| Query::from(Selection::labelled(Kind::Pod, SPACE, labels));
        let query = match random.below(4) {
            0 => many(""),
            1 => many(&format!("{OWNER}=owner-{}", 1 + random.below(2))),
            2 => many(OWNER),
            _ => Key::new(Kind::Pod, SPACE, &format!("pod-{}", random.below(4))).into(),
        };
        let seen = Observed::default();
        Self { query, seen, subscription: None, missed: false, misses: 0 }
    }

    fn read(&mut self, server: &Server, by_list: bool) {
        let found = server.list(&self.query);
        let version = Some(server.text(server.version));
        match &self.query {
            Query::Many(selection) => self.seen.set_list(selection.clone(), found, version),
            Query::One(key) => {
                let found = found.into_iter().next();
                match by_list {
                    true => self.seen.set_listed(key.clone(), found, version),
                    false => self.seen.set_object(key.clone(), found),
                }
            }
        }
        self.missed = false;
    }

    fn subscribe(&mut self, hubs: &[Hub]) {
        if self.subscription.is_some() || !self.seen.knows(&self.query) {
            return;
        }
        let (place, wanted) = route(&self.query).expect("it is served");
        let hub = hubs.iter().find(|hub| hub.place == place).expect("its hub");
        let version = self.seen.version(&self.query);
        let begun = Subscription::begin(&hub.topic, wanted, version.as_deref());
        self.subscription = Some(begun.expect("it is on"));
    }

    /// One telling, as a driver takes it in; false where there is none.
    fn hear(&mut self) -> bool {
        let Some(changes) = &mut self.subscription else { return false };
        let Some(change) = changes.next().now_or_never() else { return false };
        let change = change.expect("it goes on");
        if matches!(change, Change::Missed) {
            (self.missed, self.misses) = (true, self.misses + 1);
            self.seen.forget(&self.query);
            return true;
        }
        // It is part of the next reading.
        if self.missed {
            return true;
        }
        match (&self.query, change) {
            (Query::One(key), Change::Set(pod)) => {
                self.seen.hear_object(key.clone(), pod, false);
            }
            (Query::One(key), Change::Gone(pod)) => self.seen.hear_object(key.clone(), pod, true),
            (Query::Many(of), Change::Set(pod)) => self.seen.hear_member(of, pod, false),
            (Query::Many(of), Change::Gone(pod)) => self.seen.hear_member(of, pod, true),
            (_, change) => panic!("{change:?}"),
        }
        true
    }

    fn known(&self) -> Vec<Value> {
        let mut found: Vec<Value> = match &self.query {
            Query::One(key) => self.seen.raw(key).expect("it is known").into_iter().collect(),
            Query::Many(of) => {
                let all = self.seen.list::<Value>(of).expect("they are known");
                all.into_iter().map(|pod| pod.body).collect()
            }
        };
        found.sort_by_key(|pod| Meta::of(pod).name);
        found
    }
}

/// A server, its two watches and some readers.
struct Scene {
    random: Random,
    server: Server,
    hubs: [Hub; 2],
    readers: Vec<Reader>,
    subscriptions: u32,
    /// The newest version that was read.
    read: u128,
}

impl Scene {
    fn new(seed: u64, numbers: bool) -> Self {
        let bounds = Bounds { ring_bytes: 6000, queue_events: 5, queue_bytes: 1 << 20 };
        let place =
            |labels: &str| Place { kind: Kind::Pod, namespace: None, labels: labels.to_owned() };
        Self {
            random: Random(seed),
            server: Server {
                numbers,
                version: 8,
                uids: 0,
                pods: BTreeMap::new(),
                past: Vec::new(),
                saved: None,
            },
            hubs: [Hub::new(place(""), bounds), Hub::new(place(OWNER), bounds)],
            readers: Vec::new(),
            subscriptions: 0,
            read: 0,
        }
    }

    fn step(&mut self) {
        let Self { random, server, hubs, readers, .. } = self;
        let hub = &mut hubs[random.below(2)];
        let reader = random.below(8);
        match random.below(24) {
            0..=5 => server.write(random),
            6 => hub.list(server, self.read),
            7..=8 if hub.told.is_none() => hub.open(server),
            9..=12 => {
                hub.deliver(server);
            }
            13 => hub.bookmark(server),
            14 => hub.told = None,
            // It answers 410, on a connection or at its begin.
            15 if random.below(3) == 0 => (hub.told, hub.lost) = (None, true),
            // It tells something again.
            16 if server.numbers && random.below(3) == 0 => {
                let Some(told) = hub.told.filter(|told| *told > 0) else { return };
                let line = server.line(&hub.place, random.below(told));
                line.iter().for_each(|line| hub.publish(line));
            }
            17 if readers.len() < 8 => readers.push(Reader::new(random)),
            18 if reader < readers.len() && random.below(3) == 0 => {
                drop(readers.swap_remove(reader));
            }
            19 if random.below(4) == 0 => {
                server.saved = Some((server.version, server.pods.clone()))
            }
            20 if server.numbers && random.below(4) == 0 => self.set_back(),
            other if reader < readers.len() => self.use_reader(reader, other),
            _ => {}
        }
    }

    fn set_back(&mut self) {
        if self.hubs.iter().any(|hub| hub.begins == 0) {
            return;
        }
        if self.server.set_back() {
            for hub in &mut self.hubs {
                hub.told = None;
                // It is noticed before there are as many versions again.
                hub.list(&self.server, self.read);
            }
        }
    }

    fn use_reader(&mut self, reader: usize, does: usize) {
        let reader = &mut self.readers[reader];
        match does % 3 {
            0 => {
                reader.read(&self.server, self.random.below(2) == 0);
                self.read = self.read.max(u128::from(self.server.version));
            }
            1 => {
                self.subscriptions += 1;
                reader.subscribe(&self.hubs);
            }
            _ => {
                for _ in 0..self.random.below(6) {
                    reader.hear();
                }
            }
        }
    }

    /// Everybody hears all there is, and reads again where it is told to: how many misses there
    /// were.
    fn end(mut self, seed: u64) -> u32 {
        self.hubs.iter_mut().for_each(|hub| hub.catch_up(&self.server, self.read));
        for reader in &mut self.readers {
            if reader.missed || reader.subscription.is_none() && !reader.seen.knows(&reader.query) {
                reader.read(&self.server, true);
            }
            reader.subscribe(&self.hubs);
            let before = reader.misses;
            while reader.hear() {
                if reader.missed {
                    reader.read(&self.server, true);
                }
            }
            assert!(reader.misses - before <= 1, "seed {seed}: it is told again and again");
            let mut expected = self.server.list(&reader.query);
            expected.sort_by_key(|pod| Meta::of(pod).name);
            let (query, numbers) = (&reader.query, self.server.numbers);
            assert_eq!(reader.known(), expected, "seed {seed}, numbers {numbers}: {query:?}");
        }
        let misses = self.readers.iter().map(|reader| reader.misses).sum();
        self.readers.clear();
        let forgotten = |hub: &Hub| lock(&hub.topic).subscribers() == 0;
        assert!(self.hubs.iter().all(forgotten), "seed {seed}: a leak");
        misses
    }
}

#[test]
fn each_subscriber_ends_with_the_state_of_the_server() {
    let (mut misses, mut subscriptions) = (0, 0);
    // The last one: an object that went is there again after the server was set back.
    for seed in (0..400).chain([13_387]) {
        for numbers in [true, false] {
            let mut scene = Scene::new(seed, numbers);
            (0..400).for_each(|_| scene.step());
            subscriptions += scene.subscriptions;
            misses += scene.end(seed);
        }
    }
    // Both ways are gone.
    assert!(misses > 200 && subscriptions > misses, "{misses} of {subscriptions}");
}
