//! The document as a whole: its head, its totals, and the order of its parts.

use super::html::Html;
use super::known::Known;
use super::model::{DEGRADED, Level, Model, Problem};
use super::view::View;
use super::{chart, sections, volumes, words};
use crate::kinds::Phase;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use std::sync::LazyLock;

const STYLE: &str = include_str!("style.css");

/// What a browser may do with the page: show it, in its own style, and send its form back to it.
#[must_use]
pub fn content_security_policy() -> &'static str {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
        format!(
            "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; base-uri 'none'; \
             frame-ancestors 'none'"
        )
    });
    &POLICY
}

/// The page at a moment.
#[must_use]
pub fn render(known: &Known, view: &View, now: DateTime<Utc>) -> String {
    let model = Model::of(known, view, now);
    let totals = Totals::of(&model);
    let mut html = Html::default();
    head(&mut html, &model, &totals);
    tiles(&mut html, &totals);
    sections::problems(&mut html, &model);
    volumes::section(&mut html, &model);
    sections::underway(&mut html, &model);
    sections::schedules(&mut html, &model);
    sections::repositories(&mut html, &model);
    sections::restored(&mut html, &model);
    html.put("</main><footer><p>Made by mover ")
        .text(env!("CARGO_PKG_VERSION"))
        .put(". This page ");
    html.put(
        "changes nothing and does not renew itself. All times are UTC.</p><p>Late is a volume ",
    );
    html.put(
        "without a good backup of the run that was due, an hour after that and the schedule&#39;s ",
    );
    html.put("jitter, or when the run after it is due.</p></footer></body></html>");
    html.into_string()
}

/// Numbers of what is shown.
#[derive(Default)]
struct Totals {
    volumes: usize,
    good: usize,
    late: usize,
    failing: usize,
    never: usize,
    running: usize,
    waiting: usize,
    drills: usize,
    drills_passed: usize,
    drills_bad: usize,
    repositories: usize,
    repositories_bad: usize,
    restores_bad: usize,
    schedules_bad: usize,
    /// What no number above counts, and what may get worse.
    warnings: usize,
}

impl Totals {
    fn of(model: &Model<'_>) -> Self {
        let mut totals = Self {
            volumes: model.volumes.len(),
            drills: model.schedules.iter().filter(|row| row.drill.is_some()).count(),
            repositories: model.repositories.len(),
            ..Self::default()
        };
        for volume in &model.volumes {
            let is_late = volume.owed.is_some_and(|owed| owed.is_late);
            totals.late += usize::from(is_late);
            totals.failing += usize::from(volume.is_failing);
            totals.never += usize::from(is_late && volume.newest_good.is_none());
            totals.good += usize::from(volume.lines[0].level == Level::Good);
        }
        for line in model.schedules.iter().filter_map(|row| row.drill.as_ref()) {
            totals.drills_bad += usize::from(line.level == Level::Bad);
            totals.drills_passed += usize::from(line.level == Level::Good);
        }
        let bad = |level: Level| usize::from(level == Level::Bad);
        totals.repositories_bad = model.repositories.iter().map(|row| bad(row.level())).sum();
        let restores = model.problems.iter().filter(|it| it.kind == "VolumeRestore");
        totals.restores_bad = restores.map(|it| bad(it.line.level)).sum();
        let is_bad = |it: &&Problem<'_>| it.line.level == Level::Bad;
        let schedules = model.problems.iter().filter(|it| it.kind == "BackupSchedule");
        // Their drills are among them.
        totals.schedules_bad = schedules.filter(is_bad).count().saturating_sub(totals.drills_bad);
        let degraded = model.volumes.iter().filter(|volume| volume.lines[0].word == DEGRADED);
        let warnings = model.problems.iter().filter(|it| it.line.level == Level::Warn);
        totals.warnings = degraded.count() + warnings.count();
        let running = model.underway.iter().filter(|it| it.phase == Phase::Running);
        totals.running = running.count();
        totals.waiting = model.underway.len() - totals.running;
        totals
    }

    /// What is wrong, in a few words; nothing where all is well.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut say = |number: usize, one: &str, many: &str| {
            if number > 0 {
                wrong.push(words::count(number, one, many));
            }
        };
        say(self.late, "volume late", "volumes late");
        say(self.failing, "volume failing", "volumes failing");
        say(self.drills_bad, "drill failed or never ran", "drills failed or never ran");
        say(self.repositories_bad, "repository in trouble", "repositories in trouble");
        say(self.restores_bad, "restore failed", "restores failed");
        say(self.schedules_bad, "schedule without effect", "schedules without effect");
        wrong
    }
}

