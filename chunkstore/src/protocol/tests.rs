//! The protocol against a store that fails in every way and a collector that strikes at every
//! moment.

mod crashes;
mod create_once;
mod fences;
mod leases;
mod resumed;
mod steps;

use super::*;
use crate::error::ErrorKind;
use crate::format::gc::{Condemned, CondemnedList};
use crate::format::manifest::Manifest;
use crate::format::names::{condemned_key, lease_key, pack_key, parse_lease_key};
use crate::ids::{GenerationId, LeaseId, PackId};
use crate::repository::{NewestSeen, Repository};
use crate::testkit::repositories::*;
use crate::testkit::{Fault, FaultyStore};
use std::collections::HashSet;
use std::sync::Arc;

fn lease_options() -> LeaseOptions {
    LeaseOptions { lease_seconds: 3600, tool: "test".into(), host: "here".into() }
}

fn options(id: &str, parents: Vec<Manifest>) -> WriterOptions {
    let (volume, backup_id, after) = (volume("v"), backup_id(id), NewestSeen::default());
    WriterOptions { volume, backup_id, parents, after, lease: lease_options() }
}

/// That it ended with this manifest, but for the place that a commit gives it.
#[track_caller]
fn expect_done(commit: Commit, made: &Manifest) -> Manifest {
    let Commit::Done(done) = commit else { panic!("not committed: {commit:?}") };
    assert_eq!(Manifest { ordered: made.ordered, ..*done.clone() }, *made);
    *done
}

async fn begin(repo: &Arc<Repository>, id: &str) -> Writer {
    Writer::begin(repo, options(id, Vec::new())).await.unwrap()
}

async fn put_pack(repo: &Repository, byte: u8) -> PackId {
    let pack = PackId::from_bytes([byte; 32]);
    repo.store().put(&pack_key(&pack), "a pack").await.unwrap();
    pack
}

async fn leases(repo: &Repository) -> Vec<LeaseId> {
    let listed = repo.store().list("leases").await.unwrap();
    listed.iter().map(|l| parse_lease_key(&l.key).unwrap()).collect()
}

async fn condemn(repo: &Repository, dead: Vec<PackId>) {
    let key = condemned_key(&GenerationId::random());
    let list = CondemnedList { dead, rewritten: Vec::new(), forgotten: Vec::new() };
    let list = Condemned::List(list);
    let bytes = list.encode(repo.keys(), repo.id(), &key).unwrap();
    repo.store().put(&key, bytes).await.unwrap();
}

/// As a collector does it that takes the writers for dead: first their manifest keys, then their
/// leases.
async fn fence(repo: &Repository, made: &Manifest) {
    put_fence(repo, made).await;
    for lease in leases(repo).await {
        repo.store().delete(&lease_key(&lease)).await.unwrap();
    }
}

async fn ids(repo: &Repository) -> Vec<String> {
    let (backups, problems) = repo.list_backups(None).await.unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    backups.iter().map(|b| format!("{}", b.manifest.name())).collect()
}
