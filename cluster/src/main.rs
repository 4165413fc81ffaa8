//! `kubectl mover`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mover_cluster::cli::main()
}
