//! Standard output as a plain descriptor: unbuffered, and a reader that has stopped reading does not stop a request to stop.

use crate::control::Cancel;
use chunkstore::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

/// A pipe that polls as writable takes this much without blocking.
const PIPE_BUF: usize = 4096;
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Standard output.
#[derive(Debug)]
pub(crate) struct Stdout {
    file: File,
    /// Pipes, sockets, terminals: what may block for ever.
    may_block: bool,
    cancel: Arc<Cancel>,
}

impl Stdout {
    pub(crate) fn open(cancel: Arc<Cancel>) -> Result<Self> {
        let failed =
            |e: io::Error| Error::new(ErrorKind::Usage, "open standard output", "").caused_by(e);
        let fd = rustix::stdio::stdout().try_clone_to_owned().map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(e.into()))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if io::stdout().is_terminal() {
            return Err(Error::new(
                ErrorKind::Usage,
                "restore to standard output",
                "it is a terminal",
            )
            .hint("redirect it to a file or a pipe"));
        }
        let may_block = !matches!(kind, FileType::RegularFile | FileType::BlockDevice);
        Ok(Self { file: File::from(fd), may_block, cancel })
    }
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if !self.may_block {
            return self.file.write(buf);
        }
        loop {
            if self.cancel.cancelled() {
                return Err(io::Error::other(Cancel::error()));
            }
            let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut fds, Some(&POLL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.file.write(&buf[..buf.len().min(PIPE_BUF)]),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
