//! The report as one page that needs nothing else: bars as inline SVG, no scripts, no fonts, no
//! network.

use super::compare::{Verdict, differences, ratio};
use super::sample::{Kind, METRICS, Metric, Report};
use crate::numbers::{Spread, show};

const LABEL_WIDTH: f64 = 150.0;
const BAR_WIDTH: f64 = 420.0;
const WIDTH: f64 = 760.0;
const ROW_HEIGHT: f64 = 24.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem;color:#1c1f24;background:#fff}table{border-collapse:collapse;margin:1rem 0;\
font-variant-numeric:tabular-nums}th,td{padding:.2rem .7rem;text-align:right;\
border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}text{font:13px system-ui,sans-serif;fill:currentColor}\
.now{fill:#2f6fab}.then{fill:#b8bec6}.range{stroke:#1c1f24;stroke-width:1.5}\
.worse{color:#b3261e;font-weight:600}.better{color:#1e7a34;font-weight:600}\
@media(prefers-color-scheme:dark){body{color:#e6e8eb;background:#16181c}\
th,td{border-color:#3a3f47}.range{stroke:#e6e8eb}.then{fill:#5b626c}}";

/// The page; `earlier` adds grey bars and ratios.
pub(crate) fn page(report: &Report, earlier: Option<&Report>, threshold_percent: f64) -> String {
    let mut body = String::from("<h1>mover: backups and restores</h1>\n");
    let settings = &report.settings;
    for line in [
        format!("{}, version {}", report.made, report.version),
        report.machine.line(),
        format!(
            "{}, {}; repository in {}; restored to {}",
            settings.device,
            mover_engine::sizes::show_bytes(settings.volume_bytes),
            settings.repository,
            settings.target
        ),
        format!(
            "compression {}, memory {}, engine {}, chunks of {}; \
             page cache {} before each operation",
            settings.compression,
            mover_engine::sizes::show_bytes(settings.memory_bytes),
            settings.engine,
            mover_engine::sizes::show_bytes(settings.chunk_bytes),
            if settings.caches_dropped { "dropped" } else { "NOT dropped" }
        ),
    ] {
        body.push_str(&format!("<p>{}</p>\n", escape(&line)));
    }
    body.push_str(
        "<p>Bars are medians, lines reach from the least to the most. Rate and CPU time \
         relate to the volume's size, for an increment by list to what was read.</p>\n",
    );
    if let Some(earlier) = earlier {
        body.push_str(&comparison(report, earlier, threshold_percent));
    }
    for metric in &METRICS {
        body.push_str(&chart(report, earlier, metric));
    }
    body.push_str(&limits(report));
    body.push_str(&samples(report));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>mover: backups and restores</title><style>{STYLE}</style></head>\n\
         <body>{body}</body></html>\n"
    )
}

fn chart(report: &Report, earlier: Option<&Report>, metric: &Metric) -> String {
    let mut bars: Vec<(String, &str, Spread)> = Vec::new();
    for kind in Kind::ALL {
        if let Some(spread) = report.spread(kind, metric) {
            bars.push((kind.to_string(), "now", spread));
        }
        if let Some(spread) = earlier.and_then(|e| e.spread(kind, metric)) {
            bars.push((format!("{kind}, then"), "then", spread));
        }
    }
    let most = bars.iter().map(|(_, _, s)| s.max).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let mut svg = String::new();
    let mut top = 0.0;
    for (label, class, spread) in &bars {
        let x = |value: f64| LABEL_WIDTH + value / most * BAR_WIDTH;
        let middle = top + ROW_HEIGHT / 2.0;
        svg.push_str(&format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{:.0}\" \
             width=\"{:.1}\" height=\"{:.0}\"/>\
             <line class=\"range\" x1=\"{:.1}\" x2=\"{:.1}\" \
             y1=\"{middle:.0}\" y2=\"{middle:.0}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{} {}</text>\n",
            LABEL_WIDTH - 8.0,
            middle + 4.0,
            escape(label),
            top + 4.0,
            x(spread.median) - LABEL_WIDTH,
            ROW_HEIGHT - 8.0,
            x(spread.min),
            x(spread.max),
            x(spread.max) + 8.0,
            middle + 4.0,
            show(spread.median),
            metric.unit,
        ));
        top += ROW_HEIGHT;
    }
    let (name, better) = (metric.name, if metric.more_is_better { "more" } else { "less" });
    format!(
        "<h2>{name}</h2><p>{better} is better</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {top:.0}\" width=\"{WIDTH}\" role=\"img\" \
         aria-label=\"{name}\">\n{svg}</svg>\n"
    )
}

fn comparison(now: &Report, earlier: &Report, threshold_percent: f64) -> String {
    let mut text = format!(
        "<h2>compared with {}</h2>\
         <p>Ratios of medians, now to then; marked beyond {threshold_percent} %.</p>\n",
        escape(&earlier.made)
    );
    for difference in differences(now, earlier) {
        text.push_str(&format!("<p class=\"worse\">{}</p>\n", escape(&difference)));
    }
    text.push_str("<table><tr><th>operation</th>");
    METRICS.iter().for_each(|m| text.push_str(&format!("<th>{}</th>", m.name)));
    text.push_str("</tr>\n");
    for kind in Kind::ALL {
        let cells = METRICS.iter().map(|m| ratio(now, earlier, kind, m, threshold_percent));
        text.push_str(&format!("<tr><td>{kind}</td>"));
        for cell in cells {
            let class = match cell.map(|r| r.verdict) {
                Some(Verdict::Worse) => " class=\"worse\"",
                Some(Verdict::Better) => " class=\"better\"",
                _ => "",
            };
            let ratio = cell.map_or_else(|| "-".into(), |r| show(r.ratio));
            text.push_str(&format!("<td{class}>{ratio}</td>"));
        }
        text.push_str("</tr>\n");
    }
    text + "</table>\n"
}

fn limits(report: &Report) -> String {
    let rows = Kind::ALL.iter().filter(|k| !report.limits(**k).is_empty()).map(|kind| {
        format!("<tr><td>{kind}</td><td>{}</td></tr>\n", escape(&report.limits(*kind)))
    });
    let rows: String = rows.collect();
    format!("<h2>what was waited for most</h2><table>{rows}</table>\n")
}

fn samples(report: &Report) -> String {
    let mut text = String::from("<h2>all samples</h2><table><tr><th>operation</th><th>run</th>");
    METRICS.iter().for_each(|m| text.push_str(&format!("<th>{}</th>", m.head)));
    text.push_str("<th>engine</th><th>limit</th></tr>\n");
    for sample in &report.samples {
        text.push_str(&format!("<tr><td>{}</td><td>{}</td>", sample.kind, sample.run));
        for metric in &METRICS {
            let value = (metric.of)(sample).map_or_else(|| "-".into(), show);
            text.push_str(&format!("<td>{value}</td>"));
        }
        let (engine, limit) = (escape(&sample.engine), escape(&sample.limit));
        text.push_str(&format!("<td>{engine}</td><td>{limit}</td></tr>\n"));
    }
    text + "</table>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::report;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let (now, earlier) = (report(&[1.0, 2.0, 4.0]), report(&[0.5]));
        let page = page(&now, Some(&earlier), 10.0);
        for absent in ["<dev>", "<device>", "http://", "https://", "<script", "NaN", "inf"] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert!(page.contains("&lt;dev&gt;") && page.contains("class=\"worse\""));
        // one figure has no samples, and so no chart
        assert_eq!(page.matches("<svg").count(), METRICS.len() - 1);
        for pair in [("<table>", "</table>"), ("<svg", "</svg>"), ("<tr>", "</tr>")] {
            assert_eq!(page.matches(pair.0).count(), page.matches(pair.1).count());
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let page = page(&report(&[2.0]), Some(&report(&[1.0])), 10.0);
        let time = page.split("<h2>time</h2>").nth(1).unwrap().split("</svg>").next().unwrap();
        assert!(time.contains(&format!("width=\"{BAR_WIDTH:.1}\"")), "{time}");
        assert!(time.contains(&format!("width=\"{:.1}\"", BAR_WIDTH / 2.0)), "{time}");
    }
}
