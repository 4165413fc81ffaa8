//! Logs of pods, within bounds: a pod may print whatever it likes, for as long as it likes.

use futures::StreamExt as _;
use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use std::time::Duration;

/// How much of a log is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of a line; the rest of it is left out.
    pub(super) line_bytes: usize,
    /// Bytes of all lines.
    pub(super) bytes: usize,
    /// Nothing comes any more after that, if anything is to come at all.
    pub(super) silence: Option<Duration>,
}

/// As much of a log as is read.
#[derive(Debug, PartialEq, Eq)]
pub struct Log {
    /// Its lines.
    pub text: String,
    /// Why it is not all of it, if it is not.
    pub cut: Option<String>,
}

/// Lines of a log, one after the other.
pub(super) struct Lines<R> {
    reader: R,
    bounds: Bounds,
    read: usize,
    /// Whether a line was longer.
    pub(super) shortened: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, bounds: Bounds) -> Self {
        Self { reader, bounds, read: 0, shortened: false }
    }

    /// The next line, or none at the end.
    ///
    /// # Errors
    ///
    /// Why there is no more to read than that.
    pub(super) async fn next(&mut self) -> Result<Option<String>, String> {
        let mut line = Vec::new();
        loop {
            let Bounds { line_bytes, bytes, silence } = self.bounds;
            let filled = self.reader.fill_buf();
            let chunk = match silence {
                Some(silence) => tokio::time::timeout(silence, filled)
                    .await
                    .map_err(|_| format!("nothing more came within {} s", silence.as_secs()))?,
                None => filled.await,
            };
            let chunk = chunk.map_err(|why| why.to_string())?;
            if chunk.is_empty() {
                return Ok((!line.is_empty()).then(|| text(&line)));
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            let room = line_bytes.saturating_sub(line.len()).min(part.len());
            self.shortened |= room < part.len();
            line.extend_from_slice(&part[..room]);
            let used = end.map_or(chunk.len(), |end| end + 1);
            self.reader.consume_unpin(used);
            self.read = self.read.saturating_add(used);
            if self.read > bytes {
                return Err(format!("it is longer than {bytes} bytes"));
            }
            if end.is_some() {
                return Ok(Some(text(&line)));
            }
        }
    }

    /// All of them as they come; once there are no more it may be asked on.
    pub(super) fn stream(self) -> impl futures::Stream<Item = String> {
        let next = async |mut lines: Self| {
            let line = lines.next().await.ok().flatten()?;
            Some((line, lines))
        };
        futures::stream::unfold(self, next).fuse()
    }

    /// All of them, as far as they may be read.
    pub(super) async fn all(mut self) -> Log {
        let mut text = String::new();
        let cut = loop {
            match self.next().await {
                Ok(Some(line)) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Ok(None) if self.shortened => {
                    let most = self.bounds.line_bytes;
                    break Some(format!("a line of it is longer than {most} bytes"));
                }
                Ok(None) => break None,
                Err(why) => break Some(why),
            }
        };
        Log { text, cut }
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

    const BOUNDS: Bounds = Bounds { line_bytes: 8, bytes: 40, silence: None };

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(future)
    }

    fn read(text: &str, bounds: Bounds) -> Log {
        let all = Lines::new(futures::io::Cursor::new(text.to_owned()), bounds).all();
        block_on(all)
    }

    #[test]
    fn a_log_is_read_within_bounds_and_says_so() {
        let whole = read("one\ntwo", BOUNDS);
        assert_eq!(whole, Log { text: "one\ntwo\n".into(), cut: None });
        let line = read("one is long\ntwo\n", BOUNDS);
        assert_eq!(line.text, "one is l\ntwo\n");
        assert!(line.cut.is_some_and(|why| why.contains("a line of it is longer than 8 bytes")));
        let long = read(&"word\n".repeat(1000), BOUNDS);
        assert_eq!(long.text, "word\n".repeat(8));
        assert!(long.cut.is_some_and(|why| why.contains("longer than 40 bytes")));
        // A line without an end is no reason to read for ever.
        assert!(read(&"x".repeat(1000), BOUNDS).cut.is_some());
    }

    #[test]
    fn whoever_follows_a_log_that_has_ended_may_ask_again() {
        let cursor = futures::io::Cursor::new("one\n".to_owned());
        let mut lines = Box::pin(Lines::new(cursor, BOUNDS).stream());
        assert_eq!(block_on(lines.next()).as_deref(), Some("one"));
        assert_eq!(block_on(lines.next()), None);
        assert_eq!(block_on(lines.next()), None);
    }

    #[test]
    fn a_log_that_stops_in_the_middle_is_given_up() {
        let first = futures::stream::once(async { Ok::<_, std::io::Error>(b"one\ntw".to_vec()) });
        let silent = first.chain(futures::stream::pending()).boxed().into_async_read();
        let bounds = Bounds { silence: Some(Duration::from_millis(10)), ..BOUNDS };
        let log = block_on(Lines::new(silent, bounds).all());
        assert_eq!(log.text, "one\n");
        assert!(log.cut.is_some_and(|why| why.contains("nothing more came")));
    }
}
