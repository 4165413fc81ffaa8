//! Where text goes: results and summaries to stdout, warnings and errors to stderr, one line each.
//!
//! With `--json` every line is one JSON object with a `type`. When a restore writes its data to
//! stdout, all else goes to stderr. A reader that closes stdout early ends a command quietly; a
//! full disk behind stdout is an error. The progress bar is taken off the terminal while a line is
//! printed, so neither garbles the other.
//!
//! Secrets that are known are left out of every line here. So is what stands where only a secret
//! does, but not of results and summaries: names and ids may stand so too, while what is said
//! besides may be the words of a server, at any verbosity. Of the results of a command only the
//! lists of `changes` do not pass, which hold numbers and the user's own words.

use super::exit::{exit_code, kind_word};
use super::settings::OutputSettings;
use chunkstore::{
    Error, ErrorKind, Result,
    secrets::{redact, redact_known},
};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The two streams and what is drawn on them.
#[derive(Debug)]
pub(crate) struct Output {
    settings: OutputSettings,
    stdout_is_data: AtomicBool,
    bar: Mutex<Option<ProgressBar>>,
    ended: Mutex<Ended>,
    /// Set by who ends the process: its exit code.
    end: OnceLock<u8>,
}

/// What a run has said about its end, for those who do not read its output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended {
    pub(crate) summary: Option<Value>,
    pub(crate) error: Option<Value>,
}

/// One JSON line: `type` first, then the members of `body`.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a, T: Serialize> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Debug, Serialize)]
struct Message<'a> {
    time: String,
    message: &'a str,
}

#[derive(Debug, Serialize)]
struct Failure<'a> {
    time: String,
    kind: String,
    exit_code: u8,
    message: &'a str,
    hint: Option<&'a str>,
}

impl<'a> Failure<'a> {
    fn of(error: &'a Error, text: &'a str) -> Self {
        Self {
            time: now(),
            kind: kind_word(error.kind()),
            exit_code: exit_code(error.kind()),
            message: text,
            hint: error.hint_text(),
        }
    }
}

impl<'a, T: Serialize> Line<'a, T> {
    pub(crate) fn new(kind: &'a str, body: &'a T) -> Self {
        Self { kind, body }
    }
}

