//! Lists that take several calls, and answers that were cut: whatever the service says twice or
//! only half, the list is all that it said, or it is refused.

use super::world::{World, only_step};
use super::{fetch, quick};
use mover_changes::{ChangeKind, ChangeSource, SnapshotEndpoint, SnapshotSource};
use mover_extents::Extents;
use std::path::PathBuf;
use tests::{
    Block, Blocks, Code, GrpcQuirks, GrpcScript, GrpcServer, RawAnswer, RawServer, Rng, work_dir,
};

const CELL: u64 = 4096;
const CELLS: u64 = 60;
const VOLUME: u64 = CELLS * CELL;

fn source(socket: PathBuf) -> SnapshotSource {
    SnapshotSource {
        endpoint: SnapshotEndpoint::Csi { socket, secrets_file: None },
        target: "h2".into(),
        delta: true,
        base_id: Some("h1".into()),
        page_entries: 4,
        tail_check: true,
        retry: quick(),
    }
}

fn ask(source: &SnapshotSource, kind: ChangeKind) -> chunkstore::Result<Extents> {
    fetch(&ChangeSource::Snapshot(source.clone()), kind, VOLUME).map(|list| list.data)
}

fn blocks(cells: &[u64]) -> Vec<Block> {
    let block = |n: &u64| Block { offset: n * CELL, len: CELL, zero: false };
    cells.iter().map(block).collect()
}

fn extents(cells: &[u64]) -> Extents {
    cells.iter().map(|n| n * CELL..(n + 1) * CELL).collect()
}

struct Scene {
    server: GrpcServer,
    source: SnapshotSource,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new(cells: &[u64]) -> Self {
        let dir = work_dir("calls");
        let socket = dir.path().join("csi.sock");
        let server = GrpcServer::csi(&socket);
        let scene = Self { server, source: source(socket), _dir: dir };
        scene.put(cells);
        scene
    }

    fn put(&self, cells: &[u64]) {
        self.server.put(Some("h1"), "h2", VOLUME, blocks(cells).into());
        self.server.put(None, "h2", VOLUME, blocks(cells).into());
    }

    fn play(&self, kind: ChangeKind, scripts: Vec<GrpcScript>) -> chunkstore::Result<Extents> {
        self.server.set(GrpcQuirks { scripts: scripts.into(), ..GrpcQuirks::default() });
        ask(&self.source, kind)
    }
}

const KINDS: [ChangeKind; 2] = [ChangeKind::Delta, ChangeKind::Allocated];

#[test]
fn what_one_call_passes_over_and_the_next_lists_is_refused() {
    let cells = [3, 10, 11, 20, 40];
    let scene = Scene::new(&cells);
    for kind in KINDS {
        // the first leaves out cell 10 and breaks; the second starts at 0
        let first = GrpcScript {
            without: vec![10 * CELL],
            stop: Some((3, Some(Code::Unavailable))),
            ..GrpcScript::default()
        };
        let second = GrpcScript { early: CELLS, ..GrpcScript::default() };
        let error = scene.play(kind, vec![first, second.clone()]).expect_err("a contradiction");
        let said = error.to_string();
        assert!(said.contains("it lists bytes 40960 to 45056, which it passed over"), "{said}");
        assert_eq!(error.kind(), chunkstore::ErrorKind::Corrupt);
        // the other way round
        let first =
            GrpcScript { stop: Some((3, Some(Code::Unavailable))), ..GrpcScript::default() };
        let second = GrpcScript { without: vec![10 * CELL], ..second };
        let said = scene.play(kind, vec![first, second]).expect_err("a contradiction").to_string();
        assert!(said.contains("it passes over bytes 40960 to 45056, which it listed"), "{said}");
    }
}

#[test]
fn a_failure_behind_the_last_range_is_no_end() {
    let cells = [3, 10, CELLS - 1];
    let scene = Scene::new(&cells);
    for kind in KINDS {
        let fail = |ranges| GrpcScript {
            stop: Some((ranges, Some(Code::Unavailable))),
            ..GrpcScript::default()
        };
        let list = scene.play(kind, vec![fail(3)]).expect("it ends well in the end");
        assert_eq!(list, extents(&cells));
        let starts: Vec<_> = scene.server.calls().iter().map(|c| c.starting_offset).collect();
        let last = i64::try_from((CELLS - 1) * CELL).expect("it fits");
        assert_eq!(starts, [0, last], "the last range again, for the end behind it");
        let error = scene
            .play(kind, vec![fail(3), fail(1), fail(1), fail(1)])
            .expect_err("it never ends well");
        assert!(error.to_string().contains("4 times without progress"), "{error}");
        let second = GrpcScript { without: vec![(CELLS - 1) * CELL], ..GrpcScript::default() };
        let error = scene.play(kind, vec![fail(3), second]).expect_err("a contradiction");
        assert!(error.to_string().contains("it passes over"), "{error}");
    }
}

