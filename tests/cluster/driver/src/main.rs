//! A CSI driver for tests: real volumes on one node, and misbehaviour on demand.
//!
//! Volumes are files on an XFS with reflinks, attached as loop devices. Snapshots and clones are
//! copies by reference, so they are made in an instant, and the places that two snapshots share
//! tell what changed between them. All state is in files, so the driver may be killed at any moment
//! and started again. See the README beside this package.

mod capability;
mod controller;
mod driver;
mod extents;
mod faults;
mod freezer;
mod group;
mod identity;
mod loops;
mod metadata;
mod mounts;
mod node;
mod paging;
mod records;
mod registration;
mod sidecar;
mod sizes;
mod store;
mod system;

use clap::{Parser, Subcommand};
use driver::{Driver, Service};
use faults::Faults;
use proto::csi::controller_server::ControllerServer;
use proto::csi::group_controller_server::GroupControllerServer;
use proto::csi::identity_server::IdentityServer;
use proto::csi::node_server::NodeServer;
use proto::csi::snapshot_metadata_server::SnapshotMetadataServer;
use proto::registration::registration_server::RegistrationServer;
use registration::Registrar;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Store;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tracing_subscriber::EnvFilter;

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::large_futures,
    clippy::large_stack_frames,
    dead_code,
    reason = "generated"
)]
mod proto {
    pub(super) mod csi {
        tonic::include_proto!("csi.v1");
    }
    pub(super) mod kubernetes {
        tonic::include_proto!("snapshotmetadata");
    }
    pub(super) mod registration {
        tonic::include_proto!("pluginregistration");
    }
}

/// A CSI driver for tests.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    driver: Option<DriverArgs>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the SnapshotMetadata of Kubernetes for a driver, instead of being one
    SnapshotMetadata(sidecar::Args),
}

#[derive(Debug, clap::Args)]
struct DriverArgs {
    /// Name of the driver, as in CSIDriver
    #[arg(long, default_value = "test.csi.mover")]
    name: String,
    /// Name of the node that it runs on
    #[arg(long)]
    node: String,
    /// Socket that serves CSI; for a kubelet, with an @ in its name
    #[arg(long)]
    endpoint: PathBuf,
    /// Socket in the kubelet's folder plugins_registry, with an @ in its name
    #[arg(long)]
    registration: Option<PathBuf>,
    /// Folder of the store: its filesystem in a file, and the place where it is mounted
    #[arg(long)]
    folder: PathBuf,
    /// Size of a new store; it takes no more space than its volumes
    #[arg(long, default_value_t = 64 << 30)]
    store_bytes: u64,
    /// JSON file with the misbehaviour that is in force; read at each call
    #[arg(long)]
    faults: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter.parse("")?)
        .init();
    let args = Args::parse();
    match (args.command, args.driver) {
        (Some(Command::SnapshotMetadata(args)), _) => sidecar::run(&args, asked_to_end()?).await,
        (None, Some(args)) => run_driver(args).await,
        (None, None) => Err("name a node, an endpoint and a folder, or a command".into()),
    }
}

/// Waits for SIGTERM or SIGINT.
fn asked_to_end() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn run_driver(args: DriverArgs) -> Result<(), Box<dyn Error>> {
    let asked_to_end = asked_to_end()?;
    // Pods go on even if the records cannot be read.
    freezer::Frozen::thaw_left_over(&args.folder.join(store::PLACE))?;
    let store = Store::open(&args.folder, args.store_bytes)?;
    let faults = Faults::new(args.faults.clone());
    let driver = Driver::new(args.name.clone(), args.node.clone(), faults, store);
    let service = Service(Arc::new(driver));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let ended = || {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }
    };
    let csi = Server::builder()
        .add_service(IdentityServer::new(service.clone()))
        .add_service(ControllerServer::new(service.clone()))
        .add_service(GroupControllerServer::new(service.clone()))
        .add_service(NodeServer::new(service.clone()))
        .add_service(SnapshotMetadataServer::new(service))
        .serve_with_incoming_shutdown(listen(&args.endpoint)?, ended());
    let csi = tokio::spawn(csi);
    // The kubelet asks at once, so this socket comes last.
    if let Some(socket) = &args.registration {
        let endpoint = std::path::absolute(&args.endpoint)?.display().to_string();
        let registrar = Registrar { name: args.name, endpoint };
        let registration = Server::builder()
            .add_service(RegistrationServer::new(registrar))
            .serve_with_incoming_shutdown(listen(socket)?, ended());
        tokio::spawn(registration);
    }
    asked_to_end.await;
    stop.send_replace(true);
    csi.await??;
    for socket in [Some(&args.endpoint), args.registration.as_ref()].into_iter().flatten() {
        records::remove_if_there(socket)?;
    }
    Ok(())
}

/// A socket; one that a killed driver left is replaced.
fn listen(socket: &Path) -> Result<UnixListenerStream, Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("listen on {}: {error}", socket.display());
    records::remove_if_there(socket).map_err(failed)?;
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    Ok(UnixListenerStream::new(UnixListener::bind(socket).map_err(failed)?))
}
