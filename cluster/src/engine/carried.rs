//! Objects of an application on their way to the pod of a backup: a file in parts, each of them in a
//! Secret of the Repository's namespace. Whoever reads Secrets there reads the repository's key, too.
//!
//! The Secrets are made before anything else of a backup, and go when its Jobs are gone. Their bytes
//! are not in the anchor: the driver whose command has read them holds them. Any other driver waits
//! until they are there. The digest of the whole is in the arguments of the Job, so a Secret that
//! somebody changes beneath it is refused by `mover`.

use super::names::{self, Anchor};
use super::object::{Key, Query};
use super::parts::Context;
use super::payload::{PART, PART_BYTES, Payload};
use super::request::{Backup, CarriedObjects};
use super::step::{Failure, Planned, Step, Wait, exit};
use serde_json::{Value, json};
use std::time::Duration;

/// Bytes of all parts, at most: etcd has a few GiB for all of the cluster.
pub const CARRIED_BYTES_MAX: usize = 32 << 20;
/// So many Secrets hold them.
const PARTS_MAX: u32 = 37;
const _: () = assert!(CARRIED_BYTES_MAX.div_ceil(PART_BYTES) == PARTS_MAX as usize);
/// The name of the attachment.
pub const OBJECTS: &str = "objects";
/// Where the parts are in the pod.
const PLACE: &str = "/etc/mover/objects";
/// Whoever has read the objects hands the next part over by then, or is gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// What stands in the request about these bytes.
///
/// # Errors
///
/// There are too many of them.
pub fn carried(payload: &Payload, selection: String) -> Result<CarriedObjects, Failure> {
    let bytes = payload.size_bytes();
    if bytes > CARRIED_BYTES_MAX {
        let what = format!("the objects take {bytes} bytes, and {CARRIED_BYTES_MAX} are possible");
        return Err(Failure::new(exit::USAGE, what)
            .hint("choose fewer by --objects-selector, or keep them in a file: kubectl mover objects save"));
    }
    Ok(CarriedObjects {
        parts: payload.parts(),
        size_bytes: bytes as u64,
        digest: payload.digest().to_owned(),
        selection,
    })
}

/// The Secrets of an operation, in their order.
pub(super) fn keys(anchor: &Anchor, namespace: &str, of: &CarriedObjects) -> Vec<Key> {
    (1..=of.parts.min(PARTS_MAX)).map(|number| anchor.part(namespace, number)).collect()
}

/// All parts are in the cluster.
pub(super) fn hand_over(context: &Context<'_>, backup: &Backup) -> Planned<()> {
    let Some(objects) = &backup.objects else { return Ok(()) };
    if objects.parts == 0 || objects.parts > PARTS_MAX {
        let what = format!("{} parts of objects, and 1 to {PARTS_MAX} are possible", objects.parts);
        return Err(Failure::new(exit::USAGE, what).into());
    }
    let payload = context.seen.payload().filter(|held| held.digest() == objects.digest);
    for (number, key) in (1..).zip(keys(context.anchor, &backup.repository.namespace, objects)) {
        if context.find_ours::<Value>(&key)?.is_some() {
            continue;
        }
        let Some(part) = payload.and_then(|held| held.part(number)) else {
            return await_other(context, key);
        };
        let body = json!({ "type": "Opaque", "immutable": true });
        let object = names::object(&key, context.anchor.meta(&key, OBJECTS), body);
        return Err(Step::Fill(object, part).into());
    }
    Ok(())
}

/// Another command may hand it over: this one has read the objects anew, and they are others by now.
fn await_other(context: &Context<'_>, key: Key) -> Planned<()> {
    let query = Query::One(key.clone());
    let waited = context.seen.unchanged(&query);
    if waited < PATIENCE {
        let why = format!("{key} is missing, which the command that has read the objects makes");
        return Err(Wait::new(vec![query], why, PATIENCE - waited).into());
    }
    context.seen.confirm(&query)?;
    let what = format!(
        "{key} is missing, and the command that had read the objects is gone: its operation ends"
    );
    Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again").into())
}

/// Arguments of `mover backup` by which it takes the parts, and no others.
pub(super) fn arguments(backup: &Backup) -> Vec<String> {
    let of = |objects: &CarriedObjects| {
        let digest = &objects.digest;
        [
            format!("--attach={OBJECTS}={PLACE}"),
            format!("--attach-digest={OBJECTS}=blake3:{digest}"),
        ]
    };
    backup.objects.iter().flat_map(of).collect()
}

/// The volume of the pod that has the parts as files, and where it is.
pub(super) fn volume(parts: &[String]) -> (Value, Value) {
    let one = |(number, name): (u32, &String)| {
        let path = format!("part-{number:03}");
        json!({ "secret": { "name": name, "items": [{ "key": PART, "path": path }] } })
    };
    let sources: Vec<Value> = (1..).zip(parts).map(one).collect();
    (
        json!({ "name": OBJECTS, "projected": { "defaultMode": 256, "sources": sources } }),
        json!({ "name": OBJECTS, "mountPath": PLACE, "readOnly": true }),
    )
}

/// Takes all parts out of the cluster.
pub(super) fn remove(context: &Context<'_>, backup: &Backup) -> Planned<()> {
    let Some(objects) = &backup.objects else { return Ok(()) };
    let keys = keys(context.anchor, &backup.repository.namespace, objects);
    keys.iter().try_for_each(|key| context.remove(key))
}
