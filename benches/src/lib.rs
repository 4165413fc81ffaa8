//! Inputs of the benchmarks: the same bytes on every machine, with the mix of a real volume.

pub mod synthetic;

/// Deterministic bytes of which about half compress well: text-like words, then noise, in turns of
/// 4 KiB.
pub fn mixed(len: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&[u8]; 8] = [
        b"order ",
        b"customer ",
        b"2026-11-21 ",
        b"paid ",
        b"select ",
        b"index ",
        b"\0\0\0\0\0\0\0\0",
        b"page ",
    ];
    let mut next = splitmix(seed);
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        if out.len() / 4096 % 2 == 0 {
            let at = usize::try_from(next() % 8).unwrap_or(0);
            out.extend_from_slice(WORDS[at]);
        } else {
            out.extend_from_slice(&next().to_le_bytes());
        }
    }
    out.truncate(len);
    out
}

/// Deterministic bytes that do not compress.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut next = splitmix(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&next().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// 32 bytes for a number, as a hash would give: distinct for all numbers below 2^62 of one seed.
pub fn made_up_id(seed: u64, number: u64) -> [u8; 32] {
    let before = number.wrapping_mul(4).wrapping_mul(GOLDEN);
    let mut next = splitmix(seed.wrapping_add(before));
    let mut id = [0; 32];
    id.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
    id
}

/// By which the state of the generator grows from step to step.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn splitmix(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(GOLDEN);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_ids_are_repeatable_and_distinct() {
        assert_eq!(made_up_id(1, 7), made_up_id(1, 7));
        let words = |seed| {
            (0..5000).flat_map(move |n| {
                let id = made_up_id(seed, n);
                [id[..16].to_vec(), id[16..].to_vec()]
            })
        };
        let all: std::collections::HashSet<_> = words(1).chain(words(2)).collect();
        assert_eq!(all.len(), 20_000);
    }
}
