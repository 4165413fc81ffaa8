//! Little-endian fields: a cursor over untrusted bytes and the appending counterparts.

use super::corrupt;
use crate::error::Result;

/// Reads fields one after another; every read past the end is `Corrupt`.
#[derive(Debug)]
pub(crate) struct Fields<'a, 'w> {
    rest: &'a [u8],
    what: &'w str,
}

impl<'a, 'w> Fields<'a, 'w> {
    /// `what` names the object in errors.
    pub(crate) fn new(bytes: &'a [u8], what: &'w str) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| corrupt(self.what, "it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| corrupt(self.what, "it ends in the middle of a field"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A `u32` count of items of at least `item_bytes` each: more than the rest can hold is
    /// refused, so that a caller may allocate for them.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / item_bytes.max(1) {
            return Err(self.corrupt(format!("a count of {count} does not fit its length")));
        }
        Ok(count)
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Refuses bytes that are left over.
    pub(crate) fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(corrupt(self.what, format!("{} bytes are left over at its end", self.rest.len())))
    }

    pub(crate) fn corrupt(&self, detail: impl Into<String>) -> crate::error::Error {
        corrupt(self.what, detail)
    }
}

/// Appends little-endian fields.
pub(crate) trait PutFields {
    fn put(&mut self, bytes: &[u8]);

    fn put_u16(&mut self, v: u16) {
        self.put(&v.to_le_bytes());
    }

    fn put_u32(&mut self, v: u32) {
        self.put(&v.to_le_bytes());
    }

    fn put_u64(&mut self, v: u64) {
        self.put(&v.to_le_bytes());
    }
}

impl PutFields for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
