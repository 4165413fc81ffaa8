//! REST servers of another dialect, and those that change their mind: a list is read as it was
//! meant, or refused, and never taken for a shorter one.

use super::world::{World, only_step};
use super::{fetch, quick};
use mover_changes::{ChangeKind, ChangeSource, ChangedBlocks, RestSource};
use mover_extents::Extents;
use tests::{Block, Blocks, RestQuirks, RestServer};

const VOLUME: u64 = 1 << 20;

fn blocks(cells: &[u64]) -> Blocks {
    let block = |n: &u64| Block { offset: n * 4096, len: 4096, zero: false };
    cells.iter().map(block).collect::<Vec<_>>().into()
}

fn extents(cells: &[u64]) -> Extents {
    cells.iter().map(|n| n * 4096..(n + 1) * 4096).collect()
}

fn source(url: String) -> RestSource {
    RestSource {
        delta_url: Some(url),
        plain_http: true,
        page_entries: 2,
        retry: quick(),
        ..RestSource::default()
    }
}

fn ask(source: RestSource) -> chunkstore::Result<ChangedBlocks> {
    fetch(&ChangeSource::Rest(source), ChangeKind::Delta, VOLUME)
}

const CELLS: [u64; 5] = [0, 7, 8, 100, 255];

fn with(quirks: RestQuirks) -> (chunkstore::Result<ChangedBlocks>, RestServer) {
    let server = RestServer::http();
    let url = server.put("/d", VOLUME, blocks(&CELLS), quirks);
    (ask(source(url)), server)
}

#[track_caller]
fn expect_refused(quirks: RestQuirks, about: &str) {
    let (found, _server) = with(quirks);
    let error = found.expect_err(about);
    assert!(error.to_string().contains(about), "{error}");
    assert!(error.hint_text().is_some(), "{error}");
}

#[test]
fn whichever_parameter_carries_the_next_offset_is_found() {
    for parameter in ["startOffset", "nextOffset", "NextOffset"] {
        for strict in [false, true] {
            let parameter = Some(parameter.to_owned());
            let quirks =
                RestQuirks { parameter: parameter.clone(), strict, ..RestQuirks::default() };
            let (found, server) = with(quirks.clone());
            assert_eq!(found.expect("it is found").data, extents(&CELLS));
            // what works is kept: the third page is asked for once
            let asked = server.requests();
            let tried = asked.len() - 3;
            assert!(tried <= 2, "{} requests", asked.len());
            // also when the list is asked for anew
            let quirks = RestQuirks { gone_at: Some((3, 1)), ..quirks };
            let (found, server) = with(quirks);
            assert_eq!(found.expect("anew").data, extents(&CELLS));
            assert_eq!(server.requests().len(), 6 + tried);
        }
    }
    let other = || RestQuirks { parameter: Some("cursor".into()), ..RestQuirks::default() };
    expect_refused(other(), "`changes-offset-parameter`");
    expect_refused(RestQuirks { strict: true, ..other() }, "`changes-offset-parameter`");
    let server = RestServer::http();
    let mut named = source(server.put("/d", VOLUME, blocks(&CELLS), other()));
    named.offset_parameter = Some("cursor".into());
    assert_eq!(ask(named).expect("by its name").data, extents(&CELLS));
}

