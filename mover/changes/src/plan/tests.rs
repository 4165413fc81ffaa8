#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::ListOrigin;
use chunkstore::ChunkSize;
use proptest::prelude::*;

const CHUNK: u64 = 4096;
/// A byte of the model stands for this many bytes of the volume, so that chunks have few of them.
const SCALE: u64 = 512;

fn geometry(cells: usize) -> Geometry {
    Geometry::new(cells as u64 * SCALE, ChunkSize::new(4096).unwrap()).unwrap()
}

fn list(kind: ChangeKind, data: Extents, zero: Extents) -> ChangedBlocks {
    let origin = ListOrigin::Mover;
    ChangedBlocks { kind, origin, volume_bytes: None, data, zero, contexts: vec![], notes: vec![] }
}

fn plan(
    size: u64,
    parent: Option<u64>,
    changes: Changes<'_>,
    holes: Option<&Extents>,
) -> BackupPlan {
    let chunk = ChunkSize::new(4096).unwrap();
    let geometry = |size| Geometry::new(size, chunk).unwrap();
    let input =
        PlanInput { geometry: geometry(size), parent: parent.map(geometry), changes, holes };
    plan_backup(&input).unwrap()
}

/// Volume contents as cells of `SCALE` equal bytes; 0 is zero.
type Cells = Vec<u8>;

fn extents(cells: impl Iterator<Item = bool>) -> Extents {
    cells
        .enumerate()
        .filter(|(_, set)| *set)
        .map(|(i, _)| i as u64 * SCALE..(i as u64 + 1) * SCALE)
        .collect()
}

/// What a backup made by this plan would hold: read chunks from the device, zero ones, inherited
/// ones from the parent.
fn execute(plan: &BackupPlan, now: &Cells, parent: &Cells) -> Vec<Option<Cells>> {
    let per_chunk = usize::try_from(CHUNK / SCALE).unwrap();
    let inside = |ranges: &[Range<u64>], chunk: usize| {
        ranges.iter().filter(|r| r.contains(&(chunk as u64))).count()
    };
    now.chunks(per_chunk)
        .enumerate()
        .map(|(no, cells)| match (inside(&plan.read, no), inside(&plan.zero, no)) {
            (1, 0) => Some(cells.to_vec()),
            (0, 1) => Some(vec![0; cells.len()]),
            (0, 0) => parent.chunks(per_chunk).nth(no).filter(|_| plan.inherit).map(<[u8]>::to_vec),
            counts => panic!("chunk {no} is planned {counts:?} times"),
        })
        .collect()
}

fn assert_ascending(ranges: &[Range<u64>], chunks: u64) {
    assert!(ranges.iter().all(|r| r.start < r.end && r.end <= chunks), "{ranges:?}");
    assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "not merged: {ranges:?}");
}

/// A volume, what it was before, a list that may say more than is true but never less, and the
/// holes of its file.
#[derive(Debug, Clone)]
struct Case {
    now: Cells,
    before: Cells,
    extra_data: Vec<bool>,
    say_zero: Vec<bool>,
    hole: Vec<bool>,
}

fn cases() -> impl Strategy<Value = Case> {
    (1..90usize, 1..90usize).prop_flat_map(|(now, before)| {
        // mostly the same size
        let sizes = prop_oneof![3 => Just((now, now)), 1 => Just((now, before))];
        sizes.prop_flat_map(|(now, before)| {
            let runs = |n: usize| {
                // runs of equal cells, so that whole chunks are often all zero or all unchanged
                prop::collection::vec((0..3u8, 1..20usize), n..=n).prop_map(move |runs| {
                    let cells = runs.iter().flat_map(|(v, len)| vec![*v; *len]);
                    cells.take(n).collect::<Vec<u8>>()
                })
            };
            let flags =
                |n: usize| runs(n).prop_map(|v| v.iter().map(|b| *b == 1).collect::<Vec<_>>());
            (runs(before), runs(now), flags(now), flags(now), flags(now), flags(now)).prop_map(
                move |(before, new, changed, extra_data, say_zero, hole)| {
                    let cell = |i: usize| match before.get(i) {
                        Some(old) if !changed[i] => *old,
                        _ => new[i],
                    };
                    Case {
                        now: (0..now).map(cell).collect(),
                        before: before.clone(),
                        extra_data,
                        say_zero,
                        hole,
                    }
                },
            )
        })
    })
}

