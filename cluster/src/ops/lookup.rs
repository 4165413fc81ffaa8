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
    let owner = Anchor::new(
        Key::new(Kind::ConfigMap, &repository.namespace, &format!("mover-lookup-{id}")),
        format!("lookup-{id}"),
    );
    let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
    let spec = JobSpec::of(repository, arguments);
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
    let finished = finished?;
    let log = log.expect("it has ended well")?;
    if let Some(why) = log.cut {
        // Part of an answer may say that there is no backup.
        let what = format!("read the answer of the repository: {why}");
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again"));
    }
    let lines = log.text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let lines: Vec<Value> = lines.collect();
    complete(&lines, &finished.summary)?;
    Ok(lines)
}

/// All records are there: a node begins a new file of a log that has become long, and answers with
/// that one alone. An older `mover` does not say how many it has printed.
fn complete(lines: &[Value], summary: &Value) -> Result<(), Failure> {
    let Some(records) = summary["records"].as_u64() else { return Ok(()) };
    let found = lines.iter().filter(|line| line["type"] == "backup").count();
    if u64::try_from(found).is_ok_and(|found| found == records) {
        return Ok(());
    }
    let what = format!(
        "the repository has listed {records} backups, and the log of the pod that asked it has {found} of them"
    );
    Err(Failure::new(exit::RETRYABLE, what)
        .hint("ask for one volume: list pvc/NAME. The node keeps too little of a log (containerLogMaxSize)"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn part_of_an_answer_is_none() {
        let lines = [json!({ "type": "log" }), json!({ "type": "backup" })];
        complete(&lines, &json!({ "records": 1 })).expect("all");
        complete(&lines, &Value::Null).expect("an older program");
        let why = complete(&lines, &json!({ "records": 2 })).expect_err("one is missing");
        assert!(why.message.contains("has 1 of them"), "{why}");
    }
}
