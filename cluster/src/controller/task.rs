//! The task of one object: begun when the object appears, told of each change, ended with it.

use super::objects::{OF_VELERO, Objects};
use super::velero;
use crate::engine::{Failure, Key, Meta, exit};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What a task sees of its object.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// The object.
    pub(crate) key: Key,
    /// Its uid: another object of that name has another task.
    pub(crate) uid: String,
    /// When this process took it up.
    pub(crate) begun: Instant,
    objects: Rc<Objects>,
    /// Counts changes of the object and of its records.
    changes: watch::Receiver<u64>,
}

/// When a task is to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// When the object or its records change.
    Changed,
    /// Then, or after so long.
    Within(Duration),
}

/// Why the controller ended an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its object is being deleted.
    Deleted,
    /// Its time is over.
    Deadline,
    /// Its object asks for the end (`spec.cancel`).
    Cancelled,
}

impl Why {
    /// As the record says it.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Deadline => "deadline",
            Self::Cancelled => "cancelled",
        }
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        [Self::Deleted, Self::Deadline, Self::Cancelled].into_iter().find(|why| why.text() == text)
    }

    /// As the end of an operation that had not begun.
    pub(crate) fn failure(self) -> Failure {
        let what = match self {
            Self::Deleted => "its object was deleted",
            Self::Deadline => "its time was over before it could begin",
            Self::Cancelled => "it was cancelled before it began",
        };
        Failure::new(exit::CANCELLED, what)
    }
}

impl Task {
    /// The task of an object.
    pub(crate) fn new(
        key: Key,
        uid: String,
        objects: Rc<Objects>,
        changes: watch::Receiver<u64>,
    ) -> Self {
        Self { key, uid, begun: Instant::now(), objects, changes }
    }

    /// The object as it was last told, if it is still the same one.
    pub(crate) fn object(&self) -> Option<Rc<Value>> {
        self.objects.get(&self.key).filter(|object| Meta::of(object).uid == self.uid)
    }

    /// Whether the object is being deleted, or gone.
    pub(crate) fn is_going(&self) -> bool {
        self.object().is_none_or(|object| Meta::of(&object).deletion_timestamp.is_some())
    }

    /// The same, read.
    ///
    /// # Errors
    ///
    /// It is not as its definition has it.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<Option<(Meta, T)>, Failure> {
        let Some(object) = self.object() else { return Ok(None) };
        let read = serde_json::from_value((*object).clone())
            .map_err(|why| Failure::new(exit::USAGE, format!("{}: {why}", self.key)))?;
        Ok(Some((Meta::of(&object), read)))
    }

    /// Until the object or one of its records changes, or so much time is over.
    pub(crate) async fn changed(&self, time: Duration) {
        let mut changes = self.changes.clone();
        changes.mark_unchanged();
        let _ = tokio::time::timeout(time, changes.changed()).await;
    }

    /// Until the next change from now on, wherever it is waited for.
    pub(crate) fn change(&self) -> impl Future<Output = ()> + use<> {
        let mut changes = self.changes.clone();
        changes.mark_unchanged();
        async move {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether the object asks for the end of its operation. Only Velero's objects can; one whose end
    /// Velero has read needs nothing more.
    pub(crate) fn is_cancelled(&self) -> bool {
        OF_VELERO.contains(&self.key.kind)
            && self
                .object()
                .is_some_and(|object| object["spec"]["cancel"] == true || velero::is_over(&object))
    }

    /// Until the object is being deleted, or gone, or asks for the end.
    pub(crate) async fn over(&self) -> Why {
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            if self.is_going() {
                return Why::Deleted;
            }
            if self.is_cancelled() {
                return Why::Cancelled;
            }
            if changes.changed().await.is_err() {
                // Nobody tells any more, so nobody may take it for deleted.
                std::future::pending::<()>().await;
            }
        }
    }

    /// As the owner of another object.
    pub(crate) fn reference(&self) -> Value {
        json!({
            "apiVersion": self.key.kind.api_version(),
            "kind": self.key.kind.word(),
            "name": self.key.name,
            "uid": self.uid,
        })
    }
}
