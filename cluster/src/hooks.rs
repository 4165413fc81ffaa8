//! Locks in an application's pod, by exec.
//!
//! The hook holds the lock from its first line of output until its input ends. Its input ends when
//! we ask for that, when our connection is closed, and, whatever becomes of the connection, when
//! its time is over: processes in the container see to that, also when whoever asked for the lock
//! is dead or cut off. How that is proved stands in `hooks/script.rs`.

mod script;

use crate::api::{Api, Asked, classify};
use crate::engine::{Failure, Hook, Key, Kind, Meta, exit};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;

/// A lock that does not hold by then is none: others count its time from the moment before.
const BEGIN: Duration = Duration::from_secs(30);
/// What lets go of a lock may take so long, once it was asked to.
const LET_GO: Duration = Duration::from_secs(60);
/// What came before the end of a connection is read for so long.
const DRAIN: Duration = Duration::from_secs(2);
/// A hook whose time is over has so long to end, and is ended then.
const GRACE: Duration = Duration::from_secs(15);
/// Of what a command says on its way to an error.
const ERROR_BYTES: u64 = 2000;

/// What the script says, and how its connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Locked,
    Asked,
    Timeout,
    Unlocked,
    Failed(String),
    /// Nobody knows how it ended.
    Lost(String),
}

impl Said {
    fn parse(line: &str) -> Self {
        match line.strip_prefix("mover: ") {
            Some("locked") => Self::Locked,
            Some("asked") => Self::Asked,
            Some("timeout") => Self::Timeout,
            Some("unlocked") => Self::Unlocked,
            Some(said) if said.starts_with("failed ") => {
                Self::Failed(said.trim_start_matches("failed ").to_owned())
            }
            _ => Self::Lost(format!("its pod answered {line:?}")),
        }
    }

    /// Why a lock that said this does not count.
    fn why(self) -> String {
        match self {
            Self::Timeout => "its time was over before the snapshot was taken".into(),
            Self::Unlocked => "the hook ended by itself".into(),
            Self::Failed(status) => format!("the hook ended with status {status}"),
            Self::Lost(why) => why,
            Self::Locked | Self::Asked => "its pod answered in another order".into(),
        }
    }
}

/// A lock that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// For people.
    pub why: String,
    /// Nothing of it is left: it was never taken, or what lets go of it has run.
    pub is_gone: bool,
}

/// A lock that holds.
pub struct Session {
    /// Our end of its input.
    input: Box<dyn tokio::io::AsyncWrite + Send + Sync + Unpin>,
    said: mpsc::UnboundedReceiver<Said>,
    /// What it said that nobody has heard the end of yet.
    first: Option<Said>,
    /// Holds the connection.
    task: tokio::task::JoinHandle<()>,
    errors: mpsc::UnboundedReceiver<String>,
    /// When it was asked for: it holds no longer than its time after that.
    since: Instant,
    limit: Duration,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The pod is the very one that the hook names.
async fn the_pod(api: &Api, hook: &Hook) -> Result<Value, String> {
    let key = Key::new(Kind::Pod, &hook.namespace, &hook.pod);
    let found = api.get(&key).await.map_err(|why| Failure::from(why).to_string())?;
    let found = found.ok_or_else(|| format!("{key} is gone"))?;
    if Meta::of(&found).uid != hook.uid {
        return Err(format!("{key} is another pod than before"));
    }
    Ok(found)
}

/// The pod and the container are the very ones that the hook names.
async fn is_same(api: &Api, hook: &Hook) -> Result<(), String> {
    let found = the_pod(api, hook).await?;
    let key = Key::new(Kind::Pod, &hook.namespace, &hook.pod);
    let id = containers(&found).find(|at| at["name"] == hook.container.as_str());
    match id.and_then(|at| at["containerID"].as_str()) == Some(&hook.container_id) {
        true => Ok(()),
        false => Err(format!("container {} of {key} has begun anew", hook.container)),
    }
}

/// The states of a pod's containers that run beside each other.
pub(crate) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |name: &str| pod["status"][name].as_array().into_iter().flatten();
    of("containerStatuses").chain(of("initContainerStatuses"))
}

