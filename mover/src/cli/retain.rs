//! From `--retain-…` to what is asked of the store.

use super::args::{RetainArgs, RetainInheritedArg, RetainModeArg};
use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use chunkstore::retention::CalendarSpan;
use chunkstore::{
    Error, ErrorKind, Result,
    store::{Inherited, RetainMode, RetainPolicy, Retention},
};

/// A lock cannot be taken back: a slip of the pen must not cost a century of storage.
const YEARS_MAX: i32 = 100;

/// What is asked for, counted from `now`; `None` without a time. The clock may be this machine's: a
/// store takes no request that is signed with a time of more than some minutes off.
pub(crate) fn retain_policy(args: &RetainArgs, now: DateTime<Utc>) -> Result<Option<RetainPolicy>> {
    let some = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let (flag, until) = match (some(&args.retain_for), some(&args.retain_until)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let detail = "--retain-until was given as well";
            return Err(Error::new(ErrorKind::Usage, "use --retain-for", detail)
                .hint("give one of the two; MOVER_RETAIN_FOR and MOVER_RETAIN_UNTIL count too"));
        }
        (Some(text), None) => {
            let span = CalendarSpan::parse(&text).map_err(|e| e.within("use --retain-for"))?;
            ("--retain-for", span.after(now))
        }
        (None, Some(text)) => ("--retain-until", Some(parse_date(&text)?)),
    };
    let refused = |detail: &str, hint: &str| {
        Error::new(ErrorKind::Usage, format!("use {flag}"), detail).hint(hint)
    };
    let last = now + TimeDelta::days(i64::from(YEARS_MAX) * 365);
    let Some(until) = until.filter(|until| *until <= last) else {
        return Err(refused("that is more than 100 years", "give a shorter time"));
    };
    if until <= now {
        return Err(refused("that time has passed", "give a time to come"));
    }
    let mode = match args.retain_mode {
        RetainModeArg::Governance => RetainMode::Governance,
        RetainModeArg::Compliance => RetainMode::Compliance,
    };
    let inherited = match args.retain_inherited {
        RetainInheritedArg::Now => Inherited::Now,
        RetainInheritedArg::Gc => Inherited::Later,
    };
    Ok(Some(RetainPolicy { retention: Retention::new(mode, until), inherited }))
}

fn parse_date(text: &str) -> Result<DateTime<Utc>> {
    if let Ok(date) = text.parse::<NaiveDate>() {
        return Ok(date.and_time(NaiveTime::MIN).and_utc());
    }
    DateTime::parse_from_rfc3339(text).map(|time| time.to_utc()).map_err(|e| {
        Error::new(ErrorKind::Usage, "use --retain-until", format!("{text:?} is no date"))
            .caused_by(e)
            .hint("write it like 2027-01-31 or 2027-01-31T12:00:00Z")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(retain_for: Option<&str>, retain_until: Option<&str>) -> RetainArgs {
        RetainArgs {
            retain_for: retain_for.map(Into::into),
            retain_until: retain_until.map(Into::into),
            retain_mode: RetainModeArg::Compliance,
            retain_inherited: RetainInheritedArg::Gc,
        }
    }

    fn now() -> DateTime<Utc> {
        parse_date("2026-01-31T10:00:00Z").unwrap()
    }

    #[test]
    fn spans_and_dates_are_understood() {
        let until = |a: RetainArgs| {
            let policy = retain_policy(&a, now()).unwrap().unwrap();
            assert_eq!(policy.inherited, Inherited::Later);
            assert_eq!(policy.retention.mode, RetainMode::Compliance);
            policy.retention.until.to_rfc3339()
        };
        assert_eq!(until(args(Some("36h"), None)), "2026-02-01T22:00:00+00:00");
        assert_eq!(until(args(Some("1m1d"), None)), "2026-03-01T10:00:00+00:00");
        assert_eq!(until(args(None, Some("2027-01-31"))), "2027-01-31T00:00:00+00:00");
        assert_eq!(
            until(args(None, Some("2027-01-31T12:00:00+02:00"))),
            "2027-01-31T10:00:00+00:00"
        );
        assert_eq!(until(args(Some(""), Some("2026-02-01"))), "2026-02-01T00:00:00+00:00");
        assert_eq!(retain_policy(&args(None, None), now()).unwrap(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let bad = [
            (Some("5"), None),
            (Some("0h"), None),
            (Some("101y"), None),
            (Some("4294967295y"), None),
            (None, Some("tomorrow")),
            (None, Some("2026-01-31")),
            (None, Some("9999-12-31")),
            (Some("1d"), Some("2027-01-31")),
        ];
        for (span, date) in bad {
            let e =
                retain_policy(&args(span, date), now()).expect_err(&format!("{span:?} {date:?}"));
            assert_eq!(e.kind(), ErrorKind::Usage);
            assert!(e.hint_text().is_some() && e.to_string().contains("--retain-"), "{e}");
        }
    }
}
