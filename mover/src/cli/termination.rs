//! The termination message: how a run ended, in one JSON object for a kubelet.
//!
//! A kubelet shows the content of one file (`/dev/termination-log`) as the message of a container
//! that has ended, 4096 bytes of it. The file is written at the start with what is true if nothing
//! follows (somebody killed the process), again when a stop is asked for, and at the end with the
//! outcome. It is written in place, since it is a mount of its own and cannot be renamed over. So it
//! is looked at first: where others may write to its directory, its name may lead to another file.
//!
//! The place is one for the process, set once: the panic hook and the threads that end the process
//! have nothing else to be told it by. That it cannot be written is worth a warning, and no
//! failure.

use super::context::tool;
use super::output::{Ended, now};
use crate::cgroup::CgroupLimits;
use chunkstore::secrets::{redact, redact_known};
use mover_engine::sizes::show_bytes;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a kubelet reads of it.
const BYTES_MAX: usize = 4096;
/// Of each end of a text that does not fit otherwise: both say more than its middle.
const END_CHARS: usize = 250;
/// What is left out first, where all does not fit.
const LONG_MEMBERS: [&str; 6] =
    ["damaged", "limits", "bounds", "engine_notes", "requests", "warnings"];

static PLACE: OnceLock<(PathBuf, &'static str)> = OnceLock::new();
/// What stands there. Who writes holds it, and for nothing else.
static WRITTEN: Mutex<Option<Written>> = Mutex::new(None);

/// A later one is never overwritten by an earlier one, whichever thread is quicker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Begun,
    Stopping,
    Ended,
}

/// From now on `path` says that `command` was killed, unless [`end`] is called.
pub(crate) fn begin(path: Option<PathBuf>, command: &'static str, limits: &CgroupLimits) {
    let Some(path) = path else { return };
    let (path, command) = PLACE.get_or_init(|| (path, command));
    let body = killed(command, limits);
    if let Err(why) = save(path, body, Written::Begun) {
        tracing::warn!("{why}");
    }
}

/// Of a process that could not say more: the kernel says OOMKilled to the kubelet only.
fn killed(command: &str, limits: &CgroupLimits) -> Map<String, Value> {
    let mut body = head("killed", command);
    let (limit, hint) = match limits.memory_bytes.map(show_bytes) {
        Some(limit) => (
            format!(" (the memory limit of this pod or control group is {limit})"),
            format!(
                "where the container's reason is OOMKilled, raise its memory limit of {limit} first; then run the same command again"
            ),
        ),
        None => (String::new(), "run the same command again".to_owned()),
    };
    body.insert(
        "message".into(),
        format!(
            "it was ended from outside before it could say more: out of memory{limit}, evicted, or its node failed"
        )
        .into(),
    );
    body.insert("hint".into(), hint.into());
    body
}

/// From now on it says that a stop was asked for, unless [`end`] is called: a second signal, or the
/// kubelet's last one, leaves no time to say more.
pub(crate) fn stopping() {
    let Some((path, command)) = PLACE.get() else { return };
    let mut body = head("killed", command);
    body.insert(
        "message".into(),
        "it was asked to stop, and ended by another signal before it could say how far it was"
            .into(),
    );
    body.insert("hint".into(), "run the same command again".into());
    // who asks for a stop waits for nobody who reads warnings, and the end says it too
    let _ = save(path, body, Written::Stopping);
}

/// Says how the run ended. What is given is worth a warning, where somebody may wait for its
/// reader.
pub(crate) fn end(exit_code: u8, ended: &Ended) -> Result<(), String> {
    let Some((path, command)) = PLACE.get() else { return Ok(()) };
    save(path, outcome(command, exit_code, ended), Written::Ended)
}

/// Says that it ended where there is no more than a message: in the panic hook, or before anything
/// began.
pub(crate) fn refused(exit_code: u8, kind: &str, message: &str) {
    let error = json!({ "kind": kind, "message": message });
    // what was said already is worth more than that it could not be said here
    let _ = end(exit_code, &Ended { summary: None, error: Some(error) });
}

fn head(state: &str, command: &str) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("state".into(), state.into());
    body.insert("command".into(), command.into());
    body.insert("tool".into(), tool().into());
    body.insert("time".into(), now().into());
    body
}

