//! Standard input, as a list of changed blocks is read from it: whoever writes it may take its
//! time, and a request to stop is heard meanwhile.

use crate::run::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

/// How often a wait looks for a request to stop.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Reads when there is something to read.
#[derive(Debug)]
pub(super) struct Waiting<R> {
    input: R,
    cancel: Arc<Cancel>,
}

impl Waiting<File> {
    /// The process's, without the buffer of `std`: what is in that cannot be waited for.
    pub(super) fn stdin(cancel: &Arc<Cancel>) -> io::Result<Self> {
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self { input, cancel: Arc::clone(cancel) })
    }
}

impl<R: Read + AsFd> Read for Waiting<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            self.cancel.check().map_err(io::Error::other)?;
            let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut fds, Some(&POLL)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.input.read(buf),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_written_is_read_to_its_end() {
        let (input, mut writer) = io::pipe().unwrap();
        writer.write_all(b"[]").unwrap();
        drop(writer);
        let mut all = String::new();
        Waiting { input, cancel: Cancel::new() }.read_to_string(&mut all).unwrap();
        assert_eq!(all, "[]");
    }

    #[test]
    fn a_writer_that_does_not_write_does_not_stop_a_request_to_stop() {
        let (input, writer) = io::pipe().unwrap();
        let cancel = Cancel::new();
        let mut waiting = Waiting { input, cancel: Arc::clone(&cancel) };
        std::thread::scope(|s| {
            let stuck = s.spawn(move || waiting.read(&mut [0; 8]).unwrap_err());
            cancel.request();
            assert_eq!(stuck.join().unwrap().kind(), io::ErrorKind::Other);
        });
        drop(writer);
    }
}
