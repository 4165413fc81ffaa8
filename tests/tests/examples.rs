//! The examples of the library run, one after the other, as a stranger would run them.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::path::Path;
use tests::{Mover, MoverOutput, Rng, example_bin, work_dir};

const CHUNK: usize = 64 << 10;

fn run(home: &Mover, name: &str, args: &[&str]) -> String {
    let mut command = std::process::Command::new(example_bin(name));
    command.args(args);
    home.dress(&mut command);
    MoverOutput::of(&mut command).expect_code(0).text()
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_file_is_backed_up_listed_and_restored_in_part() {
    let directory = work_dir("examples");
    let [repo, key, image, target] =
        ["repo", "key", "image", "target"].map(|name| path(directory.path(), name));
    let home = Mover::new();
    let mut volume = vec![0; 64 * CHUNK];
    Rng::new(1).fill(&mut volume[8 * CHUNK..24 * CHUNK]);
    fs::write(&image, &volume).unwrap();

    let first = run(&home, "backup_file", &[&repo, &key, &image, "db"]);
    let new = format!("{} bytes of {} are new", 16 * CHUNK, 64 * CHUNK);
    assert!(first.ends_with(&format!("{new}\n")), "{first}");
    let second = run(&home, "backup_file", &[&repo, &key, &image, "db"]);
    assert!(second.contains("\n0 bytes of "), "{second}");

    let listed = run(&home, "list", &[&repo, &key]);
    let ids: Vec<_> = listed.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    let made = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(ids, [made(&first), made(&second)], "{listed}");

    // it begins in the zeros, and neither end is that of a chunk
    let range = 7 * CHUNK + 100..9 * CHUNK + 50;
    let (start, end) = (range.start.to_string(), range.end.to_string());
    run(&home, "restore_range", &[&repo, &key, "db@latest", &start, &end, &target]);
    let mut expected = vec![0; volume.len()];
    expected[range.clone()].copy_from_slice(&volume[range]);
    assert!(fs::read(&target).unwrap() == expected, "other bytes were restored");
}
