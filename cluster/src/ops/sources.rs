//! From what was typed to the claims that are meant: `pvc/NAME`, workloads, namespaces, labels.
//!
//! The expansion is a question, as a plan is: it asks for reads and writes nothing. The order is
//! that of the sources, and within one of them that of the names, `db-2` before `db-10`.

use crate::engine::{
    Claim, Failure, Key, Kind, OWNER, Object, Observed, Planned, ROLE, Selection, Stop, TARGET,
    choice, exit,
};
use serde_json::Value;
use std::cmp::Ordering;

/// A claim that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A claim that belongs to a source and is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Which one.
    pub claim: String,
    /// Why.
    pub why: String,
}

/// The claims of sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Each once, in a stable order.
    pub claims: Vec<Source>,
    /// What is left out.
    pub skipped: Vec<Skipped>,
}

/// One word of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word<'a> {
    Claim(&'a str),
    StatefulSet(&'a str),
    Deployment(&'a str),
    Pod(&'a str),
    Namespace(&'a str),
}

const FORMS: &str = "write pvc/NAME, statefulset/NAME, deployment/NAME, pod/NAME or ns/NAME";

fn parse(text: &str) -> Result<Word<'_>, Failure> {
    let (kind, name) = text.split_once('/').unwrap_or(("pvc", text));
    if name.is_empty() || name.contains('/') {
        return Err(Failure::new(exit::USAGE, format!("{text} names no source")).hint(FORMS));
    }
    match kind {
        "pvc" | "persistentvolumeclaim" | "persistentvolumeclaims" => Ok(Word::Claim(name)),
        "sts" | "statefulset" | "statefulsets" | "statefulset.apps" => Ok(Word::StatefulSet(name)),
        "deploy" | "deployment" | "deployments" | "deployment.apps" => Ok(Word::Deployment(name)),
        "po" | "pod" | "pods" => Ok(Word::Pod(name)),
        "ns" | "namespace" | "namespaces" => Ok(Word::Namespace(name)),
        _ => {
            let what = format!("{text}: {kind} is not a kind that can be meant here");
            Err(Failure::new(exit::USAGE, what).hint(FORMS))
        }
    }
}

/// Whether a command is about one claim that was named itself.
pub fn is_one_claim(words: &[String], selector: Option<&str>) -> bool {
    selector.is_none() && matches!(words, [one] if matches!(parse(one), Ok(Word::Claim(_))))
}

/// The claims that are meant. `selector` chooses claims of the namespace by their labels.
///
/// # Errors
///
/// A read, which comes first; a word that cannot be meant; a workload that does not exist; or no
/// claim at all.
pub fn expand(
    seen: &Observed,
    namespace: &str,
    words: &[String],
    selector: Option<&str>,
) -> Planned<Sources> {
    let mut all = Sources::default();
    for word in words {
        match parse(word)? {
            Word::Claim(name) => all.add(namespace, name),
            Word::StatefulSet(name) => all.stateful_set(seen, namespace, name)?,
            Word::Deployment(name) => {
                let object = &must(seen, &Key::new(Kind::Deployment, namespace, name))?;
                all.pod(namespace, &object["spec"]["template"], None);
            }
            Word::Pod(name) => {
                let object = &must(seen, &Key::new(Kind::Pod, namespace, name))?;
                all.pod(namespace, object, Some(name));
            }
            Word::Namespace(name) => all.namespace(seen, name)?,
        }
    }
    if let Some(labels) = selector {
        for claim in claims(seen, &Selection::labelled(CLAIM, namespace, labels))? {
            match is_ours(&claim) {
                true => all.skip(&claim.key, "it belongs to an operation"),
                false => all.add(namespace, &claim.key.name),
            }
        }
    }
    if all.claims.is_empty() {
        let what = match selector {
            Some(labels) => format!("no claim in namespace {namespace} has the labels {labels}"),
            None => format!("{} has no claim that can be backed up", words.join(", ")),
        };
        let why = all.skipped.iter().map(|at| format!("{}: {}", at.claim, at.why));
        let hint = why.collect::<Vec<_>>().join("; ");
        let hint = if hint.is_empty() { FORMS.to_owned() } else { hint };
        return Err(Failure::new(exit::USAGE, what).hint(hint).into());
    }
    Ok(all)
}

const CLAIM: Kind = Kind::PersistentVolumeClaim;

impl Sources {
    fn add(&mut self, namespace: &str, name: &str) {
        let source = Source { namespace: namespace.to_owned(), name: name.to_owned() };
        if !self.claims.contains(&source) {
            self.claims.push(source);
        }
    }

    fn skip(&mut self, what: impl ToString, why: impl Into<String>) {
        let skipped = Skipped { claim: what.to_string(), why: why.into() };
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }

    /// The claims of its templates that exist, those of pods that are scaled away too, and those
    /// that its pods name.
    fn stateful_set(&mut self, seen: &Observed, namespace: &str, name: &str) -> Planned<()> {
        let object = &must(seen, &Key::new(Kind::StatefulSet, namespace, name))?;
        let templates = object["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
        let templates: Vec<&str> =
            templates.filter_map(|at| at["metadata"]["name"].as_str()).collect();
        if !templates.is_empty() {
            let all = claims(seen, &Selection::labelled(CLAIM, namespace, ""))?;
            let mut found: Vec<(u64, &str)> = Vec::new();
            for claim in &all {
                let of = templates.iter().find_map(|at| ordinal(&claim.key.name, at, name));
                found.extend(of.map(|ordinal| (ordinal, claim.key.name.as_str())));
            }
            // All of one pod first.
            found.sort_unstable();
            found.iter().for_each(|(_, claim)| self.add(namespace, claim));
        }
        self.pod(namespace, &object["spec"]["template"], None);
        Ok(())
    }

    /// The claims that a pod names; of a pod itself those that live as long as it, too.
    fn pod(&mut self, namespace: &str, pod: &Value, name: Option<&str>) {
        for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                self.add(namespace, claim);
            }
            if !volume["ephemeral"].is_object() {
                continue;
            }
            let of = volume["name"].as_str().unwrap_or_default();
            match name {
                Some(name) => self.add(namespace, &format!("{name}-{of}")),
                None => {
                    let why = "each pod has its own, which goes with it: name the pod";
                    self.skip(format!("ephemeral volume {of}"), why);
                }
            }
        }
    }

    /// All of a namespace that a backup would take.
    fn namespace(&mut self, seen: &Observed, namespace: &str) -> Planned<()> {
        for claim in claims(seen, &Selection::labelled(CLAIM, namespace, ""))? {
            if is_ours(&claim) {
                self.skip(&claim.key, "it belongs to an operation");
                continue;
            }
            match fits(seen, &claim) {
                Ok(()) => self.add(namespace, &claim.key.name),
                Err(Stop::Failure(why)) => self.skip(&claim.key, why.message),
                Err(next) => return Err(next),
            }
        }
        Ok(())
    }
}

/// Whether a claim is bound to a volume of a CSI driver.
fn fits(seen: &Observed, claim: &Object<Claim>) -> Planned<()> {
    let volume = choice::bound(&claim.key, &claim.meta, &claim.body)?;
    let raw = &must(seen, &volume)?;
    choice::csi(&claim.key, &volume, raw)?;
    Ok(())
}

/// Whether it is a volume for a while, which an operation made.
fn is_ours(claim: &Object<Claim>) -> bool {
    let labels = &claim.meta.labels;
    labels.contains_key(OWNER) && labels.get(ROLE).map(String::as_str) != Some(TARGET)
}

fn must(seen: &Observed, key: &Key) -> Planned<Value> {
    let found = seen.raw(key)?;
    found.ok_or_else(|| {
        let place = key.namespace.iter().map(|of| format!("-n {of} ")).collect::<String>();
        let hint =
            format!("kubectl {place}get {} lists those that are there", key.kind.resource().plural);
        Failure::new(exit::USAGE, format!("there is no {key}")).hint(hint).into()
    })
}

fn claims(seen: &Observed, selection: &Selection) -> Planned<Vec<Object<Claim>>> {
    let mut all: Vec<Object<Claim>> = seen.list(selection)?;
    all.sort_by(|one, other| natural(&one.key.name, &other.key.name));
    Ok(all)
}

/// The number in `TEMPLATE-SET-NUMBER`.
fn ordinal(claim: &str, template: &str, set: &str) -> Option<u64> {
    let number = claim.strip_prefix(template)?.strip_prefix('-')?;
    let number = number.strip_prefix(set)?.strip_prefix('-')?;
    // As the controller writes it: `db-01` is another claim.
    number.parse::<u64>().ok().filter(|read| read.to_string() == number)
}

/// `db-2` before `db-10`.
fn natural(one: &str, other: &str) -> Ordering {
    let split = |text: &str| {
        let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (name, number) = text.split_at(text.len() - digits);
        (name.to_owned(), number.parse::<u64>().unwrap_or(0))
    };
    split(one).cmp(&split(other)).then_with(|| one.cmp(other))
}