fn head(html: &mut Html, model: &Model<'_>, totals: &Totals) {
    let wrong = totals.wrong();
    html.put("<!doctype html><html lang=en><head><meta charset=utf-8><title>");
    if model.is_stale {
        html.put("stale · ");
    }
    html.text(wrong.first().map_or("Backups", String::as_str)).put(" · mover</title>");
    html.put("<meta name=viewport content=\"width=device-width,initial-scale=1\">");
    html.put("<meta name=color-scheme content=\"light dark\"><meta name=robots content=noindex>");
    html.put("<style>").put(STYLE).put("</style></head><body>");
    html.put("<a class=skip href=\"#volumes\">Skip to the volumes</a>");
    chart::marks(html);
    html.put("<header><div><h1>Backups");
    if let Some(namespace) = &model.view.namespace {
        html.put(" <small>in namespace ").cut(namespace, volumes::NAME_MAX).put("</small>");
    }
    html.put("</h1>");
    html.put(if wrong.is_empty() { "<p>" } else { "<p class=Bad><b>" });
    match (wrong.is_empty(), totals.volumes) {
        (true, _) if totals.warnings > 0 => {
            let what = words::count(totals.warnings, "thing wants a look", "things want a look");
            html.put("Nothing has failed, and ").text(what)
        }
        (true, 0) => html.put("Nothing is wrong, and nothing is backed up"),
        (true, _) => html.put("Nothing is wrong"),
        (false, _) => html.text(wrong.join(", ")),
    };
    html.put(if wrong.is_empty() { ".</p></div>" } else { ".</b></p></div>" });
    html.put("<p>Made <time datetime=").text(words::exact(model.now)).put(">");
    html.text(model.now.format("%-d %b %Y %H:%M:%S")).put("</time> UTC ");
    match model.age {
        Some(age) => html.put("from data ").text(words::span(age)).put(" old"),
        None => html.put("without any data"),
    };
    html.put(". <a href=\"")
        .text(model.view.address(model.view.page))
        .put("\">Reload</a></p></header>");
    if model.is_stale {
        html.put("<p class=stale role=alert>");
        match model.age {
            Some(age) => html
                .put("The controller has heard nothing from the API server for ")
                .text(words::span(age))
                .put(". What follows may be wrong."),
            None => html.put(
                "The controller has not read the cluster yet. What follows is not all there is.",
            ),
        };
        html.put(" Look at its log: <code>kubectl logs -n mover-system deploy/mover</code></p>");
    }
    html.put("<main>");
}

fn tile(
    html: &mut Html,
    level: Level,
    to: &'static str,
    what: &'static str,
    number: usize,
    about: &str,
) {
    html.put("<a class=\"tile ").text(volumes::class(level)).put("\" href=\"").put(to);
    html.put("\"><dl><dt>").put(what).put("</dt><dd>").text(number).put("<small>").text(about);
    html.put("</small></dd></dl></a>");
}

fn tiles(html: &mut Html, totals: &Totals) {
    let level = |bad: usize, all: usize| match (bad, all) {
        (1.., _) => Level::Bad,
        (0, 0) => Level::Rest,
        (0, _) => Level::Good,
    };
    html.put("<nav class=tiles aria-label=Totals>");
    let about = format!("{} in time", totals.good);
    tile(html, level(0, totals.good), "#volumes", "Volumes", totals.volumes, &about);
    let about = match totals.never {
        0 => "against their schedules".into(),
        never => format!("{never} without any backup"),
    };
    tile(html, level(totals.late, totals.volumes), "#volumes", "Late", totals.late, &about);
    let about = "newest backup failed";
    tile(html, level(totals.failing, totals.volumes), "#volumes", "Failing", totals.failing, about);
    let about = format!("or never ran; {} of {} passed", totals.drills_passed, totals.drills);
    let drills = level(totals.drills_bad, totals.drills);
    tile(html, drills, "#schedules", "Drills failed", totals.drills_bad, &about);
    let busy = if totals.running > 0 { Level::Busy } else { Level::Rest };
    let about = format!("{} waiting", totals.waiting);
    tile(html, busy, "#underway", "Under way", totals.running, &about);
    let (bad, all) = (totals.repositories_bad, totals.repositories);
    let about = format!("in trouble, of {all}");
    tile(html, level(bad, all), "#repositories", "Repositories", bad, &about);
    html.put("</nav>");
}
