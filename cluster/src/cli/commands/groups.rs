//! `kubectl mover backup --group`: all claims of some labels at one moment, as one operation.

use super::super::args;
use super::super::output::Output;
use super::brought::Brought;
use super::{objects, turn, volumes};
use crate::api::Api;
use crate::engine::{Failure, Outcome, Request, exit};
use crate::ops::objects::is_object;
use crate::ops::{group, operation};
use serde_json::{Value, json};

pub(super) async fn backup(
    api: &Api,
    namespace: &str,
    selector: &str,
    given: &args::Backup,
    output: &Output,
) -> Result<u8, Failure> {
    let labels = group::labels(selector)?;
    let place = Box::pin(volumes::place_of(api, namespace, given, output)).await?;
    let mut brought = Brought::new(given);
    if !brought.is_wanted() && is_object(api, &place).await? {
        let of = (namespace, &labels);
        return match Box::pin(objects::group(api, of, &place, given, output)).await? {
            objects::Followed::Ended(outcome) => report(&outcome, output),
            objects::Followed::Made(what) => objects::made(&what, output),
        };
    }
    let options = volumes::options(given)?;
    let mut turn = turn(given.making.limits);
    let tell = |wait: &_| output.waiting(wait);
    let (source, (request, payload)) = loop {
        let request = Box::pin(group::request(api, namespace, &labels, &place, &options)).await?;
        let request = Request::Group(Box::new(request));
        let along = brought.along(api, (namespace, &place), request, output).await?;
        let source = operation::source_of(&along.0);
        if !Box::pin(operation::free(api, namespace, &source, &along.0, &mut turn, tell)).await? {
            break (source, along);
        }
    };
    let of = (namespace, "group", turn);
    let run = volumes::run(api, of, &source, (&request, payload), output);
    let (outcome, _) = Box::pin(run).await?;
    report(&outcome, output)
}

/// A row for each member; without members, why there is none.
fn report(outcome: &Outcome, output: &Output) -> Result<u8, Failure> {
    let Outcome { exit_code, message, hint, summary, left } = outcome;
    for text in left {
        output.say(&format!("warning: {text}"));
    }
    let warnings = summary["warnings"].as_array();
    for text in warnings.into_iter().flatten().filter_map(Value::as_str) {
        output.say(&format!("warning: {text}"));
    }
    let failure =
        || Failure { exit_code: *exit_code, message: message.clone(), hint: hint.clone() };
    let Some(members) = summary["members"].as_array() else {
        if *exit_code != 0 {
            return Err(failure());
        }
        output.result(&json!(outcome), message);
        return Ok(0);
    };
    let rows: Vec<_> = members.iter().map(row).collect();
    output.table(&volumes::HEAD, 0, &rows);
    if *exit_code != 0 {
        output.say(&format!("error: {}", failure()));
    }
    Ok(*exit_code)
}

fn row(member: &Value) -> (Vec<String>, Value) {
    let claim = format!("pvc/{}", member["claim"].as_str().unwrap_or_default());
    let code = match member["failed"].as_str() {
        None => 0,
        Some(_) => {
            let code = member["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok());
            code.unwrap_or(exit::RETRYABLE)
        }
    };
    let ended = Outcome {
        exit_code: code,
        message: member["failed"].as_str().unwrap_or_default().to_owned(),
        hint: None,
        summary: if code == 0 { member.clone() } else { json!(null) },
        left: Vec::new(),
    };
    volumes::row(&claim, &ended)
}
