//! Locks in an application's pod, by exec.
//!
//! The command holds the lock from its first line of output until its input ends. Its input ends
//! when we close it, when our connection is closed, and, whatever becomes of the connection, when
//! its time is over: a process in the container sees to that, also when whoever asked for the lock
//! is dead or cut off. Where the container's own processes are killed, nobody runs what lets go.

use crate::api::Api;
use crate::engine::{Hook, Key, Kind, Meta};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;

/// The lock's time is over by itself then, and the answer has a while to come.
const MARGIN: Duration = Duration::from_secs(5);
/// A lock that does not hold by then is none: others count its time from the moment before.
const BEGIN: Duration = Duration::from_secs(30);
/// Of what a command says on its way to an error.
const ERROR_CHARS: u64 = 2000;

/// Runs `$1` with an input that ends with ours, or after `$2` seconds. POSIX `sh` is enough.
///
/// `cat` is the input: it ends with ours, or is ended. The watchdog's own children hold no end of
/// that pipe.
const SCRIPT: &str = r#"
exec 3<&0 4>&1
{
  cat <&3 & input=$!
  ( sleep "$2" & pause=$!
    trap 'kill $pause 2>/dev/null; exit 0' TERM
    wait $pause
    echo 'mover: timeout' >&4
    kill $input 2>/dev/null
  ) >/dev/null 2>&1 3<&- & watchdog=$!
  wait $input
  kill $watchdog 2>/dev/null
} | sh -c "$1" 3<&- 4>&-
status=$?
[ $status = 0 ] && echo 'mover: unlocked'
exit $status
"#;

