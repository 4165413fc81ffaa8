//! The servers' side of the protocol definitions whose client is in `mover-changes`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 2] =
        ["../mover/tracker/proto/snapshotmetadata.proto", "../mover/tracker/proto/csi.proto"];
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["../mover/tracker/proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    Ok(())
}
