//! libFuzzer around one of the targets, which `MOVER_FUZZ_TARGET` names. `fuzz/run` sets it.
#![no_main]

use fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

static TARGET: OnceLock<&Target> = OnceLock::new();

fn choose() -> &'static Target {
    let name = std::env::var_os("MOVER_FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|t| t.name == name) {
        Some(target) => target,
        None => {
            let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
            eprintln!("MOVER_FUZZ_TARGET must be one of: {}", names.join(" "));
            std::process::exit(2);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    (TARGET.get_or_init(choose).run)(data);
});
