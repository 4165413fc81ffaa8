//! What an administrator applies: the rules of our kinds, admission policies, and the files of
//! `deploy/`. The examples beside this file are also tried on a real API server, by
//! `tests/cluster/mover-install`: both have to say the same.

mod cel;
mod deploy;
mod policies;
mod rules;
mod stored;

use serde_json::Value;
use std::path::PathBuf;

/// The examples of a file, one a line.
fn examples(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/install").join(name);
    let text = std::fs::read_to_string(&path).expect("the examples");
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect()
}

fn text<'a>(example: &'a Value, name: &str) -> &'a str {
    example[name].as_str().unwrap_or_default()
}
