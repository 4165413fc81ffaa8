//! Objects that backups bring along: read once for each namespace, before anything is moved.

use super::super::args;
use super::super::output::Output;
use super::applications;
use crate::api::Api;
use crate::engine::{self, CarriedObjects, Failure, Payload, Repository, Request};
use crate::ops::carried;
use crate::ops::manifest::{self, Spool};
use crate::ops::operation::random_text;
use std::collections::{BTreeMap, BTreeSet};

const RANDOM_CHARS: usize = 12;

/// What the backups of one command bring along.
pub(super) struct Brought<'a> {
    given: &'a args::BackupObjects,
    /// By namespace.
    read: BTreeMap<String, (CarriedObjects, Payload)>,
    /// Repositories that can keep them, by namespace and name.
    asked: BTreeSet<(String, String)>,
}

impl<'a> Brought<'a> {
    pub(super) fn new(given: &'a args::Backup) -> Self {
        Self { given: &given.objects, read: BTreeMap::new(), asked: BTreeSet::new() }
    }

    /// Whether there are any.
    pub(super) fn is_wanted(&self) -> bool {
        self.given.objects
    }

    /// The objects of a namespace, for backups in a Repository; nothing where none are wanted.
    pub(super) async fn read(
        &mut self,
        api: &Api,
        namespace: &str,
        place: &Repository,
        output: &Output,
    ) -> Result<(), Failure> {
        if !self.given.objects {
            return Ok(());
        }
        let at = (place.namespace.clone(), place.name.clone());
        if !self.asked.contains(&at) {
            carried::can_keep(api, place, |wait| output.waiting(wait)).await?;
            self.asked.insert(at);
        }
        if !self.read.contains_key(namespace) {
            let read = Box::pin(self.objects_of(api, namespace, output)).await?;
            self.read.insert(namespace.to_owned(), read);
        }
        Ok(())
    }

    async fn objects_of(
        &self,
        api: &Api,
        namespace: &str,
        output: &Output,
    ) -> Result<(CarriedObjects, Payload), Failure> {
        let args::BackupObjects { objects_selector, owner_rule, skip_unreadable, accept, .. } =
            self.given.clone();
        let of =
            args::ObjectsOf { selector: objects_selector, owner_rule, skip_unreadable, accept };
        let wanted = applications::reading(namespace, &[], &of)?;
        // It has no name from its first moment on.
        let name = format!("mover-objects-{}", random_text(RANDOM_CHARS)?);
        let mut spool = Spool::beside(&std::env::temp_dir().join(name))?;
        let found = applications::read(api, &wanted, &of, Some(&mut spool), output).await?;
        let (payload, count) = manifest::pack(&found, &mut spool)?;
        output.progress(&format!(
            "{count} objects of namespace {namespace} go with the backup, {} are listed and left out",
            found.items.len() - count
        ));
        Ok((engine::carried(&payload)?, payload))
    }

    /// The request with the objects of its namespace, and the bytes that its driver hands over.
    pub(super) async fn along(
        &self,
        api: &Api,
        namespace: &str,
        request: Request,
    ) -> Result<(Request, Option<Payload>), Failure> {
        let Some((objects, payload)) = self.read.get(namespace) else { return Ok((request, None)) };
        let request = carried::with_objects(api, namespace, request, objects).await?;
        Ok((request, Some(payload.clone())))
    }
}
