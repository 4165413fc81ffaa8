//! Questions about a chunk's plaintext that need no key.

/// Whether all bytes are zero. Hot data costs a load and an OR for each vector; the first block
/// that is not zero ends it.
pub fn is_zero(bytes: &[u8]) -> bool {
    // 256 bytes a step: the fold has no branch, so the compiler makes it wide vectors, and leaving
    // early costs nothing
    let (blocks, rest) = bytes.as_chunks::<256>();
    blocks.iter().all(|block| fold(block) == 0) && fold(rest) == 0
}

#[inline(always)]
fn fold(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |all, b| all | b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_seen() {
        for len in (0..70).chain([255, 256, 257, 511, 512, 513, 4096]) {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes), "{len}");
            for i in 0..len {
                for bit in [1, 0x80] {
                    bytes[i] = bit;
                    assert!(!is_zero(&bytes), "{i} of {len}");
                }
                bytes[i] = 0;
            }
        }
    }
}
