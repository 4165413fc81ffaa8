//! Medians of two reports as ratios.

use super::sample::{Kind, METRICS, Metric, Report};
use crate::numbers::show;
use crate::table::columns;

/// How a median relates to an earlier one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) now: f64,
    pub(crate) earlier: f64,
    pub(crate) ratio: f64,
    pub(crate) verdict: Verdict,
}

/// Whether the difference is beyond the threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Same,
    Better,
    Worse,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::Better => "better",
            Self::Worse => "WORSE",
        }
    }
}

/// Of one figure of one operation; none where one of the reports does not have it, or it was 0.
pub(crate) fn ratio(
    now: &Report,
    earlier: &Report,
    kind: Kind,
    metric: &Metric,
    threshold_percent: f64,
) -> Option<Ratio> {
    let (now, earlier) = (now.spread(kind, metric)?.median, earlier.spread(kind, metric)?.median);
    if earlier <= 0.0 || now <= 0.0 {
        return None;
    }
    let ratio = now / earlier;
    let gain = if metric.more_is_better { ratio } else { 1.0 / ratio };
    let bound = 1.0 + threshold_percent / 100.0;
    let verdict = if gain > bound {
        Verdict::Better
    } else if gain < 1.0 / bound {
        Verdict::Worse
    } else {
        Verdict::Same
    };
    Some(Ratio { now, earlier, ratio, verdict })
}

/// What makes two reports hard to compare.
pub(crate) fn differences(now: &Report, earlier: &Report) -> Vec<String> {
    let mut all = Vec::new();
    if now.machine != earlier.machine {
        all.push(format!("another machine or build then: {}", earlier.machine.line()));
    }
    let members = |r: &Report| match serde_json::to_value(&r.settings) {
        Ok(serde_json::Value::Object(members)) => members,
        _ => serde_json::Map::new(),
    };
    let old = members(earlier);
    for (name, value) in members(now) {
        let before = old.get(&name).unwrap_or(&serde_json::Value::Null);
        if *before != value {
            all.push(format!("{name} was {before} and is {value}"));
        }
    }
    all
}

/// For the terminal.
pub(crate) fn text(now: &Report, earlier: &Report, threshold_percent: f64) -> String {
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        for metric in &METRICS {
            let Some(r) = ratio(now, earlier, kind, metric, threshold_percent) else { continue };
            rows.push(vec![
                kind.to_string(),
                metric.name.into(),
                show(r.earlier),
                show(r.now),
                show(r.ratio),
                r.verdict.as_str().into(),
            ]);
        }
    }
    let mut text = format!(
        "compared with {}; marked where the medians differ by more than {threshold_percent} %\n",
        earlier.made
    );
    for difference in differences(now, earlier) {
        text.push_str(&format!("note: {difference}\n"));
    }
    text + &columns(&["operation", "figure", "then", "now", "ratio", ""], &rows)
}

#[cfg(test)]
mod tests {
    use super::super::sample::TIME;
    use super::super::sample::tests::report;
    use super::*;

    #[test]
    fn worse_and_better_are_told_apart() {
        let (fast, slow) = (report(&[1.0, 1.0, 9.0]), report(&[1.2]));
        let of = |a: &Report, b: &Report, metric: &Metric| {
            ratio(a, b, Kind::Full, metric, 10.0).unwrap().verdict
        };
        assert_eq!(of(&slow, &fast, TIME), Verdict::Worse);
        assert_eq!(of(&fast, &slow, TIME), Verdict::Better);
        assert_eq!(of(&fast, &report(&[1.09]), TIME), Verdict::Same);
        let rate = &METRICS[1];
        assert!(rate.more_is_better);
        assert_eq!(of(&slow, &fast, rate), Verdict::Worse);
        assert!(ratio(&fast, &slow, Kind::Increment, TIME, 10.0).is_none());
    }

    #[test]
    fn other_settings_are_said() {
        let (now, mut earlier) = (report(&[1.0]), report(&[1.0]));
        assert!(differences(&now, &earlier).is_empty());
        earlier.settings.compression = "none".into();
        let text = text(&now, &earlier, 5.0);
        assert!(text.contains("note: compression was \"none\" and is \"zstd:1\""), "{text}");
    }
}
