//! The servers' side of the protocol definitions whose client is in `mover-changes`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 2] =
        ["../mover/changes/proto/snapshotmetadata.proto", "../mover/changes/proto/csi.proto"];
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["../mover/changes/proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    Ok(())
}