async fn exec(
    api: &Api,
    hook: &Hook,
    command: &[&str],
    with_input: bool,
) -> Result<AttachedProcess, kube::Error> {
    let pods: kube::Api<Pod> = kube::Api::namespaced(api.client().clone(), &hook.namespace);
    let parameters = AttachParams::default()
        .container(&hook.container)
        .stdin(with_input)
        .stdout(true)
        .stderr(true);
    pods.exec(&hook.pod, command.iter().copied(), &parameters).await
}

/// Takes the lock, in the very container that the hook names.
///
/// # Errors
///
/// The pod or its container is another one, or the command ended before it held.
pub async fn begin(api: &Api, hook: &Hook) -> Result<Session, Broken> {
    let key = Key::new(Kind::Pod, &hook.namespace, &hook.pod);
    let untaken = |why| Broken { why, is_gone: true };
    is_same(api, hook).await.map_err(untaken)?;
    let since = Instant::now();
    let limit = Duration::from_secs(hook.timeout_seconds);
    let seconds = hook.timeout_seconds.to_string();
    let form = if hook.after.is_some() { "pair" } else { "session" };
    let command = ["sh", "-c", script::SESSION, "mover", &hook.command, &seconds, form];
    let process = tokio::time::timeout(BEGIN, exec(api, hook, &command, true)).await;
    // Without an answer it may have been taken.
    let process =
        process.map_err(|_| Broken { why: format!("{key} does not answer"), is_gone: false })?;
    let mut process = process.map_err(|why| untaken(format!("run the hook in {key}: {why}")))?;
    let input = process.stdin().ok_or_else(|| untaken("the hook has no input".into()))?;
    let (sender, said) = mpsc::unbounded_channel();
    let (errors_sender, errors) = mpsc::unbounded_channel();
    let task = tokio::spawn(read(process, sender, errors_sender));
    let input = Box::new(input);
    let mut session = Session { input, said, first: None, task, errors, since, limit };
    let limit = limit.min(BEGIN);
    match tokio::time::timeout(limit, session.said.recv()).await {
        Ok(Some(Said::Locked)) => {}
        Ok(said) => {
            let why = match said {
                Some(Said::Unlocked) => Some("the hook ended before it held the lock".to_owned()),
                _ => None,
            };
            session.first = Some(said.unwrap_or_else(|| Said::Lost(LOST.into())));
            let broken = session.gone().await;
            return Err(Broken { why: why.unwrap_or(broken.why), ..broken });
        }
        Err(_) => {
            let why = format!("the hook wrote no line within {} s", limit.as_secs());
            return Err(Broken { why: session.explain(why).await, is_gone: false });
        }
    }
    // A container that began anew since then has run the hook in the place of the one that is meant.
    match is_same(api, hook).await {
        Ok(()) => Ok(session),
        Err(why) => match session.end().await {
            Ok(()) => Err(untaken(why)),
            Err(broken) => Err(Broken { why, ..broken }),
        },
    }
}

const LOST: &str = "the connection to its pod was lost";

/// What the script says, line by line, until it or its connection ends.
async fn read(
    mut process: AttachedProcess,
    sender: mpsc::UnboundedSender<Said>,
    errors: mpsc::UnboundedSender<String>,
) {
    let stderr = process.stderr();
    tokio::spawn(async move {
        let Some(mut stderr) = stderr else { return };
        let _ = errors.send(first_bytes(&mut stderr).await);
        // A stream that nobody reads would hold up the others.
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    });
    let stdout = process.stdout();
    let sender_of_lines = sender.clone();
    let lines = async move {
        let Some(stdout) = stdout else { return };
        let lines = BufReader::new(stdout).lines();
        let lines = futures::stream::unfold(lines, |mut lines| async move {
            Some((lines.next_line().await.ok().flatten()?, lines))
        });
        let mut lines = std::pin::pin!(lines);
        while let Some(line) = lines.next().await {
            let _ = sender_of_lines.send(Said::parse(&line));
        }
    };
    // It comes when the process has ended, and as nothing when the connection has. The streams do not
    // end by themselves then, and the process object has to live until then.
    let status = process.take_status();
    let mut status = std::pin::pin!(async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    });
    let mut lines = std::pin::pin!(lines);
    let status = tokio::select! {
        () = &mut lines => tokio::time::timeout(DRAIN, &mut status).await.ok().flatten(),
        status = &mut status => {
            let _ = tokio::time::timeout(DRAIN, &mut lines).await;
            status
        }
    };
    let failed = status.filter(|status| status.status.as_deref() != Some("Success"));
    let why = failed.and_then(|status| status.message).unwrap_or_default();
    let why = if why.is_empty() { LOST.to_owned() } else { format!("{LOST}: {why}") };
    let _ = sender.send(Said::Lost(why));
}