/// Random lists, cut at random places over calls that agree or contradict each other.
#[test]
fn the_list_is_what_all_calls_said_or_none() {
    let mut rng = Rng::new(14);
    let mut outcomes = [0; 3];
    let scene = Scene::new(&[]);
    for round in 0..400 {
        let truth: Vec<u64> = (0..CELLS).filter(|_| rng.once_in(3)).collect();
        scene.put(&truth);
        let script = |rng: &mut Rng| GrpcScript {
            early: if rng.once_in(3) { rng.below(CELLS) } else { 0 },
            without: match rng.once_in(4) && !truth.is_empty() {
                true => vec![
                    truth[usize::try_from(rng.below(truth.len() as u64)).expect("it fits")] * CELL,
                ],
                false => vec![],
            },
            stop: match rng.below(4) {
                0 => None,
                1 => Some((rng.below(12), None)),
                _ => Some((rng.below(12), Some(Code::Unavailable))),
            },
        };
        let scripts: Vec<GrpcScript> = (0..1 + rng.below(6)).map(|_| script(&mut rng)).collect();
        let kind = KINDS[usize::from(rng.once_in(2))];
        let found = scene.play(kind, scripts.clone());
        let (listed, contradicted) = what_was_said(&scene, &truth, &scripts);
        let place = format!("round {round}: {truth:?} {scripts:?}");
        match &found {
            Ok(list) => {
                assert!(!contradicted, "{place}");
                assert_eq!(*list, extents(&listed), "{place}");
                outcomes[usize::from(listed == truth)] += 1;
            }
            Err(error) => {
                let said = error.to_string();
                let passing = said.contains("without progress");
                // a delta may be empty; a list of allocated blocks that nothing is said in is none
                let silent = kind == KINDS[1] && said.contains("ends without a message");
                assert!(passing || contradicted || silent, "{place}: {said}");
                outcomes[2] += 1;
            }
        }
    }
    println!(
        "less than the truth, which no call told {}, the truth {}, refused {}",
        outcomes[0], outcomes[1], outcomes[2]
    );
    assert!(outcomes.iter().all(|n| *n > 0), "{outcomes:?}");
}

/// Cells that any of the calls listed, and whether two of them contradicted each other.
fn what_was_said(scene: &Scene, truth: &[u64], scripts: &[GrpcScript]) -> (Vec<u64>, bool) {
    let none = GrpcScript::default();
    let mut told = vec![[false; 2]; usize::try_from(CELLS).expect("it fits")];
    let mut end = 0;
    for (n, call) in scene.server.calls().iter().enumerate() {
        let script = scripts.get(n).unwrap_or(&none);
        let asked = u64::try_from(call.starting_offset).expect("it fits") / CELL;
        let seen: Vec<u64> =
            truth.iter().copied().filter(|cell| !script.without.contains(&(cell * CELL))).collect();
        let first = seen.partition_point(|cell| *cell < asked);
        let first = first.saturating_sub(usize::try_from(script.early).expect("it fits"));
        let sent = &seen[first..];
        let (sent, well) = match script.stop {
            Some((n, code)) => {
                let n = usize::try_from(n).expect("it fits").min(sent.len());
                // a failure comes only where there is as much to send
                let enough = script.stop.is_some_and(|(at, _)| at <= sent.len() as u64);
                (&sent[..n], code.is_none() || !enough)
            }
            None => (sent, true),
        };
        let from = sent.first().map_or(asked, |first| asked.min(*first));
        let last = sent.last().map_or(from, |last| last + 1);
        let to = if well { last.max(end) } else { last };
        for cell in from..to {
            let listed = sent.contains(&cell);
            told[usize::try_from(cell).expect("it fits")][usize::from(!listed)] = true;
        }
        end = end.max(last);
    }
    let listed = (0..CELLS).zip(&told).filter(|(_, t)| t[0]).map(|(n, _)| n).collect();
    (listed, told.iter().any(|[listed, passed]| *listed && *passed))
}