/// A lock that holds.
pub struct Session {
    /// Our end of its input.
    input: Option<Box<dyn tokio::io::AsyncWrite + Send + Sync + Unpin>>,
    lines: mpsc::UnboundedReceiver<String>,
    limit: Duration,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Takes the lock, in the very container that the hook names.
///
/// # Errors
///
/// For people: the pod or its container is another one, or the command ended before it held.
pub async fn begin(api: &Api, hook: &Hook) -> Result<Session, String> {
    let key = Key::new(Kind::Pod, &hook.namespace, &hook.pod);
    let found = api.get(&key).await.map_err(|why| crate::engine::Failure::from(why).to_string())?;
    let found = found.ok_or_else(|| format!("{key} is gone"))?;
    if Meta::of(&found).uid != hook.uid {
        return Err(format!("{key} is another pod than before"));
    }
    let status = found["status"]["containerStatuses"].as_array().into_iter().flatten();
    let id = status.clone().find(|at| at["name"] == hook.container.as_str());
    if id.and_then(|at| at["containerID"].as_str()) != Some(&hook.container_id) {
        return Err(format!("container {} of {key} has begun anew", hook.container));
    }
    let pods: kube::Api<Pod> = kube::Api::namespaced(api.client().clone(), &hook.namespace);
    let seconds = hook.timeout_seconds.to_string();
    let command = ["sh", "-c", SCRIPT, "mover", &hook.command, &seconds];
    let parameters =
        AttachParams::default().container(&hook.container).stdin(true).stdout(true).stderr(true);
    let process = tokio::time::timeout(BEGIN, pods.exec(&hook.pod, command, &parameters)).await;
    let mut process = process
        .map_err(|_| format!("{key} does not answer"))?
        .map_err(|why| format!("run the hook in {key}: {why}"))?;
    let input = process.stdin().ok_or("the hook has no input")?;
    let (sender, lines) = mpsc::unbounded_channel();
    tokio::spawn(read(process, sender));
    let limit = Duration::from_secs(hook.timeout_seconds) + MARGIN;
    let mut session = Session { input: Some(Box::new(input)), lines, limit };
    match tokio::time::timeout(limit.min(BEGIN), session.lines.recv()).await {
        Ok(Some(line)) if !is_last(&line) => Ok(session),
        Ok(Some(line)) => Err(said(&line)),
        Ok(None) => Err("the hook ended before it held the lock".into()),
        Err(_) => Err(format!("the hook said nothing within {} s", limit.min(BEGIN).as_secs())),
    }
}

const ENDED: &str = "mover: ended ";

fn is_last(line: &str) -> bool {
    ["mover: timeout", "mover: unlocked"].contains(&line) || line.starts_with(ENDED)
}

fn said(line: &str) -> String {
    match line {
        "mover: timeout" => "its time was over before the snapshot was taken".into(),
        "mover: unlocked" => "the hook ended by itself".into(),
        line => line.strip_prefix(ENDED).unwrap_or(line).to_owned(),
    }
}

/// Each line of output, and last how it ended.
async fn read(mut process: AttachedProcess, sender: mpsc::UnboundedSender<String>) {
    let errors = process.stderr().map(|stream| {
        tokio::spawn(async move {
            let mut text = Vec::new();
            let _ = stream.take(ERROR_CHARS).read_to_end(&mut text).await;
            String::from_utf8_lossy(&text).trim().to_owned()
        })
    });
    if let Some(stream) = process.stdout() {
        let lines = BufReader::new(stream).lines();
        let lines = futures::stream::unfold(lines, |mut lines| async move {
            Some((lines.next_line().await.ok().flatten()?, lines))
        });
        let mut lines = std::pin::pin!(lines);
        while let Some(line) = lines.next().await {
            let _ = sender.send(line);
        }
    }
    let status = match process.take_status() {
        Some(status) => status.await,
        None => None,
    };
    let failed = status.filter(|status| status.status.as_deref() != Some("Success"));
    let why = failed.and_then(|status| status.message).unwrap_or_default();
    let errors = match errors {
        Some(errors) => errors.await.unwrap_or_default(),
        None => String::new(),
    };
    let parts: Vec<&str> =
        [why.as_str(), errors.as_str()].into_iter().filter(|text| !text.is_empty()).collect();
    let _ = sender.send(format!("{ENDED}the hook ended: {}", parts.join(": ")));
}

impl Session {
    /// Waits until the lock holds no longer, which nobody asked for; the reason.
    pub async fn broken(&mut self) -> String {
        loop {
            match self.lines.recv().await {
                Some(line) if is_last(&line) => return said(&line),
                Some(_) => {}
                None => return "the connection to its pod was lost".into(),
            }
        }
    }

    /// Lets go of the lock.
    ///
    /// # Errors
    ///
    /// For people: it had not lived until now.
    pub async fn end(mut self) -> Result<(), String> {
        let mut ended = None;
        // What was said until now was said while the lock should have held.
        while let Ok(line) = self.lines.try_recv() {
            if is_last(&line) {
                ended = Some(said(&line));
            }
        }
        drop(self.input.take());
        if let Some(why) = ended {
            return Err(why);
        }
        match tokio::time::timeout(self.limit, self.last()).await {
            Ok(line) if line == "mover: unlocked" => Ok(()),
            Ok(line) => Err(said(&line)),
            Err(_) => Err("nobody knows whether it was let go of: its own time ends it".into()),
        }
    }

    async fn last(&mut self) -> String {
        loop {
            match self.lines.recv().await {
                Some(line) if is_last(&line) => return line,
                Some(_) => {}
                None => return format!("{ENDED}the connection to its pod was lost"),
            }
        }
    }
}

/// A hook out of two commands: what takes the lock, and what lets go of it.
pub fn pair(before: &str, after: &str) -> String {
    format!(
        "sh -c {} >&2 || exit 1; echo locked; cat >/dev/null; sh -c {} >&2",
        quoted(before),
        quoted(after)
    )
}

/// Freezes a filesystem. The container has to be allowed to: `CAP_SYS_ADMIN`.
pub fn fsfreeze(path: &str) -> String {
    let path = quoted(path);
    pair(&format!("fsfreeze --freeze {path}"), &format!("fsfreeze --unfreeze {path}"))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