impl Output {
    pub(crate) fn new(settings: OutputSettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            stdout_is_data: AtomicBool::new(false),
            bar: Mutex::new(None),
            ended: Mutex::new(Ended::default()),
            end: OnceLock::new(),
        })
    }

    /// From now on the process ends with this code, and the caller alone says why. An error has the
    /// code of who was first.
    pub(crate) fn begin_exit(&self, exit_code: u8) -> Result<(), u8> {
        self.end.set(exit_code).map_err(|_| self.end.get().copied().unwrap_or(exit_code))
    }

    /// What was said about the end so far.
    pub(crate) fn ended(&self) -> Ended {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn settings(&self) -> &OutputSettings {
        &self.settings
    }

    /// From now on stdout carries a volume's data: nothing else may go there.
    pub(crate) fn reserve_stdout(&self) {
        self.stdout_is_data.store(true, Ordering::Relaxed);
    }

    /// Whether stdout carries a volume's data.
    pub(crate) fn stdout_is_data(&self) -> bool {
        self.stdout_is_data.load(Ordering::Relaxed)
    }

    /// What a command was asked for: text as it is, printed whatever `--quiet` says.
    pub(crate) fn result(&self, text: &str) -> Result<()> {
        self.to_main(text.as_bytes())
    }

    /// What a command was asked for, one JSON value on a line.
    pub(crate) fn result_json(&self, value: &impl Serialize) -> Result<()> {
        self.to_main(&json_line(value)?)
    }

    /// What a command was asked for, too long to be held as text. A failure of what is written, as
    /// an [`Error`] within the other, stays what it is.
    pub(crate) fn result_stream(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let mut stdout = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
        match unless_reader_left(write(&mut stdout).and_then(|()| stdout.flush())) {
            // of data the command ends otherwise than if somebody had read it all
            Err(e) if reader_left(&e) && !self.stdout_is_data() => Ok(()),
            done => done,
        }
    }

    /// The end of an operation, in the form that was asked for.
    pub(crate) fn summary(&self, text: &str, body: &impl Serialize) -> Result<()> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.summary = serde_json::to_value(body).ok();
        drop(ended);
        if self.settings.json {
            return self.to_main(&json_line(&Line { kind: "summary", body })?);
        }
        if self.settings.quiet { Ok(()) } else { self.to_main(text.as_bytes()) }
    }

    /// How many records were printed, of how many backups: whoever reads them out of a log can tell
    /// whether all are there.
    pub(crate) fn records(&self, count: usize, backups: usize) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.summary = Some(serde_json::json!({ "records": count, "backups": backups }));
    }

    /// A progress line; nobody has to be there to read it.
    pub(crate) fn progress_json(&self, body: &impl Serialize) {
        if let Ok(line) = json_line(&Line { kind: "progress", body }) {
            let _ = self.to_main(&line);
        }
    }

    /// Something that the user should know, although all goes on.
    pub(crate) fn warn(&self, text: &str) {
        self.to_stderr("warning", "\x1b[1;33m", text, &Message { time: now(), message: text });
    }

    /// Something that the user must know once, such as where a new key is; not a warning, but not
    /// for `--quiet` either.
    pub(crate) fn notice(&self, text: &str) {
        if !self.settings.quiet {
            self.announce(text);
        }
    }

    /// A note that also who wants to hear nothing has to know.
    pub(crate) fn announce(&self, text: &str) {
        self.to_stderr("note", "\x1b[1m", text, &Message { time: now(), message: text });
    }

    /// The failure that ends the command. Its exit code is the caller's to return.
    pub(crate) fn error(&self, error: &Error) {
        self.remember(error);
        self.show_error(error);
    }

    /// Keeps it for those who do not read the output.
    pub(crate) fn remember(&self, error: &Error) {
        let text = error.to_string();
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.error = serde_json::to_value(Failure::of(error, &text)).ok();
    }

    /// The line on stderr.
    pub(crate) fn show_error(&self, error: &Error) {
        let text = error.to_string();
        self.to_stderr("error", "\x1b[1;31m", &text, &Failure::of(error, &text));
    }

    /// Shows `bar` until it is replaced; lines go above it.
    pub(crate) fn set_bar(&self, bar: Option<ProgressBar>) {
        let old =
            std::mem::replace(&mut *self.bar.lock().unwrap_or_else(PoisonError::into_inner), bar);
        if let Some(old) = old {
            old.finish_and_clear();
        }
    }

    /// Raw bytes to stderr, above the bar: for log lines.
    pub(crate) fn stderr_bytes(&self, bytes: &[u8]) {
        self.clean_to_stderr(&redact(&String::from_utf8_lossy(bytes)));
    }

    fn clean_to_stderr(&self, text: &str) {
        let write = || {
            // nowhere is left to complain when stderr is gone
            let _ = io::stderr().lock().write_all(text.as_bytes());
        };
        match &*self.bar.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn to_stderr(&self, word: &str, color: &str, text: &str, body: &impl Serialize) {
        let line = if self.settings.json {
            json_line(&Line { kind: word, body }).unwrap_or_default()
        } else if self.settings.color_stderr {
            format!("{color}{word}:\x1b[0m {}\n", one_line(text)).into_bytes()
        } else {
            format!("{word}: {}\n", one_line(text)).into_bytes()
        };
        self.stderr_bytes(&line);
    }

    fn to_main(&self, bytes: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(bytes);
        let text = redact_known(&text);
        if self.stdout_is_data() {
            self.clean_to_stderr(&text);
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        unless_reader_left(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
    }
}

/// That nobody reads any more is no failure; a full disk is.
fn unless_reader_left(written: io::Result<()>) -> Result<()> {
    let Err(e) = written else { return Ok(()) };
    let e = match e.downcast::<Error>() {
        Ok(e) => return Err(e),
        Err(e) => e,
    };
    if e.kind() == io::ErrorKind::BrokenPipe {
        return Ok(());
    }
    let kind =
        if e.kind() == io::ErrorKind::StorageFull { ErrorKind::NoSpace } else { ErrorKind::Device };
    Err(Error::caused(kind, "write to stdout", e))
}

fn json_line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)
        .map_err(|e| Error::caused(ErrorKind::Bug, "write a JSON line", e))?;
    line.push(b'\n');
    Ok(line)
}

/// The time of a line, to a millisecond.
pub(crate) fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// Text that stays on its line, whatever a server, a device or a list put into it.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// Whether the reader of stdout went away: not worth a word.
pub(crate) fn reader_left(error: &Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return true;
        }
        cause = e.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_type_first() {
        let body = Message { time: "T".into(), message: "a\nb" };
        let line = json_line(&Line { kind: "warning", body: &body }).unwrap();
        assert_eq!(line, b"{\"type\":\"warning\",\"time\":\"T\",\"message\":\"a\\nb\"}\n");
    }

    #[test]
    fn errors_stay_on_one_line() {
        assert_eq!(one_line("a\nb\tc\u{1b}[2J"), "a b c\\u{1b}[2J");
    }

    #[test]
    fn a_failure_of_what_is_written_stays_what_it_is() {
        let failed = |e: io::Error| unless_reader_left(Err(e)).unwrap_err();
        let e = Error::new(ErrorKind::Corrupt, "read inode 12", "its checksum does not fit");
        let text = e.to_string();
        let e = failed(io::Error::other(e));
        assert_eq!((e.kind(), e.to_string()), (ErrorKind::Corrupt, text));
        let left = io::Error::from(io::ErrorKind::BrokenPipe);
        let e = failed(io::Error::other(Error::caused(ErrorKind::Device, "write the list", left)));
        assert!(reader_left(&e));
        let full = failed(io::ErrorKind::StorageFull.into());
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(unless_reader_left(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
    }

    #[test]
    fn a_broken_pipe_is_found_among_the_causes() {
        let with =
            |kind: io::ErrorKind| Error::caused(ErrorKind::Device, "write", io::Error::from(kind));
        assert!(reader_left(&with(io::ErrorKind::BrokenPipe)));
        assert!(!reader_left(&with(io::ErrorKind::StorageFull)));
        assert!(!reader_left(&Error::new(ErrorKind::Device, "write", "")));
    }
}
