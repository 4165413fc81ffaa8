//! Compiles the protocol definitions of the snapshot-metadata services, without a system `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 2] = ["proto/snapshotmetadata.proto", "proto/csi.proto"];
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let files = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(files)?;
    Ok(())
}
