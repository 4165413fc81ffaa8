//! `upgrade`: what a repository is made of, and what can be added to it.

use super::super::args::UpgradeArgs;
use super::super::context::{Context, tool};
use super::super::output::one_line;
use super::super::repository;
use super::super::table::Page;
use chunkstore::format::Feature;
use chunkstore::limits::FORMAT_VERSION;
use chunkstore::repository::{AddedFeature, BaseProblem, KnownFeature};
use chunkstore::{Repository, Result};
use serde_json::{Value, json};

pub(crate) fn upgrade(ctx: &Context, args: &UpgradeArgs) -> Result<()> {
    let repository = repository::open(ctx)?;
    let added = match &args.add {
        Some(name) => Some(ctx.block_on(repository.add_feature(name, &tool()))?),
        None => None,
    };
    let (features, problems) = ctx.block_on(repository.features())?;
    for problem in problems {
        ctx.output.warn(&problem.to_string());
    }
    let base = ctx.block_on(repository.check_base())?;
    let is_there = |known: &&KnownFeature| features.iter().any(|f| f.name.name() == known.name);
    let known = repository.known_features();
    let (_, absent): (Vec<_>, Vec<_>) = known.iter().partition(is_there);
    let found = Found { repository: &repository, features: &features, absent, base: &base };
    ctx.output.summary(&found.text(added.as_ref()), &found.json(added.as_ref()))
}

struct Found<'a> {
    repository: &'a Repository,
    features: &'a [Feature],
    /// Known to this program, and not added yet.
    absent: Vec<&'a KnownFeature>,
    base: &'a [BaseProblem],
}

impl Found<'_> {
    fn is_known(&self, feature: &Feature) -> bool {
        let known = self.repository.known_features().iter();
        known.clone().any(|k| (k.name, k.need) == (feature.name.name(), feature.name.need()))
    }

    fn text(&self, added: Option<&AddedFeature>) -> String {
        let params = self.repository.params();
        let mut page = Page(String::new());
        page.line("repository", &params.repository_id.to_string());
        let made = params.created.format("%Y-%m-%d");
        page.line(
            "format",
            &format!("version {FORMAT_VERSION}, made {made} by {}", params.created_by),
        );
        for feature in self.features {
            let known = if self.is_known(feature) { "" } else { ", unknown to this program" };
            page.line(
                "feature",
                &format!(
                    "{}: {}; needed to {} (since {}), added {} by {}{known}",
                    feature.name.name(),
                    feature.about,
                    feature.name.need(),
                    feature.since,
                    feature.added.format("%Y-%m-%d"),
                    feature.tool
                ),
            );
        }
        for known in &self.absent {
            let KnownFeature { name, need, about, since } = known;
            let text = format!("{name}: {about}; needed to {need} (since {since})");
            page.line("can be added", &text);
        }
        if self.features.is_empty() && self.absent.is_empty() {
            page.line("features", "none, and this version knows none that could be added");
        }
        for BaseProblem { key, detail } in self.base {
            let repair = chunkstore::Advice::Repair.words();
            page.line("to be repaired", &format!("{key}: {}; {repair}", one_line(detail)));
        }
        match added {
            Some(AddedFeature::Now(feature)) => {
                page.line("added", feature.name.name());
            }
            Some(AddedFeature::Before(feature)) => {
                page.line("added", &format!("{} was there before", feature.name.name()));
            }
            None => {}
        }
        page.0
    }

    fn json(&self, added: Option<&AddedFeature>) -> Value {
        let params = self.repository.params();
        let features: Vec<Value> = self.features.iter().map(|f| self.feature(f)).collect();
        let absent: Vec<Value> = self
            .absent
            .iter()
            .map(|k| json!({"name": k.name, "needed_to": k.need, "about": k.about, "since": k.since}))
            .collect();
        let base: Vec<Value> =
            self.base.iter().map(|p| json!({"object": p.key, "detail": p.detail})).collect();
        let (name, now) = match added {
            Some(AddedFeature::Now(f)) => (Some(f.name.name()), true),
            Some(AddedFeature::Before(f)) => (Some(f.name.name()), false),
            None => (None, false),
        };
        json!({
            "repository_id": params.repository_id.to_string(),
            "format_version": FORMAT_VERSION,
            "created": params.created,
            "created_by": params.created_by,
            "features": features,
            "can_be_added": absent,
            "to_be_repaired": base,
            "added": name,
            "added_now": now,
        })
    }

    fn feature(&self, feature: &Feature) -> Value {
        json!({
            "name": feature.name.name(),
            "needed_to": feature.name.need(),
            "about": feature.about,
            "since": feature.since,
            "added": feature.added,
            "tool": feature.tool,
            "known": self.is_known(feature),
        })
    }
}
