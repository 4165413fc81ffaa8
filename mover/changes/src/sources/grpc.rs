//! The SnapshotMetadata services: of Kubernetes over TLS, and of a CSI driver on its UNIX socket.
//!
//! Both stream ranges in messages; their calls differ in how a snapshot is named. The stream is
//! consumed as fast as it comes (the sidecar ends it after some minutes), and every promise of the
//! protocol is checked as it comes (`mover/tracker/src/stream.rs`), since the sidecar passes a driver's answer
//! on as it is.
//!
//! A call that ends early is gone on with from the end of the last range. A call that ends *well*
//! is not believed either while its last range ends before the volume does: some drivers end a list
//! that was cut off with OK, others send one message a call. It is asked for again from the last
//! end, until a call brings nothing new. What all these calls say must agree (`grpc/said.rs`), and
//! only one that ended well makes a list complete.

mod said;
mod status;

use super::RetryPolicy;
use super::collector::{Collector, refused};
use super::credentials::{read_ca, read_small, read_token};
use super::retry::RetryBudget;
use crate::{ChangeKind, ChangedBlocks, ListOrigin};
use chunkstore::format::SnapshotInfo;
use chunkstore::secrets::remember_secret;
use chunkstore::{Error, ErrorKind, Result, Setting};
use mover_tracker::{BadAddress, Call, Connection, Message, Patience};
use said::Said;
use status::{Class, Failure, broken, judge};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use zeroize::Zeroizing;

/// Largest message that is taken: half a million ranges.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
const SECRETS_BYTES_MAX: u64 = 1 << 20;

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

    /// The name by which messages call it.
    pub fn name(&self) -> String {
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
        let connection = self.connection()?;
        let mut drain = Drain {
            source: self,
            name: self.name(),
            base_id,
            connection,
            said: Said::new(list),
            retries: RetryBudget::new(self.retry, self.name()),
            restarted: false,
            token_renewed: false,
            parts: 0,
        };
        drain.run().await?;
        let (list, capacity) = drain.said.into_list();
        list.finish(&drain.name, ListOrigin::SnapshotMetadata, capacity)
    }

    fn connection(&self) -> Result<Connection> {
        let patience = Patience {
            idle: self.retry.idle(),
            nothing_new: self.retry.nothing_new(),
            message_bytes_max: MESSAGE_BYTES_MAX,
        };
        match &self.endpoint {
            SnapshotEndpoint::Kubernetes { address, server_name, ca_file, namespace, .. } => {
                let place = (address.as_str(), server_name.as_deref());
                let ca = read_ca(ca_file)?.0;
                Connection::kubernetes(self.name(), place, &ca, namespace.clone(), patience)
                    .map_err(|e| bad_address(address, e))
            }
            SnapshotEndpoint::Csi { socket, secrets_file } => {
                let secrets = secrets_file.as_deref().map(read_secrets).transpose()?;
                Connection::csi(self.name(), socket, secrets.unwrap_or_default(), patience).map_err(
                    |e| match e {
                        BadAddress::Malformed(e) | BadAddress::Certificates(e) => {
                            let context = format!("use the socket {}", socket.display());
                            Error::caused(ErrorKind::Usage, context, e)
                        }
                    },
                )
            }
        }
    }

    /// A name that is given must be one that the base was recorded with, where any was: drivers do
    /// not always say that they compare with another snapshot.
    fn base_id(&self, base: Option<&SnapshotInfo>) -> Result<String> {
        let recorded = base.and_then(|base| base.snapshot_handle.as_deref());
        let change = base.and_then(|base| base.change_id.as_deref());
        let name = base.and_then(|base| base.id.as_deref());
        let Some(given) = self.base_id.as_deref() else {
            return recorded.map(str::to_owned).ok_or_else(|| {
                let what = "the driver's handle of the base snapshot is not known";
                refused(ErrorKind::NotFound, &self.name(), what).hint(
                    format!("give it with {changes_base_id}, or record it with {snapshot_handle} at each backup", changes_base_id = Setting("changes-base-id"), snapshot_handle = Setting("snapshot-handle")),
                )
            });
        };
        let known: Vec<String> = [("handle", recorded), ("change id", change)]
            .into_iter()
            .filter_map(|(what, id)| Some(format!("{what} {:?}", id?)))
            .collect();
        if known.is_empty() || [recorded, change, name].contains(&Some(given)) {
            return Ok(given.to_owned());
        }
        let what = format!(
            "{changes_base_id} is {given:?}, but the backup of the base snapshot has recorded {}",
            known.join(" and "),
            changes_base_id = Setting("changes-base-id")
        );
        Err(refused(ErrorKind::Usage, &self.name(), what).hint(
            format!("leave {changes_base_id} out: the handle is used, or name the right {base_snapshot}; where the driver wants a change id, record it with {change_id} at each backup", changes_base_id = Setting("changes-base-id"), base_snapshot = Setting("base-snapshot"), change_id = Setting("change-id")),
        ))
    }
}

