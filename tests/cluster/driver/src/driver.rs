//! What all services share: the store behind its lock, the faults, and the way a call takes.
//!
//! One lock guards the store for the whole of a call, so calls follow each other; a call that is
//! late by order waits before it takes the lock. Nobody holds two locks: there is no second one
//! that is taken inside.

use crate::faults::{Active, Faults, is_call, name};
use crate::store::Store;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tonic::{Request, Response, Status};

#[derive(Debug)]
pub(crate) struct Driver {
    /// As in `CSIDriver`, `StorageClass` and `VolumeSnapshotClass`.
    pub(crate) name: String,
    /// The one node that has the store.
    pub(crate) node: String,
    pub(crate) faults: Faults,
    store: Mutex<Store>,
}

/// One call: the store, locked, and the faults that are in force.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) store: MutexGuard<'a, Store>,
    pub(crate) faults: Active,
}

/// What implements the protocol's services.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub(crate) Arc<Driver>);

impl Driver {
    pub(crate) fn new(name: String, node: String, faults: Faults, store: Store) -> Self {
        Self { name, node, faults, store: Mutex::new(store) }
    }

    /// The key of the topology segment that says where a volume is.
    pub(crate) fn topology_key(&self) -> String {
        format!("topology.{}/node", self.name)
    }

    /// A call that panicked changed no record by half: they change one by one, each at once.
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// Carries a call out, with the faults that are in force, on a thread that may block.
    pub(crate) async fn serve<Q, A>(
        &self,
        call: &'static str,
        request: Request<Q>,
        work: impl FnOnce(&mut Call<'_>, Q) -> Result<A, Status> + Send + 'static,
    ) -> Result<Response<A>, Status>
    where
        Q: Debug + Send + 'static,
        A: Send + 'static,
    {
        let started = Instant::now();
        let request = request.into_inner();
        let text = format!("{request:?}");
        let answer = self.answer(call, &text, request, work).await;
        let ms = started.elapsed().as_millis();
        match &answer {
            Ok(_) => tracing::info!(call, ms, request = text, "OK"),
            Err(error) => {
                let code = name(error.code());
                tracing::warn!(call, ms, code, request = text, "{}", error.message());
            }
        }
        answer.map(Response::new)
    }

    async fn answer<Q, A>(
        &self,
        call: &'static str,
        text: &str,
        request: Q,
        work: impl FnOnce(&mut Call<'_>, Q) -> Result<A, Status> + Send + 'static,
    ) -> Result<A, Status>
    where
        Q: Send + 'static,
        A: Send + 'static,
    {
        debug_assert!(is_call(call), "{call} is none of the calls that a fault may name");
        let active = self.0.faults.read()?;
        tokio::time::sleep(active.delay(call, text)).await;
        if let Some(error) = active.refusal(call, text) {
            return Err(error);
        }
        let driver = Arc::clone(&self.0);
        let faults = active.clone();
        let work = move || {
            let mut call = Call { driver: &driver, store: driver.lock(), faults };
            call.remove_vanished()?;
            work(&mut call, request)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let answer = done.map_err(|error| Status::internal(format!("{call}: {error}")))??;
        active.loss(call, text).map_or(Ok(answer), Err)
    }
}

impl Call<'_> {
    /// Snapshots that are to vanish are gone before anybody looks.
    fn remove_vanished(&mut self) -> Result<(), Status> {
        let snapshots = self.store.snapshots.all();
        let gone = snapshots.filter(|snapshot| self.faults.vanishes(&snapshot.id, &snapshot.name));
        let gone: Vec<_> = gone.map(|snapshot| snapshot.id.clone()).collect();
        gone.iter().try_for_each(|id| self.store.snapshots.remove(id))
    }
}

/// Refuses a request that leaves out what it must name.
pub(crate) fn required<'a>(value: &'a str, field: &str) -> Result<&'a str, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    Ok(value)
}
