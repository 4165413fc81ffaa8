//! Drivers that share watches, against an API server of the tests that misbehaves. Each of them
//! waits for a state that comes last, for as long as it takes, and is woken by nothing but watches.

mod server;

use futures::StreamExt as _;
use futures::future::join_all;
use kube::{Client, Config};
use mover_cluster::api::{Api, ApiError, Change, HubSettings, LimitSettings};
use mover_cluster::drive::Driver;
use mover_cluster::engine::{
    Failure, Key, Kind, Next, Object, Observed, Planned, Query, Selection, Stop, Wait,
};
use serde_json::{Value, json};
use server::{FAULTS, Fault, OWNER, SPACE, Server};
use std::sync::Arc;
use std::time::Duration;

const PODS: usize = 6;
/// No driver looks by itself before a test has long failed.
const NEVER: Duration = Duration::from_secs(3600);
/// A test that takes longer hangs.
const HANGS: Duration = Duration::from_secs(300);

fn api(server: &Server, silence: Duration) -> Api {
    let url = format!("http://127.0.0.1:{}", server.port).parse().expect("an address");
    let mut config = Config::new(url);
    config.default_retry = false;
    let limit = LimitSettings { per_second: 5000, burst: 5000, in_flight: 64 };
    let settings = HubSettings { silence, limit, ..HubSettings::default() };
    Api::shared(Client::try_from(config).expect("a client"), settings)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let within = async { tokio::time::timeout(HANGS, future).await.expect("it hangs") };
    runtime.expect("a runtime").block_on(within)
}

fn is_last(pod: &Value) -> bool {
    pod["metadata"]["annotations"]["last"] == "yes"
}

fn name(number: usize) -> String {
    format!("pod-{number}")
}

/// The questions that drivers wait on.
fn question(number: usize) -> Query {
    let many = |labels: &str| Query::from(Selection::labelled(Kind::Pod, SPACE, labels));
    match number % 4 {
        0 => many(""),
        1 => many(&format!("{OWNER}=owner-{}", number / 4 % 2)),
        _ => Key::new(Kind::Pod, SPACE, &name(number / 4 % PODS)).into(),
    }
}

/// Waits until all that the question is about is as it is last.
fn plan(query: &Query, seen: &Observed) -> Planned<()> {
    let pods: Vec<Value> = match query {
        Query::One(key) => seen.raw(key)?.into_iter().collect(),
        Query::Many(of) => {
            seen.list::<Value>(of)?.into_iter().map(|pod: Object<Value>| pod.body).collect()
        }
    };
    // The half of them has each of two owners.
    let expected = match query {
        Query::One(_) => 1,
        Query::Many(Selection { labels, .. }) if labels.is_empty() => PODS,
        Query::Many(_) => PODS / 2,
    };
    if pods.len() == expected && pods.iter().all(is_last) {
        return Ok(());
    }
    let on = vec![query.clone()];
    let wait = Wait::new(on, "it is not the last".into(), NEVER);
    Err(Stop::Next(Next::Wait(Box::new(wait))))
}

async fn drive(api: &Api, number: usize) -> Result<(), Failure> {
    let query = question(number);
    Driver::new(api, Observed::default()).run(|seen| plan(&query, seen), None, |_| {}).await
}

/// Pods come, change, change their owner and go; each write follows upon a request, so that all
/// goes on meanwhile.
async fn writes(server: &Server, api: &Api, draw: &mut Draw, count: usize) {
    for _ in 0..count {
        let name = name(draw.below(PODS));
        let owner = json!({ OWNER: format!("owner-{}", draw.below(2)) });
        let labels = if draw.below(4) == 0 { json!({}) } else { owner };
        let state = (draw.below(5) > 0).then_some((labels, json!({})));
        server.write(&name, state);
        let found = api.get(&Key::new(Kind::Pod, SPACE, &name)).await;
        assert!(found.is_ok(), "{found:?}");
    }
}

fn write_last(server: &Server) {
    for number in 0..PODS {
        let labels = json!({ OWNER: format!("owner-{}", number % 2) });
        server.write(&name(number), Some((labels, json!({ "last": "yes" }))));
    }
}

/// A small generator: what is drawn follows from the seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("a number") % most
    }
}

/// Runs drivers against these faults, with writes meanwhile.
fn run(seed: u64, drivers: usize, faults: &[(usize, Fault)], back: bool) -> Arc<Server> {
    let server = Server::start();
    server.misbehave(faults.iter().copied());
    let mut draw = Draw(seed);
    block_on(async {
        let api = api(&server, Duration::from_millis(500));
        let all = join_all((0..drivers).map(|number| drive(&api, number)));
        let scene = async {
            writes(&server, &api, &mut draw, 60).await;
            if back {
                let before = server.asked().0;
                server.set_back(100);
                // It is noticed before there are as many versions again.
                while server.asked().0 == before {
                    tokio::task::yield_now().await;
                }
                writes(&server, &api, &mut draw, 60).await;
            }
            write_last(&server);
        };
        let (done, ()) = tokio::join!(all, scene);
        for done in done {
            assert_eq!(done, Ok(()), "seed {seed}, {faults:?}");
        }
    });
    server
}

#[test]
fn each_way_to_misbehave_loses_nothing() {
    for (seed, fault) in (0..).zip(FAULTS) {
        // Both watches have it, early and late.
        run(seed, 24, &[(0, fault), (1, fault), (3, fault), (6, fault)], false);
    }
}

#[test]
fn faults_in_any_order_lose_nothing() {
    for seed in 0..6 {
        let mut draw = Draw(seed);
        let faults: Vec<(usize, Fault)> =
            (0..10).map(|_| (draw.below(8), FAULTS[draw.below(FAULTS.len())])).collect();
        run(seed, 24, &faults, draw.below(2) == 0);
    }
}

/// However many drivers there are, each place has one watch.
#[test]
fn many_drivers_have_two_watches() {
    let server = Server::start();
    let mut draw = Draw(1);
    block_on(async {
        let api = api(&server, NEVER);
        let all = join_all((0..400).map(|number| drive(&api, number)));
        let scene = async {
            writes(&server, &api, &mut draw, 40).await;
            write_last(&server);
        };
        let (done, ()) = tokio::join!(all, scene);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        let (watches, reads) = server.asked();
        assert_eq!(watches, 2, "one of all, one of those with an owner");
        // One to know it, and at most one more because it changed in between; writes and watches.
        assert!(reads <= 2 * 400 + 40 + 6, "{reads} for 400 drivers");
    });
}

/// A kind that is refused, or is not there: subscribers hear that it is over, once, and later ones
/// are told why.
#[test]
fn what_may_not_be_watched_is_said_once() {
    for code in [403, 404] {
        let server = Server::start();
        server.refuse(Some(code));
        block_on(async {
            let api = api(&server, NEVER);
            let first = join_all((0..8).map(async |number| {
                let changes = api.watch(&question(number), Some("100")).await;
                changes.expect("nothing is known yet").collect::<Vec<_>>().await
            }));
            for told in first.await {
                assert!(matches!(told.as_slice(), [Change::Over]), "{told:?}");
            }
            for number in 0..8 {
                let asked = api.watch(&question(number), Some("100")).await;
                let why = asked.err().expect("it is refused");
                match code {
                    403 => assert!(matches!(why, ApiError::Refused(_)), "{why:?}"),
                    _ => assert!(matches!(why, ApiError::Absent(_)), "{why:?}"),
                }
            }
            // Nobody asks again so soon.
            assert_eq!(server.asked(), (0, 2));
        });
    }
}