fn bad_address(address: &str, e: BadAddress) -> Error {
    let usage = |context: String, e| Error::caused(ErrorKind::Usage, context, e);
    match e {
        BadAddress::Malformed(e) => usage(format!("use {address} as the address of a list"), e)
            .hint("write it like host:port"),
        BadAddress::Certificates(e) => usage(format!("trust {address} by the CA file"), e)
            .hint("the file holds certificates in PEM, and the address is host:port"),
    }
}

fn read_secrets(path: &Path) -> Result<HashMap<String, String>> {
    let bytes = Zeroizing::new(read_small(path, SECRETS_BYTES_MAX, "secrets")?);
    let secrets: HashMap<String, String> = serde_json::from_slice(&bytes).map_err(|e| {
        // the error's own text may quote a secret
        let what = format!("it is not a JSON object of texts, at line {}", e.line());
        Error::new(ErrorKind::Usage, format!("read secrets {}", path.display()), what)
    })?;
    secrets.values().for_each(|secret| remember_secret(secret));
    Ok(secrets)
}

struct Drain<'a> {
    source: &'a SnapshotSource,
    name: String,
    base_id: Option<String>,
    connection: Connection,
    said: Said,
    retries: RetryBudget,
    restarted: bool,
    token_renewed: bool,
    /// Calls that ended well and brought something new.
    parts: u32,
}

