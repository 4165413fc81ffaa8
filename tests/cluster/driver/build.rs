//! Compiles the protocol definitions, without a system `protoc`. Those of SnapshotMetadata are the
//! ones that `mover` itself is built with.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const OWN: &str = "proto";
    const SHARED: &str = "../../../mover/tracker/proto";
    const FILES: [(&str, &str); 5] = [
        (OWN, "driver.proto"),
        (OWN, "group.proto"),
        (OWN, "pluginregistration.proto"),
        (SHARED, "csi.proto"),
        (SHARED, "snapshotmetadata.proto"),
    ];
    for (folder, file) in FILES {
        println!("cargo::rerun-if-changed={folder}/{file}");
    }
    let files = protox::compile(FILES.map(|(_, file)| file), [OWN, SHARED])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
