//! The controller: our kinds as a front end of the engine.
//!
//! ```text
//! watches ──▶ objects ──▶ one task for each object ──▶ records ──▶ engine::plan ──▶ API
//!                              │ turns (limits)            │ seal
//!                              └──▶ status, events         └── what was done; status never is
//! ```
//!
//! A task takes its object up, does the next thing, and waits for a change. What it has done stands
//! in records and in objects of given names, so a controller that begins in the middle goes on, and
//! two of them do no harm. One thread runs all tasks: nothing is locked, and no task waits for
//! another but for its turn. A task that fails is begun again after a pause, by itself.

mod attempts;
mod backups;
mod drills;
mod events;
mod marks;
pub mod metrics;
mod objects;
mod places;
mod populate;
pub mod repositories;
mod restores;
mod schedules;
mod seal;
pub mod serve;
mod status;
mod task;
#[cfg(test)]
mod testing;
mod turns;
mod velero;

use crate::api::{Api, Counter, HubSettings, LimitSettings};
use crate::differential::{self, DifferentialServer, DifferentialSettings};
use crate::engine::{Failure, Kind, Meta, exit};
use chrono::{DateTime, Utc};
use metrics::Metrics;
use objects::{Changed, OF_VELERO, Objects, WATCHED};
use seal::Seal;
use serve::{Doors, Serve};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use task::{Pause, Task};
use tokio::sync::watch;
use turns::Turns;

const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_secs(60);
/// The page learns so often how old its data may be.
const HEARD: Duration = Duration::from_secs(5);

/// How a controller is set up.
#[derive(Debug, Clone)]
pub struct ControllerSettings {
    /// Its own namespace.
    pub namespace: String,
    /// The namespaces that it looks after; none means all.
    pub watched: Vec<String>,
    /// Image of Jobs of Repositories that name none.
    pub image: String,
    /// Whether the pods of Jobs are of the level *restricted*.
    pub restricted: bool,
    /// Secret of its own namespace that holds the key of its seals.
    pub seal_secret: String,
    /// Where it shows its page and its metrics.
    pub doors: Doors,
    /// Whether and how it serves lists of changed blocks.
    pub differential: Option<DifferentialSettings>,
    /// Namespace of Velero, whose data is moved.
    pub velero: Option<String>,
}

/// What all tasks share.
#[derive(Debug)]
pub(crate) struct Context {
    /// The API server.
    pub(crate) api: Api,
    /// How the controller is set up.
    pub(crate) settings: ControllerSettings,
    /// The objects of our kinds, as they were last told.
    pub(crate) objects: Rc<Objects>,
    /// Most operations at once.
    pub(crate) turns: Turns,
    /// Marks our records.
    pub(crate) seal: Seal,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// How volumes of this cluster begin, where a Repository says nothing else.
    pub(crate) cluster: Result<String, Failure>,
    /// The time of day; only schedules go by it.
    pub(crate) clock: fn() -> DateTime<Utc>,
}

/// The tasks by the uids of their objects.
#[derive(Debug, Default)]
struct Tasks(RefCell<BTreeMap<String, watch::Sender<u64>>>);

/// Runs until its process ends.
///
/// # Errors
///
/// It cannot begin.
pub async fn run(api: &Api, settings: ControllerSettings) -> Result<(), Failure> {
    // One watch of each kind and one budget of requests, however many operations run.
    let namespaces = worked_in(&settings);
    let metrics = Metrics::default();
    let shared = HubSettings { namespaces, ..HubSettings::default() };
    let api = Api::shared(api.client().clone(), shared).counted(counter(metrics.clone()));
    let secret = Seal::key(&settings.namespace, &settings.seal_secret);
    let objects = Rc::<Objects>::default();
    let server = Serve::bind(settings.doors.clone(), objects.shown(), metrics.clone()).await;
    let server = server.map_err(|why| Failure::new(exit::USAGE, why.to_string()))?;
    for address in server.addresses() {
        tracing::info!("listens on {address}");
    }
    tokio::spawn(server.run());
    let seal = Seal::load(&api, &secret).await?;
    if let Some(server) = differential_server(&api, &settings, &seal).await? {
        tracing::info!("lists of changed blocks are at {}", server.url());
        tokio::spawn(server.run());
    }
    let cluster = crate::ops::repository::cluster_name(&api).await;
    let context = Rc::new(Context {
        api,
        settings,
        objects,
        turns: Turns::default(),
        seal,
        metrics,
        cluster,
        clock: Utc::now,
    });
    tokio::task::LocalSet::new().run_until(serve(context)).await;
    Ok(())
}

