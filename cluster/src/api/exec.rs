//! A command in a pod, for its output. All of it counts, or none: the command has to end well, and
//! the output has to be as long as it was told to be.

use super::{ANSWER, Api, ApiError, Asked, classify};
use crate::engine::{Failure, Key, Kind, exit};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use zeroize::Zeroizing;

/// What came before the end of a command is read for so long.
const DRAIN: Duration = Duration::from_secs(5);
/// A command that has printed all, and does not end, is waited for so long.
const LONGEST: Duration = Duration::from_secs(900);
const CHUNK_BYTES: usize = 1 << 16;
/// Of what a command says on its way to an error.
const ERROR_BYTES: usize = 2000;

impl Api {
    /// What a command prints in a pod's container, if it ends well and prints so many bytes.
    ///
    /// # Errors
    ///
    /// The right is missing, the connection was lost, the command failed, or its output has another
    /// length.
    pub async fn output_of(
        &self,
        pod: &Key,
        container: &str,
        command: &[String],
        size_bytes: usize,
    ) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let namespace = pod.namespace.as_deref().unwrap_or_default();
        let pods: kube::Api<Pod> = kube::Api::namespaced(self.client().clone(), namespace);
        let parameters = AttachParams::default()
            .container(container)
            .max_stdout_buf_size(CHUNK_BYTES)
            .stdin(false)
            .stdout(true)
            .stderr(true);
        let asked = Asked::part("run a command in", "create", pod, "/exec");
        assert_eq!(pod.kind, Kind::Pod, "commands run in pods");
        let begun = tokio::time::timeout(ANSWER, pods.exec(&pod.name, command, &parameters)).await;
        let begun = begun.map_err(|_| Failure::from(asked.unanswered(ANSWER.as_secs())))?;
        let mut process = begun.map_err(|why| Failure::from(refused(why, &asked)))?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let status = process.take_status();
        let status = async {
            match status {
                Some(status) => status.await,
                None => None,
            }
        };
        // The streams end when the process object does, which lives until here.
        let read = tokio::time::timeout(LONGEST, read(stdout, stderr, status, size_bytes)).await;
        let seconds = LONGEST.as_secs();
        let read =
            read.unwrap_or_else(|_| Err(format!("it did not end within {seconds} s").into()));
        drop(process);
        read.map_err(|wrong| wrong.within(&format!("read from {pod}")))
    }
}

/// Why an output does not count.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    exit_code: u8,
    why: String,
    hint: Option<String>,
}

impl From<String> for Wrong {
    fn from(why: String) -> Self {
        Self { exit_code: exit::RETRYABLE, why, hint: None }
    }
}

impl Wrong {
    /// What a command that failed says of it: `mover` does so in a line of JSON, the last one.
    fn of_command(status: Status, errors: &str) -> Self {
        let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
        let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let code = code.and_then(|cause| cause.message.as_deref()?.parse().ok());
        // What was killed by a signal may end otherwise the next time.
        let exit_code = code.filter(|code| (1..128).contains(code)).unwrap_or(exit::RETRYABLE);
        let lines = errors.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
        let line: Option<Value> =
            { lines }.find(|line: &Value| line["type"] == "error" && line["message"].is_string());
        if let Some(line) = line {
            let text = |name: &str| line[name].as_str().map(str::to_owned);
            return Self {
                exit_code,
                why: text("message").unwrap_or_default(),
                hint: text("hint"),
            };
        }
        let why = [status.message.as_deref().unwrap_or_default(), errors];
        let why: Vec<&str> = why.into_iter().filter(|it| !it.is_empty()).collect();
        Self { exit_code, why: why.join(": "), hint: None }
    }

    fn within(self, context: &str) -> Failure {
        let Self { exit_code, why, hint } = self;
        let again = || (exit_code == exit::RETRYABLE).then(|| "run the same command again".into());
        Failure { exit_code, message: format!("{context}: {why}"), hint: hint.or_else(again) }
    }
}

/// A connection that is not upgraded says so with its code alone.
fn refused(why: kube::Error, asked: &Asked) -> ApiError {
    use kube::client::UpgradeConnectionError::ProtocolSwitch;
    match why {
        kube::Error::UpgradeConnection(ProtocolSwitch(code)) if code == 403 || code == 401 => {
            ApiError::Refused(asked.denied())
        }
        why => classify(why, asked),
    }
}

