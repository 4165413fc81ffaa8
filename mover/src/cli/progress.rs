//! Progress: a bar on a terminal, JSON lines otherwise, from the same counters and the same rate.
//!
//! One thread looks at the counters every so often and draws. It holds no lock of the operation,
//! and it waits on one channel only, whose sender is dropped to end it; so it can neither hold up
//! an operation nor outlive it.

use super::output::Output;
use super::settings::ProgressStyle;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use mover_engine::run::{Phase, Progress};
use mover_engine::sizes::{show_bytes, show_seconds};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BAR_INTERVAL: Duration = Duration::from_millis(200);
const BAR_CELLS: u64 = 20;
/// A Job's log is kept; more lines than this help nobody.
const JSON_INTERVAL: Duration = Duration::from_secs(2);
/// The rate is that of the last moments, not of the whole run.
const WINDOW: Duration = Duration::from_secs(10);

/// Progress of one operation on the screen, until it is dropped.
#[derive(Debug)]
pub(crate) struct ProgressView {
    output: Arc<Output>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressView {
    /// Shows `progress` as the settings say.
    pub(crate) fn start(output: &Arc<Output>, progress: &Arc<Progress>) -> Self {
        let mut view = Self { output: Arc::clone(output), stop: None, thread: None };
        let interval = match output.settings().progress {
            ProgressStyle::None => return view,
            ProgressStyle::Bar => BAR_INTERVAL,
            ProgressStyle::Json => JSON_INTERVAL,
        };
        let bar = (output.settings().progress == ProgressStyle::Bar).then(new_bar);
        output.set_bar(bar.clone());
        let (stop, stopped) = bounded::<()>(0);
        let (output, progress) = (Arc::clone(output), Arc::clone(progress));
        let draw = move || {
            let mut pace = EtaEstimator::new(Instant::now());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                let now = Snapshot::take(&progress, &mut pace, Instant::now());
                match &bar {
                    Some(bar) => bar.set_message(now.text()),
                    None => output.progress_json(&now),
                }
            }
        };
        // without a thread there is no progress to see, and nothing else is lost
        view.thread = std::thread::Builder::new().name("progress".into()).spawn(draw).ok();
        view.stop = Some(stop);
        view
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.output.set_bar(None);
    }
}

/// A bar that is all message: one drawing for each look at the counters, cut to the terminal's
/// width.
fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(
        BarStyle::with_template("{wide_msg}").unwrap_or_else(|_| BarStyle::default_spinner()),
    );
    bar
}

/// The counters at one moment, and how fast they move. The JSON line of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    phase: Phase,
    part: u64,
    parts: u64,
    elapsed_seconds: f64,
    total_bytes: u64,
    done_bytes: u64,
    read_bytes: u64,
    zero_bytes: u64,
    unchanged_bytes: u64,
    reused_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    uploaded_bytes: u64,
    written_bytes: u64,
    bytes_per_second: u64,
    eta_seconds: Option<u64>,
}

impl Snapshot {
    fn take(progress: &Progress, pace: &mut EtaEstimator, now: Instant) -> Self {
        let total_bytes = progress.total_bytes.get();
        let done_bytes = progress.done_bytes.get().min(total_bytes.max(1));
        let parts_done = progress.parts_done.get();
        let bytes_per_second = pace.update(now, parts_done, done_bytes);
        let left = total_bytes.saturating_sub(done_bytes);
        Self {
            phase: progress.phase(),
            part: parts_done + 1,
            parts: progress.parts.get().max(parts_done + 1),
            elapsed_seconds: pace.elapsed(now).as_secs_f64(),
            total_bytes,
            done_bytes,
            read_bytes: progress.read_bytes.get(),
            zero_bytes: progress.zero_bytes.get(),
            unchanged_bytes: progress.unchanged_bytes.get(),
            reused_bytes: progress.reused_bytes.get(),
            new_bytes: progress.new_bytes.get(),
            stored_bytes: progress.stored_bytes.get(),
            uploaded_bytes: progress.uploaded_bytes.get(),
            written_bytes: progress.written_bytes.get(),
            bytes_per_second,
            eta_seconds: (total_bytes > 0).then(|| left.checked_div(bytes_per_second)).flatten(),
        }
    }