async fn first_bytes(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    let _ = stream.take(ERROR_BYTES).read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// The connection ends with it, and so does the hook's input.
impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    /// Waits until the lock holds no longer, which nobody asked for. Whoever waits may turn to
    /// something else meanwhile.
    pub async fn broken(&mut self) {
        if self.first.is_none() {
            let said = self.said.recv().await;
            self.first = Some(said.unwrap_or_else(|| Said::Lost(LOST.into())));
        }
    }

    /// Whether it is known to hold no longer.
    pub fn is_broken(&self) -> bool {
        self.first.is_some()
    }

    /// What became of a lock that is broken.
    pub async fn gone(&mut self) -> Broken {
        let first = self.first.take().unwrap_or_else(|| Said::Lost(LOST.into()));
        let why = first.clone().why();
        let is_gone = self.is_gone(first).await;
        Broken { why: self.explain(why).await, is_gone }
    }

    /// Whether the hook ends well now: then what lets go of its lock has run.
    async fn is_gone(&mut self, mut said: Said) -> bool {
        while matches!(said, Said::Timeout | Said::Asked | Said::Locked) {
            match tokio::time::timeout(GRACE, self.said.recv()).await {
                Ok(Some(next)) => said = next,
                _ => return false,
            }
        }
        said == Said::Unlocked
    }

    /// Has the lock let go of.
    ///
    /// # Errors
    ///
    /// It had not lived until now, or nobody knows whether it was let go of.
    pub async fn end(mut self) -> Result<(), Broken> {
        // What was said until now was said while the lock should have held.
        if let Some(early) = self.first.take().or_else(|| self.said.try_recv().ok()) {
            self.first = Some(early);
            return Err(self.gone().await);
        }
        // One that was stopped, or cut off, may be told so late.
        let late = self.since.elapsed() >= self.limit;
        let asked = async {
            self.input.write_all(script::END).await?;
            self.input.flush().await
        };
        if let Err(why) = asked.await {
            return Err(Broken { why: format!("{LOST}: {why}"), is_gone: false });
        }
        let ended = async {
            match self.said.recv().await {
                Some(Said::Asked) => self.said.recv().await,
                other => other,
            }
        };
        match tokio::time::timeout(LET_GO, ended).await {
            Ok(Some(Said::Unlocked)) if !late => Ok(()),
            Ok(Some(Said::Unlocked)) => Err(Broken { why: Said::Timeout.why(), is_gone: true }),
            Ok(said) => {
                self.first = said;
                Err(self.gone().await)
            }
            Err(_) => {
                let why = "nobody knows whether it was let go of: its own time ends it".into();
                Err(Broken { why, is_gone: false })
            }
        }
    }

    /// A reason, and what the hook has written of it.
    async fn explain(&mut self, why: String) -> String {
        // Its errors come when all of it has ended, and the hook may have been cut off.
        let asked = async {
            let _ = self.input.write_all(script::END).await;
            let _ = self.input.flush().await;
        };
        let _ = tokio::time::timeout(DRAIN, asked).await;
        let errors = tokio::time::timeout(DRAIN, self.errors.recv()).await;
        match errors {
            Ok(Some(errors)) if !errors.is_empty() => format!("{why}: {errors}"),
            _ => why,
        }
    }
}

/// Runs what lets go of a lock, by itself: where the hook's own processes are gone, nobody else
/// does.
///
/// # Errors
///
/// For people: it could not run, or has failed.
pub async fn let_go(api: &Api, hook: &Hook) -> Result<(), String> {
    let Some(after) = &hook.after else { return Ok(()) };
    // A container that began anew may have left it: on its volume, for example.
    the_pod(api, hook).await?;
    let command = ["sh", "-c", after, "mover"];
    run(api, hook, &command).await.map(drop).map_err(|(_, why)| why)
}

