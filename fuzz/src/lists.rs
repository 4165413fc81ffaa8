//! Changed-block lists: whatever comes in, what is taken is in order, within the volume, and means
//! the same when written again.

use chunkstore::{ChunkSize, Geometry};
use mover_changes::{
    ChangeKind, ChangedBlocks, Changes, ParseOptions, PlanInput, parse_changed_blocks, plan_backup,
};
use mover_extents::Extents;

/// Parses a list for a volume of 16 MiB and for one of an odd size, plans a backup from what was
/// taken, and reads it back from our own shape.
pub fn changed_blocks(data: &[u8]) {
    check(data, 16 << 20, None);
    check(data, 5000, Some(ChangeKind::Allocated));
}

fn check(data: &[u8], volume_bytes: u64, kind_override: Option<ChangeKind>) {
    // few enough for a short input to reach the limit
    const RANGES_MAX: usize = 8;
    let options = ParseOptions {
        kind_override,
        ranges_max: RANGES_MAX,
        ..ParseOptions::new("fuzz", volume_bytes)
    };
    let list = match parse_changed_blocks(data, &options) {
        Ok(list) => list,
        Err(error) => {
            assert!(error.to_string().starts_with("read changed-block list fuzz"), "{error}");
            assert!(error.to_string().len() < 2000, "a long message: {error}");
            return;
        }
    };
    check_set(&list.data, volume_bytes);
    check_set(&list.zero, volume_bytes);
    assert!(list.data.is_disjoint(&list.zero), "{list:?}");
    assert!(kind_override.is_none_or(|kind| list.kind == kind), "{list:?}");
    check_plan(&list, volume_bytes);

    let again =
        parse_changed_blocks(list.to_json().as_bytes(), &ParseOptions::new("again", volume_bytes));
    match again {
        Ok(again) => {
            assert_eq!((&again.data, &again.zero, again.kind), (&list.data, &list.zero, list.kind));
        }
        // a CSI volume may be smaller than its device, which our own shape does not allow
        Err(error) => assert!(list.volume_bytes.is_some_and(|b| b < volume_bytes), "{error}"),
    }
}

pub(crate) fn check_set(extents: &Extents, volume_bytes: u64) {
    let ranges = extents.as_slice();
    assert!(ranges.iter().all(|r| r.start < r.end && r.end <= volume_bytes), "{extents:?}");
    assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "{extents:?}");
}

fn check_plan(list: &ChangedBlocks, volume_bytes: u64) {
    let chunk = ChunkSize::new(4096).unwrap_or_else(|e| panic!("{e}"));
    let geometry = |bytes| Geometry::new(bytes, chunk).unwrap_or_else(|e| panic!("{e}"));
    for parent_bytes in [volume_bytes, 3000, 1 << 30] {
        let input = PlanInput {
            geometry: geometry(volume_bytes),
            parent: Some(geometry(parent_bytes)),
            changes: Changes::List(list),
            holes: None,
        };
        let plan = plan_backup(&input).unwrap_or_else(|e| panic!("{e}"));
        let (read, zero): (Extents, Extents) =
            (plan.read.iter().cloned().collect(), plan.zero.iter().cloned().collect());
        assert!(read.is_disjoint(&zero), "{plan:?}");
        let inherited = geometry(volume_bytes).chunks() - read.total() - zero.total();
        assert!(plan.inherit || inherited == 0, "{plan:?}");
        let touched: Extents = list.data.to_chunks(geometry(volume_bytes)).into_iter().collect();
        assert!(touched.subtract(&read).is_empty(), "listed data is not read: {plan:?}");
    }
}
