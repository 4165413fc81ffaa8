//! `backup --plan`: what a backup would take, in bytes, requests, memory, time and money. Nothing
//! is written.

use super::super::context::Context;
use super::super::output::Line;
use super::super::repository;
use super::super::table::Page;
use super::super::watch::Watch;
use crate::price::{Cost, PRICE_FILE_BYTES_MAX, PriceList, Usage};
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ops::backup::{
    BackupOptions, Forecast, RequestForecast, Spread, TimeForecast, forecast,
};
use mover_engine::run::Progress;
use mover_engine::sizes::{show_bytes, show_duration};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// A forecast and what it costs.
#[derive(Debug, Serialize)]
struct Plan<'a> {
    #[serde(flatten)]
    forecast: &'a Forecast,
    cost: Option<PlanCost>,
}

/// What a backup costs.
#[derive(Debug, Serialize)]
struct PlanCost {
    currency: String,
    /// Once, most likely and at most.
    about: Cost,
    high: Cost,
    /// Each month, for what the backup adds.
    month_about: f64,
    month_high: f64,
}

pub(super) fn plan(ctx: &Context, options: &BackupOptions, price: Option<&Path>) -> Result<()> {
    let prices = price.map(read_prices).transpose()?.flatten();
    let repository = repository::open_or_imagine(ctx)?;
    let url = repository.store().url();
    let priced = prices.as_ref().map(|list| list.of(url).map(|prices| (list, prices)));
    let priced = priced.transpose()?;
    let progress = Progress::new();
    let watch = Watch::unseen(ctx, &progress, repository.store());
    let found = forecast(ctx.runtime()?, &repository, options, &progress, &ctx.cancel)?;
    drop(watch);
    for warning in found.warnings.iter().chain(&found.degraded) {
        ctx.output.warn(warning);
    }
    let cost = priced.map(|(list, prices)| {
        let (stored, requests) = (found.stored_bytes, &found.requests);
        let of = |requests, ingress_bytes| {
            prices.cost(&Usage { requests, ingress_bytes, egress_bytes: found.fetched_bytes })
        };
        PlanCost {
            currency: list.currency.clone(),
            about: of(requests.about(), stored.about),
            high: of(requests.high(), stored.high),
            month_about: prices.month(stored.about),
            month_high: prices.month(stored.high),
        }
    });
    let plan = Plan { forecast: &found, cost };
    if ctx.settings.output.json {
        return ctx.output.result_json(&Line::new("plan", &plan));
    }
    ctx.output.result(&text(&plan))
}

/// A price list; `None` for a path of nothing, as of an empty variable.
pub(super) fn read_prices(path: &Path) -> Result<Option<PriceList>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let name = path.display().to_string();
    let unread = |e| Error::caused(ErrorKind::Usage, format!("read price file {name}"), e);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unread)?;
    file.take(PRICE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > PRICE_FILE_BYTES_MAX {
        let most = format!("it is larger than {}", show_bytes(PRICE_FILE_BYTES_MAX));
        return Err(Error::new(ErrorKind::Usage, format!("read price file {name}"), most));
    }
    PriceList::parse(&name, &bytes).map(Some)
}

/// An amount of money: two decimals, more where it is less than a unit.
pub(super) fn money(amount: f64, currency: &str) -> String {
    match amount {
        a if a >= 1.0 || a == 0.0 => format!("{a:.2} {currency}"),
        a => format!("{a:.6} {currency}"),
    }
}

