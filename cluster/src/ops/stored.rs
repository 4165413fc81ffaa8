//! Objects that were kept with a backup, out of the repository.
//!
//! They may hold Secrets, so they are in no log: a pod in the Repository's namespace holds the backup
//! by a lease, a command in it prints the attachment, and its output comes here by the connection of
//! that command. The pod serves the backup on a socket that nobody uses, only to stay.

use crate::api::{Api, ApiError};
use crate::drive::Driver;
use crate::engine::{
    self, Anchor, Failure, JobSpec, Key, Kind, Meta, OBJECTS, Observed, Repository, Wait, exit,
    held,
};
use crate::ops::lookup;
use crate::ops::manifest::ObjectsFile;
use crate::ops::operation::random_text;
use crate::ops::restore::{Guard, RestoreOptions, record_of};
use serde_json::Value;
use std::sync::Arc;

const RANDOM_CHARS: usize = 12;
/// Where the program is in its image, whose entry point it is.
const PROGRAM: &str = "/mover";
/// The pod is gone after so long, should this process die. Whatever an attachment has at most comes
/// sooner.
const HELD_SECONDS: u64 = 900;
/// Memory of each of two processes in one pod.
const MEMORY: &str = "96MiB";
/// What a backup may keep: `ATTACHMENT_BYTES_MAX` of `docs/format.md`.
const ATTACHMENT_BYTES_MAX: u64 = 1 << 30;

/// The objects of a backup.
///
/// # Errors
///
/// There is no such backup, it has no objects, or not all of them came.
pub async fn fetch(
    api: &Api,
    backup: &str,
    repository: &Repository,
    namespace: &str,
    tell: impl Fn(&Wait),
) -> Result<ObjectsFile, Failure> {
    let guard = guard(api, repository, namespace).await?;
    let options = RestoreOptions { guard, ..RestoreOptions::default() };
    let record = record_of(api, backup, repository, namespace, &options, &tell);
    let (record, volume, id) = Box::pin(record).await?;
    let size_bytes = size_of(&record, &volume, &id)?;
    let name = engine::stored_name(&volume, &id);
    let pod = Box::pin(Pod::start(api, repository, &name, tell));
    let pod = pod.await?;
    let command = [PROGRAM, "show", &name, "--attachment", OBJECTS, "--memory", MEMORY];
    let command: Vec<String> = command.map(str::to_owned).to_vec();
    let read = match &pod.begun {
        Ok(key) => Box::pin(api.output_of(key, "mover", &command, size_bytes)).await,
        Err(why) => Err(why.clone()),
    };
    // Whatever came, nothing of it stays.
    pod.remove(api).await;
    Ok(ObjectsFile::Stored(format!("{volume}@{id}"), Arc::new(read?)))
}

/// Where a controller looks after the Repository, a namespace has what the controller would give it.
async fn guard(
    api: &Api,
    repository: &Repository,
    namespace: &str,
) -> Result<Option<Guard>, Failure> {
    let key = Key::new(Kind::Repository, &repository.namespace, &repository.name);
    let found = match api.get(&key).await {
        Ok(Some(found)) => found,
        // Whoever may not read them was told of a ConfigMap.
        Ok(None) | Err(ApiError::Refused(_)) => return Ok(None),
        Err(why) => return Err(why.into()),
    };
    let grants = serde_json::from_value(found["spec"]["grants"].clone()).unwrap_or_default();
    let found = api.get(&Key::wide(Kind::Namespace, namespace)).await?;
    Ok(Some(Guard { grants, uid: found.map(|found| Meta::of(&found).uid).unwrap_or_default() }))
}

/// Bytes of the objects that a backup has.
fn size_of(record: &Value, volume: &str, id: &str) -> Result<usize, Failure> {
    let mut all = record["attachments"].as_array().into_iter().flatten();
    let Some(found) = all.find(|at| at["name"] == OBJECTS) else {
        let what = format!("backup {id} of {volume} has no objects: it was made without --objects");
        return Err(Failure::new(exit::USAGE, what).hint(
            "kubectl mover backup … --objects keeps them; restore from a file that you saved",
        ));
    };
    let bytes = lookup::bytes(found, "size_bytes")?;
    match usize::try_from(bytes) {
        Ok(size) if bytes <= ATTACHMENT_BYTES_MAX => Ok(size),
        _ => Err(Failure::new(exit::BUG, format!("an attachment of {bytes} bytes"))),
    }
}

/// The pod that has the backup.
struct Pod {
    job: Key,
    begun: Result<Key, Failure>,
}

impl Pod {
    async fn start(
        api: &Api,
        repository: &Repository,
        backup: &str,
        tell: impl Fn(&Wait),
    ) -> Result<Self, Failure> {
        let id = random_text(RANDOM_CHARS)?;
        let name = format!("mover-objects-{id}");
        let key = Key::new(Kind::ConfigMap, &repository.namespace, &name);
        let owner = Anchor::new(key, format!("objects-{id}"));
        let arguments = ["serve", backup, "--socket", "/scratch/objects.sock", "--memory", MEMORY];
        let spec = JobSpec::of(repository, arguments.map(str::to_owned).to_vec());
        let job = owner.job(&repository.namespace, 1);
        let mut seen = Observed::default();
        seen.set_object(job.clone(), None);
        let plan = |seen: &Observed| held(&owner, &spec, HELD_SECONDS, seen);
        let begun = Driver::new(api, seen).run(plan, None, tell).await;
        Ok(Self { job, begun: begun.map(|pod| pod.key) })
    }

    /// Nobody waits until it is gone.
    async fn remove(&self, api: &Api) {
        let removed = match api.get(&self.job).await {
            Ok(Some(job)) => api.delete(&self.job, &Meta::of(&job).uid).await.map(drop),
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        if let Err(why) = removed {
            let why = Failure::from(why);
            tracing::warn!("{why}: it goes by itself after {HELD_SECONDS} s");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_backup_without_objects_says_so() {
        let of = |all: Value| size_of(&json!({ "attachments": all }), "c1/shop/db", "b1");
        let objects =
            json!([{ "name": "x", "size_bytes": 1 }, { "name": "objects", "size_bytes": 7 }]);
        assert_eq!(of(objects).expect("objects"), 7);
        for none in [json!(null), json!([]), json!([{ "name": "x", "size_bytes": 1 }])] {
            let why = of(none).expect_err("none");
            assert!(why.message.contains("backup b1 of c1/shop/db has no objects"), "{why}");
        }
        assert!(of(json!([{ "name": "objects", "size_bytes": 1_u64 << 40 }])).is_err());
    }
}
