//! The `mover` binary: all of it is in the library.

fn main() -> std::process::ExitCode {
    mover::cli::main()
}
