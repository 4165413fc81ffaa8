//! A command in a pod, for its output. All of it counts, or none: the command has to end well, and
//! the output has to be as long as it was told to be.

use super::{ANSWER, Api, ApiError, Asked, classify};
use crate::engine::{Failure, Key, Kind, exit};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
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
        let read = read.unwrap_or_else(|_| Err(format!("it did not end within {seconds} s")));
        drop(process);
        read.map_err(|why| {
            let what = format!("read from {pod}: {why}");
            Failure::new(exit::RETRYABLE, what).hint("run the same command again")
        })
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
) -> Result<Zeroizing<Vec<u8>>, String> {
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
        return Err("the connection was lost before the command had ended".to_owned());
    };
    if status.status.as_deref() != Some("Success") {
        let why = [status.message.unwrap_or_default(), errors];
        let why: Vec<&str> = why.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
        return Err(why.join(": "));
    }
    if bytes.len() != size_bytes {
        return Err(format!("{} of {size_bytes} bytes came", bytes.len()));
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

    fn all(out: &'static [u8], ended: Option<Status>) -> Result<Vec<u8>, String> {
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
            assert!(said.contains(why), "{why}: {said}");
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
        assert_eq!(said, Err("more than 3 bytes came".to_owned()));
    }
}
