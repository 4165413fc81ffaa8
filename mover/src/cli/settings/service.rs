//! What a service manager says to a process that it starts: `sd_listen_fds(3)`, `sd_notify(3)`.

use std::ffi::OsString;
use std::path::PathBuf;

/// What there is around a process that serves.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceSettings {
    /// Sockets that were given to it, from descriptor 3 on.
    pub(crate) listen_fds: u32,
    /// Where it tells how it is.
    pub(crate) notify_socket: Option<OsString>,
    /// For sockets that nobody has named.
    pub(crate) directory: PathBuf,
    /// For files without names that may grow.
    pub(crate) temporary: PathBuf,
}

impl ServiceSettings {
    /// `set` gives a variable that is not empty.
    pub(super) fn capture(set: &impl Fn(&str) -> Option<OsString>) -> Self {
        let number = |name: &str| set(name)?.to_str()?.parse::<u32>().ok();
        // what a parent was given is not ours
        let ours = number("LISTEN_PID") == Some(std::process::id());
        let directory =
            |name| set(name).map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
        let tmp = || directory("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
        Self {
            listen_fds: number("LISTEN_FDS").filter(|_| ours).unwrap_or(0),
            notify_socket: set("NOTIFY_SOCKET"),
            directory: directory("XDG_RUNTIME_DIR").unwrap_or_else(tmp),
            temporary: tmp(),
        }
    }
}
