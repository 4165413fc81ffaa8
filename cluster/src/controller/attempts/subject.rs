//! What an operation is for, and how long it may take.

use crate::controller::Context;
use crate::controller::task::{Task, Why};
use chrono::DateTime;
use serde_json::Value;
use std::time::Duration;

/// What an operation is for.
#[derive(Debug, Clone)]
pub(crate) struct Subject<'a> {
    /// The task of the object.
    pub(crate) task: &'a Task,
    /// `backup` or `restore`.
    pub(crate) word: &'static str,
    /// Failures that may pass are tried again so often.
    pub(crate) retries: u32,
    /// All attempts together may take so long.
    pub(crate) total: Option<Duration>,
    /// What is not there yet may come: so long it is looked for before that counts as a failure.
    pub(crate) patience: Duration,
    /// The same of what may pass by itself, such as somebody else's work on the claim.
    pub(crate) patience_retryable: Duration,
}

impl Subject<'_> {
    /// Until the object is being deleted or asks for the end, or its time is over.
    pub(super) async fn ended(&self) -> Why {
        let time = async {
            match self.total {
                Some(total) => tokio::time::sleep_until(self.task.begun + total).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            why = self.task.over() => why,
            () = time => Why::Deadline,
        }
    }

    /// The same with the time that is left since its first record was made, by whichever process.
    /// One that has not begun has all its time: neither a clock that is wrong takes any of it, nor a
    /// time without a controller.
    pub(super) fn going_on(&self, context: &Context) -> Self {
        let mut this = self.clone();
        let records = context.objects.records(&self.task.uid);
        let made = |record: &Value| {
            let text = record["metadata"]["creationTimestamp"].as_str()?;
            DateTime::parse_from_rfc3339(text).ok()
        };
        let first = records.iter().filter_map(|record| made(record)).min();
        if let (Some(total), Some(first)) = (&mut this.total, first) {
            let age = ((context.clock)() - first.to_utc()).to_std().unwrap_or_default();
            *total = total.saturating_sub(age.saturating_sub(self.task.begun.elapsed()));
        }
        this
    }

    pub(super) async fn ends_within(&self, time: Duration) -> Option<Why> {
        tokio::time::timeout(time, self.ended()).await.ok()
    }
}
