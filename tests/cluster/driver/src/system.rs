//! Programs of the system, and errors with the object that they are about.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tonic::Status;

/// Says in an error what was done to what.
pub(crate) trait Context<T> {
    /// `what` is a verb phrase, such as "clone /a to /b".
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Status>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Status> {
        self.map_err(|error| {
            let error = error.into();
            let text = format!("{}: {error}", what());
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Status::resource_exhausted(text)
                }
                _ => Status::internal(text),
            }
        })
    }
}

/// Asks until it holds or the time is over; whether it holds.
pub(crate) fn wait_until(
    limit: Duration,
    mut holds: impl FnMut() -> Result<bool, Status>,
) -> Result<bool, Status> {
    let end = Instant::now() + limit;
    let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    while !holds()? {
        if Instant::now() > end {
            return Ok(false);
        }
        // No descriptor: it waits for the time alone.
        rustix::event::poll(&mut [], Some(&pause)).context(|| "wait".to_owned())?;
    }
    Ok(true)
}

/// Runs a program whatever it answers. `/usr/sbin` is searched, too.
pub(crate) fn output<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<Output, Status> {
    start(&[program], args)
}

/// The same for a program that writes to a device. It dies with the driver, so that it never writes
/// beside the one that the next driver starts.
pub(crate) fn tied_output<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<Output, Status> {
    start(&["setpriv", "--pdeathsig", "KILL", program], args)
}

fn start<S: AsRef<OsStr>>(program: &[&str], args: &[S]) -> Result<Output, Status> {
    Command::new("/usr/bin/env")
        .arg("PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
        .arg("LC_ALL=C")
        .args(program)
        .args(args)
        .output()
        .context(|| format!("start {}", program.join(" ")))
}

/// Runs a program that must succeed; gives its trimmed output.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String, Status> {
    succeeded(program, args, &output(program, args)?)
}

/// The same for a program that writes to a device, see [`tied_output`].
pub(crate) fn tied_run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String, Status> {
    succeeded(program, args, &tied_output(program, args)?)
}

fn succeeded<S: AsRef<OsStr>>(
    program: &str,
    args: &[S],
    output: &Output,
) -> Result<String, Status> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let args: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Status::internal(format!(
        "{program} {}: {}: {}",
        args.join(" "),
        output.status,
        said.trim()
    )))
}

/// A path as an argument of a program.
pub(crate) fn text(path: &Path) -> Result<&str, Status> {
    path.to_str().ok_or_else(|| {
        Status::invalid_argument(format!("{} is not UTF-8: choose another path", path.display()))
    })
}
