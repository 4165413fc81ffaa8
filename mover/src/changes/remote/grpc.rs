//! The SnapshotMetadata services: of Kubernetes over TLS, and of a CSI driver on its UNIX socket.
//!
//! Both stream ranges in messages; their calls differ in how a snapshot is named. The stream is
//! consumed as fast as it comes (the sidecar ends it after some minutes), and every promise of the
//! protocol is checked as it comes (`changes/csi.rs`), since the sidecar passes a driver's answer
//! on as it is.
//!
//! A call that ends early is repeated from the end of the last range. What comes again then is
//! dropped: drivers may start the first range before the point that was asked for. A call that ends
//! *well* is not believed either while its last range ends before the volume does: some drivers end
//! a list that was cut off with OK, others send one message a call. It is asked for again from the
//! last end, until a call brings nothing new. Type and capacity must be the same in all calls of
//! one list.

mod status;
mod transport;

use super::{Collector, RetryPolicy, read_token, refused};
use crate::changes::csi::{BlockMetadataType, CsiStream};
use crate::changes::{ChangeKind, ChangedBlocks, Origin};
use chunkstore::{Error, ErrorKind, Result, SnapshotInfo, redact};
use status::{Failure, judge};
use std::path::PathBuf;
use tonic::{Code, Status};
use transport::{Call, Connection, Message};

/// Where the service is.
#[derive(Debug, Clone)]
pub enum SnapshotEndpoint {
    /// The service of Kubernetes.
    Kubernetes {
        /// `host:port`.
        address: String,
        /// Name in the server's certificate, where it is not the host.
        server_name: Option<String>,
        /// The only certificates that are trusted.
        ca_file: PathBuf,
        /// The token of a service account for the service's audience; read again for each call.
        token_file: PathBuf,
        /// Namespace of the VolumeSnapshot.
        namespace: String,
    },
    /// The service of a CSI driver.
    Csi {
        /// Its UNIX socket.
        socket: PathBuf,
        /// JSON object of texts: what the driver needs to get at its storage.
        secrets_file: Option<PathBuf>,
    },
}

/// A snapshot, and the service that knows its blocks.
#[derive(Debug, Clone)]
pub struct SnapshotSource {
    /// Where the service is.
    pub endpoint: SnapshotEndpoint,
    /// The snapshot: the name of the VolumeSnapshot, or the driver's handle of it.
    pub target: String,
    /// Whether a delta is asked for at all.
    pub delta: bool,
    /// What the driver calls the snapshot that the delta starts from; by default its handle as the
    /// parent recorded it.
    pub base_id: Option<String>,
    /// Most ranges in a message that are asked for; 0 leaves it to the server.
    pub page_entries: u32,
    /// Whether a clean end is checked by asking again from the last end.
    pub tail_check: bool,
    /// How often to ask again.
    pub retry: RetryPolicy,
}

impl SnapshotSource {
    pub(crate) fn offers(&self, kind: ChangeKind) -> bool {
        match kind {
            ChangeKind::Delta => self.delta,
            ChangeKind::Allocated => true,
            ChangeKind::Whole => false,
        }
    }

    pub(crate) fn name(&self) -> String {
        match &self.endpoint {
            SnapshotEndpoint::Kubernetes { address, namespace, .. } => {
                format!("{address} for snapshot {namespace}/{}", self.target)
            }
            SnapshotEndpoint::Csi { socket, .. } => {
                format!("{} for snapshot {}", socket.display(), self.target)
            }
        }
    }

    pub(crate) async fn fetch(
        &self,
        list: Collector,
        base: Option<&SnapshotInfo>,
    ) -> Result<ChangedBlocks> {
        let base_id = match list.kind() {
            ChangeKind::Delta => Some(self.base_id(base)?),
            _ => None,
        };
        let connection = Connection::new(self)?;
        let mut drain = Drain {
            source: self,
            name: self.name(),
            base_id,
            list,
            connection,
            seen: Seen::default(),
            restarted: false,
            token_renewed: false,
        };
        drain.run().await?;
        let capacity = drain.seen.capacity_bytes;
        drain.list.finish(&drain.name, Origin::SnapshotMetadata, capacity)
    }

    fn base_id(&self, base: Option<&SnapshotInfo>) -> Result<String> {
        let recorded = || base.and_then(|base| base.snapshot_handle.clone());
        self.base_id.clone().or_else(recorded).ok_or_else(|| {
            let what = "the driver's handle of the base snapshot is not known";
            refused(ErrorKind::NotFound, &self.name(), what).hint(
                "give it with --changes-base-id, or record it with --snapshot-handle at each backup",
            )
        })
    }
}

/// What is known of the list from all calls so far.
#[derive(Debug, Default)]
struct Seen {
    /// End of the last range: where the next call starts.
    end: u64,
    block_type: Option<BlockMetadataType>,
    capacity_bytes: Option<u64>,
}

struct Drain<'a> {
    source: &'a SnapshotSource,
    name: String,
    base_id: Option<String>,
    list: Collector,
    connection: Connection,
    seen: Seen,
    restarted: bool,
    token_renewed: bool,
}

