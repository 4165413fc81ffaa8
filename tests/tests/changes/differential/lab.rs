//! A cluster with two snapshots of a volume, their driver's service, and a server of its lists.

use super::super::{fetch, quick};
use super::api::{ACCOUNT, AUDIENCE, DRIVER_TOKEN, FakeApi};
use base64::Engine as _;
use mover_changes::{ChangeKind, ChangeSource, ChangedBlocks, RestSource};
use mover_cluster::differential::{ClientLimits, DifferentialServer, DifferentialSettings};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tests::{Authority, Block, Blocks, GrpcQuirks, GrpcServer, Rng, work_dir};
use tokio::task::JoinHandle;

pub(super) const VOLUME: u64 = 64 << 20;
pub(super) const DRIVER: &str = "test.csi.mover";
pub(super) const GOOD: &str = "token-of-a-reader";

/// Blocks of all sizes and alignments.
pub(super) fn some_blocks(seed: u64) -> Blocks {
    let mut rng = Rng::new(seed);
    let mut offset = 0;
    let mut blocks = Vec::new();
    while offset < VOLUME - 200_000 {
        offset += rng.below(150_000);
        let len = 1 + rng.below(20_000);
        blocks.push(Block { offset, len, zero: false });
        offset += len + 1;
    }
    blocks.into()
}

/// A cluster with two snapshots of a volume, their driver's service, and a server of its lists.
pub(super) struct Lab {
    pub(super) api: Arc<FakeApi>,
    pub(super) driver: GrpcServer,
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    server: Option<JoinHandle<()>>,
    pub(super) address: SocketAddr,
    pub(super) url: String,
    tls: Option<PathBuf>,
    limits: ClientLimits,
}

pub(super) fn snapshot(name: &str, namespace: &str, volume: &str) -> [Value; 2] {
    let reference = json!({ "namespace": namespace, "name": name, "uid": format!("uid-{name}") });
    let bound = format!("c-{name}");
    [
        json!({ "kind": "VolumeSnapshot", "metadata": { "namespace": namespace, "name": name },
                "status": { "readyToUse": true, "boundVolumeSnapshotContentName": bound } }),
        json!({ "kind": "VolumeSnapshotContent", "metadata": { "name": bound },
                "spec": { "driver": DRIVER, "source": { "volumeHandle": volume },
                          "volumeSnapshotRef": reference },
                "status": { "readyToUse": true, "snapshotHandle": format!("h-{name}") } }),
    ]
}

impl Lab {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, false, ClientLimits::default())
    }

    pub(super) fn with(name: &str, secure: bool, limits: ClientLimits) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (dir, authority, api) = (work_dir(name), Authority::new(), FakeApi::start());
        let driver = GrpcServer::kubernetes(&authority, &["localhost"]);
        driver.set(GrpcQuirks { token: Some(DRIVER_TOKEN.into()), ..GrpcQuirks::default() });
        let ca = std::fs::read(authority.write(&dir.path().join("ca"))).expect("its certificate");
        api.put(json!({
            "kind": "SnapshotMetadataService", "metadata": { "name": DRIVER },
            "spec": { "address": driver.address(), "audience": "drivers",
                      "caCert": base64::engine::general_purpose::STANDARD.encode(ca) },
        }));
        for name in ["old", "new"] {
            snapshot(name, "shop", "vol").into_iter().for_each(|object| api.put(object));
        }
        api.state().tokens.insert(GOOD.into(), ("reader".into(), AUDIENCE.into()));
        let tls = secure.then(|| {
            let (certificate, key) = authority.sign(&["localhost"]);
            std::fs::write(dir.path().join("tls.crt"), certificate).expect("write it");
            std::fs::write(dir.path().join("tls.key"), key).expect("write it");
            dir.path().to_owned()
        });
        std::fs::write(dir.path().join("token"), GOOD).expect("write the token");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let (server, url) = (None, String::new());
        let mut lab = Self { api, driver, dir, runtime, server, address, url, tls, limits };
        lab.start();
        lab
    }

    fn start(&mut self) {
        let url = format!("http://127.0.0.1:{}", self.api.port).parse().expect("a URL");
        let settings = DifferentialSettings {
            listen: self.address,
            tls: self.tls.clone(),
            url: None,
            account: ACCOUNT.into(),
        };
        let limits = self.limits;
        let server = self.runtime.block_on(async move {
            let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
            let api = mover_cluster::api::Api::new(client);
            DifferentialServer::bind(api, [7; 32], "mover-system", Vec::new(), settings, limits)
                .await
                .expect("it listens")
        });
        self.url = server.url().replace("127.0.0.1", "localhost");
        let port = self.url.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        self.address.set_port(port.expect("a port"));
        self.server = Some(self.runtime.spawn(server.run()));
    }

    /// Another life of the server, at the same address.
    pub(super) fn restart(&mut self) {
        let server = self.server.take().expect("it runs");
        server.abort();
        self.runtime.block_on(async { drop(server.await) });
        self.start();
    }

    /// A DifferentialSnapshot that the reader may get.
    pub(super) fn make(&self, name: &str, spec: Value) {
        self.make_in("shop", name, spec);
    }

    pub(super) fn make_in(&self, namespace: &str, name: &str, spec: Value) {
        self.api.put(json!({ "kind": "DifferentialSnapshot", "spec": spec,
                             "metadata": { "namespace": namespace, "name": name } }));
        self.api.state().rights.insert(("reader".into(), namespace.into(), name.into()));
    }

    pub(super) fn delta(&self, name: &str, blocks: &Blocks) {
        self.make(
            name,
            json!({ "baseVolumeSnapshotName": "old", "targetVolumeSnapshotName": "new" }),
        );
        self.driver.put(Some("h-old"), "shop/new", VOLUME, blocks.clone());
    }

    pub(super) fn source(&self, name: &str) -> RestSource {
        RestSource {
            delta_url: Some(format!("{}/shop/{name}", self.url)),
            allocated_url: Some(format!("{}/shop/{name}", self.url)),
            plain_http: self.tls.is_none(),
            page_entries: 50,
            token_file: Some(self.path("token")),
            ca_file: self.tls.is_some().then(|| self.path("ca")),
            retry: quick(),
            ..RestSource::default()
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn fetch(&self, name: &str, kind: ChangeKind) -> chunkstore::Result<ChangedBlocks> {
        fetch(&ChangeSource::Rest(self.source(name)), kind, VOLUME)
    }

    /// As curl asks: the status, and the answer.
    pub(super) fn get(&self, target: &str, token: Option<&str>) -> (u16, Value) {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        self.say(&format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\n"))
    }

    pub(super) fn say(&self, request: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status.unwrap_or(0), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    pub(super) fn page(&self, target: &str) -> Value {
        let (status, page) = self.get(target, Some(GOOD));
        assert_eq!((status, &page["state"]), (200, &json!("Success")), "{target}: {page}");
        page
    }

    #[track_caller]
    pub(super) fn refused(&self, target: &str, token: Option<&str>, status: u16, about: &str) {
        let (found, answer) = self.get(target, token);
        assert_eq!(found, status, "{target}: {answer}");
        let said = answer["error"].as_str().unwrap_or_default();
        assert!(answer["state"] == "Failure" && said.contains(about), "{answer}");
        assert!(answer["changeBlockList"].is_null(), "it cannot be taken for a list: {answer}");
    }
}
