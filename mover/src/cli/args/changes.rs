//! What can be typed about changed-block lists.

use super::KindArg;
use clap::ValueEnum;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Where the list of changed blocks comes from.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Changed blocks")]
pub(crate) struct ChangesArgs {
    /// List of changed blocks, `-` for stdin: output of `mover diff`, `rbd diff --format json`,
    /// `qemu-img map --output=json`, the CSI snapshot-metadata lister, or [{"offset", "length"}]
    #[arg(long, env = "MOVER_CHANGED_BLOCKS", value_name = "FILE")]
    pub(crate) changed_blocks: Option<PathBuf>,
    /// What the list means, where it does not say so itself
    #[arg(long, env = "MOVER_CHANGED_BLOCKS_KIND", value_name = "KIND")]
    pub(crate) changed_blocks_kind: Option<KindArg>,
    /// Snapshot that the list starts from; the parent must be the backup of it
    #[arg(long, env = "MOVER_BASE_SNAPSHOT", value_name = "ID")]
    pub(crate) base_snapshot: Option<String>,
    /// Stop instead of using less: without it, a delta that cannot be had is replaced by a list of
    /// allocated blocks, and that by reading the whole volume
    #[arg(long, env = "MOVER_REQUIRE", value_name = "KIND")]
    pub(crate) require: Option<KindArg>,
    /// Take this list where no other can be had. filesystem: what the volume's own file system says
    /// of its free space; free blocks are not read, and restore as zeros; understood are ext2,
    /// ext3, ext4, XFS, btrfs on one device, FAT, NTFS, swap space, LVM, and these in partitions of
    /// a GPT or an MBR. nbd: what the NBD server says of its zeros
    #[arg(long, env = "MOVER_ALLOCATED_FROM", value_name = "WHERE")]
    pub(crate) allocated_from: Option<AllocatedFromArg>,
    /// Read only what this dirty bitmap of the NBD server (qemu:dirty-bitmap:NAME) marks as changed
    /// since --base-snapshot
    #[arg(long, env = "MOVER_NBD_BITMAP", value_name = "NAME")]
    pub(crate) nbd_bitmap: Option<String>,
    #[command(flatten)]
    pub(crate) server: ChangesServerArgs,
    #[command(flatten)]
    pub(crate) asking: ChangesAskingArgs,
}

/// Where a list of allocated blocks comes from besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllocatedFromArg {
    /// The file system on the volume, or those in its partitions
    Filesystem,
    /// The NBD server that the volume is read from
    Nbd,
}

/// Servers of lists.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Changed blocks from a server")]
pub(crate) struct ChangesServerArgs {
    /// Ask this address of a Differential Snapshot server (REST): for a delta with
    /// --base-snapshot, else for what is allocated
    #[arg(long, env = "MOVER_CHANGES_URL", value_name = "URL")]
    pub(crate) changes_url: Option<String>,
    /// Address of the list of all allocated blocks, for when the delta cannot be had
    #[arg(long, env = "MOVER_ALLOCATED_URL", value_name = "URL")]
    pub(crate) allocated_url: Option<String>,
    /// Ask a SnapshotMetadata service: HOST:PORT of the Kubernetes one, or unix:///PATH of a CSI
    /// driver's socket
    #[arg(long, env = "MOVER_CHANGES_SERVER", value_name = "ADDRESS")]
    pub(crate) changes_server: Option<String>,
    /// Name in the server's certificate, where it is not the host of its address
    #[arg(long, env = "MOVER_CHANGES_SERVER_NAME", value_name = "NAME")]
    pub(crate) changes_server_name: Option<String>,
    /// Namespace of the VolumeSnapshot
    #[arg(long, env = "MOVER_CHANGES_NAMESPACE", value_name = "NAME")]
    pub(crate) changes_namespace: Option<String>,
    /// The snapshot to ask about: name of the VolumeSnapshot [default of `backup`: --snapshot],
    /// or the CSI driver's handle [default of `backup`: --snapshot-handle]
    #[arg(long, env = "MOVER_CHANGES_TARGET", value_name = "ID")]
    pub(crate) changes_target: Option<String>,
    /// What the driver calls the snapshot that the delta starts from [default: the
    /// --snapshot-handle of the parent backup]
    #[arg(long, env = "MOVER_CHANGES_BASE_ID", value_name = "ID")]
    pub(crate) changes_base_id: Option<String>,
    /// JSON object of texts that a CSI driver needs to get at its storage
    #[arg(long, env = "MOVER_CHANGES_SECRETS_FILE", value_name = "FILE")]
    pub(crate) changes_secrets_file: Option<PathBuf>,
    /// Believe a stream that ends well before the volume does. Without it the service is asked
    /// again from there, since some drivers end a list that was cut off in the same way
    #[arg(long, env = "MOVER_CHANGES_NO_TAIL_CHECK", value_parser = FalseyValueParser::new())]
    pub(crate) changes_no_tail_check: bool,
}

/// How servers of lists are asked. Apart from what they are asked for, since the code that clap
/// makes for a structure takes stack for each of its members.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Changed blocks from a server")]
pub(crate) struct ChangesAskingArgs {
    /// File with the token that the server asks for; it is read again for each request
    #[arg(long, env = "MOVER_CHANGES_TOKEN_FILE", value_name = "FILE")]
    pub(crate) changes_token_file: Option<PathBuf>,
    /// Certificates (PEM) that the server is trusted by, instead of the system's
    #[arg(long, env = "MOVER_CHANGES_CA_FILE", value_name = "FILE")]
    pub(crate) changes_ca_file: Option<PathBuf>,
    /// Without a scheme a URL means http, and a token may be sent over it in the clear
    #[arg(long, env = "MOVER_CHANGES_HTTP", value_parser = FalseyValueParser::new())]
    pub(crate) changes_http: bool,
    /// Most ranges that the server is to send at a time; 0 leaves it to the server
    #[arg(long, env = "MOVER_CHANGES_PAGE", value_name = "N", default_value_t = 10_000)]
    pub(crate) changes_page: u32,
    /// Name of the query parameter for the next page [default: startOffset, or nextOffset or
    /// NextOffset where the server understands that one]
    #[arg(long, env = "MOVER_CHANGES_OFFSET_PARAMETER", value_name = "NAME")]
    pub(crate) changes_offset_parameter: Option<String>,
    /// Name of the query parameter for the ranges of a page [default: maxEntries]
    #[arg(long, env = "MOVER_CHANGES_ENTRIES_PARAMETER", value_name = "NAME")]
    pub(crate) changes_entries_parameter: Option<String>,
    /// Tries without progress before the server is given up
    #[arg(long, env = "MOVER_CHANGES_TRIES", value_name = "N", default_value_t = 6)]
    pub(crate) changes_tries: u32,
    /// A server that says nothing for so many seconds has failed
    #[arg(long, env = "MOVER_CHANGES_IDLE", value_name = "SECONDS", default_value_t = 60)]
    pub(crate) changes_idle: u32,
}
