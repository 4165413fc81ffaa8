//! Whether somebody who waits for an answer has been killed.
//!
//! A process that waits for a request that has reached us can be killed only once that is answered:
//! the kernel waits for it, whatever signal comes. Of a signal it sends `FUSE_INTERRUPT`, and the
//! library that we use does not hand that on. So a request that takes long looks whether its caller
//! has a `SIGKILL` to come. The kernel makes one of each signal that ends a process, so Ctrl-C is
//! seen as well, unless the process has a handler for it.
//!
//! Readers of the page cache need none of this. They wait for pages, and such a wait ends by itself.

use std::time::Duration;

/// From when on it is looked, and how often.
const EVERY: Duration = Duration::from_millis(250);
/// Of the sets of signals in `/proc`.
const SIGKILL: u64 = 1 << 8;

/// Ready once this task has been killed. `0`: nobody knows who it is, and it never is.
pub(crate) async fn killed(task: u32) {
    if task == 0 {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(EVERY).await;
        // a thread that is gone waits for nothing; and one in another world is not seen
        let Ok(status) = std::fs::read_to_string(format!("/proc/{task}/status")) else { continue };
        if is_killed(&status) {
            return;
        }
    }
}

/// What `/proc/N/status` says.
fn is_killed(status: &str) -> bool {
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|set| set & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_kill_is_seen_in_either_set() {
        let status = |own: &str, shared: &str| {
            format!("Name:\tcat\nState:\tD (disk sleep)\nSigPnd:\t{own}\nShdPnd:\t{shared}\n")
        };
        let none = "0000000000000000";
        assert!(!is_killed(&status(none, none)));
        assert!(is_killed(&status("0000000000000100", none)));
        assert!(is_killed(&status(none, "0000000000004100")));
        // SIGTERM that waits for a handler
        assert!(!is_killed(&status("0000000000004000", none)));
        assert!(!is_killed("Name:\tSigPnd:\t100\n"));
    }
}