impl Drain<'_> {
    /// Call by call, until the list is complete.
    async fn run(&mut self) -> Result<()> {
        let retry = self.source.retry;
        loop {
            let (start, before) = (self.said.next(), self.said.end());
            let ended = self.call().await;
            if self.connection.is_made() {
                self.retries.reached();
            }
            if self.said.end() > before {
                self.retries.progress();
                self.token_renewed = false;
            }
            let Failure { class, error } = match ended {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    self.retries.progress();
                    self.parts += u32::from(self.said.end() > before);
                    continue;
                }
                Err(failure) => failure,
            };
            let tries_max = match class {
                Class::Passing => retry.tries_max,
                Class::Internal => retry.internal_tries_max,
                Class::Token if !self.token_renewed => {
                    // whoever issues it may have renewed it since
                    self.token_renewed = true;
                    tracing::info!("{} refuses the token: reading it again", self.name);
                    tokio::time::sleep(retry.wait(1, None)).await;
                    continue;
                }
                Class::OutOfRange if start > 0 && !self.restarted => {
                    tracing::info!(
                        "{} does not go on from byte {start}: from the start",
                        self.name
                    );
                    self.restarted = true;
                    self.said.restart();
                    continue;
                }
                Class::Token | Class::OutOfRange | Class::Final => 0,
            };
            let wait = self.retries.after(error, tries_max, None);
            let wait = wait.map_err(|error| self.name_way_out(error))?;
            tracing::info!("{} is asked from byte {}", self.name, self.said.next());
            tokio::time::sleep(wait).await;
        }
    }

    /// A driver that gives whole lists, but refuses to be asked for what follows, can be used
    /// without the check of the end. One that gives its lists in parts must not be.
    fn name_way_out(&self, error: Error) -> Error {
        if self.parts != 1 || error.kind() != ErrorKind::Unsupported {
            return error;
        }
        let way_out = format!(
            "if this driver always gives a whole list at once, use {}",
            Setting("changes-no-tail-check")
        );
        let hint = match error.hint_text() {
            Some(hint) => format!("{hint}; {way_out}"),
            None => way_out,
        };
        error.hint(hint)
    }

    /// Whether a call that ended well has made the list complete.
    fn call<'a>(
        &'a mut self,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<bool, Failure>> + 'a>> {
        Box::pin(async move {
            let call = self.request().map_err(|e| Failure::of(Class::Final, e))?;
            let mut telling = self.said.begin();
            let mut each = |message: Message| self.said.take(&mut telling, message);
            match self.connection.drain(call, &mut each).await {
                Ok(()) => {
                    let ended = self.said.end_well(&telling, self.source.tail_check);
                    ended.map_err(|what| broken(&self.name, what))
                }
                Err(ended) => {
                    self.connection.close();
                    self.said.end_badly(&telling);
                    Err(judge(&self.name, &self.source.endpoint, ended))
                }
            }
        })
    }

    fn request(&self) -> Result<Call> {
        let past = |what: &str| {
            Error::new(
                ErrorKind::Unsupported,
                format!("go on with the list of {}", self.name),
                what,
            )
        };
        let starting_offset = i64::try_from(self.said.next())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for as the base, given this; `recorded`: name, handle and change id.
    fn base_id(given: Option<&str>, recorded: [Option<&str>; 3]) -> Result<String> {
        let source = SnapshotSource {
            endpoint: SnapshotEndpoint::Csi { socket: "csi.sock".into(), secrets_file: None },
            target: "h2".into(),
            delta: true,
            base_id: given.map(str::to_owned),
            page_entries: 0,
            tail_check: true,
            retry: RetryPolicy::default(),
        };
        let [id, snapshot_handle, change_id] = recorded.map(|text| text.map(str::to_owned));
        source.base_id(Some(&SnapshotInfo {
            id,
            snapshot_handle,
            change_id,
            ..SnapshotInfo::default()
        }))
    }

    #[test]
    fn the_base_is_asked_for_by_a_name_that_was_recorded() {
        let all = [Some("s1"), Some("h1"), Some("52 de/7")];
        for good in ["h1", "52 de/7", "s1"] {
            assert_eq!(base_id(Some(good), all).unwrap(), good);
        }
        assert_eq!(base_id(None, all).unwrap(), "h1");
        assert_eq!(
            base_id(Some("52 de/7"), [Some("s1"), None, Some("52 de/7")]).unwrap(),
            "52 de/7"
        );
        // of which nothing is known
        assert_eq!(base_id(Some("x"), [Some("s1"), None, None]).unwrap(), "x");
        assert_eq!(
            base_id(None, [Some("s1"), None, Some("c")]).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn another_name_of_the_base_is_refused_with_what_is_recorded() {
        let e = base_id(Some("h9"), [Some("s1"), Some("h1"), Some("52 de/7")]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage);
        let said = e.to_string();
        assert!(said.contains("\"h9\"") && said.contains("handle \"h1\""), "{said}");
        assert!(said.contains("change id \"52 de/7\""), "{said}");
        for recorded in [[Some("s1"), Some("h1"), None], [Some("s1"), None, Some("h1")]] {
            assert_eq!(base_id(Some("h9"), recorded).unwrap_err().kind(), ErrorKind::Usage);
        }
    }
}
