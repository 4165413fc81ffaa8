//! `kubectl mover install` and `uninstall`.

use super::super::args::{Install, PodSecurity, Print, Uninstall, Without};
use super::super::output::Output;
use crate::api::Api;
use crate::engine::{Failure, exit};
use crate::install::{
    self, File, JobSecurity, Manifest, NAMESPACE, Part, Removal, Settings, documents, manifests,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// What was asked for.
fn settings(given: &Install, namespace: Option<&str>) -> Settings {
    let without = given.without.iter().map(|part| match part {
        Without::Crds => Part::Definitions,
        Without::Policies => Part::Policies,
        Without::NetworkPolicies => Part::NetworkPolicies,
        Without::Monitoring => Part::Monitoring,
    });
    Settings {
        image_pull_policy: given.image_pull_policy.clone(),
        watch_namespaces: given.watch_namespace.clone(),
        without: without.collect(),
        hooks: given.hooks,
        differential: given.differential_snapshots.clone(),
        velero: given.velero.clone(),
        in_place: given.restore_in_place.to_string(),
        job_security: match given.job_security {
            PodSecurity::Baseline => JobSecurity::Baseline,
            PodSecurity::Restricted => JobSecurity::Restricted,
        },
        ..Settings::new(namespace.unwrap_or(NAMESPACE), &given.image)
    }
    .with_job_images(&given.job_image)
}

fn is_printed(given: &Install, file: File) -> bool {
    let is = |print: &Print| match print {
        Print::Crds => file == File::Definitions,
        Print::Policies => file == File::Policies,
        Print::Rights => matches!(file, File::Rights | File::Hooks | File::Differential),
        Print::NetworkPolicies => file == File::Network,
        Print::Controller => matches!(file, File::Controller | File::Namespace),
        Print::Monitoring => file == File::Monitoring,
    };
    given.print.is_empty() || given.print.iter().any(is)
}

/// Prints what would be applied.
pub(super) fn print(given: &Install, namespace: Option<&str>, output: &Output) -> u8 {
    let all = manifests(&settings(given, namespace));
    let objects: Vec<&Value> =
        all.iter().filter(|at| is_printed(given, at.file)).map(|at| &at.object).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    output.result(&list, &documents(objects));
    0
}

/// Applies it.
pub(super) async fn apply(
    api: &Api,
    given: &Install,
    namespace: Option<&str>,
    output: &Output,
) -> Result<u8, Failure> {
    let settings = settings(given, namespace);
    let all: Vec<Manifest> = manifests(&settings);
    let tell = |one: &install::Applied| output.progress(&one.object);
    let applied = install::apply(api, &all, given.dry_run, tell).await?;
    if given.wait {
        let limit = Duration::from_secs(given.timeout);
        install::rolled_out(api, &settings, &all, limit, |why| output.progress(why)).await?;
    }
    let rows: Vec<_> = applied
        .iter()
        .map(|one| {
            let record = json!({ "object": one.object, "done": one.done });
            (vec![one.object.clone(), one.done.clone()], record)
        })
        .collect();
    output.table(&["OBJECT", "DONE"], 0, &rows);
    Ok(0)
}

/// Removes it.
pub(super) async fn remove(api: &Api, given: &Uninstall, output: &Output) -> Result<u8, Failure> {
    let removal = Removal { definitions: given.crds, dry_run: given.dry_run };
    let report = install::remove(api, removal, |what| output.progress(what)).await?;
    let rows: Vec<_> = report
        .done
        .iter()
        .map(|one| {
            let record = json!({ "object": one.object, "done": one.done });
            (vec![one.object.clone(), one.done.clone()], record)
        })
        .collect();
    output.table(&["OBJECT", "DONE"], 0, &rows);
    for stays in &report.stays {
        output.say(&format!("stays: {stays}"));
    }
    for why in &report.refused {
        output.say(&format!("warning: {}", why.message));
        if let Some(hint) = &why.hint {
            output.say(&format!("hint: {hint}"));
        }
    }
    Ok(report.refused.first().map_or(0, |why| why.exit_code))
}

/// Writes manifests and chart, as they are kept in `deploy/`.
pub(super) fn write(folder: &Path) -> Result<u8, Failure> {
    for (name, text) in install::files() {
        let path = folder.join(name);
        let written = match path.parent() {
            Some(parent) => std::fs::create_dir_all(parent),
            None => Ok(()),
        };
        written
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|why| Failure::new(exit::USAGE, format!("write {}: {why}", path.display())))?;
    }
    Ok(0)
}
