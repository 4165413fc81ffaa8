//! Who keeps whom waiting, and a certificate that is renewed.

use super::*;

fn seats() -> Seats {
    let wait = Duration::from_millis(20);
    Seats::new(ClientLimits { wait, pages: 3, pages_of_namespace: 2, ..ClientLimits::default() })
}

#[tokio::test]
async fn a_namespace_leaves_room_for_others() {
    let seats = seats();
    let first = seats.take("shop").await.expect("there is room");
    let second = seats.take("shop").await.expect("there is room");
    let third = seats.take("shop").await.err().expect("it has two");
    assert_eq!(third.status, 503);
    let other = seats.take("web").await.expect("there is room for another one");
    assert_eq!(seats.take("api").await.err().expect("all are taken").status, 503);
    drop((first, other));
    drop(seats.take("api").await.expect("they were given back"));
    drop(seats.take("shop").await.expect("one was given back"));
    drop(second);
    assert!(seats.of_namespaces.lock().unwrap().is_empty(), "nothing is kept of who is gone");
}

#[tokio::test]
async fn the_oldest_that_waits_for_nothing_makes_room() {
    let mut connections = JoinSet::new();
    let mut client = |busy| {
        let task = connections.spawn(std::future::pending::<()>());
        (task, Arc::new(AtomicBool::new(busy)))
    };
    let mut clients = VecDeque::from([client(true), client(false), client(false)]);
    let kept = clients[2].0.id();
    assert!(make_room(&mut clients));
    assert_eq!((clients.len(), clients[1].0.id()), (2, kept));
    assert!(make_room(&mut clients));
    assert!(!make_room(&mut clients), "the page of the last one is being made");
    assert!(connections.join_next().await.expect("one").expect_err("it ended").is_cancelled());
}
