//! `backup --plan` and prices: it writes nothing, and says what the run then does.

use super::{Stage, expect_error, p, tree};
use serde_json::{Value, json};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tests::{Mover, Rng, extents_json, work_dir};

const CHUNK: usize = 65536;
const MIB: usize = 1 << 20;

/// Text of a few thousand words in small letters: it compresses to somewhat less than half.
fn words(rng: &mut Rng, len: usize) -> Vec<u8> {
    let letters = |bytes: Vec<u8>| bytes.into_iter().map(|b| b'a' + b % 26).collect();
    let words: Vec<Vec<u8>> = (0..4096).map(|_| letters(rng.bytes(9))).collect();
    let mut text = Vec::with_capacity(len + 9);
    while text.len() < len {
        text.extend_from_slice(&words[usize::try_from(rng.below(4096)).expect("small")]);
    }
    text.truncate(len);
    text
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

/// Plans a backup, then makes it, and compares. Gives the plan and the summary.
#[track_caller]
fn plan_and_run(stage: &Stage, image: &Path, args: &[&str]) -> (Value, Value) {
    let line = |more: &[&str]| -> Vec<PathBuf> {
        let given = ["backup", "--json"].iter().chain(args).chain(more);
        given.map(|text| p(text)).chain([image.to_owned()]).collect()
    };
    let (before, home) = (tree(&stage.repository()), tree(stage.mover.home()));
    let planned = stage.mover.ok(line(&["--plan"]));
    let plan: Value = serde_json::from_str(planned.text().trim()).expect("one object");
    assert_eq!(plan["type"], "plan");
    assert!(tree(&stage.repository()) == before, "a plan has written to the repository");
    assert!(tree(stage.mover.home()) == home, "a plan has written to the home");
    let run = stage.mover.ok(line(&[])).summary();
    assert_eq!(number(&plan, "/read/read_bytes"), number(&run, "/read_bytes"), "{plan}\n{run}");
    for member in ["volume", "size_bytes", "parent", "kind", "origin", "bounds"] {
        assert_eq!(plan[member], run[member], "{member}");
    }
    let reasons = ["changed", "allocated", "whole", "tail", "damaged", "gap"];
    let by_reason: u64 = reasons.iter().map(|r| number(&plan, &format!("/read/{r}_bytes"))).sum();
    assert_eq!(by_reason, number(&plan, "/read/read_bytes"), "{plan}");
    for figure in ["new_bytes", "stored_bytes"] {
        let done = number(&run, &format!("/{figure}"));
        let of = |end| number(&plan, &format!("/{figure}/{end}"));
        assert!((of("low")..=of("high")).contains(&done), "{figure} {done}: {plan}\n{run}");
        assert!((of("low")..=of("high")).contains(&of("about")), "{figure}: {plan}");
    }
    let audited = run.pointer("/audit/bytes").and_then(Value::as_u64).unwrap_or(0);
    assert!(audited <= number(&plan, "/read/audit_bytes"), "{plan}\n{run}");
    // the factor that the manual states
    let kinds = ["gets", "puts", "creates", "heads", "lists", "deletes"];
    let made: u64 = kinds.iter().map(|kind| number(&run, &format!("/requests/{kind}"))).sum();
    let about = number(&plan, "/requests/total/about");
    assert!(made <= 2 * about && about <= 2 * made, "{made} made: {plan}\n{run}");
    (plan, run)
}

#[test]
fn the_run_does_what_the_plan_says() {
    let stage = Stage::new("plan");
    let mut rng = Rng::new(41);
    let image = stage.path("volume");
    // few enough units to be looked at all, and an odd end
    let mut content =
        [rng.bytes(9 * MIB), vec![0; 3 * MIB], words(&mut rng, 8 * MIB + 77)].concat();
    fs::write(&image, &content).expect("write the image");
    let base = ["--volume", "plan", "--compression", "zstd:1"];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    let (plan, run) = plan_and_run(&stage, &image, &with(&["--snapshot", "s1"]));
    assert_eq!(number(&plan, "/read/whole_bytes"), content.len() as u64);
    assert_eq!(plan["parent"], Value::Null);
    assert_eq!(plan["stored_basis"], "sample");
    assert_eq!(number(&plan, "/new_bytes/about"), number(&run, "/new_bytes"), "all was looked at");

    // compared with its parent
    let end = content.len();
    content[MIB..2 * MIB].copy_from_slice(&rng.bytes(MIB));
    fs::write(&image, &content).expect("write the image");
    let (plan, run) = plan_and_run(&stage, &image, &with(&["--snapshot", "s2"]));
    assert_eq!(plan["stored_basis"], "parent and sample");
    assert_eq!((number(&plan, "/new_bytes/about"), number(&run, "/new_bytes")), (1 << 20, 1 << 20));

    // by a list: single chunks with gaps between them that are read along, or are not, and a volume
    // that has grown
    content.extend(rng.bytes(3 * CHUNK));
    let at = |chunk: usize| (chunk * CHUNK) as u64..(chunk * CHUNK + 100) as u64;
    let listed: Vec<Range<u64>> = vec![at(3), at(5), at(8), at(40), at(41), at(100), at(200)];
    for range in &listed {
        let start = usize::try_from(range.start).expect("small");
        content[start..start + 100].copy_from_slice(&rng.bytes(100));
    }
    fs::write(&image, &content).expect("write the image");
    let list = stage.path("list.json");
    let delta = extents_json(content.len() as u64, "delta", &listed);
    fs::write(&list, delta.to_string()).expect("write the list");
    let list = list.to_str().expect("UTF-8");
    let by_list = ["--changed-blocks", list, "--base-snapshot", "s2", "--snapshot", "s3"];
    let (plan, _) = plan_and_run(&stage, &image, &[&base[..], &by_list].concat());
    assert_eq!(number(&plan, "/read/changed_bytes"), 7 * CHUNK as u64);
    let tail = content.len() - end / CHUNK * CHUNK;
    assert_eq!(number(&plan, "/read/tail_bytes"), tail as u64);
    assert_eq!(number(&plan, "/read/gap_bytes"), CHUNK as u64, "between 3 and 5");
    assert!(number(&plan, "/read/audit_bytes") > 0);

    // allocated blocks: nothing is inherited, the rest is zero
    let kept: Vec<Range<u64>> = vec![0..(4 * MIB) as u64, (13 * MIB) as u64..(14 * MIB) as u64];
    let mut sparse = vec![0; content.len()];
    for range in &kept {
        let range = usize::try_from(range.start).expect("small")
            ..usize::try_from(range.end).expect("small");
        sparse[range.clone()].copy_from_slice(&content[range]);
    }
    fs::write(&image, &sparse).expect("write the image");
    let allocated = extents_json(content.len() as u64, "allocated", &kept);
    fs::write(list, allocated.to_string()).expect("write the list");
    let by_list = ["--changed-blocks", list, "--snapshot", "s4"];
    let (plan, _) = plan_and_run(&stage, &image, &[&base[..], &by_list].concat());
    assert_eq!(number(&plan, "/read/allocated_bytes"), 5 << 20);
}

#[test]
fn what_another_volume_has_is_not_planned_to_be_stored_again() {
    let stage = Stage::new("plan-elsewhere");
    let mut rng = Rng::new(47);
    let (image, mut content) = (stage.path("volume"), rng.bytes(12 * MIB));
    fs::write(&image, &content).expect("write the image");
    stage.mover.ok([p("backup"), p("-q"), p("--volume"), p("one"), image.clone()]);
    // at other places, and with a little of its own
    content.rotate_left(4 * MIB);
    content[3 * MIB..4 * MIB].copy_from_slice(&rng.bytes(MIB));
    fs::write(&image, &content).expect("write the image");
    let (plan, run) = plan_and_run(&stage, &image, &["--volume", "two"]);
    assert_eq!(number(&run, "/reused_bytes"), 11 << 20, "{run}");
    assert_eq!(number(&plan, "/sample/reused_bytes"), 11 << 20, "{plan}");
    let new = ["low", "about", "high"].map(|end| number(&plan, &format!("/new_bytes/{end}")));
    assert_eq!(new, [1 << 20; 3], "{plan}");
    assert!(number(&plan, "/stored_bytes/high") < 2 << 20, "{plan}");
}

#[test]
fn a_sample_stands_for_what_compresses_and_for_what_does_not() {
    let stage = Stage::new("plan-sample");
    let mut rng = Rng::new(43);
    let image = stage.path("volume");
    for (volume, content) in [
        ("noise", rng.bytes(80 * MIB)),
        ("words", words(&mut rng, 80 * MIB)),
        ("zeros", vec![0; 80 * MIB]),
    ] {
        fs::write(&image, &content).expect("write the image");
        let (plan, _) = plan_and_run(&stage, &image, &["--volume", volume]);
        let looked = (number(&plan, "/sample/units"), number(&plan, "/sample/of_units"));
        assert!(looked.0 <= 64 && looked.1 == 80, "{plan}");
        let of = |end| number(&plan, &format!("/stored_bytes/{end}"));
        match volume {
            "noise" => assert!(of("low") > 70 << 20 && of("high") < 84 << 20, "{plan}"),
            "words" => assert!(of("low") > 8 << 20 && of("high") < 80 << 20, "{plan}"),
            _ => assert!(of("low") == 0 && of("high") < 8 << 20, "{plan}"),
        }
    }
}

#[test]
fn a_plan_makes_no_embedded_repository() {
    let mover = Mover::new();
    let directory = work_dir("plan-embedded");
    let image = directory.path().join("image");
    fs::write(&image, Rng::new(5).bytes(MIB)).expect("write the image");
    let planned = mover.ok([p("backup"), image, p("--plan")]);
    for word in ["plan", "read", "stored", "requests", "bounds", "time"] {
        assert!(planned.text().contains(&format!("\n{word} ")) || planned.text().starts_with(word));
    }
    assert!(planned.stderr.contains("would be made first"), "{}", planned.stderr);
    assert_eq!(tree(mover.home()).len(), 0);
    assert_eq!(fs::read_dir(mover.home()).expect("the home").count(), 0);
}

/// Prices that make sums easy: each figure of the result says where it is from.
fn prices(stage: &Stage) -> PathBuf {
    let path = stage.path("prices.json");
    let file = json!({
        "put_per_1000": 1000, "get_per_1000": 100, "list_per_1000": 10, "delete_per_1000": 1,
        "stored_gib_month": 1024, "egress_gib": 0, "ingress_gib": 2048,
    });
    let list = json!({ "currency": "EUR", "stores": { "file": file } });
    fs::write(&path, list.to_string()).expect("write the prices");
    path
}

#[test]
fn money_is_what_one_gets_by_hand() {
    let stage = Stage::new("plan-price");
    let prices = prices(&stage);
    let line = [p("backup"), p("--plan"), p("--volume"), p("w"), p("--price-file"), prices.clone()];
    let line = line.into_iter().chain([stage.image()]);
    let text = stage.mover.ok(line.clone()).text();
    assert!(text.contains("\ncost ") && text.contains("EUR"), "{text}");
    let planned = stage.mover.ok(line.chain([p("--json")])).text();
    let plan: Value = serde_json::from_str(&planned).expect("one object");
    let near = |found: &Value, expected: f64| {
        let found = found.as_f64().expect("a number");
        assert!((found - expected).abs() <= 1e-9 * expected.max(1.0), "{found} {expected} {plan}");
    };
    for end in ["about", "high"] {
        let count = |kind| number(&plan, &format!("/requests/{kind}/{end}"));
        let tenths = 10_000 * (count("puts") + count("creates"))
            + 1000 * (count("gets") + count("heads"))
            + 100 * count("lists")
            + 10 * count("deletes");
        let cost = &plan["cost"][end];
        let requests = f64::from(u32::try_from(tenths).expect("small")) / 10_000.0;
        near(&cost["requests"], requests);
        // 2048 a GiB is 2 a MiB
        let stored = number(&plan, &format!("/stored_bytes/{end}"));
        let mib = f64::from(u32::try_from(stored).expect("small")) / 1_048_576.0;
        near(&cost["transfer"], 2.0 * mib);
        near(&cost["once"], requests + 2.0 * mib);
        near(&plan["cost"][format!("month_{end}")], mib);
    }

    // the only backup goes, and all of its packs with it
    stage.mover.ok(["forget", "--quiet", &stage.backup_id]);
    let dry = [p("gc"), p("--dry-run"), p("--price-file"), prices];
    let text = stage.mover.ok(dry.clone()).text();
    assert!(text.contains("would cost") && text.contains("would save"), "{text}");
    let all = stage.objects("");
    let found = stage.mover.ok(dry.into_iter().chain([p("--json")])).summary();
    assert_eq!(stage.objects(""), all);
    let freed = number(&found, "/condemned_bytes");
    assert!(freed > 0, "{found}");
    let mib = f64::from(u32::try_from(freed).expect("small")) / 1_048_576.0;
    near(&found["saving"]["saved_month"], mib);
    let count = |kind| number(&found, &format!("/requests/{kind}"));
    let tenths = 10_000 * (count("puts") + count("creates"))
        + 1000 * (count("gets") + count("heads"))
        + 100 * count("lists")
        + 10 * count("deletes");
    near(
        &found["saving"]["cost"]["requests"],
        f64::from(u32::try_from(tenths).expect("small")) / 10_000.0,
    );
}

#[test]
fn a_bad_price_file_is_one_clear_error() {
    let stage = Stage::new("plan-bad-price");
    let path = stage.path("prices.json");
    let run = |command: &[&str]| {
        let line = command.iter().map(|text| p(text)).chain([p("--price-file"), path.clone()]);
        stage.mover.run(line)
    };
    let image = stage.image();
    let plan = ["backup", image.to_str().expect("UTF-8"), "--plan"];
    expect_error(run(&plan), 2, "prices.json");
    for (text, about) in [
        ("", "prices.json"),
        ("{", "prices.json"),
        (r#"{"currency":"USD","stores":{"file":{}}}"#, "put_per_1000"),
        (r#"{"currency":"USD","stores":{},"more":1}"#, "more"),
        (r#"{"currency":"USD","stores":{}}"#, "no prices"),
    ] {
        fs::write(&path, text).expect("write the prices");
        expect_error(run(&plan), 2, about);
        expect_error(run(&["gc", "--dry-run"]), 2, about);
    }
    fs::write(&path, " ".repeat(100_000)).expect("write the prices");
    expect_error(run(&plan), 2, "larger than 64.0 KiB");
}
