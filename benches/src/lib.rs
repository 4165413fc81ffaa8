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

fn splitmix(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
