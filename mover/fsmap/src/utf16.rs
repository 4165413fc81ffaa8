//! Names of file systems that write them in UTF-16, as bytes.

/// In UTF-8. Half of a pair, which no text has, becomes three bytes of its own, as others do it
/// (WTF-8): so no two names become one.
pub(crate) fn name(units: impl IntoIterator<Item = u16>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for found in char::decode_utf16(units) {
        match found {
            Ok(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(half) => {
                let [high, low] = half.unpaired_surrogate().to_be_bytes();
                bytes.extend([
                    0xe0 | high >> 4,
                    0x80 | (high & 0xf) << 2 | low >> 6,
                    0x80 | low & 0x3f,
                ]);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_pairs_stay_apart() {
        assert_eq!(name("Grüße, 世界 🦀".encode_utf16()), "Grüße, 世界 🦀".as_bytes());
        assert_eq!(name([0x61, 0xd83e, 0x62]), b"a\xed\xa0\xbeb");
        assert_ne!(name([0xdc00]), name([0xdc01]));
    }
}
