//! Log lines of the libraries, on stderr: warnings always, more with `-v`; with `--json` one object
//! a line as all else.

use super::args::LogLevel;
use super::output::{Output, now, one_line};
use super::settings::OutputSettings;
use serde_json::{Map, Value, json};
use std::fmt;
use std::io;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Sends all log lines of this process to `output`.
pub(crate) fn install(output: &Arc<Output>) {
    let settings = output.settings();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter(settings)))
        .event_format(Lines { json: settings.json })
        .with_writer(ToOutput(Arc::clone(output)))
        .finish();
    // a second one in the same process (tests) leaves the first in place
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// The libraries of others log for their developers; theirs come one step later than ours.
fn filter(settings: &OutputSettings) -> &'static str {
    let verbosity = match settings.log_level {
        Some(LogLevel::Error) => return "off,mover=error,chunkstore=error",
        None | Some(LogLevel::Warn) => 0,
        Some(LogLevel::Info) => 1,
        Some(LogLevel::Debug) => 2,
        Some(LogLevel::Trace) => 3,
    };
    match verbosity.max(settings.verbosity) {
        0 => "off,mover=warn,chunkstore=warn",
        1 => "warn,mover=info,chunkstore=info,object_store=info",
        2 => "info,mover=debug,chunkstore=debug,object_store=debug",
        // requests and answers of the HTTP libraries hold credentials: never below debug
        _ => "info,mover=trace,chunkstore=trace,object_store=debug",
    }
}

#[derive(Debug, Clone)]
struct ToOutput(Arc<Output>);

/// Collects one event and prints it at once, above the progress bar.
struct OneEvent<'a> {
    output: &'a Output,
    line: Vec<u8>,
}

impl<'a> MakeWriter<'a> for ToOutput {
    type Writer = OneEvent<'a>;

    fn make_writer(&'a self) -> OneEvent<'a> {
        OneEvent { output: &self.0, line: Vec::new() }
    }
}

impl io::Write for OneEvent<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for OneEvent<'_> {
    fn drop(&mut self) {
        self.output.stderr_bytes(&self.line);
    }
}

/// `level: message, name=value, …`, or the same as a JSON object.
struct Lines {
    json: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let mut fields = Fields::default();
        event.record(&mut fields);
        if self.json {
            let kind = if level <= Level::WARN { "warning" } else { "log" };
            let mut line = json!({
                "type": kind,
                "time": now(),
                "level": level.as_str().to_ascii_lowercase(),
                "target": event.metadata().target(),
                "message": fields.message,
            });
            if !fields.others.is_empty() {
                line["fields"] = Value::Object(fields.others);
            }
            return writeln!(writer, "{line}");
        }
        let word = match level {
            Level::ERROR | Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        };
        write!(writer, "{word}: {}", one_line(&fields.message))?;
        for (name, value) in fields.others {
            write!(writer, ", {name}={}", one_line(&value.to_string()))?;
        }
        writeln!(writer)
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", value) => self.message = value.to_string(),
            (name, value) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::String(value.to_owned()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Collect(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Collect {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(json: bool) -> String {
        let lines = Collect::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .event_format(Lines { json })
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(tries = 3_u64, place = "s3://b", "the store\nis slow");
            tracing::info!("done");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_for_each_event() {
        let text = logged(false);
        assert_eq!(text, "warning: the store is slow, place=\"s3://b\", tries=3\ninfo: done\n");
    }

    #[test]
    fn an_object_for_each_event() {
        let lines: Vec<Value> =
            logged(true).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines[0]["type"], "warning");
        assert_eq!(lines[0]["message"], "the store\nis slow");
        assert_eq!(lines[0]["fields"]["tries"], 3);
        assert_eq!(lines[1]["type"], "log");
    }
}
