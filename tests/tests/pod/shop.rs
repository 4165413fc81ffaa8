//! A repository in a bucket, behind a relay that can be told to give other answers or none, and a
//! volume.

use super::{Stage, text};
use std::ffi::OsString;
use std::path::PathBuf;
use tests::{Mover, Relay, RelayOptions, S3Bucket, S3Server};

pub(crate) struct Shop {
    pub(crate) stage: Stage,
    pub(crate) relay: Relay,
    pub(crate) server: S3Server,
    bucket: S3Bucket,
    key: PathBuf,
}

impl Shop {
    pub(crate) fn new(name: &str, server: S3Server, mib: usize) -> Self {
        let stage = Stage::new(name, mib);
        let address = server.endpoint.trim_start_matches("http://").parse().unwrap();
        let relay = Relay::start(RelayOptions::moody(address)).unwrap();
        let (bucket, key) = (server.bucket(), stage.path("key"));
        let shop = Self { stage, relay, server, bucket, key };
        let init = Mover::new().envs(shop.server.environment());
        let init = init.env("MOVER_REPO", shop.bucket.url("shop"));
        init.ok(["init", "--quiet", "--new-key-file", text(&shop.key)]);
        shop
    }

    /// With these credentials, whatever they are, through the relay.
    pub(crate) fn mover<N: Into<OsString>, V: Into<OsString>>(
        &self,
        credentials: impl IntoIterator<Item = (N, V)>,
    ) -> Mover {
        Mover::new()
            .envs(credentials)
            .env("AWS_ENDPOINT", format!("http://{}", self.relay.address()))
            .env("MOVER_REPO", self.bucket.url("shop"))
            .env("MOVER_KEY_FILE", &self.key)
    }

    pub(crate) fn backup(&self) -> [&str; 4] {
        ["backup", text(&self.stage.image), "--volume", "db"]
    }
}
