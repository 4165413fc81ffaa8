//! The usual reasons why a backup or a restore would not work, found before one is tried.
//!
//! It is a question like a plan: a pure function of what was observed, which asks for what it
//! lacks. It goes on after each finding, so that one run names them all. A read that the API
//! refuses is a finding too: what could not be seen is said, and never taken to be good.
//!
//! It writes nothing. Where a backup has the same rule, it stands in [`super::choice`].

mod claim;
mod namespace;
mod operations;
mod quantity;
mod quota;
mod repository;
mod snapshots;
mod velero;

use super::object::{Key, Kind};
use super::observed::Observed;
use super::step::{Failure, Planned, Stop, exit};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A backup would fail.
    Error,
    /// A backup may fail, or a restore of it would.
    Warning,
    /// It works, otherwise than one may expect.
    Note,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Which object has it.
    pub object: String,
    /// What is wrong with it.
    pub message: String,
    /// The next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What is asked about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Question {
    /// The namespace that is looked at where no claim is named.
    pub namespace: String,
    /// Claims, by namespace and name.
    pub claims: Vec<(String, String)>,
    /// The Repository, as `[NAMESPACE/]NAME`.
    pub repository: Option<String>,
    /// Class of the snapshot, where the driver's own is not meant.
    pub snapshot_class: Option<String>,
    /// Class of the volume that is made of it, where the claim's own is not meant.
    pub storage_class: Option<String>,
    /// Whether nobody is asked what changed.
    pub whole: bool,
    /// Issuer of the API server's own tokens, where it is known.
    pub issuer: Option<String>,
    /// Namespace of Velero, where that is asked about. Without claims, nothing else is then.
    pub velero: Option<String>,
    /// A snapshot that was made before, as the API writes times, should have a status by now.
    pub stale_before: Option<String>,
}

/// All that would keep a backup from working, the worst first.
///
/// # Errors
///
/// A read, which comes first. It never fails.
pub fn doctor(seen: &Observed, question: &Question) -> Planned<Vec<Finding>> {
    let mut look = Look { seen, question, found: Vec::new() };
    let mut namespaces: BTreeSet<&str> =
        question.claims.iter().map(|(namespace, _)| namespace.as_str()).collect();
    if namespaces.is_empty() && question.velero.is_none() {
        namespaces.insert(&question.namespace);
    }
    for namespace in namespaces {
        namespace::check(&mut look, namespace)?;
        let repository = repository::check(&mut look, namespace)?;
        let installed = snapshots::installed(&mut look, namespace)?;
        for (_, name) in question.claims.iter().filter(|(of, _)| of == namespace) {
            claim::check(&mut look, (namespace, name), repository.as_ref(), installed)?;
        }
    }
    if let Some(namespace) = &question.velero {
        velero::check(&mut look, namespace)?;
    }
    let mut found = look.found;
    found.sort_by_key(|finding| finding.level);
    Ok(found)
}

/// What is looked at, and what was found so far.
struct Look<'a> {
    seen: &'a Observed,
    question: &'a Question,
    found: Vec<Finding>,
}

impl Look<'_> {
    fn say(&mut self, level: Level, object: impl fmt::Display, message: &str, hint: &str) {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        let object = object.to_string();
        let finding = Finding { level, object, message: message.to_owned(), hint };
        // Claims of one driver have the same classes, and so the same findings.
        if !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    /// A rule of the backup that is broken.
    fn fail(&mut self, level: Level, object: impl fmt::Display, why: &Failure) {
        let object = object.to_string();
        let rest =
            why.message.strip_prefix(&object).map(|text| text.trim_start_matches([':', ' ']));
        let hint = match &why.hint {
            Some(hint) => hint.as_str(),
            None if why.exit_code == exit::DENIED => {
                "ask for that right, or look as somebody who has it: --as USER"
            }
            None => "",
        };
        self.say(level, &object, rest.unwrap_or(&why.message), hint);
    }

    /// Whether the API server has all these kinds, in the versions that are read.
    fn serves(&mut self, kinds: &[Kind], missing: &str, hint: &str) -> Planned<bool> {
        let mut all = true;
        for kind in kinds {
            let resource = kind.resource();
            let name = format!("{}.{}", resource.plural, resource.group);
            let key = Key::wide(Kind::CustomResourceDefinition, &name);
            let Some(read) = self.known(Level::Note, &key, self.seen.raw(&key))? else { break };
            let Some(found) = read else {
                self.say(Level::Error, &key, missing, hint);
                all = false;
                continue;
            };
            let mut versions = found["spec"]["versions"].as_array().into_iter().flatten();
            if !versions.any(|at| at["name"] == resource.version && at["served"] == true) {
                let what = format!("it does not serve version {}", resource.version);
                self.say(Level::Error, &key, &what, hint);
                all = false;
            }
        }
        Ok(all)
    }

    /// What was read; none where it could not be, and then that is a finding.
    fn known<T>(
        &mut self,
        level: Level,
        object: impl fmt::Display,
        read: Planned<T>,
    ) -> Planned<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(Stop::Failure(why)) => {
                self.fail(level, object, &why);
                Ok(None)
            }
            Err(next) => Err(next),
        }
    }
}