    /// The line on a terminal.
    fn text(&self) -> String {
        let mut text = format!("{:<9}", self.phase.as_str());
        if self.parts > 1 {
            text.push_str(&format!(" {} of {} ", self.part, self.parts));
        }
        if self.total_bytes == 0 {
            return text;
        }
        let share = |parts: u64| {
            u64::try_from(
                u128::from(self.done_bytes) * u128::from(parts) / u128::from(self.total_bytes),
            )
            .unwrap_or(parts)
        };
        let (done, percent) = (usize::try_from(share(BAR_CELLS)).unwrap_or(0), share(100));
        let left = usize::try_from(BAR_CELLS).unwrap_or(0).saturating_sub(done);
        text.push_str(&format!("[{}{}] {percent:>3}%", "#".repeat(done), "-".repeat(left)));
        let (done, total) = (show_bytes(self.done_bytes), show_bytes(self.total_bytes));
        text.push_str(&format!("  {done} of {total}  {}/s", show_bytes(self.bytes_per_second)));
        if let Some(eta) = self.eta_seconds {
            text.push_str(&format!("  ETA {}", show_seconds(eta)));
        }
        let counts = [
            ("zero", self.zero_bytes),
            ("unchanged", self.unchanged_bytes),
            ("reused", self.reused_bytes),
            ("new", self.new_bytes),
            ("stored", self.stored_bytes),
        ];
        for (i, (word, bytes)) in counts.into_iter().filter(|(_, bytes)| *bytes > 0).enumerate() {
            text.push_str(if i == 0 { "  " } else { ", " });
            text.push_str(&format!("{word} {}", show_bytes(bytes)));
        }
        text
    }
}

/// Rate over the last [`WINDOW`].
#[derive(Debug)]
struct EtaEstimator {
    started: Instant,
    /// The part that the samples are of.
    part: u64,
    samples: VecDeque<(Instant, u64)>,
}

impl EtaEstimator {
    fn new(started: Instant) -> Self {
        Self { started, part: 0, samples: VecDeque::from([(started, 0)]) }
    }

    fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Bytes per second with this sample counted. Each part has a rate of its own, as reading back is
    /// not as fast as writing.
    fn update(&mut self, now: Instant, part: u64, done_bytes: u64) -> u64 {
        if part != self.part {
            self.part = part;
            self.samples = VecDeque::from([(now, done_bytes)]);
            return 0;
        }
        while self.samples.len() > 1
            && self
                .samples
                .get(1)
                .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW)
        {
            self.samples.pop_front();
        }
        let (then, before) = self.samples.front().copied().unwrap_or((self.started, 0));
        self.samples.push_back((now, done_bytes));
        let micros = now.saturating_duration_since(then).as_micros();
        let moved = u128::from(done_bytes.saturating_sub(before)) * 1_000_000;
        moved.checked_div(micros).and_then(|rate| u64::try_from(rate).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_rate_forgets_what_is_long_past() {
        let start = Instant::now();
        let mut pace = EtaEstimator::new(start);
        assert_eq!(pace.update(at(start, 1), 0, 1000), 1000);
        assert_eq!(pace.update(at(start, 2), 0, 3000), 1500);
        for second in 3..60 {
            pace.update(at(start, second), 0, 3000);
        }
        assert_eq!(pace.update(at(start, 60), 0, 3000), 0);
        assert!(pace.samples.len() <= 12);
    }

    #[test]
    fn nothing_is_divided_by_no_time() {
        let start = Instant::now();
        assert_eq!(EtaEstimator::new(start).update(start, 0, 5), 0);
    }

    #[test]
    fn the_line_names_rate_eta_and_what_was_skipped() {
        let progress = Progress::new();
        progress.total_bytes.set(10 << 30);
        progress.done_bytes.set(1 << 30);
        progress.zero_bytes.set(512 << 20);
        progress.unchanged_bytes.set(256 << 20);
        let start = Instant::now();
        let now = Snapshot::take(&progress, &mut EtaEstimator::new(start), at(start, 2));
        assert_eq!(now.eta_seconds, Some(18));
        assert_eq!(
            now.text(),
            "planning [##------------------]  10%  1.00 GiB of 10.0 GiB  512 MiB/s  ETA 18 s  \
             zero 512 MiB, unchanged 256 MiB"
        );
    }

    #[test]
    fn each_part_has_its_own_bar_and_rate() {
        let progress = Progress::new();
        progress.parts.set(2);
        progress.total_bytes.set(1 << 30);
        progress.done_bytes.set(1 << 30);
        let start = Instant::now();
        let mut pace = EtaEstimator::new(start);
        let now = Snapshot::take(&progress, &mut pace, at(start, 8));
        assert!(now.text().starts_with("planning  1 of 2 [####################] 100%"), "{now:?}");
        progress.begin_part(Phase::Verifying, 1 << 30);
        let now = Snapshot::take(&progress, &mut pace, at(start, 9));
        assert_eq!((now.part, now.parts, now.done_bytes, now.eta_seconds), (2, 2, 0, None));
        progress.done_bytes.set(256 << 20);
        let now = Snapshot::take(&progress, &mut pace, at(start, 11));
        assert_eq!((now.bytes_per_second, now.eta_seconds), (128 << 20, Some(6)));
        let text =
            "verifying 2 of 2 [#####---------------]  25%  256 MiB of 1.00 GiB  128 MiB/s  ETA 6 s";
        assert_eq!(now.text(), text);
    }

    #[test]
    fn nothing_is_promised_before_the_plan() {
        let start = Instant::now();
        let now = Snapshot::take(&Progress::new(), &mut EtaEstimator::new(start), at(start, 2));
        assert_eq!((now.eta_seconds, now.text()), (None, "planning ".to_owned()));
    }
}
