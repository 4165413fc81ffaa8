//! How much memory and time shared watches take, for a thousand operations that wait for eight
//! objects each: `cargo run --release -p mover-cluster --example shared_watches`.

#![allow(clippy::print_stdout, reason = "it prints figures")]

#[path = "../tests/hub/server.rs"]
#[allow(dead_code, reason = "it misbehaves elsewhere")]
mod server;

use futures::StreamExt as _;
use futures::future::join_all;
use kube::{Client, Config};
use mover_cluster::api::{Api, HubSettings, LimitSettings};
use mover_cluster::drive::Driver;
use mover_cluster::engine::{Key, Kind, Next, Observed, Planned, Query, Selection, Stop, Wait};
use serde_json::{Value, json};
use server::{OWNER, SPACE, Server};
use std::cell::Cell;
use std::time::{Duration, Instant};

const OPERATIONS: usize = 1000;
const EACH: usize = 8;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") * 1024
}

fn shared(server: &Server) -> Api {
    let url = format!("http://127.0.0.1:{}", server.port).parse().expect("an address");
    let limit = LimitSettings { per_second: 100_000, burst: 100_000, in_flight: 64 };
    let settings = HubSettings { limit, ..HubSettings::default() };
    Api::shared(Client::try_from(Config::new(url)).expect("a client"), settings)
}

/// The questions of an operation: seven objects, and its pods.
fn questions(operation: usize) -> impl Iterator<Item = Query> {
    let one =
        move |number| Key::new(Kind::Pod, SPACE, &format!("mover-{operation:036}-{number}")).into();
    let owner = format!("{OWNER}=owner-{operation:030}");
    (1..EACH).map(one).chain([Selection::labelled(Kind::Pod, SPACE, owner).into()])
}

fn write(server: &Server, operation: usize, last: bool) {
    let labels = json!({ OWNER: format!("owner-{operation:030}") });
    let notes = json!({ "last": if last { "yes" } else { "no" }, "text": "x".repeat(4000) });
    server.write(&format!("mover-{operation:036}-1"), Some((labels, notes)));
}

fn plan(queries: &[Query], runs: &Cell<usize>, seen: &Observed) -> Planned<()> {
    runs.set(runs.get() + 1);
    let mut is_last = false;
    for query in queries {
        match query {
            Query::One(key) => {
                let found = seen.raw(key)?;
                is_last |= found.is_some_and(|pod| pod["metadata"]["annotations"]["last"] == "yes");
            }
            Query::Many(of) => drop(seen.list::<Value>(of)?),
        }
    }
    if is_last {
        return Ok(());
    }
    let time = Duration::from_secs(3600);
    let wait = Wait::new(queries.to_vec(), String::new(), time);
    Err(Stop::Next(Next::Wait(Box::new(wait))))
}

async fn subscriptions(server: &Server) {
    let api = shared(server);
    for query in questions(0) {
        // It begins the watches.
        let changes = api.watch(&query, None).await;
        drop(changes.expect("it is watched").next().await);
    }
    let before = resident();
    let mut all = Vec::new();
    for query in (0..OPERATIONS).flat_map(questions) {
        all.push(api.watch(&query, Some("100")).await.expect("it is watched"));
    }
    let each = resident().saturating_sub(before) / all.len();
    println!("{} subscriptions: {each} bytes each", all.len());
}

async fn drivers(server: &Server) {
    let api = shared(server);
    let runs = Cell::new(0);
    let before = resident();
    let drive = async |operation| {
        let queries: Vec<Query> = questions(operation).collect();
        let mut driver = Driver::new(&api, Observed::default());
        driver.run(|seen| plan(&queries, &runs, seen), None, |_| {}).await
    };
    let all = join_all((0..OPERATIONS).map(drive));
    let scene = async {
        // Until nobody reads any more.
        let mut asked = (0, 0);
        while asked != server.asked() || asked.1 < OPERATIONS * EACH {
            asked = server.asked();
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let memory = resident().saturating_sub(before);
        println!(
            "{OPERATIONS} drivers wait: {} bytes each; {} reads and {} watches",
            memory / OPERATIONS,
            asked.1,
            asked.0
        );
        let (plans, begun) = (runs.get(), Instant::now());
        (0..OPERATIONS).for_each(|operation| write(server, operation, true));
        (plans, begun)
    };
    let (done, (plans, begun)) = tokio::join!(all, scene);
    assert!(done.iter().all(Result::is_ok));
    println!(
        "{OPERATIONS} objects change: all have heard after {:?}; {} plans, {} MiB more",
        begun.elapsed(),
        runs.get() - plans,
        resident().saturating_sub(before) >> 20
    );
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        subscriptions(&Server::start()).await;
        let server = Server::start();
        (0..OPERATIONS).for_each(|operation| write(&server, operation, false));
        drivers(&server).await;
    });
}
