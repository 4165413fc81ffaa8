//! Standard output as a plain descriptor: unbuffered, and a reader that has stopped reading does
//! not keep a request to stop from being heard.
//!
//! A blocking write to a full pipe cannot be called off, and making standard output itself
//! non-blocking would do the same to whoever shares it. So a pipe is opened a second time,
//! non-blocking; what cannot be opened again (a socket) is asked first whether it takes anything,
//! and then given no more than it surely takes.
//!
//! A file or device is flushed to its medium at the end: only then is it known that all was written.

use crate::run::Cancel;
use chunkstore::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// A pipe that polls as writable takes this much without blocking (pipe(7)).
const PIPE_BUF: usize = 4096;
/// How long a request to stop may go unheard.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Standard output, or what stands for it.
#[derive(Debug)]
pub(crate) struct Stdout {
    file: File,
    kind: Kind,
    cancel: Arc<Cancel>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Never blocks for long.
    File,
    /// Opened again, non-blocking.
    Pipe,
    /// May block for ever.
    Other,
}

impl Stdout {
    /// The process's. A terminal is refused. `doing`: "restore", for messages.
    pub(crate) fn open(doing: &str, cancel: Arc<Cancel>) -> Result<Self> {
        let failed = |e: io::Error| Error::caused(ErrorKind::Usage, "open standard output", e);
        let context = || format!("{doing} to standard output");
        if io::stdout().is_terminal() {
            return Err(Error::new(ErrorKind::Usage, context(), "it is a terminal")
                .hint("redirect it to a file or a pipe"));
        }
        let fd = rustix::stdio::stdout().try_clone_to_owned().map_err(failed)?;
        if stands_for_a_closed_one(&fd).map_err(failed)? {
            let why = "it is closed, or it is /dev/null opened for reading too";
            return Err(Error::new(ErrorKind::Usage, context(), why).hint(
                "redirect it to a file, a device or a pipe; `> /dev/null` throws the bytes away",
            ));
        }
        Self::new(fd, cancel).map_err(failed)
    }

    /// Whether a flush makes durable what was written: so it is for files and devices, and nobody
    /// but the reader knows of a pipe.
    pub(crate) fn is_durable(&self) -> bool {
        self.kind == Kind::File
    }

    fn new(fd: OwnedFd, cancel: Arc<Cancel>) -> io::Result<Self> {
        let this = |file, kind| Ok(Self { file, kind, cancel });
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => this(fd.into(), Kind::File),
            FileType::Fifo => {
                let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
                match options.open(again) {
                    Ok(file) => this(file, Kind::Pipe),
                    Err(_) => this(fd.into(), Kind::Other),
                }
            }
            _ => this(fd.into(), Kind::Other),
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        loop {
            if self.cancel.cancelled() {
                return Err(io::Error::other(Cancel::error()));
            }
            let written = match self.kind {
                Kind::File | Kind::Pipe => self.file.write(buf),
                Kind::Other => Err(io::ErrorKind::WouldBlock.into()),
            };
            if !written.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
                return written;
            }
            let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut fds, Some(&POLL)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) if self.kind != Kind::Other => {}
                Ok(_) => return self.file.write(&buf[..buf.len().min(PIPE_BUF)]),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.file.sync_all() {
            // pipes, sockets and most character devices have nothing to flush
            Err(e)
                if self.kind != Kind::File
                    && matches!(
                        e.raw_os_error(),
                        Some(libc::EINVAL | libc::EROFS | libc::ENOTSUP | libc::ENOSYS)
                    ) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

/// Where standard output is closed at the start, a program of Rust finds `/dev/null` in its place,
/// open for reading, too: `> /dev/null` is not. Nothing tells it from one that was given so.
fn stands_for_a_closed_one(fd: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(fd)?;
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let is_null =
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && number == (1, 3);
    let mode = rustix::fs::fcntl_getfl(fd)? & OFlags::RWMODE;
    Ok(is_null && mode == OFlags::RDWR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn all_bytes_go_through() {
        let (reader, writer) = io::pipe().unwrap();
        all_bytes(reader, writer.into(), Kind::Pipe);
        let (reader, writer) = UnixStream::pair().unwrap();
        all_bytes(reader, writer.into(), Kind::Other);
    }

    fn all_bytes(mut reader: impl Read + Send, writer: OwnedFd, kind: Kind) {
        let sent: Vec<u8> = (0..1_000_003_u32).map(|i| i.to_le_bytes()[1]).collect();
        let mut out = Stdout::new(writer, Cancel::new()).unwrap();
        assert_eq!(out.kind, kind);
        std::thread::scope(|s| {
            let received = s.spawn(move || {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).unwrap();
                all
            });
            out.write_all(&sent).unwrap();
            drop(out);
            assert!(received.join().unwrap() == sent);
        });
    }

    #[test]
    fn a_reader_that_does_not_read_does_not_stop_a_request_to_stop() {
        let (reader, writer) = io::pipe().unwrap();
        let (stream, other) = UnixStream::pair().unwrap();
        for fd in [OwnedFd::from(writer), OwnedFd::from(other)] {
            let cancel = Cancel::new();
            let mut out = Stdout::new(fd, Arc::clone(&cancel)).unwrap();
            std::thread::scope(|s| {
                let stuck = s.spawn(move || out.write_all(&vec![1; 10 << 20]).unwrap_err());
                cancel.request();
                assert_eq!(stuck.join().unwrap().kind(), io::ErrorKind::Other);
            });
        }
        drop((reader, stream));
    }

    #[test]
    fn what_stands_for_a_closed_output_is_known() {
        let null = |read| File::options().read(read).write(true).open("/dev/null").unwrap();
        assert!(stands_for_a_closed_one(&null(true).into()).unwrap());
        assert!(!stands_for_a_closed_one(&null(false).into()).unwrap());
        let file = tempfile::tempfile().unwrap();
        assert!(!stands_for_a_closed_one(&file.into()).unwrap());
    }

    #[test]
    fn what_cannot_be_flushed_is_no_error_where_nothing_is_kept() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut pipe = Stdout::new(writer.into(), Cancel::new()).unwrap();
        pipe.flush().unwrap();
        assert!(!pipe.is_durable());
        let null = File::options().write(true).open("/dev/null").unwrap();
        Stdout::new(null.into(), Cancel::new()).unwrap().flush().unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut file = Stdout::new(file.into(), Cancel::new()).unwrap();
        file.flush().unwrap();
        assert!(file.is_durable());
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut out = Stdout::new(writer.into(), Cancel::new()).unwrap();
        assert_eq!(out.write_all(&[1; 100]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