/// All output, once the command has ended well.
async fn read(
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
    status: impl Future<Output = Option<Status>>,
    size_bytes: usize,
) -> Result<Zeroizing<Vec<u8>>, Wrong> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(size_bytes));
    let mut errors = String::new();
    let mut ended: Option<Option<Status>> = None;
    {
        let output = async {
            let Some(mut stdout) = stdout else { return Ok(()) };
            let mut chunk = Zeroizing::new(vec![0; CHUNK_BYTES]);
            loop {
                let read = tokio::time::timeout(ANSWER, stdout.read(&mut chunk)).await;
                let seconds = ANSWER.as_secs();
                let read = read.map_err(|_| format!("nothing came within {seconds} s"))?;
                let read = read.map_err(|why| why.to_string())?;
                if read == 0 {
                    return Ok(());
                }
                if bytes.len() + read > size_bytes {
                    return Err(format!("more than {size_bytes} bytes came"));
                }
                bytes.extend_from_slice(&chunk[..read]);
            }
        };
        let said = async {
            let Some(mut stderr) = stderr else { return };
            // The error comes last. A stream that nobody reads would hold up the others.
            let (mut text, mut chunk) = (Vec::new(), vec![0; ERROR_BYTES]);
            while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
                text.extend_from_slice(&chunk[..read]);
                text.drain(..text.len().saturating_sub(ERROR_BYTES));
            }
            errors = String::from_utf8_lossy(&text).trim().to_owned();
        };
        // An error of the output ends both: nobody would read what is still to come.
        let said = async {
            said.await;
            Ok(())
        };
        let mut streams = std::pin::pin!(async { futures::try_join!(output, said).map(drop) });
        let mut status = std::pin::pin!(status);
        tokio::select! {
            read = &mut streams => read?,
            status = &mut status => {
                ended = Some(status);
                if let Ok(read) = tokio::time::timeout(DRAIN, &mut streams).await {
                    read?;
                }
            }
        }
        if ended.is_none() {
            ended = tokio::time::timeout(DRAIN, &mut status).await.ok();
        }
    }
    let Some(status) = ended.flatten() else {
        return Err("the connection was lost before the command had ended".to_owned().into());
    };
    if status.status.as_deref() != Some("Success") {
        return Err(Wrong::of_command(status, &errors));
    }
    if bytes.len() != size_bytes {
        return Err(format!("{} of {size_bytes} bytes came", bytes.len()).into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> Option<Status> {
        let message = Some(format!("it was {text}"));
        Some(Status { status: Some(text.to_owned()), message, ..Status::default() })
    }

    fn all(out: &'static [u8], ended: Option<Status>) -> Result<Vec<u8>, Wrong> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let read = read(Some(out), Some(&b"no such thing"[..]), async { ended }, 3);
        runtime.expect("a runtime").block_on(read).map(|bytes| bytes.to_vec())
    }

    #[test]
    fn all_of_an_output_counts_or_none() {
        assert_eq!(all(b"all", status("Success")).expect("all"), b"all");
        for (out, ended, why) in [
            (&b"al"[..], status("Success"), "2 of 3 bytes came"),
            (b"more", status("Success"), "more than 3 bytes"),
            (b"all", None, "the connection was lost"),
            (b"all", status("Failure"), "it was Failure: no such thing"),
            (b"", status("Failure"), "it was Failure"),
        ] {
            let said = all(out, ended).expect_err(why);
            assert!(said.why.contains(why), "{why}: {said:?}");
            assert_eq!(said.exit_code, exit::RETRYABLE);
        }
    }

    /// What a real connection does: nothing ends by itself.
    #[test]
    fn a_command_that_says_too_much_is_not_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let said = runtime.expect("a runtime").block_on(async {
            let (stdout, mut writer) = tokio::io::simplex(CHUNK_BYTES);
            let (stderr, _open) = tokio::io::simplex(CHUNK_BYTES);
            let writing = tokio::spawn(async move {
                use tokio::io::AsyncWriteExt as _;
                while writer.write_all(&[7; 1000]).await.is_ok() {}
            });
            let read = read(Some(stdout), Some(stderr), std::future::pending(), 3).await;
            writing.abort();
            read.map(drop)
        });
        assert_eq!(said, Err("more than 3 bytes came".to_owned().into()));
    }

    /// Damage is not to be tried again.
    #[test]
    fn what_the_command_says_of_its_failure_is_the_failure() {
        let status: Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "message": "command terminated with exit code 3",
            "details": { "causes": [{ "reason": "ExitCode", "message": "3" }] },
        }))
        .expect("a status");
        let warning = r#"{"type": "warning", "message": "it is late"}"#;
        let error = r#"{"type": "error", "message": "it is damaged", "hint": "check it"}"#;
        let log = &format!("{error}\n{warning}\n");
        let failure = Wrong::of_command(status.clone(), log).within("read it");
        assert_eq!((failure.exit_code, failure.message.as_str()), (3, "read it: it is damaged"));
        assert_eq!(failure.hint.as_deref(), Some("check it"));
        // one that was killed says nothing of it, whatever it has warned of
        let killed = Wrong::of_command(status.clone(), warning).within("read it");
        assert!(killed.message.contains("terminated with exit code 3"), "{}", killed.message);
        let plain = Wrong::of_command(status, "no such thing").within("read it");
        assert_eq!(plain.message, "read it: command terminated with exit code 3: no such thing");
        assert_eq!((plain.exit_code, plain.hint), (3, None));
    }
}
