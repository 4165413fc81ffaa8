//! Objects that backups bring along: read once for each namespace, before anything of it is moved.

use super::super::args;
use super::super::output::Output;
use super::applications;
use crate::api::Api;
use crate::engine::{self, CarriedObjects, Failure, Payload, Repository, Request, exit};
use crate::ops::carried;
use crate::ops::manifest::{self, Spool};
use crate::ops::operation::random_text;
use std::collections::BTreeMap;

const RANDOM_CHARS: usize = 12;

/// Objects of a namespace, or why there are none.
type Read = Result<(CarriedObjects, Payload), Failure>;

/// What the backups of one command bring along.
pub(super) struct Brought<'a> {
    given: &'a args::BackupObjects,
    /// Those of the namespace that was read last, or why there are none: there may be many.
    read: Option<(String, Read)>,
    /// Whether Repositories can keep them, by namespace and name.
    asked: BTreeMap<(String, String), Result<(), Failure>>,
}

impl<'a> Brought<'a> {
    pub(super) fn new(given: &'a args::Backup) -> Self {
        Self { given: &given.objects, read: None, asked: BTreeMap::new() }
    }

    /// Whether there are any.
    pub(super) fn is_wanted(&self) -> bool {
        self.given.objects
    }

    /// The objects of a namespace, for backups in a Repository.
    async fn read(
        &mut self,
        api: &Api,
        namespace: &str,
        place: &Repository,
        output: &Output,
    ) -> Read {
        let at = (place.namespace.clone(), place.name.clone());
        match self.asked.get(&at) {
            Some(known) => known.clone()?,
            None => {
                let found = carried::can_keep(api, place, |wait| output.waiting(wait)).await;
                // What may pass is asked again for the next claim; a Job for each says no more.
                if !matches!(&found, Err(why) if why.exit_code == exit::RETRYABLE) {
                    self.asked.insert(at, found.clone());
                }
                found?;
            }
        }
        if let Some((of, read)) = &self.read
            && of == namespace
        {
            return read.clone();
        }
        self.read = None;
        let read = Box::pin(self.objects_of(api, namespace, output)).await;
        self.read = Some((namespace.to_owned(), read.clone()));
        read
    }

    async fn objects_of(&self, api: &Api, namespace: &str, output: &Output) -> Read {
        let args::BackupObjects { objects_selector, owner_rule, skip_unreadable, accept, .. } =
            self.given.clone();
        let of =
            args::ObjectsOf { selector: objects_selector, owner_rule, skip_unreadable, accept };
        let wanted = applications::reading(namespace, &[], &of)?;
        // It has no name from its first moment on.
        let name = format!("mover-objects-{}", random_text(RANDOM_CHARS)?);
        let spool = Spool::beside(&std::env::temp_dir().join(name));
        let mut spool = spool.map_err(|why| why.hint("set TMPDIR to a folder with room"))?;
        let found = applications::read(api, &wanted, &of, Some(&mut spool), output).await?;
        let selection = selection(&of)?;
        let (payload, count) = manifest::pack(&found, &mut spool)?;
        output.progress(&format!(
            "{count} objects of namespace {namespace} go with the backup, {} are listed and left out",
            found.items.len() - count
        ));
        Ok((engine::carried(&payload, selection)?, payload))
    }

    /// The request with the objects of its namespace, and the bytes that its driver hands over;
    /// as it is where none are wanted.
    pub(super) async fn along(
        &mut self,
        api: &Api,
        (namespace, place): (&str, &Repository),
        request: Request,
        output: &Output,
    ) -> Result<(Request, Option<Payload>), Failure> {
        if !self.given.objects {
            return Ok((request, None));
        }
        let (objects, payload) = Box::pin(self.read(api, namespace, place, output)).await?;
        let (request, goes_on) = carried::with_objects(api, namespace, request, &objects).await?;
        if let Some(record) = goes_on.filter(|_| request.objects() != Some(&objects)) {
            output.progress(&format!("goes on with the objects that {record} has read before"));
        }
        Ok((request, Some(payload)))
    }
}

/// Which objects are asked for, as text: what another command has read by the same question may be
/// gone on with.
fn selection(of: &args::ObjectsOf) -> Result<String, Failure> {
    let args::ObjectsOf { selector, owner_rule, skip_unreadable, accept } = of;
    let accepted = match accept {
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|why| {
                Failure::new(exit::USAGE, format!("read {}: {why}", path.display()))
                    .hint("name a list that `kubectl mover objects list --save` wrote")
            })?;
            Some(blake3::hash(&bytes).to_hex().to_string())
        }
        None => None,
    };
    let text = serde_json::json!([selector, owner_rule, skip_unreadable, accepted]).to_string();
    Ok(blake3::hash(text.as_bytes()).to_hex()[..32].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn another_question_is_another_selection() {
        let plain = args::ObjectsOf {
            selector: None,
            owner_rule: Vec::new(),
            skip_unreadable: false,
            accept: None,
        };
        let list = std::env::temp_dir().join(format!("mover-list-{}", std::process::id()));
        std::fs::write(&list, "{}").expect("a file");
        let others = [
            args::ObjectsOf { selector: Some("app=a".into()), ..plain.clone() },
            args::ObjectsOf { owner_rule: vec!["app=a".into()], ..plain.clone() },
            args::ObjectsOf { skip_unreadable: true, ..plain.clone() },
            args::ObjectsOf { accept: Some(list.clone()), ..plain.clone() },
        ];
        let mut all: BTreeSet<String> = BTreeSet::from([selection(&plain).expect("a text")]);
        for other in &others {
            assert!(all.insert(selection(other).expect("a text")), "{other:?}");
            assert_eq!(selection(other).expect("a text"), selection(other).expect("a text"));
        }
        std::fs::write(&list, "{ }").expect("a file");
        assert!(all.insert(selection(&others[3]).expect("a text")));
        std::fs::remove_file(&list).expect("removed");
        assert!(selection(&others[3]).is_err());
    }
}
