//! Where each chunk of a volume is in its pack: a file beside the pack.

/// 32 bytes that no one else's chunk has.
pub type Hash = [u8; 32];

const HEAD_BYTES: usize = 24;
const PLACE_BYTES: usize = 44;
const NOWHERE: u64 = u64::MAX;
const RAW: u32 = 1 << 31;

/// A chunk's bytes in the pack; of a zero chunk the offset is nowhere.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    offset: u64,
    /// Without the tag; the highest bit says that it is not compressed.
    len: u32,
    pub hash: Hash,
}

impl Place {
    pub const ZERO: Self = Self { offset: NOWHERE, len: 0, hash: [0; 32] };

    pub fn new(offset: u64, len: usize, raw: bool, hash: Hash) -> Self {
        let len = u32::try_from(len).expect("a chunk is short");
        Self { offset, len: if raw { len | RAW } else { len }, hash }
    }

    /// Known by its hash only: another thread still holds its bytes.
    pub fn promised(hash: Hash) -> Self {
        Self { hash, ..Self::ZERO }
    }

    pub fn is_promise(&self) -> bool {
        self.offset == NOWHERE && self.hash != [0; 32]
    }

    /// Offset, length, and whether it is compressed; none for zeros.
    pub fn stored(&self) -> Option<(u64, usize, bool)> {
        let compressed = self.len & RAW == 0;
        (self.offset != NOWHERE).then_some((self.offset, (self.len & !RAW) as usize, compressed))
    }
}

/// The whole of it.
#[derive(Debug)]
pub struct Index {
    pub volume_bytes: u64,
    pub chunk_bytes: usize,
    pub aead: bool,
    pub places: Vec<Place>,
}

impl Index {
    pub fn path(pack: &str) -> String {
        format!("{pack}.index")
    }

    pub fn write(&self, path: &str) {
        let mut out = Vec::with_capacity(HEAD_BYTES + PLACE_BYTES * self.places.len());
        out.extend_from_slice(&self.volume_bytes.to_le_bytes());
        out.extend_from_slice(&(self.chunk_bytes as u64).to_le_bytes());
        out.extend_from_slice(&u64::from(self.aead).to_le_bytes());
        for place in &self.places {
            out.extend_from_slice(&place.offset.to_le_bytes());
            out.extend_from_slice(&place.len.to_le_bytes());
            out.extend_from_slice(&place.hash);
        }
        std::fs::write(path, out).unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    pub fn read(path: &str) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (head, places) = bytes.split_at(HEAD_BYTES);
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let place = |p: &[u8]| Place {
            offset: u64::from_le_bytes(p[..8].try_into().expect("8 bytes")),
            len: u32::from_le_bytes(p[8..12].try_into().expect("4 bytes")),
            hash: p[12..].try_into().expect("32 bytes"),
        };
        Self {
            volume_bytes: word(0),
            chunk_bytes: usize::try_from(word(8)).expect("chunk size"),
            aead: word(16) != 0,
            places: places.chunks_exact(PLACE_BYTES).map(place).collect(),
        }
    }
}
