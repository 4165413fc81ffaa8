//! The product's crates, as the workspace lists them.

use std::fs;
use std::path::{Path, PathBuf};

/// Members that are not part of the product.
const OTHERS: [&str; 4] = ["tests", "tests/cluster/driver", "benches", "fuzz"];

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Source folders of the product's crates, by their paths from the workspace's folder.
pub fn product_sources() -> Vec<String> {
    let manifest = workspace().join("Cargo.toml");
    let manifest = fs::read_to_string(&manifest).expect("the workspace's Cargo.toml");
    let members = manifest.split("\nmembers = [").nth(1).and_then(|rest| rest.split(']').next());
    let members = members.expect("members").split('"').skip(1).step_by(2);
    let product = members.filter(|member| !OTHERS.contains(member));
    let sources: Vec<_> = product.map(|member| format!("{member}/src")).collect();
    assert!(sources.len() >= 2, "{sources:?}");
    sources
}
