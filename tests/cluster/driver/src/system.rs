//! Programs of the system, and errors with the object that they are about.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
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

/// Runs a program whatever it answers. `/usr/sbin` is searched, too.
pub(crate) fn output<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<Output, Status> {
    Command::new("/usr/bin/env")
        .arg("PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
        .arg("LC_ALL=C")
        .arg(program)
        .args(args)
        .output()
        .context(|| format!("start {program}"))
}

/// Runs a program that must succeed; gives its trimmed output.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String, Status> {
    let output = output(program, args)?;
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
