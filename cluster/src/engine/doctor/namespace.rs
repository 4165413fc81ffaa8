//! Namespaces: there, staying, and open to the Jobs' pods.

use super::{Level, Look};
use crate::engine::object::{Key, Kind};
use crate::engine::observed::Object;
use crate::engine::step::Planned;
use serde_json::Value;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Any namespace that objects are made in.
pub(super) fn check(look: &mut Look<'_>, name: &str) -> Planned<Option<Object<Value>>> {
    let key = Key::wide(Kind::Namespace, name);
    let Some(read) = look.known(Level::Note, &key, look.seen.find::<Value>(&key))? else {
        return Ok(None);
    };
    let Some(found) = read else {
        let hint = "name another one by -n, or make it";
        look.say(Level::Error, &key, "there is no such namespace", hint);
        return Ok(None);
    };
    let phase = found.body["status"]["phase"].as_str();
    if phase == Some("Terminating") || found.meta.deletion_timestamp.is_some() {
        let what = "it is being deleted: nothing can be made in it";
        look.say(Level::Error, &key, what, "wait until it is gone, and make it anew");
    }
    Ok(Some(found))
}

/// The one in which the Jobs run.
pub(super) fn of_jobs(look: &mut Look<'_>, name: &str) -> Planned<()> {
    let Some(found) = check(look, name)? else { return Ok(()) };
    if found.meta.labels.get(ENFORCE).map(String::as_str) == Some("restricted") {
        let what = "its Pod Security is `restricted`, and the Job's pod runs as root, to whom \
                    devices belong: it is refused";
        let hint = format!("kubectl label namespace {name} {ENFORCE}=baseline --overwrite");
        look.say(Level::Error, &found.key, what, &hint);
    }
    Ok(())
}
