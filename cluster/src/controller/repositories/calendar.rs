//! Patterns of cron, each read once: a plan is made often, and a pattern takes longer to read than
//! all the rest of it.

use crate::kinds;
use crate::schedule::{BadCron, Cron};
use std::cell::RefCell;
use std::collections::BTreeMap;

type Pattern = (String, Option<String>);

/// The patterns that were read.
#[derive(Debug, Default)]
pub struct Calendar(RefCell<BTreeMap<Pattern, Result<Cron, BadCron>>>);

impl Calendar {
    /// What an object says.
    ///
    /// # Errors
    ///
    /// It cannot be meant.
    pub fn of(&self, at: &kinds::CronTimes) -> Result<Cron, BadCron> {
        self.read(&at.cron, at.time_zone.as_deref())
    }

    /// A pattern in a time zone.
    ///
    /// # Errors
    ///
    /// It cannot be meant.
    pub fn read(&self, text: &str, zone: Option<&str>) -> Result<Cron, BadCron> {
        let pattern = (text.to_owned(), zone.map(str::to_owned));
        let mut known = self.0.borrow_mut();
        known.entry(pattern).or_insert_with(|| Cron::parse(text, zone)).clone()
    }
}
