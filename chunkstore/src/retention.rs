//! Which backups a policy keeps, and why: a pure decision over a listing.
//!
//! Each volume is decided about by itself. Its backups are walked from the newest to the oldest, by
//! their one order (`Manifest::order`), and every rule of the policy says whether it keeps the one
//! at hand: the first `last` of them, the newest of each of the first so many hours, days, weeks,
//! months and years that have a backup, those that finished within a span before the newest one, and
//! those with a label. A backup that no rule keeps is to be forgotten.
//!
//! - Which backup is the newest is a matter of their order, never of times. Times only say in which
//!   hour or day one falls, and whether it is within a span. They are those of the manifests, in UTC,
//!   which are by the store's clock.
//! - `within` counts from the volume's newest backup, so a policy that runs after backups have
//!   stopped forgets nothing more than it did before.
//! - A store's clock may have jumped. Times then do not fall with the order, so each rule remembers
//!   all periods that it has counted. A time that is yet to come is not counted from, and such a
//!   backup is as old as the next newer one: for this alone the caller says what time it is. Where
//!   only the caller's clock is off, a policy keeps as much as it does otherwise, or more.
//! - A policy without a rule decides nothing and is refused ([`KeepPolicy::check`]); a rule that counts
//!   to zero is none.
//! - A volume of which the rules keep nothing keeps its newest backup, unless the policy says that
//!   it may lose all.
//! - A volume may have rules of its own ([`plan_forget_by`]), also for backups of one label alone:
//!   of two owners of a name, neither decides about what the other has stored.
//! - The rule for all other volumes may be bounded to those whose names begin alike
//!   ([`RestRule::below`]): of several clusters in one repository, none forgets for another.

mod volumes;

pub use volumes::{RestRule, VolumePrefix, VolumeRule};

use crate::advice::Setting;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::ids::VolumeName;
use crate::repository::BackupEntry;
use crate::repository::{Hold, hold_on};
use chrono::{DateTime, Datelike, Months, TimeDelta, Utc};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What to keep. A rule that is 0, `None` or empty is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeepPolicy {
    /// The newest so many.
    pub last: u32,
    /// The newest of each of so many hours.
    pub hourly: u32,
    /// The newest of each of so many days.
    pub daily: u32,
    /// The newest of each of so many weeks, which begin on Mondays (ISO 8601).
    pub weekly: u32,
    /// The newest of each of so many months.
    pub monthly: u32,
    /// The newest of each of so many years.
    pub yearly: u32,
    /// All that finished so long before the newest one, or less.
    pub within: Option<CalendarSpan>,
    /// All that have one of these labels.
    pub tags: Vec<KeepTag>,
    /// Whether a volume may lose its last backup when no rule keeps any.
    pub allow_none: bool,
}

/// A length of time as calendars have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CalendarSpan {
    /// Months, 12 to a year.
    pub months: u32,
    /// Hours, 24 to a day.
    pub hours: u32,
}

/// A label that keeps a backup: with any value, or with this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepTag {
    /// Name of the label.
    pub name: String,
    /// Its value; `None`: whatever it is.
    pub value: Option<String>,
}

/// Why a backup stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepReason {
    /// Among the newest; which of them, from 1.
    Last(u32),
    /// The newest of this period.
    Period(KeepPeriod, String),
    /// Within the span.
    Within(CalendarSpan),
    /// Has the label.
    Tag(KeepTag),
    /// No rule keeps any backup of its volume, and it is the newest.
    Newest,
    /// A live restore on this host needs it.
    Held(String),
    /// Its volume has no rule of its own, and the rule for all others is not about it.
    Outside(VolumePrefix),
}

/// What a rule counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepPeriod {
    /// By hours.
    Hour,
    /// By days.
    Day,
    /// By weeks.
    Week,
    /// By months.
    Month,
    /// By years.
    Year,
}

/// One backup and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepDecision<'a> {
    /// The backup.
    pub backup: &'a BackupEntry,
    /// Why it stays; none: it is to be forgotten.
    pub reasons: Vec<KeepReason>,
}

impl KeepDecision<'_> {
    /// Whether the backup stays.
    pub fn keep(&self) -> bool {
        !self.reasons.is_empty()
    }
}

impl KeepPolicy {
    /// Refuses a policy without a rule: it would keep nothing.
    pub fn check(&self) -> Result<()> {
        let counts = [self.last, self.hourly, self.daily, self.weekly, self.monthly, self.yearly];
        let spans = self.within.is_some_and(|span| span != CalendarSpan::default());
        if counts.iter().any(|n| *n > 0) || spans || !self.tags.is_empty() {
            return Ok(());
        }
        let detail = "the policy has no rule, so it would keep nothing";
        Err(Error::new(ErrorKind::Usage, "forget by policy", detail).hint(format!(
            "say what to keep, such as {daily} 7 {weekly} 5, or name one backup",
            daily = Setting("keep-daily"),
            weekly = Setting("keep-weekly")
        )))
    }