fn outcome(command: &str, exit_code: u8, ended: &Ended) -> Map<String, Value> {
    let state = match (&ended.error, exit_code) {
        (None, 0) => "ok",
        (_, super::exit::CANCELLED | super::exit::LIMIT) => "stopped",
        _ => "failed",
    };
    let mut body = head(state, command);
    body.insert("exit_code".into(), exit_code.into());
    body.insert("retryable".into(), super::exit::is_retryable(exit_code).into());
    for name in ["kind", "message", "hint"] {
        let value = ended.error.as_ref().and_then(|error| error.get(name));
        if let Some(value) = value.filter(|value| !value.is_null()) {
            body.insert(name.into(), value.clone());
        }
    }
    if let Some(summary) = &ended.summary {
        body.insert("summary".into(), summary.clone());
    }
    body
}

/// As much of it as a kubelet reads, never cut in the middle of the JSON.
fn compact(mut body: Map<String, Value>) -> Vec<u8> {
    let fits = |body: &Map<String, Value>| {
        serde_json::to_vec(body).ok().filter(|bytes| bytes.len() <= BYTES_MAX)
    };
    for name in LONG_MEMBERS {
        if let Some(bytes) = fits(&body) {
            return bytes;
        }
        if let Some(Value::Object(summary)) = body.get_mut("summary") {
            summary.remove(name);
        }
    }
    shorten(&mut body);
    if let Some(Value::Object(summary)) = body.get_mut("summary") {
        shorten(summary);
    }
    fits(&body).unwrap_or_else(|| {
        body.remove("summary");
        fits(&body).unwrap_or_default()
    })
}

fn shorten(body: &mut Map<String, Value>) {
    for value in body.values_mut() {
        if let Value::String(text) = value
            && text.chars().count() > 2 * END_CHARS
        {
            let start: String = text.chars().take(END_CHARS).collect();
            let end = text.char_indices().rev().nth(END_CHARS - 1).map_or(0, |(at, _)| at);
            *value = format!("{start} … {}", &text[end..]).into();
        }
    }
}

fn save(path: &Path, body: Map<String, Value>, what: Written) -> Result<(), String> {
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if written.is_some_and(|before| before > what) {
        return Ok(());
    }
    *written = Some(what);
    let saved = overwrite(path, compact(hidden(body)));
    drop(written);
    saved.map_err(|e| format!("write the termination message {}: {e}", path.display()))
}

/// Leaves secrets out of all texts, before any is shortened. The summary holds names and ids, which
/// may stand as a secret does; its warnings and what is said of an error may be a server's words.
fn hidden(mut body: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in &mut body {
        match value {
            Value::Object(summary) if name == "summary" => {
                for (name, value) in summary {
                    hide(value, if name == "warnings" { redact } else { redact_known });
                }
            }
            value => hide(value, redact),
        }
    }
    body
}