/// The server of lists, where one is wanted. Strangers make it send requests, so it has a limit of
/// its own, and keeps nobody else waiting.
async fn differential_server(
    api: &Api,
    settings: &ControllerSettings,
    seal: &Seal,
) -> Result<Option<DifferentialServer>, Failure> {
    let Some(wanted) = settings.differential.clone() else { return Ok(None) };
    let namespaces = worked_in(settings);
    let limit = LimitSettings { per_second: 20, burst: 40, in_flight: 8 };
    let shared = HubSettings { namespaces, limit, ..HubSettings::default() };
    let server = DifferentialServer::bind(
        Api::shared(api.client().clone(), shared),
        seal.derived(differential::KEY_PURPOSE),
        &settings.namespace,
        settings.watched.clone(),
        wanted,
        differential::ClientLimits::default(),
    );
    let server = server.await.map_err(|why| Failure::new(exit::USAGE, why.to_string()))?;
    Ok(Some(server))
}

/// Counts what is asked of the API server, and what it refuses.
fn counter(metrics: Metrics) -> Counter {
    Arc::new(move |method, code| {
        metrics.request(match *method {
            http::Method::GET => "get",
            http::Method::POST => "create",
            http::Method::PATCH => "patch",
            http::Method::DELETE => "delete",
            _ => "other",
        });
        if code >= 400 {
            metrics.refused(code);
        }
    })
}

async fn serve(context: Rc<Context>) {
    let tasks = Rc::new(Tasks::default());
    let (changed, mut changes) = tokio::sync::mpsc::unbounded_channel::<Changed>();
    context.objects.tell_by(changed.clone());
    let mut ready = Vec::new();
    for kind in WATCHED {
        for namespace in places(&context.settings) {
            let (context, changed, sender) =
                (Rc::clone(&context), changed.clone(), watch::Sender::new(false));
            ready.push(sender.subscribe());
            tokio::task::spawn_local(async move {
                let objects = Rc::clone(&context.objects);
                let tell = move |change| drop(changed.send(change));
                objects::follow(&context.api, &objects, kind, namespace.as_deref(), sender, tell)
                    .await;
            });
        }
    }
    // Nobody waits for these: where Velero is not installed, there are none.
    for (kind, namespace) in
        OF_VELERO.into_iter().filter_map(|kind| Some((kind, context.settings.velero.clone()?)))
    {
        let (context, changed) = (Rc::clone(&context), changed.clone());
        tokio::task::spawn_local(async move {
            let objects = Rc::clone(&context.objects);
            let tell = move |change| drop(changed.send(change));
            let ready = watch::Sender::new(false);
            objects::follow(&context.api, &objects, kind, Some(&namespace), ready, tell).await;
        });
    }
    let heard = Rc::clone(&context);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(HEARD).await;
            heard.objects.show_age((heard.clock)());
        }
    });
    // Records first: an object whose records are not known would look as if nothing was done for it.
    for mut ready in ready {
        let _ = ready.wait_for(|ready| *ready).await;
    }
    context.objects.show_age((context.clock)());
    while let Some(change) = changes.recv().await {
        tasks.tell(&context, &change);
    }
}