    fn periods(&self) -> [(KeepPeriod, u32); 5] {
        [
            (KeepPeriod::Hour, self.hourly),
            (KeepPeriod::Day, self.daily),
            (KeepPeriod::Week, self.weekly),
            (KeepPeriod::Month, self.monthly),
            (KeepPeriod::Year, self.yearly),
        ]
    }
}

/// What becomes of each of these backups, by volume and then from the oldest to the newest.
/// `now` is only looked at to tell times that are yet to come.
pub fn plan_forget<'a>(
    policy: &KeepPolicy,
    backups: &'a [BackupEntry],
    now: DateTime<Utc>,
) -> Result<Vec<KeepDecision<'a>>> {
    policy.check()?;
    let mut volumes: BTreeMap<_, Vec<&BackupEntry>> = BTreeMap::new();
    for backup in backups {
        volumes.entry(&backup.manifest.volume).or_default().push(backup);
    }
    let mut decisions = Vec::with_capacity(backups.len());
    for mut of_volume in volumes.into_values() {
        of_volume.sort_by(|a, b| b.manifest.order().cmp(&a.manifest.order()));
        let mut decided = decide(policy, &of_volume, now);
        decided.reverse();
        decisions.append(&mut decided);
    }
    Ok(decisions)
}

/// Decides about some volumes by rules of their own, and about all else by `rest`; without that, all
/// else is in no decision and stays. Volumes that `rest` is not about stay whole.
///
/// Backups of one volume to which the same rules apply are decided about together, each rule by
/// itself: a backup stays if any of these rules keeps it.
///
/// # Errors
///
/// A policy without a rule.
pub fn plan_forget_by<'a>(
    rest: Option<RestRule<'_>>,
    rules: &[VolumeRule],
    backups: &'a [BackupEntry],
    now: DateTime<Utc>,
) -> Result<Vec<KeepDecision<'a>>> {
    let of_rest = rest.map(|rest| rest.policy);
    rules.iter().map(|rule| &rule.policy).chain(of_rest).try_for_each(KeepPolicy::check)?;
    let mut of_volume: BTreeMap<&VolumeName, Vec<usize>> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        of_volume.entry(&rule.volume).or_default().push(index);
    }
    let mut groups: BTreeMap<(&VolumeName, Vec<usize>), Vec<&BackupEntry>> = BTreeMap::new();
    for backup in backups {
        let Manifest { volume, labels, .. } = &backup.manifest;
        let named = of_volume.get(volume).into_iter().flatten().copied();
        let apply = |index: &usize| rules[*index].only.as_ref().is_none_or(|tag| tag.is_on(labels));
        groups.entry((volume, named.filter(apply).collect())).or_default().push(backup);
    }
    let mut decisions = Vec::with_capacity(backups.len());
    for ((volume, indices), mut group) in groups {
        let mut policies: Vec<&KeepPolicy> = indices.iter().map(|at| &rules[*at].policy).collect();
        group.sort_by(|a, b| b.manifest.order().cmp(&a.manifest.order()));
        if policies.is_empty() {
            if let Some(prefix) = rest.and_then(|rest| rest.outside(volume)) {
                let reasons = || vec![KeepReason::Outside(prefix.clone())];
                let stays = |backup| KeepDecision { backup, reasons: reasons() };
                decisions.extend(group.into_iter().rev().map(stays));
                continue;
            }
            policies.extend(of_rest);
        }
        let mut by_policy = policies.into_iter().map(|policy| decide(policy, &group, now));
        let Some(mut decided) = by_policy.next() else { continue };
        for more in by_policy {
            for (decision, other) in decided.iter_mut().zip(more) {
                decision.reasons.extend(other.reasons);
            }
        }
        decided.reverse();
        decisions.append(&mut decided);
    }
    Ok(decisions)
}

/// What is held stays, whatever the rules say.
pub fn keep_held(decisions: &mut [KeepDecision<'_>], holds: &[Hold]) {
    for decision in decisions {
        let held = hold_on(holds, &decision.backup.manifest.name());
        decision.reasons.extend(held.map(|hold| KeepReason::Held(hold.host.clone())));
    }
}

/// Of one volume, the newest first.
fn decide<'a>(
    policy: &KeepPolicy,
    backups: &[&'a BackupEntry],
    now: DateTime<Utc>,
) -> Vec<KeepDecision<'a>> {
    let mut age = backups.iter().map(|b| b.time()).find(|time| *time <= now);
    let oldest_within = policy
        .within
        .filter(|span| *span != CalendarSpan::default())
        .map(|span| (span, age.and_then(|newest| span.before(newest))));
    let mut counted = policy.periods().map(|(period, most)| (period, most, BTreeSet::new()));
    let mut decisions: Vec<KeepDecision<'a>> = Vec::with_capacity(backups.len());
    for (backup, number) in backups.iter().zip(1..) {
        let time = backup.time();
        age = if time <= now { Some(time) } else { age };
        let mut reasons = Vec::new();
        if number <= policy.last {
            reasons.push(KeepReason::Last(number));
        }
        for (period, left, seen) in &mut counted {
            let name = period.of(&time);
            if *left > 0 && seen.insert(name.clone()) {
                *left -= 1;
                reasons.push(KeepReason::Period(*period, name));
            }
        }
        if let Some((span, oldest)) = oldest_within
            && oldest.is_none_or(|oldest| age.is_none_or(|time| time >= oldest))
        {
            reasons.push(KeepReason::Within(span));
        }
        let labels = &backup.manifest.labels;
        let tags = policy.tags.iter().filter(|tag| tag.is_on(labels));
        reasons.extend(tags.cloned().map(KeepReason::Tag));
        decisions.push(KeepDecision { backup, reasons });
    }
    if !policy.allow_none
        && !decisions.iter().any(KeepDecision::keep)
        && let Some(newest) = decisions.first_mut()
    {
        newest.reasons.push(KeepReason::Newest);
    }
    decisions
}

