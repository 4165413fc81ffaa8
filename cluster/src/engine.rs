//! The engine: a pure function from what is asked for and what was observed to the next step, for
//! one volume's backup or restore.
//!
//! It calls no API, has no clock and no randomness. [`plan`] looks at the objects of the cluster as
//! [`Observed`] has them. Where it lacks one it asks for it; where one has to be made, changed or
//! removed it says which; and where the cluster has to do something first it says what it waits
//! for. Whoever drives it executes that and calls it again. So each order of events, a crash
//! between any two steps, and two drivers of one operation are tested without a cluster.
//!
//! All names follow from the uid of the operation's *anchor*, a ConfigMap that holds the whole
//! request. A step that is done twice is done once: creation by a given name, changes and deletions
//! by uid.

mod backup;
mod bind;
mod carried;
pub mod choice;
mod doctor;
mod fence;
mod given;
mod group;
mod handover;
mod import;
mod in_place;
mod job;
mod kept;
mod names;
mod object;
mod observed;
mod parts;
mod payload;
mod place;
mod plan;
mod populate;
mod progress;
mod quiesce;
mod rebind;
mod request;
mod restore;
mod retained;
mod room;
mod step;
mod target;
mod users;
mod views;

pub use bind::is_handing_over;
pub use carried::{CARRIED_BYTES_MAX, OBJECTS, carried};
pub use doctor::{Finding, Level, Question, doctor};
pub use given::{discard, is_given};
pub use group::claims_of;
pub use import::{
    Discard, DiscardFrom, Import, Imported, discard_snapshot, discardable, handle_of, import,
    withdraw,
};
pub use job::{Access, JobSpec, alone, held, lookup, remove_alone};
pub use kept::{Kept, KeptSnapshot, StateOf, Usable, usable};
pub use names::*;
pub use object::{Key, Kind, Query, Resource, Selection};
pub use observed::{Meta, Object, Observed, key_of};
pub use parts::{Finished, JOBS_MAX};
pub use payload::{Payload, PayloadPart};
pub use place::{
    Asker, DEFAULT_CPU, DEFAULT_IMAGE, DEFAULT_MEMORY, DEFAULT_NAME, SERVICE_ACCOUNT,
    SHARED_NAMESPACE, Stands, cluster_name, may_restore, of_object, parse_repository, repository,
    repository_in, repository_key,
};
pub use plan::{Mandate, anchor, outcome_of, plan, request_of};
pub use progress::{Progress, Stage, progress};
pub use request::{
    Backup, CarriedObjects, ChangesService, ClaimRef, Given, Group, Hook, InPlace, Limits,
    OnTimeout, Populate, Repository, Request, Restore, Retain, notes,
};
pub use step::{Failure, Lock, LockState, Next, Outcome, Planned, Step, Stop, Wait, exit};
pub use target::{Detached, Target, target};
pub use users::{uses, without_pods};
pub use views::*;