fn hide(value: &mut Value, redact: fn(&str) -> Cow<'_, str>) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(clean) = redact(text) {
                *text = clean;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| hide(value, redact)),
        Value::Object(members) => members.values_mut().for_each(|value| hide(value, redact)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whoever is killed in between leaves the message before or this one: it is written over the other
/// in one call, with blanks over what that had more.
fn overwrite(path: &Path, mut bytes: Vec<u8>) -> io::Result<()> {
    let mut file = open(path)?;
    let meta = file.metadata()?;
    let (len, before) = (bytes.len(), usize::try_from(meta.len()).unwrap_or(BYTES_MAX));
    bytes.resize(len.max(before.min(BYTES_MAX)), b' ');
    file.write_all(&bytes)?;
    if meta.is_file() { file.set_len(len as u64) } else { Ok(()) }
}

/// A link is followed where it is this user's or root's (`/dev/stderr` is one), and a file with
/// several names is none that was meant for this. Does not wait for the reader of a pipe.
fn open(path: &Path) -> io::Result<File> {
    let with = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.custom_flags((flags | OFlags::NONBLOCK).bits().cast_signed()).open(path)
    };
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let file = match with(OFlags::NOFOLLOW) {
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            let owner = path.symlink_metadata()?.uid();
            if owner != 0 && owner != geteuid().as_raw() {
                return refused("it is a symbolic link of another user");
            }
            with(OFlags::empty())?
        }
        opened => opened?,
    };
    let meta = file.metadata()?;
    if meta.is_file() && meta.nlink() > 1 {
        return refused("it is a file that has another name too");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn what_others_plant_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("log"), directory.path().join("victim"));
        let untouched = || assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of somebody");
        std::fs::write(&victim, "of somebody").unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        assert!(overwrite(&path, b"ours".to_vec()).is_err());
        untouched();
        std::fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        match lchown(&path, Some(12345), None) {
            Ok(()) => {
                let e = overwrite(&path, b"ours".to_vec()).unwrap_err();
                assert!(e.to_string().contains("another user"), "{e}");
                untouched();
                lchown(&path, Some(geteuid().as_raw()), None).unwrap();
            }
            Err(e) => println!("SKIP: needs the right to give a link away: {e}"),
        }
        overwrite(&path, b"ours".to_vec()).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "ours");
        // a pipe that nobody reads does not keep the program
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        assert!(overwrite(&pipe, b"ours".to_vec()).is_err());
    }

    fn parsed(body: Map<String, Value>) -> Value {
        let bytes = compact(body);
        assert!(bytes.len() <= BYTES_MAX, "{}", bytes.len());
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn who_was_killed_names_the_limit() {
        let limits = |memory_bytes| CgroupLimits { memory_bytes, cpu_millis: None };
        let body = parsed(killed("backup", &limits(Some(320 << 20))));
        assert!(body["message"].as_str().unwrap().contains("is 320 MiB)"), "{body}");
        let hint = body["hint"].as_str().unwrap();
        assert!(hint.contains("OOMKilled") && hint.contains("320 MiB"), "{hint}");
        assert_eq!(parsed(killed("backup", &limits(None)))["hint"], "run the same command again");
    }

    #[test]
    fn an_outcome_says_whether_to_try_again() {
        let error = json!({ "kind": "unavailable", "message": "m", "hint": null, "exit_code": 1 });
        let failed = Ended { summary: None, error: Some(error) };
        let body = parsed(outcome("backup", 1, &failed));
        assert_eq!((&body["state"], &body["retryable"]), (&json!("failed"), &json!(true)));
        assert_eq!((&body["kind"], &body["message"]), (&json!("unavailable"), &json!("m")));
        assert!(body.get("hint").is_none());
        let body = parsed(outcome("backup", 143, &failed));
        assert_eq!((&body["state"], &body["retryable"]), (&json!("stopped"), &json!(true)));
        let done = Ended { summary: Some(json!({ "read_bytes": 5 })), error: None };
        let body = parsed(outcome("backup", 0, &done));
        assert_eq!((&body["state"], &body["summary"]["read_bytes"]), (&json!("ok"), &json!(5)));
    }

    #[test]
    fn secrets_are_left_out_wherever_they_stand() {
        chunkstore::secrets::remember_secret("a secret of termination");
        let said = "it said a secret of termination, sig=0123456789abcdef";
        let name = "a secret of termination sig 0123456789abcdef";
        let body = json!({ "message": said, "summary": { "warnings": [said, 5], "id": name } });
        let Value::Object(body) = body else { panic!("an object") };
        let clean = "it said [hidden], sig=[hidden]";
        let name = "[hidden] sig 0123456789abcdef";
        let expected =
            json!({ "message": clean, "summary": { "warnings": [clean, 5], "id": name } });
        assert_eq!(Value::Object(hidden(body)), expected);
    }

    #[test]
    fn what_matters_least_is_left_out_first() {
        let warnings: Vec<String> = (0..200).map(|n| format!("warning {n} of many")).collect();
        let summary = json!({ "read_bytes": 5, "limits": [1, 2], "warnings": warnings });
        let done = Ended { summary: Some(summary), error: None };
        let body = parsed(outcome("backup", 0, &done));
        assert_eq!(body["summary"], json!({ "read_bytes": 5 }));
        let error = json!({ "kind": "device", "message": "ä".repeat(5000), "hint": "h" });
        let body = parsed(outcome("backup", 1, &Ended { summary: None, error: Some(error) }));
        let text = body["message"].as_str().unwrap();
        assert!(text.contains('…') && text.chars().count() == 503, "{text}");
    }
    #[test]
    fn a_message_takes_the_place_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for text in ["a longer one", "short", "longer than both of them"] {
            overwrite(&path, text.into()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        overwrite(Path::new("/dev/null"), b"no file".to_vec()).unwrap();
        assert!(overwrite(directory.path(), Vec::new()).is_err());
    }
}