impl KeepPeriod {
    /// Name of the period that holds this moment; names of one kind are equal within it and nowhere
    /// else.
    fn of(self, time: &DateTime<Utc>) -> String {
        match self {
            Self::Hour => format!("{}Z", time.format("%Y-%m-%d %H")),
            Self::Day => time.format("%Y-%m-%d").to_string(),
            Self::Week => {
                let week = time.iso_week();
                format!("{}-W{:02}", week.year(), week.week())
            }
            Self::Month => time.format("%Y-%m").to_string(),
            Self::Year => time.format("%Y").to_string(),
        }
    }

    fn rule(self) -> &'static str {
        match self {
            Self::Hour => "hourly",
            Self::Day => "daily",
            Self::Week => "weekly",
            Self::Month => "monthly",
            Self::Year => "yearly",
        }
    }
}

impl CalendarSpan {
    /// From what is typed: numbers with `h`, `d`, `w`, `m` (months) or `y`, such as `14d` or
    /// `1y6m`.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(ErrorKind::Usage, format!("read a span of time {text:?}"), why)
                .hint("write it like 36h, 14d, 8w, 6m (months) or 1y6m")
        };
        let mut span = Self::default();
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(bad("it is empty"));
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| bad("no unit"))?;
            let (number, behind) = rest.split_at(digits);
            let number: u32 =
                number.parse().map_err(|_| bad("a number is missing or too large"))?;
            let mut behind = behind.chars();
            let (months, hours) = match behind.next() {
                Some('h') => (0, 1),
                Some('d') => (0, 24),
                Some('w') => (0, 24 * 7),
                Some('m') => (1, 0),
                Some('y') => (12, 0),
                _ => return Err(bad("a unit is not known")),
            };
            let add = |sum: u32, each: u32| number.checked_mul(each)?.checked_add(sum);
            span.months = add(span.months, months).ok_or_else(|| bad("it is too long"))?;
            span.hours = add(span.hours, hours).ok_or_else(|| bad("it is too long"))?;
            rest = behind.as_str();
        }
        Ok(span)
    }

    /// So long after; `None`: after all times that there are.
    pub fn after(self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        time.checked_add_months(Months::new(self.months))?
            .checked_add_signed(TimeDelta::try_hours(i64::from(self.hours))?)
    }

    /// So long before; `None`: before all times that there are.
    fn before(self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        time.checked_sub_months(Months::new(self.months))?
            .checked_sub_signed(TimeDelta::try_hours(i64::from(self.hours))?)
    }
}

impl fmt::Display for CalendarSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, hours) = (self.hours / 24, self.hours % 24);
        let parts = [(self.months / 12, 'y'), (self.months % 12, 'm'), (days, 'd'), (hours, 'h')];
        for (number, unit) in parts.into_iter().filter(|(number, _)| *number > 0) {
            write!(f, "{number}{unit}")?;
        }
        if *self == Self::default() { f.write_str("0h") } else { Ok(()) }
    }
}

impl KeepTag {
    /// From what is typed: `NAME` or `NAME=VALUE`.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(Error::new(ErrorKind::Usage, format!("read label {text:?}"), "no name")
                .hint("write NAME or NAME=VALUE"));
        }
        Ok(Self { name: name.to_owned(), value })
    }

    fn is_on(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(&self.name).is_some_and(|v| self.value.as_ref().is_none_or(|value| value == v))
    }
}

impl fmt::Display for KeepTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last(number) => write!(f, "last {number}"),
            Self::Period(period, name) => write!(f, "{} {name}", period.rule()),
            Self::Within(span) => write!(f, "within {span}"),
            Self::Tag(tag) => write!(f, "tag {tag}"),
            Self::Newest => f.write_str("no rule keeps any, and it is the newest"),
            Self::Held(host) => write!(f, "a live restore on {host} needs it"),
            Self::Outside(prefix) => write!(f, "its volume is not below {prefix}"),
        }
    }
}

#[cfg(test)]
mod tests;