/// The namespaces that it works in; none means all. Records of what Velero asks for are in Velero's.
fn worked_in(settings: &ControllerSettings) -> Option<BTreeSet<String>> {
    match settings.watched.as_slice() {
        [] => None,
        some => Some(some.iter().chain(&settings.velero).cloned().collect()),
    }
}

fn places(settings: &ControllerSettings) -> Vec<Option<String>> {
    match worked_in(settings) {
        None => vec![None],
        Some(some) => some.into_iter().map(Some).collect(),
    }
}

impl Tasks {
    /// Tells the task of an object, and begins one where there is none.
    fn tell(self: &Rc<Self>, context: &Rc<Context>, change: &Changed) {
        if let Some(of) = &change.for_uid {
            self.count(of);
            return;
        }
        if self.count(&change.uid) || !has_task(change.key.kind) {
            return;
        }
        let Some(object) = context.objects.get(&change.key) else { return };
        if Meta::of(&object).uid != change.uid {
            return;
        }
        let sender = watch::Sender::new(0);
        let task = Task::new(
            change.key.clone(),
            change.uid.clone(),
            Rc::clone(&context.objects),
            sender.subscribe(),
        );
        self.0.borrow_mut().insert(change.uid.clone(), sender);
        let (tasks, context) = (Rc::clone(self), Rc::clone(context));
        tokio::task::spawn_local(async move {
            look_after(&context, &task).await;
            tasks.0.borrow_mut().remove(&task.uid);
        });
    }

    fn count(&self, uid: &str) -> bool {
        let tasks = self.0.borrow();
        let Some(sender) = tasks.get(uid) else { return false };
        sender.send_modify(|count| *count += 1);
        true
    }
}

const fn has_task(kind: Kind) -> bool {
    !matches!(kind, Kind::ConfigMap)
}

/// Does what an object asks for until it is gone.
async fn look_after(context: &Rc<Context>, task: &Task) {
    let mut pause = AGAIN_FIRST;
    while task.object().is_some() {
        // By itself, so that a mistake of ours in one object stops no other.
        let (of, at) = (Rc::clone(context), task.clone());
        let changed = task.change();
        let done = tokio::task::spawn_local(async move { work(&of, &at).await }).await;
        let wait = match done {
            Ok(Ok(Pause::Changed)) => {
                pause = AGAIN_FIRST;
                None
            }
            Ok(Ok(Pause::Within(time))) => {
                pause = AGAIN_FIRST;
                Some(time)
            }
            Ok(Err(why)) => {
                tracing::warn!("{}: {why}; it is tried again", task.key);
                // By itself, as requests are large, and each task would have room for one all the time.
                Box::pin(status::trouble(context, task, &why)).await;
                Some(later(&mut pause))
            }
            Err(why) => {
                tracing::error!("{}: a mistake of this program: {why}", task.key);
                Some(later(&mut pause))
            }
        };
        match wait {
            None => changed.await,
            Some(time) => drop(tokio::time::timeout(time, changed).await),
        }
    }
}

fn later(pause: &mut Duration) -> Duration {
    let now = *pause;
    *pause = (*pause * 2).min(AGAIN_MOST);
    now
}

/// The next thing that an object asks for.
async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    match task.key.kind {
        Kind::VolumeBackup => Box::pin(backups::work(context, task)).await,
        Kind::VolumeRestore if task.object().is_some_and(|at| drills::is_drill(&at)) => {
            Box::pin(drills::work(context, task)).await
        }
        Kind::VolumeRestore => Box::pin(restores::work(context, task)).await,
        Kind::BackupSchedule => Box::pin(schedules::work(context, task)).await,
        Kind::PersistentVolumeClaim => Box::pin(populate::work(context, task)).await,
        Kind::Repository => Box::pin(repositories::work(context, task)).await,
        Kind::DataUpload => Box::pin(velero::upload(context, task)).await,
        Kind::DataDownload => Box::pin(velero::download(context, task)).await,
        _ => Ok(Pause::Changed),
    }
}
