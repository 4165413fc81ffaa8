//! Random data that can be had again.

/// SplitMix64: small, fast, the same everywhere. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Seeded with `MOVER_TEST_SEED`, else with `default_seed`; prints the seed, which a failed
    /// test shows.
    pub fn new(default_seed: u64) -> Self {
        let seed = match std::env::var("MOVER_TEST_SEED") {
            Ok(text) => text.parse().expect("MOVER_TEST_SEED is an integer"),
            Err(_) => default_seed,
        };
        println!("seed: MOVER_TEST_SEED={seed}");
        Self(seed)
    }

    /// With this very seed, which the caller prints or has from one that is printed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// A new generator that depends on this one's state and leaves it one step further.
    pub fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which must not be 0. Slightly biased for huge ends, which no test minds.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "below(0) has no answer");
        self.next_u64() % end
    }

    /// True once in `one_in` times.
    pub fn once_in(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// Fills with random bytes, which no codec shrinks.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// Brings the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1);
            items.swap(i, usize::try_from(j).expect("an index fits"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let (mut a, mut b) = (Rng(7), Rng(7));
        assert_eq!(a.bytes(100), b.bytes(100));
        assert_ne!(a.next_u64(), Rng(8).next_u64());
        // The published first output for seed 0.
        assert_eq!(Rng(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    }
}
