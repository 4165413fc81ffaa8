//! Starting an operation in a process of its own, and what that process used.

use super::operation::{Reply, Request};
use crate::failed;
use crate::machine::busy_seconds;
use crate::stop::Stop;
use crate::usage::{Cpu, wait_for};
use chunkstore::{Error, ErrorKind, Result};
use rustix::process::Pid;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// An operation that has ended well.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) reply: Reply,
    pub(crate) seconds: f64,
    pub(crate) cpu: Cpu,
    pub(crate) machine_seconds: Option<f64>,
}

/// Runs one operation to its end. Its errors are on stderr already.
pub(crate) fn run(request: &Request, stop: &Stop) -> Result<Done> {
    stop.check()?;
    let text = serde_json::to_vec(request).map_err(|e| failed("encode JSON", e.into()))?;
    let busy = busy_seconds();
    let begun = Instant::now();
    // `talk` names it to `stop`, and `wait_for` reaps it whatever came of the talk
    #[allow(clippy::zombie_processes)]
    let mut child = Command::new("/proc/self/exe")
        .arg("operation")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed("start an operation", e))?;
    let pid = Pid::from_child(&child);
    stop.set_child(Some(pid));
    let answer = talk(&mut child, &text);
    // its number is its own until it was waited for
    stop.set_child(None);
    let (status, cpu) = wait_for(pid)?;
    let seconds = begun.elapsed().as_secs_f64();
    let machine_seconds = busy.zip(busy_seconds()).map(|(before, after)| after - before);
    stop.check()?;
    if !status.success() {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("it failed with exit code {code}"),
            (None, Some(signal)) => format!("signal {signal} ended it"),
            _ => "it failed".into(),
        };
        return Err(Error::new(ErrorKind::Unavailable, "run an operation", how));
    }
    let reply = serde_json::from_slice(&answer.map_err(|e| failed("talk to an operation", e))?)
        .map_err(|e| failed("read what an operation did", e.into()))?;
    Ok(Done { reply, seconds, cpu, machine_seconds })
}

/// Says what is to be done and hears what was done. The request is far shorter than a pipe holds.
fn talk(child: &mut Child, text: &[u8]) -> std::io::Result<Vec<u8>> {
    // both ends are closed on return: a child never waits for more
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let sent = stdin.map_or(Ok(()), |mut pipe| pipe.write_all(text));
    let mut answer = Vec::new();
    stdout.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut answer))?;
    sent.map(|()| answer)
}
