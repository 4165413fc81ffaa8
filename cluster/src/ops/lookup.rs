//! What only the repository knows: a Job asks it, and its log has the answer.

use crate::api::Api;
use crate::drive::Driver;
use crate::engine::{
    Anchor, Failure, JobSpec, Key, Kind, Limits, Observed, Repository, Wait, exit, lookup,
};
use crate::ops::operation::random_text;
use serde_json::Value;

const RANDOM_CHARS: usize = 12;

/// Runs `mover` with these arguments in the Repository's namespace; the JSON lines that it printed.
///
/// # Errors
///
/// The Job failed; its last pod's words are the message.
pub async fn ask(
    api: &Api,
    repository: &Repository,
    arguments: &[&str],
    tell: impl FnMut(&Wait),
) -> Result<Vec<Value>, Failure> {
    let id = random_text(RANDOM_CHARS)?;
    let owner = Anchor {
        key: Key::new(Kind::ConfigMap, &repository.namespace, &format!("mover-lookup-{id}")),
        uid: format!("lookup-{id}"),
    };
    let spec = JobSpec {
        repository,
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        device: None,
        changes: None,
    };
    let limits = Limits::default();
    let mut seen = Observed::default();
    let first = owner.job(&repository.namespace, 1);
    seen.set_object(first.clone(), None);
    let plan = |seen: &Observed| lookup(&owner, &spec, limits, seen);
    let finished = Driver::new(api, seen).run(plan, None, tell).await;
    let log = match &finished {
        Ok(finished) => Some(api.log(&finished.pod).await),
        Err(_) => None,
    };
    // Whatever it said, nothing of it stays.
    for number in 1.. {
        let key = owner.job(&repository.namespace, number);
        match api.get(&key).await {
            Ok(Some(job)) => drop(api.delete(&key, &crate::engine::Meta::of(&job).uid).await),
            _ => break,
        }
    }
    finished?;
    let log = log.expect("it has ended well")?;
    if let Some(why) = log.cut {
        // Part of an answer may say that there is no backup.
        let what = format!("read the answer of the repository: {why}");
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again"));
    }
    let lines = log.text.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(lines.collect())
}

/// Records of one type among what was printed.
pub fn of_type<'a>(lines: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["type"] == name)
}

/// A number of bytes in a record.
///
/// # Errors
///
/// A record that is not as this program knows it.
pub fn bytes(record: &Value, name: &str) -> Result<u64, Failure> {
    record[name].as_u64().ok_or_else(|| {
        Failure::new(exit::BUG, format!("the record of a backup has no number {name}: {record}"))
    })
}