/// Asks whether a hook can run there at all, before anything is made.
///
/// # Errors
///
/// No shell, or no right to run one.
pub async fn probe(api: &Api, hook: &Hook) -> Result<(), Failure> {
    let key = Key::new(Kind::Pod, &hook.namespace, &hook.pod);
    let what = format!("no hook can run in container {} of {key}", hook.container);
    match run(api, hook, &["sh", "-c", script::PROBE, "mover"]).await {
        Ok(said) if said.trim() == "mover: here" => Ok(()),
        Ok(said) => Err(Failure::new(exit::USAGE, format!("{what}: it answered {said:?}"))),
        Err((exit::DENIED, why)) => Err(Failure::new(exit::DENIED, format!("{what}: {why}"))
            .hint("a hook needs the right to create pods/exec in that namespace")),
        Err((exit::RETRYABLE, why)) => Err(Failure::new(exit::RETRYABLE, format!("{what}: {why}"))
            .hint("run the same command again")),
        Err((_, why)) => Err(Failure::new(exit::USAGE, format!("{what}: {why}")).hint(
            "it needs sh, cat, head and sleep: name a container that has them by --hook-container",
        )),
    }
}

/// Runs a short command to its end: its output, or an exit code and the reason.
async fn run(api: &Api, hook: &Hook, command: &[&str]) -> Result<String, (u8, String)> {
    let lost = |why: String| (exit::RETRYABLE, why);
    let process = tokio::time::timeout(BEGIN, exec(api, hook, command, false)).await;
    let process = process.map_err(|_| lost("its pod does not answer".into()))?;
    let mut process = process.map_err(|why| {
        let why =
            Failure::from(classify(why, &Asked::other("run a command there", "create pods/exec")));
        (why.exit_code, why.message)
    })?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let ended = async {
        let output = async {
            match stdout {
                Some(mut stream) => first_bytes(&mut stream).await,
                None => String::new(),
            }
        };
        let errors = async {
            match stderr {
                Some(mut stream) => first_bytes(&mut stream).await,
                None => String::new(),
            }
        };
        let status = async {
            match status {
                Some(status) => status.await,
                None => None,
            }
        };
        let mut streams = std::pin::pin!(async { futures::join!(output, errors) });
        let mut status = std::pin::pin!(status);
        tokio::select! {
            texts = &mut streams => (texts, status.await),
            status = &mut status => {
                let texts = tokio::time::timeout(DRAIN, &mut streams).await;
                (texts.unwrap_or_default(), status)
            }
        }
    };
    let ended = tokio::time::timeout(LET_GO, ended).await;
    let ((output, errors), status) =
        ended.map_err(|_| lost(format!("it did not end within {} s", LET_GO.as_secs())))?;
    let status = status.ok_or_else(|| lost(LOST.into()))?;
    if status.status.as_deref() == Some("Success") {
        return Ok(output);
    }
    let why = [status.message.unwrap_or_default(), errors];
    let why: Vec<&str> = why.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    Err((exit::USAGE, why.join(": ")))
}

/// What a hook is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// Holds the lock from its first line of output until its input ends.
    pub command: String,
    /// What lets go of its lock by itself, if there is such a command.
    pub after: Option<String>,
    /// There is no half of its lock: where it did not hold, it is somebody else's.
    pub whole: bool,
}

/// One command that holds the lock.
pub fn session(command: &str) -> Commands {
    Commands { command: command.to_owned(), after: None, whole: false }
}

/// A hook out of two commands: what takes the lock, and what lets go of it.
pub fn pair(before: &str, after: &str) -> Commands {
    let command = script::pair(before, after, script::Half::LetGo);
    Commands { command, after: Some(after.to_owned()), whole: false }
}

/// Freezes a filesystem. The container has to be allowed to: `CAP_SYS_ADMIN`.
pub fn fsfreeze(path: &str) -> Commands {
    let thaw = script::thaw(path);
    let command = script::pair(&script::freeze(path), &thaw, script::Half::IsNone);
    Commands { command, after: Some(script::thawed(path)), whole: true }
}
