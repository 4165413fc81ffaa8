//! Bytes that one driver holds, and that no object of the cluster tells: objects of an application,
//! on their way to the pod of a backup. They may be Secrets, so they are in no message and no log.

use base64::Engine as _;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Of the bytes in one Secret: Kubernetes takes 1 MiB.
pub(super) const PART_BYTES: usize = 900 << 10;
/// The one member of such a Secret.
pub(super) const PART: &str = "part";

/// All of the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    bytes: Arc<Zeroizing<Vec<u8>>>,
    digest: String,
}

/// Those of one Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadPart {
    of: Payload,
    number: u32,
}

impl Payload {
    /// Of these bytes, whose BLAKE3 this is, in hexadecimal digits.
    pub fn new(bytes: Vec<u8>, digest: String) -> Self {
        Self { bytes: Arc::new(Zeroizing::new(bytes)), digest }
    }

    /// BLAKE3 of all bytes, in hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// How many bytes there are.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// How many parts there are.
    pub fn parts(&self) -> u32 {
        u32::try_from(self.bytes.len().div_ceil(PART_BYTES)).unwrap_or(u32::MAX)
    }

    /// The bytes of the part of this number, from 1.
    pub fn part_bytes(&self, number: u32) -> &[u8] {
        let start = PART_BYTES * (number as usize).saturating_sub(1);
        &self.bytes[start.min(self.bytes.len())..self.bytes.len().min(start + PART_BYTES)]
    }

    /// The part of this number, from 1.
    pub(super) fn part(&self, number: u32) -> Option<PayloadPart> {
        (1..=self.parts()).contains(&number).then(|| PayloadPart { of: self.clone(), number })
    }
}

impl PayloadPart {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.of.part_bytes(self.number)
    }

    /// As `data` of a Secret.
    pub fn data(&self) -> Value {
        json!({ PART: base64::engine::general_purpose::STANDARD.encode(self.bytes()) })
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes.len())
    }
}

impl fmt::Debug for PayloadPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PayloadPart({} bytes)", self.bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_in_one_part_and_in_no_message() {
        for (size, parts) in [(1, 1), (PART_BYTES, 1), (PART_BYTES + 1, 2), (3 * PART_BYTES, 3)] {
            let bytes = [b"secret".as_slice(), &vec![7; size]].concat()[..size].to_vec();
            let payload = Payload::new(bytes.clone(), "d".into());
            assert_eq!(payload.parts(), parts, "{size}");
            let all = (1..=parts).map(|number| payload.part(number).expect("a part"));
            let all: Vec<PayloadPart> = all.collect();
            assert_eq!(
                all.iter().flat_map(|part| part.bytes().to_vec()).collect::<Vec<_>>(),
                bytes
            );
            assert_eq!(payload.part(0), None);
            assert_eq!(payload.part(parts + 1), None);
            let said = format!("{payload:?} {:?}", all[0]);
            assert!(!said.contains("115") && !said.contains("secret") && said.len() < 80, "{said}");
        }
    }
}
