use super::*;
use crate::map::model::{put_stub, repository, run};
use std::sync::Arc;

fn pack(n: u8) -> PackId {
    PackId::from_bytes([n; 32])
}

fn at(n: u8, entry: u32, index: u16) -> Location {
    Location { pack: pack(n), entry, offset: 64 + entry, stored_len: 100, index }
}

fn stub(repo: &Arc<Repository>, n: u8, relocations: &[((u32, u16), Location)]) {
    run(put_stub(repo, &Stub::new(pack(n), relocations.to_vec()).unwrap()));
}

fn exists(repo: &Arc<Repository>, n: u8) {
    run(repo.store().put(&pack_key(&pack(n)), vec![1])).unwrap();
}

fn resolve(repo: &Arc<Repository>, wanted: &[(u32, u16)]) -> Result<Vec<Location>> {
    resolve_from(repo, 1, wanted)
}

fn resolve_from(repo: &Arc<Repository>, n: u8, wanted: &[(u32, u16)]) -> Result<Vec<Location>> {
    run(StubFollower::default().resolve(repo, &pack(n), wanted))
}

#[test]
fn chains_are_followed_as_far_as_packs_are_gone() {
    let repo = repository(16);
    // an entry is split: its chunks go different ways
    stub(&repo, 1, &[((0, 0), at(2, 5, 1)), ((0, 1), at(3, 0, 0)), ((7, 0), at(2, 6, 0))]);
    stub(&repo, 2, &[((5, 1), at(4, 1, 1)), ((6, 0), at(3, 2, 0))]);
    exists(&repo, 3);
    exists(&repo, 4);
    let found = resolve(&repo, &[(7, 0), (0, 0), (0, 1), (7, 0)]).unwrap();
    assert_eq!(found, [at(3, 2, 0), at(4, 1, 1), at(3, 0, 0), at(3, 2, 0)]);
    // as soon as a pack exists, it is the answer
    exists(&repo, 2);
    let found = resolve(&repo, &[(7, 0), (0, 1)]).unwrap();
    assert_eq!(found, [at(2, 6, 0), at(3, 0, 0)]);
    assert_eq!(resolve(&repo, &[]).unwrap(), []);
}

#[test]
fn no_stub_is_never_remembered() {
    let repo = repository(16);
    let mut follower = StubFollower::default();
    let error = run(follower.resolve(&repo, &pack(1), &[(0, 0)])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.to_string().contains(&pack_key(&pack(1))), "{error}");
    assert_eq!(follower.known(pack(1), 0, 0), None);
    stub(&repo, 1, &[((0, 0), at(2, 0, 0))]);
    exists(&repo, 2);
    assert_eq!(run(follower.resolve(&repo, &pack(1), &[(0, 0)])).unwrap(), [at(2, 0, 0)]);
    assert_eq!(follower.known(pack(1), 0, 0), Some(at(2, 0, 0)));
    // a stub is read once
    let before = repo.store().counts().gets;
    run(follower.resolve(&repo, &pack(1), &[(0, 0)])).unwrap();
    assert_eq!(repo.store().counts().gets, before);
    let error = run(follower.resolve(&repo, &pack(1), &[(0, 1)])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
}

#[test]
fn cycles_and_endless_chains_are_refused() {
    let repo = repository(16);
    stub(&repo, 1, &[((0, 0), at(2, 0, 0))]);
    stub(&repo, 2, &[((0, 0), at(1, 1, 0)), ((1, 0), at(1, 0, 0))]);
    let error = resolve(&repo, &[(0, 0)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("lead back"), "{error}");
    // known stubs that form a cycle end as well
    let mut follower = StubFollower::default();
    stub(&repo, 9, &[((0, 0), at(9, 0, 0))]);
    run(follower.resolve(&repo, &pack(9), &[(0, 0)])).unwrap_err();
    assert!(follower.known(pack(9), 0, 0).is_some());
    for n in 10..100 {
        stub(&repo, n, &[((0, 0), at(n + 1, 0, 0))]);
    }
    let error = resolve_from(&repo, 10, &[(0, 0)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    exists(&repo, 60);
    assert_eq!(resolve_from(&repo, 10, &[(0, 0)]).unwrap(), [at(60, 0, 0)]);
}

#[test]
fn a_stub_that_is_damaged_or_of_another_pack_is_refused() {
    let repo = repository(16);
    stub(&repo, 2, &[((0, 0), at(3, 0, 0))]);
    let bytes = run(repo.store().get(&stub_key(&pack(2)))).unwrap();
    run(repo.store().put(&stub_key(&pack(1)), bytes)).unwrap();
    assert_eq!(resolve(&repo, &[(0, 0)]).unwrap_err().kind(), ErrorKind::Corrupt);
    run(repo.store().put(&stub_key(&pack(1)), vec![0; 100])).unwrap();
    assert_eq!(resolve(&repo, &[(0, 0)]).unwrap_err().kind(), ErrorKind::Corrupt);
}
