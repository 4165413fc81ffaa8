//! A snapshot that was given to us for an operation which never began.

use super::operation::random_text;
use crate::api::Api;
use crate::drive::Driver;
use crate::engine::{self, Anchor, Failure, Given, Key, Kind, Meta, Observed};

/// Of the name of a driver, which no other has.
const DRIVER_CHARS: usize = 20;
/// Whoever takes snapshots by this label gives them away.
const OF_GIVER: &str = "velero.io/backup-name";

/// Removes it, with that of the storage. One that an operation has got stays with that, and so does
/// one that its giver did not make. `owner` is the object that it was given for.
///
/// # Errors
///
/// The API's.
pub async fn discard(
    api: &Api,
    (owner, uid): (&Key, &str),
    namespace: &str,
    name: &str,
) -> Result<(), Failure> {
    let key = Key::new(Kind::VolumeSnapshot, namespace, name);
    let Some(found) = api.get(&key).await? else { return Ok(()) };
    let meta = Meta::of(&found);
    let may_go = match engine::is_given(&meta) {
        true => meta.labels.get(engine::OWNER).map(String::as_str) == Some(uid),
        false => meta.labels.contains_key(OF_GIVER),
    };
    if !may_go {
        return Ok(());
    }
    let given = Given { name: name.to_owned(), uid: meta.uid, origin: None };
    let anchor = Anchor::new(owner.clone(), uid.to_owned());
    let seen = Observed::default().named(random_text(DRIVER_CHARS)?);
    let plan = |seen: &Observed| engine::discard(seen, &anchor, namespace, &given);
    Driver::new(api, seen).run(plan, None, |_| {}).await
}