/// A delta of which a call leaves something out: the backup goes down, and is right.
#[test]
fn a_driver_that_contradicts_itself_costs_a_step_and_nothing_else() {
    let world = World::new("contradiction");
    let server = GrpcServer::csi(&world.path("csi.sock"));
    server.put(None, "h1", world.bytes(), Blocks::allocated(&world.old));
    server.put(None, "h2", world.bytes(), Blocks::allocated(&world.new));
    let delta = Blocks::delta(&world.old, &world.new);
    let lost = delta.at(1).offset;
    server.put(Some("h1"), "h2", world.bytes(), delta);
    let asked = ["--changes-server", server.address()];
    world.backup(&world.old, "s1", &[&asked[..], &["--snapshot-handle", "h1"]].concat());
    let scripts = [
        GrpcScript {
            without: vec![lost],
            stop: Some((3, Some(Code::Unavailable))),
            ..GrpcScript::default()
        },
        GrpcScript { early: 1 << 20, ..GrpcScript::default() },
    ];
    server.set(GrpcQuirks { scripts: scripts.into(), ..GrpcQuirks::default() });
    let based = ["--base-snapshot", "s1", "--snapshot-handle", "h2", "--audit", "off"];
    let second = world.backup(&world.new, "s2", &[&asked[..], &based].concat());
    assert_eq!(second["kind"], "allocated");
    assert!(only_step(&second).contains("passed over in an earlier call"), "{second}");
    world.expect_restored(&world.new);
}

/// A real HTTP/2 server cuts a stream of two messages after every byte and says that it ended well.
#[test]
fn a_stream_cut_within_a_message_is_no_list() {
    let dir = work_dir("cut");
    let socket = dir.path().join("csi.sock");
    let server = RawServer::csi(&socket);
    let mut source = source(socket);
    source.tail_check = false;
    let first = RawAnswer::message(VOLUME, &[(0, 4096), (40_960, 8192)]);
    let second = RawAnswer::message(VOLUME, &[(81_920, 4096), (204_800, 4096)]);
    let all = [&first[..], &second].concat();
    let (part, whole) = (extents(&[0, 10, 11]), extents(&[0, 10, 11, 20, 50]));
    for cut in 0..=all.len() {
        for piece_bytes in [3, 1 << 20] {
            let answer = RawAnswer { piece_bytes, ..RawAnswer::ok(all[..cut].to_vec()) };
            server.set(vec![answer.clone()]);
            let found = ask(&source, ChangeKind::Delta);
            if [0, first.len(), all.len()].contains(&cut) {
                let wanted = [Extents::new(), part.clone(), whole.clone()];
                let at = usize::from(cut > 0) + usize::from(cut > first.len());
                assert_eq!(found.expect("at a border it is an end"), wanted[at], "at {cut}");
                continue;
            }
            let error = found.expect_err("cut within a message");
            assert!(error.to_string().contains("are missing"), "at {cut}: {error}");
            assert_eq!(error.kind(), chunkstore::ErrorKind::Corrupt, "at {cut}");
            // whatever cut it once lets it through the next time
            server.set(vec![answer, RawAnswer::ok(all.clone())]);
            assert_eq!(ask(&source, ChangeKind::Delta).expect("the next call"), whole, "at {cut}");
            assert_eq!(server.calls(), 2);
        }
    }
}

#[test]
fn what_has_no_status_or_is_no_answer_of_grpc_is_no_list() {
    let dir = work_dir("raw");
    let socket = dir.path().join("csi.sock");
    let server = RawServer::csi(&socket);
    let source = source(socket);
    let message = RawAnswer::message(VOLUME, &[(0, 4096)]);
    let ok = || RawAnswer::ok(message.clone());
    let refused = |answer: RawAnswer, about: &str| {
        server.set(vec![answer]);
        let error = ask(&source, ChangeKind::Delta).expect_err(about).to_string();
        assert!(error.contains(about), "{error}");
    };
    for body in [vec![], message.clone()] {
        refused(RawAnswer { trailers: None, body: body.clone(), ..ok() }, "without a status");
        let other = Some(vec![("x-other", "1")]);
        refused(RawAnswer { trailers: other, body, ..ok() }, "without a status");
    }
    let details = vec![("grpc-status", "7"), ("grpc-status-details-bin", "?")];
    refused(RawAnswer { trailers: Some(details), ..ok() }, "PERMISSION_DENIED");
    let html = RawAnswer { content_type: "text/html", body: b"<html>".to_vec(), ..ok() };
    refused(RawAnswer { trailers: None, ..html.clone() }, "text/html");
    refused(RawAnswer { status: 404, trailers: None, ..html }, "HTTP 404");
    let large = RawAnswer::ok(vec![0, 2, 0, 0, 0, 1, 2, 3]);
    refused(large, "a message of 33554432 bytes, and 16 MiB are taken; ask for fewer ranges");
    let garbage = RawAnswer::ok(vec![0, 0, 0, 0, 2, 0xff, 0xff]);
    refused(garbage, "it cannot be understood");
    server.set(vec![ok()]);
    assert_eq!(ask(&source, ChangeKind::Delta).expect("as it should be"), extents(&[0]));
}