#[test]
fn pages_that_are_not_understood_are_no_end() {
    let pages = |pages: &[&str]| {
        let bodies = pages.iter().map(|page| (*page).to_owned()).collect();
        with(RestQuirks { bodies, ..RestQuirks::default() }).0
    };
    for (bodies, about) in [
        (
            &[
                r#"{"changedBlocks":[{"size":4096}],"nextOffset":"1"}"#,
                r#"{"changedBlocks":[{"size":8}]}"#,
            ][..],
            "second block without an offset",
        ),
        (
            &[
                r#"{"changedBlocks":[{"offset":8,"size":8}],"nextOffset":"1"}"#,
                r#"{"State":"Pending"}"#,
            ],
            "page 2: its member \"State\"",
        ),
        (
            &[r#"{"changedBlocks":[{"offset":8,"size":8}],"nextOffset":"1"}"#, "{}"],
            "page 2: it has no list",
        ),
        (
            &[r#"{"changedBlocks":[{"offset":8,"size":8}],"total":2}"#],
            "total is 2, but 1 blocks came",
        ),
        (&[r#"{"changedBlocks":null,"total":2}"#], "total is 2, but 0 blocks came"),
        (&[r#"{"changedBlocks":[{"offset":8,"size":8}],"totalPages":3}"#], "totalPages is 3"),
        (
            &[
                r#"{"changedBlocks":[],"total":2,"nextOffset":"1"}"#,
                r#"{"changedBlocks":[],"total":3}"#,
            ],
            "was 2 before",
        ),
        (&[r#"{"changedBlocks":null,"Timeout":1735693200}"#], "null beside a timeout"),
        (&[r#"{"changedBlocks":[{"offset":8,"size":8}],"nextPage":"b"}"#], "\"nextPage\" is \"b\""),
        (&[r#"{"ErrorMessage":"no such snapshot"}"#], "no such snapshot"),
    ] {
        let error = pages(bodies).expect_err(about);
        assert!(error.to_string().contains(about), "{error}");
        assert!(error.hint_text().is_some(), "{error}");
    }
    let fine = pages(&[
        r#"{"changedBlocks":[{"size":8}],"nextOffset":"1","total":2,"totalPages":2}"#,
        r#"{"changedBlocks":[{"offset":16,"size":8}],"State":"Success","errors":null}"#,
    ]);
    assert_eq!(fine.expect("as Go writes it").data.as_slice(), [0..8, 16..24]);
}

#[test]
fn a_list_that_is_asked_for_anew_must_name_what_it_named_before() {
    let quirks = |cells: &[u64]| RestQuirks {
        gone_at: Some((3, 1)),
        after_gone: Some(blocks(cells)),
        ..RestQuirks::default()
    };
    expect_refused(quirks(&[0, 7, 100, 255]), "it leaves out bytes 32768 to 36864");
    let (found, _server) = with(quirks(&[0, 7, 8, 9, 100]));
    assert_eq!(found.expect("it says no less").data, extents(&[0, 7, 8, 9, 100]));
}

#[test]
fn what_never_brings_anything_new_ends() {
    let server = RestServer::http();
    let quirks = RestQuirks { endless: true, ..RestQuirks::default() };
    let mut endless = source(server.put("/d", VOLUME, blocks(&CELLS), quirks));
    endless.retry.nothing_new_ms = 1000;
    // the second page is the first one again, by any name of the parameter
    let error = ask(endless.clone()).expect_err("it would never end").to_string();
    assert!(error.contains("its first page again"), "{error}");
    let empty = r#"{"changedBlocks":[],"nextOffset":"NUMBER"}"#;
    let bodies = (0..100_000).map(|n| empty.replace("NUMBER", &n.to_string())).collect();
    let quirks = RestQuirks { bodies, ..RestQuirks::default() };
    endless.delta_url = Some(server.put("/e", VOLUME, blocks(&CELLS), quirks));
    let error = ask(endless).expect_err("it would never end").to_string();
    assert!(error.contains("brought anything new"), "{error}");
}

#[test]
fn failures_of_the_server_and_the_token_are_worth_another_try() {
    let quirks = RestQuirks { status_at: Some((2, 500, 1)), ..RestQuirks::default() };
    assert_eq!(with(quirks).0.expect("it passes").data, extents(&CELLS));
    let dir = tests::work_dir("stale");
    let file = dir.path().join("token");
    std::fs::write(&file, "old").expect("write the token");
    let server = RestServer::http();
    let quirks = RestQuirks {
        stale: Some(("old".into(), file.clone())),
        token: Some("good".into()),
        ..RestQuirks::default()
    };
    let url = server.put("/d", VOLUME, blocks(&CELLS), quirks);
    let tokened = RestSource { token_file: Some(file), ..source(url) };
    assert_eq!(ask(tokened).expect("renewed").data, extents(&CELLS));
    assert_eq!(server.requests()[0].authorization.as_deref(), Some("Bearer old"));
}

/// A redirection costs a step, as a list that is not there does.
#[test]
fn a_redirection_is_a_step_down() {
    let world = World::new("redirect");
    world.backup(&world.old, "s1", &[]);
    let server = RestServer::http();
    let redirect = Some("http://127.0.0.1:1/".to_owned());
    let quirks = RestQuirks { redirect, ..RestQuirks::default() };
    let delta = Blocks::delta(&world.old, &world.new);
    let delta = server.put("/d", world.bytes(), delta, quirks);
    let all = Blocks::allocated(&world.new);
    let all = server.put("/a", world.bytes(), all, RestQuirks::default());
    let line = ["--base-snapshot", "s1", "--changes-url", &delta, "--allocated-url", &all];
    let run = world.backup(&world.new, "s2", &line);
    assert_eq!(run["kind"], "allocated");
    assert!(only_step(&run).contains("redirects are not followed"), "{run}");
    world.expect_restored(&world.new);
}
