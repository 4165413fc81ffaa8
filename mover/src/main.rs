//! The `mover` binary.

fn main() {}
