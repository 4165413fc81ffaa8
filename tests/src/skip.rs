//! Tests that need root or a server say so, in a way that cannot be overlooked.

use std::io::Write;
use std::os::unix::fs::MetadataExt;

/// Whether this process is root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").map(|meta| meta.uid() == 0).unwrap_or(false)
}

/// Prints `SKIP: reason` on a line of its own.
///
/// Written straight to standard error: the test harness captures what a passing test prints by
/// `println!`.
pub fn skip(reason: &str) {
    let line = format!("\nSKIP: {reason}\n");
    // A test whose standard error is closed has nobody to tell.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Returns from the test, with a `SKIP:` line, unless this process is root.
#[macro_export]
macro_rules! require_root {
    () => {
        if !$crate::is_root() {
            $crate::skip(concat!(module_path!(), " needs root (loop devices, mounts)"));
            return;
        }
    };
}

/// Gives the [`S3Server`](crate::S3Server) called `ceph` or `moto`; returns from the test, with a
/// `SKIP:` line, where `tests/run` started none.
#[macro_export]
macro_rules! require_s3 {
    ($name:ident) => {
        match $crate::S3Server::$name() {
            Some(server) => server,
            None => {
                $crate::skip(concat!(
                    module_path!(),
                    " needs the S3 server ",
                    stringify!($name),
                    " (tests/run starts it)"
                ));
                return;
            }
        }
    };
}