fn run(case: &Case, kind: ChangeKind) -> Result<(), TestCaseError> {
    let (now, before) = (&case.now, &case.before);
    let n = now.len();
    let must_list = |i: usize| match kind {
        // bytes behind the old end need not be listed
        ChangeKind::Delta => i < before.len() && now[i] != before[i],
        ChangeKind::Allocated => now[i] != 0,
        ChangeKind::Whole => true,
    };
    let is_zero = |i: usize| now[i] == 0 && case.say_zero[i];
    let list = list(
        kind,
        extents((0..n).map(|i| (must_list(i) || case.extra_data[i]) && !is_zero(i))),
        extents((0..n).map(|i| (must_list(i) || case.extra_data[i]) && is_zero(i))),
    );
    let holes = extents((0..n).map(|i| case.hole[i] && now[i] == 0));
    let geometry = geometry(n);
    let plan = plan_backup(&PlanInput {
        geometry,
        parent: Some(self::geometry(before.len())),
        changes: Changes::List(&list),
        holes: Some(&holes),
    })
    .unwrap();
    assert_ascending(&plan.read, geometry.chunks());
    assert_ascending(&plan.zero, geometry.chunks());
    prop_assert_eq!(plan.inherit, kind == ChangeKind::Delta);
    prop_assert_eq!(
        plan.read_bytes + plan.zero_bytes + plan.inherited_bytes,
        geometry.size_bytes()
    );
    if kind != ChangeKind::Delta {
        prop_assert_eq!(plan.inherited_bytes, 0);
    }
    let backup = execute(&plan, now, before);
    for (no, (got, want)) in backup.iter().zip(now.chunks(8)).enumerate() {
        prop_assert_eq!(got.as_deref(), Some(want), "chunk {} of {:?}", no, plan);
        // nothing is read without a reason
        let cells = no * 8..no * 8 + want.len();
        let listed = |i: usize| {
            list.data.covers(&(i as u64 * SCALE..(i as u64 + 1) * SCALE))
                || list.zero.covers(&(i as u64 * SCALE..(i as u64 + 1) * SCALE))
        };
        let known_zero = |i: usize| {
            let cell = i as u64 * SCALE..(i as u64 + 1) * SCALE;
            holes.covers(&cell)
                || list.zero.covers(&cell)
                || (kind == ChangeKind::Allocated && !listed(i))
        };
        let last = n.div_ceil(8) - 1;
        let resized = before.len() != n
            && (no == last || no * 8 + 8 > before.len() - (before.len() - 1) % 8 - 1);
        let touched = cells.clone().any(listed) || kind == ChangeKind::Whole || resized;
        let read = plan.read.iter().any(|r| r.contains(&(no as u64)));
        prop_assert_eq!(
            read,
            touched && !cells.clone().all(known_zero),
            "chunk {} of {:?}",
            no,
            plan
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn delta_gives_the_volume(case in cases()) {
        run(&case, ChangeKind::Delta)?;
    }

    #[test]
    fn allocated_gives_the_volume(case in cases()) {
        run(&case, ChangeKind::Allocated)?;
    }

    #[test]
    fn whole_list_gives_the_volume(case in cases()) {
        run(&case, ChangeKind::Whole)?;
    }
}

#[test]
fn no_list_reads_all_but_holes() {
    let holes = Extents::of(100..5 * CHUNK);
    let plan = plan(9 * CHUNK + 512, None, Changes::Whole, Some(&holes));
    assert!(!plan.inherit);
    assert_eq!((plan.read, plan.zero), (vec![0..1, 5..10], vec![1..5]));
    assert_eq!((plan.read_bytes, plan.zero_bytes), (5 * CHUNK + 512, 4 * CHUNK));
}

#[test]
fn an_empty_delta_reads_nothing() {
    let list = list(ChangeKind::Delta, Extents::new(), Extents::new());
    let plan = plan(1 << 46, Some(1 << 46), Changes::List(&list), None);
    assert_eq!((plan.read.len(), plan.zero.len(), plan.inherited_bytes), (0, 0, 1 << 46));
}

#[test]
fn a_partly_covered_chunk_is_read() {
    let list =
        list(ChangeKind::Delta, Extents::of(4095..4097), Extents::of(3 * CHUNK..5 * CHUNK + 1));
    let plan = plan(8 * CHUNK, Some(8 * CHUNK), Changes::List(&list), None);
    assert_eq!((plan.read, plan.zero), (vec![0..2, 5..6], vec![3..5]));
}

#[test]
fn zeros_up_to_a_short_end_cover_the_last_chunk() {
    let list = list(ChangeKind::Delta, Extents::new(), Extents::of(2 * CHUNK..2 * CHUNK + 512));
    let plan = plan(2 * CHUNK + 512, Some(2 * CHUNK + 512), Changes::List(&list), None);
    assert_eq!((plan.read, plan.zero, plan.zero_bytes), (vec![], vec![2..3], 512));
}

#[test]
fn growth_reads_from_the_old_last_chunk_on() {
    let list = list(ChangeKind::Delta, Extents::of(0..1), Extents::new());
    let old = 3 * CHUNK + 512;
    let plan =
        plan(9 * CHUNK, Some(old), Changes::List(&list), Some(&Extents::of(5 * CHUNK..8 * CHUNK)));
    assert_eq!((plan.read, plan.zero), (vec![0..1, 3..5, 8..9], vec![5..8]));
    assert_eq!(plan.inherited_bytes, 2 * CHUNK);
}

#[test]
fn growth_from_a_chunk_border_reads_the_old_last_chunk_too() {
    let list = list(ChangeKind::Delta, Extents::new(), Extents::new());
    let plan = plan(5 * CHUNK, Some(3 * CHUNK), Changes::List(&list), None);
    assert_eq!(plan.read, [2..5]);
}

#[test]
fn shrinking_reads_the_new_last_chunk() {
    let list = list(ChangeKind::Delta, Extents::new(), Extents::new());
    let plan = plan(5 * CHUNK + 512, Some(9 * CHUNK), Changes::List(&list), None);
    assert_eq!(plan.read, [5..6]);
}

#[test]
fn growth_needs_no_reading_when_unlisted_means_zero() {
    let list = list(ChangeKind::Allocated, Extents::of(0..1), Extents::new());
    let plan = plan(1 << 46, Some(CHUNK), Changes::List(&list), None);
    assert_eq!((plan.read, plan.zero), (vec![0..1], vec![1..(1 << 46) / CHUNK]));
}

#[test]
fn a_delta_needs_a_parent() {
    let list = list(ChangeKind::Delta, Extents::new(), Extents::new());
    let geometry = geometry(8);
    let input = PlanInput { geometry, parent: None, changes: Changes::List(&list), holes: None };
    assert_eq!(plan_backup(&input).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_list_behind_the_end_is_refused() {
    let list = list(ChangeKind::Allocated, Extents::of(0..1 << 20), Extents::new());
    let geometry = geometry(8);
    let input = PlanInput { geometry, parent: None, changes: Changes::List(&list), holes: None };
    let error = plan_backup(&input).unwrap_err();
    assert!(
        error.to_string().contains("reaches to byte 1048576 of a volume of 4096 bytes"),
        "{error}"
    );
}

#[test]
fn what_is_damaged_in_the_parent_is_read_again() {
    let size = 100 * CHUNK;
    let geometry = Geometry::new(size, ChunkSize::new(4096).unwrap()).unwrap();
    let (data, zero) = (10 * CHUNK..12 * CHUNK, 40 * CHUNK..50 * CHUNK);
    let list = list(ChangeKind::Delta, Extents::of(data), Extents::of(zero));
    let plan = plan(size, Some(size), Changes::List(&list), None);
    assert_eq!((plan.read.clone(), plan.zero.clone()), (vec![10..12], vec![40..50]));
    let again = plan.clone().read_again(geometry, &[11..14, 38..42, 49..51, 99..200]);
    assert_eq!(again.read, [10..14, 38..40, 50..51, 99..100]);
    assert_eq!(again.zero, plan.zero);
    assert_eq!(again.read_bytes, 8 * CHUNK);
    assert_eq!(again.read_bytes + again.zero_bytes + again.inherited_bytes, geometry.size_bytes());
    assert_eq!(plan.clone().read_again(geometry, &[]), plan);
    let whole = BackupPlan { inherit: false, ..plan };
    assert_eq!(whole.clone().read_again(geometry, &[0..5]), whole);
}
