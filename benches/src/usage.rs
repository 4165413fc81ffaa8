//! What a process used: this one so far, and a child by the time it has ended.

use crate::failed;
use chunkstore::Result;
use rustix::process::Pid;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// CPU time of a process and of its threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cpu {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
}

impl Cpu {
    /// Both.
    pub(crate) fn total_seconds(self) -> f64 {
        self.user_seconds + self.system_seconds
    }

    fn of(usage: &libc::rusage) -> Self {
        #[allow(clippy::cast_precision_loss)] // seconds and microseconds: far below 2^53
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        Self { user_seconds: seconds(usage.ru_utime), system_seconds: seconds(usage.ru_stime) }
    }
}

/// Of this process and all its threads so far.
pub(crate) fn own_cpu() -> Result<Cpu> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes one rusage through a valid pointer to one.
    let code = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if code != 0 {
        return Err(failed("ask for the CPU time", std::io::Error::last_os_error()));
    }
    // SAFETY: all of it was zeroed, and every bit pattern is a value of these integers.
    Ok(Cpu::of(&unsafe { usage.assume_init() }))
}

/// Waits for a child of this process and gives what it used. It must not be waited for anywhere
/// else.
pub(crate) fn wait_for(child: Pid) -> Result<(ExitStatus, Cpu)> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let mut status = 0;
    loop {
        // SAFETY: wait4 writes one int and one rusage through valid pointers to them.
        let code = unsafe {
            libc::wait4(child.as_raw_nonzero().get(), &raw mut status, 0, usage.as_mut_ptr())
        };
        if code >= 0 {
            break;
        }
        let e = std::io::Error::last_os_error();
        if e.kind() != std::io::ErrorKind::Interrupted {
            return Err(failed("wait for a child process", e));
        }
    }
    // SAFETY: all of it was zeroed, and every bit pattern is a value of these integers.
    let usage = unsafe { usage.assume_init() };
    Ok((ExitStatus::from_raw(status), Cpu::of(&usage)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_computed_used_cpu_and_one_that_failed_says_so() {
        let run = |script: &str| {
            #[allow(clippy::zombie_processes)] // `wait_for` reaps it
            let child = std::process::Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
            wait_for(Pid::from_child(&child)).unwrap()
        };
        let (status, cpu) = run("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done");
        assert!(status.success() && cpu.total_seconds() > 0.0, "{cpu:?}");
        assert_eq!(run("exit 7").0.code(), Some(7));
        assert_eq!(run("kill -TERM $$").0.signal(), Some(libc::SIGTERM));
    }
}
