//! What is printed: results on stdout, everything else on stderr.

use super::args::Format;
use crate::engine::{Failure, Wait};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::Duration;

/// Where results go, and how.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
    quiet: bool,
    bar: Option<ProgressBar>,
    /// What was said last, which is not said twice.
    said: Mutex<String>,
}

impl Output {
    pub(super) fn new(format: Format, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(
                ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { format, quiet, bar, said: Mutex::default() }
    }

    /// What is waited for.
    pub(super) fn waiting(&self, wait: &Wait) {
        self.progress(&wait.why);
    }

    /// What is done now.
    pub(super) fn progress(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
            return;
        }
        let Ok(mut said) = self.said.lock() else { return };
        if self.quiet || *said == text {
            return;
        }
        text.clone_into(&mut said);
        drop(said);
        self.say(text);
    }

    /// How far it is, which changes too often for lines.
    pub(super) fn so_far(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// A line for people.
    pub(super) fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        let line = || drop(writeln!(std::io::stderr(), "{text}"));
        match &self.bar {
            Some(bar) => bar.suspend(line),
            None => line(),
        }
    }

    /// A result: as a record, or as the text that people get.
    pub(super) fn result(&self, record: &Value, text: &str) {
        self.finish();
        let text = match self.format {
            Format::Json => record.to_string(),
            Format::Yaml => yaml(record),
            Format::Table | Format::Wide => text.to_owned(),
        };
        // Whoever closed the other end wants no more of it.
        let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    }

    /// Results as a table, of which `wide` columns come last, or as records.
    pub(super) fn table(&self, head: &[&str], wide: usize, rows: &[(Vec<String>, Value)]) {
        let shown = match self.format {
            Format::Wide => head.len(),
            _ => head.len() - wide,
        };
        let mut widths: Vec<usize> = head.iter().map(|text| text.chars().count()).collect();
        for (row, _) in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: Vec<&str>| {
            let cells = cells.iter().zip(&widths).take(shown);
            let text: String = cells.map(|(cell, width)| format!("{cell:<width$}  ")).collect();
            text.trim_end().to_owned()
        };
        let mut lines = vec![line(head.to_vec())];
        lines.extend(rows.iter().map(|(row, _)| line(row.iter().map(String::as_str).collect())));
        let records: Vec<&Value> = rows.iter().map(|(_, record)| record).collect();
        self.result(&json!({ "items": records }), &lines.join("\n"));
    }

    /// A failure; its exit code.
    pub(super) fn failure(&self, why: &Failure) -> u8 {
        self.finish();
        let text = match self.format {
            Format::Json => json!({
                "type": "error",
                "exit_code": why.exit_code,
                "message": why.message,
                "hint": why.hint,
            })
            .to_string(),
            _ => match &why.hint {
                Some(hint) => format!("error: {}\nhint: {hint}", why.message),
                None => format!("error: {}", why.message),
            },
        };
        let _ = writeln!(std::io::stderr(), "{text}");
        why.exit_code
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// JSON is YAML; this is the form that people read.
fn yaml(record: &Value) -> String {
    serde_saphyr::to_string(record).unwrap_or_else(|_| record.to_string())
}