impl Drain<'_> {
    /// Call by call, until the list is complete.
    async fn run(&mut self) -> Result<()> {
        let retry = self.source.retry;
        let mut failures = 0;
        loop {
            let before = self.seen.end;
            let ended = self.call().await;
            // ranges ascend: nothing can follow the one that reaches the volume's end
            if self.seen.capacity_bytes.is_some_and(|capacity| self.seen.end >= capacity)
                && !matches!(ended, Err(Failure::Final(_)))
            {
                return Ok(());
            }
            let failure = match ended {
                Ok(news) if news == 0 || !self.source.tail_check => return Ok(()),
                Ok(_) => {
                    failures = 0;
                    continue;
                }
                Err(failure) => failure,
            };
            if self.seen.end > before {
                failures = 0;
            }
            let (error, tries_max) = match failure {
                Failure::Passing(error) => (error, retry.tries_max),
                Failure::Internal(error) => (error, retry.internal_tries_max),
                Failure::Token(_) if !self.token_renewed => {
                    // whoever issues it may have renewed it since
                    self.token_renewed = true;
                    tracing::info!("{} refuses the token: reading it again", self.name);
                    tokio::time::sleep(retry.wait(1, None)).await;
                    continue;
                }
                Failure::OutOfRange(_) if self.seen.end > 0 && !self.restarted => {
                    tracing::info!(
                        "{} does not go on from byte {before}: from the start",
                        self.name
                    );
                    self.restarted = true;
                    self.list.clear();
                    self.seen = Seen::default();
                    continue;
                }
                Failure::Token(error) | Failure::OutOfRange(error) | Failure::Final(error) => {
                    return Err(error);
                }
            };
            failures += 1;
            if failures >= tries_max {
                return Err(error.hint(format!("it was asked {failures} times without progress")));
            }
            let wait = retry.wait(failures, None);
            let end = self.seen.end;
            tracing::info!("{error}; going on from byte {end} in {} ms", wait.as_millis());
            tokio::time::sleep(wait).await;
        }
    }

    /// How much that was new a call brought which ended well.
    async fn call(&mut self) -> std::result::Result<u64, Failure> {
        let call = self.request().map_err(Failure::Final)?;
        let idle = self.source.retry.idle();
        let (connection, seen, list, name) =
            (&mut self.connection, &mut self.seen, &mut self.list, &self.name);
        let mut stream = CsiStream::default();
        let start = seen.end;
        let mut each = |message: Message| take(message, &mut stream, seen, list);
        let ended = connection.drain(call, idle, &mut each).await;
        if ended.is_err() {
            connection.close();
        }
        match ended {
            Ok(()) => Ok(seen.end - start),
            Err(transport::Ended::Status(status)) => Err(judge(name, &status)),
            Err(transport::Ended::Connect(failure)) => Err(failure),
            Err(transport::Ended::Broken(what)) => Err(Failure::Final(
                refused(ErrorKind::Corrupt, name, what)
                    .hint("the tracker broke its protocol: tell whoever maintains its driver"),
            )),
        }
    }

    fn request(&self) -> Result<Call> {
        let past = |what: &str| {
            Error::new(
                ErrorKind::Unsupported,
                format!("go on with the list of {}", self.name),
                what,
            )
        };
        let starting_offset = i64::try_from(self.seen.end)
            .map_err(|_| past("it is behind what the protocol can say"))?;
        let token = match &self.source.endpoint {
            SnapshotEndpoint::Kubernetes { token_file, .. } => Some(read_token(token_file)?),
            SnapshotEndpoint::Csi { .. } => None,
        };
        Ok(Call {
            token,
            base_id: self.base_id.clone(),
            target: self.source.target.clone(),
            starting_offset,
            max_results: i32::try_from(self.source.page_entries).unwrap_or(i32::MAX),
        })
    }
}

/// Checks a message against all before it, and keeps what is new of it.
fn take(
    message: Message,
    stream: &mut CsiStream,
    seen: &mut Seen,
    list: &mut Collector,
) -> std::result::Result<(), String> {
    let number = |n: i64, what: &str| {
        u64::try_from(n).map_err(|_| format!("{what} is {n}, which is negative"))
    };
    let from = seen.end;
    for (offset, len) in message.blocks {
        let (offset, len) = (number(offset, "byte_offset")?, number(len, "size_bytes")?);
        let range = stream.range(offset, len)?;
        // what an earlier call brought may come again
        let new = range.start.max(from)..range.end;
        if !new.is_empty() {
            seen.end = new.end;
            list.add(new, false);
        }
    }
    let block_type = number(i64::from(message.block_type), "block_metadata_type")?;
    let block_type = BlockMetadataType::from_number(block_type);
    let capacity = number(message.capacity_bytes, "volume_capacity_bytes")?;
    stream.end_message(block_type, capacity)?;
    if *seen.block_type.get_or_insert(block_type.unwrap_or(BlockMetadataType::VariableLength))
        != block_type.unwrap_or(BlockMetadataType::VariableLength)
    {
        return Err("block_metadata_type is another one than in the call before".to_owned());
    }
    match *seen.capacity_bytes.get_or_insert(capacity) {
        before if before != capacity => {
            Err(format!("volume_capacity_bytes is {capacity}, and was {before} in the call before"))
        }
        _ => Ok(()),
    }
}

/// The service could not be asked, for a reason that only the code of a status tells.
fn code_error(name: &str, kind: ErrorKind, status: &Status) -> Error {
    const QUOTED_CHARS_MAX: usize = 300;
    let words: String = redact(status.message()).chars().take(QUOTED_CHARS_MAX).collect();
    let code = code_name(status.code());
    refused(kind, name, format!("it answers {code}: {words}"))
}

/// As the protocol spells it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
