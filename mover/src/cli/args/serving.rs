//! What can be typed after `serve`.

use super::ReadingArgs;
use clap::ArgAction;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Serve backups over NBD: read before they are restored.
///
/// Clients attach to a backup as to a disk, and read any part of it at once: qemu-img, nbdcopy,
/// nbdfuse, a virtual machine. What they read is fetched and checked then. Exports are read-only,
/// or, with --overlay, what clients write is kept beside the backup, which stays as it is.
/// It serves until a signal ends it, and that is a success: exit code 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mover serve db@latest --socket /run/db.sock
  mover serve db@latest --run 'qemu-img convert -p $uri -O qcow2 db.qcow2'")]
#[command(after_long_help = "\
Examples:
  mover serve db@latest --socket /run/db.sock
  mover serve db@latest --run 'qemu-img convert -p $uri -O qcow2 db.qcow2'
  mover serve db@latest --overlay db.overlay --socket /run/db.sock
  mover serve db@latest --changed-since db@3f2a --socket /run/db.sock
  mover serve db@latest web@latest --listen localhost:10809 --insecure
  mover serve db@latest --listen 0.0.0.0:10809 --tls-cert server.pem --tls-key server.key \\
      --tls-client-ca clients.pem --tls-client vm7.example.org=db")]
pub(crate) struct ServeArgs {
    /// Backups to serve: VOLUME@latest, VOLUME@ID, VOLUME@SNAPSHOT, VOLUME@DATE, or ids
    ///
    /// Each is an export named VOLUME@ID. What was typed is a name of it too, and so is VOLUME where
    /// it is the only backup of its volume; the only export also has the empty name.
    #[arg(value_name = "BACKUP", required = true)]
    pub(crate) backups: Vec<String>,
    /// UNIX socket to make and serve on, for this user alone (mode 0600)
    #[arg(long, env = "MOVER_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Address to serve on, with TLS (--tls-cert and what belongs to it), or a loopback one with
    /// --insecure
    #[arg(long, env = "MOVER_LISTEN", value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Let every process of this machine connect, and read the backups as plain text
    #[arg(long, env = "MOVER_INSECURE", value_parser = FalseyValueParser::new())]
    pub(crate) insecure: bool,
    /// Backup to compare with: clients may ask what has changed since. May be repeated
    ///
    /// Exports of the same volume have the contexts mover:changed-since=ID and
    /// qemu:dirty-bitmap:ID for it.
    #[arg(long, env = "MOVER_CHANGED_SINCE", value_name = "BACKUP", action = ArgAction::Append)]
    pub(crate) changed_since: Vec<String>,
    /// File for what clients write, made if it is missing, or `temp` to forget it at the end;
    /// without it exports are read-only
    ///
    /// The file and FILE.journal beside it belong together, and to one backup: another one is
    /// refused, and nothing is ever replaced. They are sparse, plain text, and this user's alone
    /// (mode 0600). What clients have flushed is there after any restart. With `temp` each export
    /// has a file without a name in the directory of --scratch, or in $TMPDIR where there is none;
    /// for a file that is called so, write ./temp.
    #[arg(long, env = "MOVER_OVERLAY", value_name = "FILE|temp")]
    pub(crate) overlay: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cache: DiskCacheArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Shell command to run while it serves, with the address of the first export in $uri; it
    /// serves as long as that runs. Without --socket and --listen a socket is made for it
    #[arg(long, env = "MOVER_RUN", value_name = "COMMAND")]
    pub(crate) run: Option<String>,
    /// End when somebody was served and all have left
    #[arg(long, env = "MOVER_EXIT_WHEN_IDLE", value_parser = FalseyValueParser::new())]
    pub(crate) exit_when_idle: bool,
    /// File for the number of this process, there as long as it serves
    #[arg(long, env = "MOVER_PID_FILE", value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) tls: ServeTlsArgs,
}

/// What clients read.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// File to write at the end: the ranges that clients read, each where it was read first; for
    /// --fetch-first of a live restore
    #[arg(long, env = "MOVER_RECORD", value_name = "FILE", hide_short_help = true)]
    pub(crate) record: Option<PathBuf>,
}

/// What was fetched, kept for the next one who reads it.
#[derive(Debug, clap::Args)]
pub(crate) struct DiskCacheArgs {
    /// Keep so much of what was fetched on a disk, too, such as 20GiB; else in memory alone
    ///
    /// It is a file without a name in the directory of --scratch, or in $TMPDIR where there is none,
    /// sealed with a key that this process alone has: nothing of it is left when it ends, however it
    /// ends.
    #[arg(long, env = "MOVER_DISK_CACHE", value_name = "SIZE")]
    pub(crate) disk_cache: Option<String>,
}

/// TLS for clients that come by TCP.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct ServeTlsArgs {
    /// File with the certificate of this server and those above it (PEM)
    #[arg(long, env = "MOVER_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the key of that certificate (PEM)
    #[arg(long, env = "MOVER_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// File with the authorities that sign certificates of clients (PEM); each client shows one
    #[arg(long, env = "MOVER_TLS_CLIENT_CA", value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Export that clients with this DNS name in their certificate see. May be repeated; without
    /// it all clients see all exports
    #[arg(long, env = "MOVER_TLS_CLIENT", value_name = "NAME=EXPORT", action = ArgAction::Append)]
    pub(crate) tls_client: Vec<String>,
}
