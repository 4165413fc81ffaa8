//! Objects that a backup brings along: whether its repository can keep them, and which of them an
//! operation that has not ended has.

use crate::api::Api;
use crate::engine::{
    self, CarriedObjects, Failure, Key, OBJECTS, ROLE, Repository, Request, SOURCE, Wait, exit,
};
use crate::ops::{lookup, operation};
use serde_json::Value;

/// Feature of a repository that keeps files with backups.
const FEATURE: &str = "attachments";

/// Asks a repository whether it keeps files with backups.
///
/// # Errors
///
/// It does not, with the next step.
pub async fn can_keep(
    api: &Api,
    repository: &Repository,
    tell: impl FnMut(&Wait),
) -> Result<(), Failure> {
    let lines = Box::pin(lookup::ask(api, repository, &["upgrade"], tell)).await?;
    let Repository { namespace, name, .. } = repository;
    if has_feature(&lines) {
        return Ok(());
    }
    let what =
        format!("Repository {name} in namespace {namespace} keeps no {OBJECTS} with backups");
    Err(Failure::new(exit::USAGE, what).hint(format!(
        "kubectl mover repository upgrade {name} -n {namespace} --add {FEATURE} adds that, for good: \
         programs that do not know it can then only read the repository"
    )))
}

fn has_feature(lines: &[Value]) -> bool {
    let features = lines.iter().filter_map(|line| line["features"].as_array());
    features.flatten().any(|of| of["name"] == FEATURE)
}

/// The request with these objects; or with those of the same operation that has not ended, which
/// another command has read by the same question.
///
/// # Errors
///
/// See [`crate::api::ApiError`].
pub async fn with_objects(
    api: &Api,
    namespace: &str,
    request: Request,
    objects: &CarriedObjects,
) -> Result<(Request, Option<Key>), Failure> {
    let labels = format!("{SOURCE}={},{ROLE}={}", operation::source_of(&request), request.word());
    let bare = request.clone().with_objects(None);
    for found in operation::list(api, Some(namespace), &labels).await? {
        if !found.is_running() {
            continue;
        }
        // All else is as it is asked for now; and what Secrets there do not have is refused by the Job.
        if let Ok(stored) = engine::request_of(&found.found)
            && goes_on(&stored, &bare, objects)
        {
            return Ok((stored, Some(found.found.key.clone())));
        }
    }
    Ok((request.with_objects(Some(objects)), None))
}

/// Whether an operation is the one that is asked for, but for when its objects were read.
fn goes_on(stored: &Request, bare: &Request, objects: &CarriedObjects) -> bool {
    stored.objects().is_some_and(|of| of.selection == objects.selection)
        && stored.clone().with_objects(None) == *bare
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_feature_is_found_among_what_a_repository_says() {
        let said = |name: &str| [json!({ "type": "summary", "features": [{ "name": name }] })];
        assert!(has_feature(&said("attachments")));
        assert!(!has_feature(&said("other")));
        assert!(!has_feature(&[json!({ "type": "log" })]));
    }

    #[test]
    fn what_was_read_by_another_question_is_not_gone_on_with() {
        let backup = json!({
            "source": { "namespace": "ns", "name": "db", "uid": "u" },
            "driver": "d", "volumeHandle": "h", "repository": Repository::default(),
            "volume": "c/ns/db", "snapshotClass": "s", "storageClass": "s", "filesystem": true,
            "capacity": "1Gi", "labels": {}, "keepBase": true,
        });
        let backup: engine::Backup = serde_json::from_value(backup).expect("a backup");
        let bare = Request::Backup(Box::new(backup));
        let objects = |selection: &str, digest: &str| CarriedObjects {
            parts: 1,
            size_bytes: 1,
            digest: digest.into(),
            selection: selection.into(),
        };
        let stored = bare.clone().with_objects(Some(&objects("all", "1")));
        // the objects change while an application runs
        assert!(goes_on(&stored, &bare, &objects("all", "2")));
        assert!(!goes_on(&stored, &bare, &objects("app=a", "1")));
        assert!(!goes_on(&bare, &bare, &objects("all", "1")));
    }
}
