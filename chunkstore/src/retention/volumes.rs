//! Which rules are about which volumes.

use super::{CalendarSpan, KeepPolicy, KeepTag};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::VolumeName;
use std::fmt;

/// What to keep of the volumes that have no rule of their own.
#[derive(Debug, Clone, Copy)]
pub struct RestRule<'a> {
    /// What stays of each.
    pub policy: &'a KeepPolicy,
    /// It is about volumes whose names begin so, and all others stay whole; about all without it.
    pub below: Option<&'a VolumePrefix>,
}

impl<'a> RestRule<'a> {
    /// The prefix that keeps this volume from the rule.
    pub(super) fn outside(self, volume: &VolumeName) -> Option<&'a VolumePrefix> {
        self.below.filter(|prefix| !prefix.is_of(volume))
    }
}

/// The beginning of names of volumes, up to and with a `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePrefix(String);

impl VolumePrefix {
    /// From what is typed: the beginning of a name, and a `/` at its end.
    ///
    /// # Errors
    ///
    /// One without the `/`, which would also be that of names that go on otherwise, and one that
    /// begins no name.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(ErrorKind::Usage, format!("read the prefix {text:?} of volumes"), why)
                .hint("write it with a / at its end, like prod/ or prod/shop/")
        };
        let name = text.strip_suffix('/').ok_or_else(|| bad("it does not end with /"))?;
        if name.is_empty() {
            return Err(bad("there is nothing before the /"));
        }
        VolumeName::new(name)?;
        Ok(Self(text.to_owned()))
    }

    /// Whether the name of a volume begins so.
    pub fn is_of(&self, volume: &VolumeName) -> bool {
        volume.as_str().starts_with(&self.0)
    }
}

impl fmt::Display for VolumePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What to keep of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRule {
    /// The volume.
    pub volume: VolumeName,
    /// It is about backups with this label alone; about all of the volume without it.
    pub only: Option<KeepTag>,
    /// What stays of them.
    pub policy: KeepPolicy,
}

impl VolumeRule {
    /// From what is typed: `RULES:VOLUME`, where RULES are joined by commas, such as
    /// `last=3,daily=7,within=14d,only=LABEL=VALUE`.
    ///
    /// # Errors
    ///
    /// What cannot be read, or has no rule.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: String| {
            Error::new(ErrorKind::Usage, format!("read the rule {text:?}"), why)
                .hint("write it like last=3,daily=7,within=14d:VOLUME")
        };
        let (rules, volume) =
            text.split_once(':').ok_or_else(|| bad("it names no volume".into()))?;
        let mut policy = KeepPolicy::default();
        let mut only = None;
        for rule in rules.split(',') {
            let (name, value) =
                rule.split_once('=').ok_or_else(|| bad(format!("{rule:?} has no value")))?;
            let place = match name {
                "last" => &mut policy.last,
                "hourly" => &mut policy.hourly,
                "daily" => &mut policy.daily,
                "weekly" => &mut policy.weekly,
                "monthly" => &mut policy.monthly,
                "yearly" => &mut policy.yearly,
                "within" => {
                    policy.within = Some(CalendarSpan::parse(value)?);
                    continue;
                }
                "only" => {
                    only = Some(KeepTag::parse(value)?);
                    continue;
                }
                _ => return Err(bad(format!("{name:?} is not known"))),
            };
            *place = value.parse().map_err(|_| bad(format!("{value:?} is no number")))?;
        }
        policy.check().map_err(|_| bad("it would keep nothing".into()))?;
        Ok(Self { volume: VolumeName::new(volume)?, only, policy })
    }
}
