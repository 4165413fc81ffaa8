#![allow(clippy::cast_possible_truncation, reason = "cells are few")]

use super::*;
use crate::{ChangeKind, ListOrigin, ListRequest};
use mover_extents::Extents;
use proptest::prelude::*;

/// Cells of the volume; each is listed or passed over.
const CELLS: u64 = 48;
const CELL: u64 = 4096;

fn collector(ranges_max: usize) -> Collector {
    collector_of(ChangeKind::Delta, ranges_max)
}

fn collector_of(kind: ChangeKind, ranges_max: usize) -> Collector {
    Collector::new(&ListRequest {
        kind,
        volume_bytes: CELLS * CELL,
        ranges_max,
        granule_bytes: 2 * CELL,
        base: None,
        device: None,
        movement: None,
    })
}

fn message(blocks: &[(u64, u64)]) -> Message {
    let block = |(start, end): &(u64, u64)| {
        let n = |n: u64| i64::try_from(n * CELL).unwrap();
        (n(*start), n(end - start))
    };
    Message {
        block_type: 2,
        capacity_bytes: i64::try_from(CELLS * CELL).unwrap(),
        blocks: blocks.iter().map(block).collect(),
    }
}

/// How a call of the service goes.
#[derive(Debug, Clone)]
struct Script {
    /// Cells before the point asked for that it starts at; it may start at 0.
    early: u64,
    /// Cells that it sees otherwise than the truth is.
    lies: Vec<u64>,
    /// Ranges that it sends, and whether it ends well behind them; all, and well, otherwise.
    cut: Option<(usize, bool)>,
    /// Ranges in a message.
    per_message: usize,
}

fn script() -> impl Strategy<Value = Script> {
    let early = prop_oneof![4 => Just(0), 2 => 1..4u64, 1 => Just(CELLS)];
    let lies = prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec(0..CELLS, 1..3)];
    let cut = prop::option::weighted(0.6, (0..10usize, any::<bool>()));
    (early, lies, cut, 1..5usize).prop_map(|(early, lies, cut, per_message)| Script {
        early,
        lies,
        cut,
        per_message,
    })
}

/// Runs of listed cells from `from` on; the first may have begun before.
fn runs(cells: &[bool], from: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (n, _) in (0..).zip(cells).filter(|(n, listed)| **listed && *n >= from) {
        match runs.last_mut() {
            // not always as long as can be: who cuts where is the service's affair
            Some(last) if last.1 == n && n % 5 != 0 => last.1 += 1,
            _ => runs.push((n, n + 1)),
        }
    }
    runs
}

proptest! {
    /// However a service cuts its calls, and whatever it says otherwise than before: the list is
    /// all that any call has listed, or it is refused; and where two calls contradict each other,
    /// it is refused.
    #[test]
    fn the_list_is_what_all_calls_said_or_none(
        truth in prop::collection::vec(any::<bool>(), CELLS as usize),
        scripts in prop::collection::vec(script(), 1..8),
        tail_check in any::<bool>(),
        ranges_max in prop_oneof![Just(1000usize), 3..12usize],
    ) {
        let mut said = Said::new(collector(ranges_max));
        // what was said of each cell: listed, passed over
        let mut told = vec![[false; 2]; truth.len()];
        let (mut refused, mut complete, mut last_well) = (false, false, false);
        for script in &scripts {
            let mut cells = truth.clone();
            for lie in &script.lies {
                cells[*lie as usize] ^= true;
            }
            let asked = said.next();
            prop_assert!(asked.is_multiple_of(CELL));
            let from = (asked / CELL).saturating_sub(script.early);
            let all = runs(&cells, from);
            let (sent, well) = match script.cut {
                Some((n, well)) if n < all.len() => (&all[..n], well),
                Some((_, well)) => (&all[..], well),
                None => (&all[..], true),
            };
            let start = sent.first().map_or(asked / CELL, |first| first.0.min(asked / CELL));
            let end = if well { CELLS } else { sent.last().map_or(start, |last| last.1) };
            for n in start..end.max(start) {
                let listed = sent.iter().any(|run| (run.0..run.1).contains(&n));
                // behind its last range an end of OK says something of what was said before only
                if listed || n < sent.last().map_or(0, |last| last.1) || n * CELL < said.end() {
                    told[n as usize][usize::from(!listed)] = true;
                }
            }
            let mut telling = said.begin();
            let mut taken = Ok(());
            for part in sent.chunks(script.per_message) {
                taken = taken.and_then(|()| said.take(&mut telling, message(part)));
            }
            let ended = match (taken, well) {
                (Ok(()), true) => said.end_well(&telling, tail_check),
                (Ok(()), false) => {
                    said.end_badly(&telling);
                    Ok(false)
                }
                (Err(what), _) => Err(what),
            };
            last_well = well;
            match ended {
                Err(_) => refused = true,
                Ok(done) => complete = done,
            }
            if refused || complete {
                break;
            }
        }
        let contradicted = told.iter().any(|[listed, passed]| *listed && *passed);
        let listed: Extents =
            (0..).zip(&told).filter(|(_, t)| t[0]).map(|(n, _)| n * CELL..(n + 1) * CELL).collect();
        if ranges_max == 1000 {
            prop_assert_eq!(refused, contradicted, "{:?}", told);
        } else {
            // a coarse list cannot tell a contradiction within one of its pieces
            prop_assert!(contradicted || !refused);
        }
        if complete {
            prop_assert!(last_well, "only an end that is well completes a list");
            let (list, capacity) = said.into_list();
            let list = list.finish("x", ListOrigin::SnapshotMetadata, capacity).unwrap();
            prop_assert!(listed.subtract(&list.data).is_empty(), "{listed:?} {:?}", list.data);
            prop_assert!(ranges_max < 1000 || listed == list.data);
        }
    }
}

#[test]
fn a_list_that_reaches_the_end_and_fails_is_not_complete() {
    let mut said = Said::new(collector(100));
    let mut telling = said.begin();
    said.take(&mut telling, message(&[(3, 5), (40, CELLS)])).unwrap();
    said.end_badly(&telling);
    assert_eq!(said.next(), 40 * CELL, "the last range again");
    // it has to come again
    let telling = said.begin();
    assert!(said.end_well(&telling, false).unwrap_err().contains("listed in an earlier call"));
    let mut telling = said.begin();
    said.take(&mut telling, message(&[(40, CELLS)])).unwrap();
    assert_eq!(said.end_well(&telling, true), Ok(true));
}

#[test]
fn a_gap_of_one_call_stays_a_gap_in_the_next() {
    let mut said = Said::new(collector(100));
    let mut telling = said.begin();
    said.take(&mut telling, message(&[(20, 21)])).unwrap();
    said.end_badly(&telling);
    let mut telling = said.begin();
    let error = said.take(&mut telling, message(&[(4, 6), (20, 21)])).unwrap_err();
    assert_eq!(error, "it lists bytes 16384 to 24576, which it passed over in an earlier call");
    let mut telling = said.begin();
    let error = said.take(&mut telling, message(&[(20, 20 + 4), (30, 31)]));
    assert_eq!(error, Ok(()), "what goes on from before the point is as good");
}

#[test]
fn an_end_without_a_message_is_an_empty_delta_and_no_list_of_allocated_blocks() {
    for (kind, done) in [(ChangeKind::Delta, true), (ChangeKind::Allocated, false)] {
        let mut said = Said::new(collector_of(kind, 100));
        let telling = said.begin();
        assert_eq!(said.end_well(&telling, true).is_ok(), done, "{kind:?}");
    }
}