fn text(plan: &Plan<'_>) -> String {
    let f = plan.forecast;
    let mut page = Page::default();
    page.line("plan", &format!("of a backup of volume {}; nothing is written", f.volume));
    page.line("size", &show_bytes(f.size_bytes));
    page.line("parent", f.parent.as_deref().unwrap_or("none"));
    let list = match f.origin.as_str() {
        "device" => f.kind.as_str().to_owned(),
        origin => format!("{} from {origin}", f.kind.as_str()),
    };
    page.line("list", &list);
    if let Some(resumed) = &f.resumed {
        let bytes = show_bytes(resumed.bytes);
        page.line("resumed", &format!("at {}%, {bytes} are not read again", resumed.percent));
    }
    let r = &f.read;
    page.line("read", &format!("{} in {} reads", show_bytes(r.read_bytes), r.reads));
    for (bytes, why) in [
        (r.changed_bytes, "changed"),
        (r.allocated_bytes, "allocated"),
        (r.whole_bytes, "there is no list"),
        (r.tail_bytes, "the size has changed"),
        (r.damaged_bytes, "damaged in the repository"),
        (r.gap_bytes, "between pieces that are read as one"),
    ] {
        if bytes > 0 {
            page.line("", &format!("{}: {why}", show_bytes(bytes)));
        }
    }
    if r.audit_bytes > 0 {
        let bytes = show_bytes(r.audit_bytes);
        page.line("audit", &format!("up to {bytes} more, samples of what the list does not name"));
    }
    page.line("zero", &format!("{} without reading", show_bytes(f.zero_bytes)));
    page.line("unchanged", &format!("{} without reading", show_bytes(f.inherited_bytes)));
    page.line("new", &bytes(f.new_bytes));
    page.line("stored", &format!("{} (by {})", bytes(f.stored_bytes), f.stored_basis));
    let s = &f.sample;
    let looked = format!("{} of {} units, {}", s.units, s.of_units, show_bytes(s.bytes));
    let (new, packed) = (show_bytes(s.new_bytes), show_bytes(s.packed_bytes));
    page.line("sample", &format!("{looked}: {new} are new and compress to {packed}"));
    page.line("requests", &requests(&f.requests));
    page.line("bounds", &f.bounds.line());
    if let Some(time) = &f.time {
        page.line("time", &time_text(time));
    }
    if let Some(cost) = &plan.cost {
        let of = |amount| money(amount, &cost.currency);
        let (about, high) = (of(cost.about.once), of(cost.high.once));
        page.line("cost", &format!("about {about}, at most {high}"));
        let (about, high) = (of(cost.month_about), of(cost.month_high));
        page.line("each month", &format!("about {about}, at most {high} for what is added"));
    }
    page.0
}

fn bytes(spread: Spread) -> String {
    let Spread { low, about, high } = spread;
    if low == high {
        return show_bytes(about);
    }
    let (low, about, high) = (show_bytes(low), show_bytes(about), show_bytes(high));
    format!("about {about}, between {low} and {high}")
}

fn requests(r: &RequestForecast) -> String {
    let kinds = [
        ("gets", r.gets),
        ("puts", r.puts),
        ("creates", r.creates),
        ("heads", r.heads),
        ("lists", r.lists),
        ("deletes", r.deletes),
    ];
    let each: Vec<_> = kinds.iter().map(|(name, n)| format!("{} {name}", n.about)).collect();
    let Spread { low, about, high } = r.total;
    format!("about {about}, between {low} and {high}: {}", each.join(", "))
}

fn time_text(time: &TimeForecast) -> String {
    let shown = show_duration(Duration::try_from_secs_f64(time.seconds).unwrap_or(Duration::MAX));
    let by = match time.basis {
        "parent" => "the rate of the parent backup",
        "limit" => "the limit on the rate",
        _ => "the rate of the sample, if the store keeps up",
    };
    format!("about {shown}, by {by}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_has_the_decimals_that_matter() {
        assert_eq!(money(0.0, "USD"), "0.00 USD");
        assert_eq!(money(12.345, "EUR"), "12.35 EUR");
        assert_eq!(money(0.0556, "USD"), "0.055600 USD");
    }

    #[test]
    fn what_is_certain_is_one_figure() {
        assert_eq!(bytes(Spread { low: 4096, about: 4096, high: 4096 }), "4.00 KiB");
        let spread = Spread { low: 1024, about: 2048, high: 4096 };
        assert_eq!(bytes(spread), "about 2.00 KiB, between 1.00 KiB and 4.00 KiB");
    }
}
