//! Restores that write only what differs.

use super::*;

fn differential(backup: &str, target: &Path) -> RestoreOptions {
    RestoreOptions { differential: true, ..options(backup, target) }
}

#[test]
fn what_is_there_is_neither_fetched_nor_written() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    let whole = run(&kit, options("one", &target)).unwrap();
    assert_eq!(whole.same_bytes, None);
    // One chunk of data, one that is zero in the backup, and the short one at the end.
    let mut bytes = image.bytes();
    let len = bytes.len();
    for at in [7 * 4096 + 5, 5 * 4096, len - 1] {
        bytes[at] ^= 0xff;
    }
    bytes.extend([9; 77]);
    fs::write(&target, &bytes).unwrap();
    let (progress, cancel) = (Progress::new(), Cancel::new());
    let summary =
        restore(kit.rt.handle(), &kit.repo, differential("one", &target), &progress, &cancel)
            .unwrap();
    assert_eq!(fs::read(&target).unwrap()[..len], image.bytes());
    assert_eq!(fs::read(&target).unwrap()[len..], [9; 77]);
    let last = if image.chunks.contains_key(&1000) { 513 } else { 0 };
    assert_eq!(summary.data_bytes, 4096 + last);
    assert_eq!(summary.zero_bytes, 4096 + 513 - last);
    assert_eq!(summary.same_bytes, Some(image.size_bytes - 2 * 4096 - 513));
    assert_eq!(summary.same_data_bytes, Some(whole.data_bytes - 4096 - last));
    assert!(summary.fetched_bytes < whole.fetched_bytes / 20, "{}", summary.fetched_bytes);
    let verified = summary.verified.unwrap();
    assert_eq!(verified.read_bytes + verified.hole_bytes, image.size_bytes);
    assert_eq!((progress.parts.get(), progress.parts_done.get()), (3, 2));
    // Once more there is nothing to do at all.
    let again = run(&kit, differential("one", &target)).unwrap();
    assert_eq!((again.data_bytes, again.zero_bytes), (0, 0));
    assert_eq!(again.same_bytes, Some(image.size_bytes));
    assert_eq!(again.same_data_bytes, Some(whole.data_bytes));
    assert_eq!((again.reads, again.fetched_bytes), (0, 0));
}

#[test]
fn a_file_that_is_made_or_too_short_gets_all_of_it() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    let made = run(&kit, differential("one", &target)).unwrap();
    assert!(made.created);
    assert_eq!(made.data_bytes + made.zero_bytes, image.size_bytes);
    assert_eq!(fs::read(&target).unwrap(), image.bytes());
    fs::write(&target, &image.bytes()[..100 * 4096 + 1]).unwrap();
    let grown = run(&kit, differential("one", &target)).unwrap();
    assert_eq!(fs::read(&target).unwrap(), image.bytes());
    assert!(grown.data_bytes < made.data_bytes);
}

/// Damage in the repository is no harm where the target has the bytes; and where it has not, nothing
/// of the target has changed that was right.
#[test]
fn what_the_target_has_need_not_be_whole_in_the_repository() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    run(&kit, options("one", &target)).unwrap();
    for pack in damaged::packs(&kit, 1) {
        kit.remove(&pack);
    }
    kit.forget_known();
    let summary = run(&kit, differential("one", &target)).unwrap();
    assert_eq!(summary.same_bytes, Some(image.size_bytes));
    let mut bytes = image.bytes();
    bytes[7 * 4096] ^= 1;
    fs::write(&target, &bytes).unwrap();
    let why = run(&kit, differential("one", &target)).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::Missing, "{why:?}");
}

/// Until it has been compared, the target is as it was, and the error does not say otherwise.
#[test]
fn an_error_while_it_is_compared_leaves_the_target_as_it_was() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    let dirty = vec![0x5a; image.bytes().len()];
    let mut compared = 0;
    for reads in 0.. {
        fs::write(&target, &dirty).unwrap();
        kit.store.fail_after(Some(reads));
        let done = run(&kit, differential("one", &target));
        kit.store.fail_after(None);
        let Err(why) = done else { break };
        let says = why.to_string().contains("incomplete now");
        let changed = fs::read(&target).unwrap() != dirty;
        assert!(says || !changed, "{reads}: {why}");
        compared += usize::from(!says);
    }
    assert!(compared > 3, "it reads the map before it writes");
    assert_eq!(fs::read(&target).unwrap(), image.bytes());
}

#[test]
fn it_needs_something_to_compare_with_and_memory_for_that() {
    let kit = Kit::new(Shape::default());
    kit.backup("vol", "one", &some_image(&kit));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    let why = run_out(&kit, &differential("one", Path::new("-")), &mut Vec::new()).unwrap_err();
    assert!(why.to_string().contains("standard output"), "{why}");
    let both = RestoreOptions { skip_damaged: true, verify: false, ..differential("one", &target) };
    assert_eq!(run(&kit, both).unwrap_err().kind(), ErrorKind::Usage);
    assert!(!target.exists());
    // A bit for each of 1001 chunks, in whole words.
    let least = Limits::plan_beside(
        128,
        MemoryBudget { total_bytes: 64 * MIB },
        kit.repo.params(),
        OutputKind::Slots,
        3,
    );
    let lines = least.unwrap().lines();
    assert_eq!(lines.last().map(|line| line.bytes), Some(128));
    let all: u64 = lines.iter().map(|line| line.bytes).sum();
    assert!(all <= 64 * MIB);
    let little = Limits::plan_beside(
        64 * MIB,
        MemoryBudget { total_bytes: 64 * MIB },
        kit.repo.params(),
        OutputKind::Slots,
        3,
    );
    assert!(little.unwrap_err().to_string().contains("too little"));
}
