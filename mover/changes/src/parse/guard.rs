//! Limits that a JSON parser does not have: the length of one string, the depth of nesting.
//!
//! A parser keeps a member's name and a bracket for each open level in memory, so a hostile file of
//! a few GiB could take as much. The guard watches the bytes go by and fails the read instead. It
//! need not know JSON beyond strings and brackets: on anything that is not JSON the parser behind
//! it fails by itself.

use std::io::{self, Read};

/// Longest string, bytes. File names in `qemu-img map` are the longest that occur.
const STRING_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting. The deepest shape has four levels.
const DEPTH_MAX: u32 = 64;

/// A reader that refuses what no list has.
pub(super) struct Guard<R> {
    inner: R,
    depth: u32,
    in_string: bool,
    escaped: bool,
    string_bytes: usize,
    refused: Option<&'static str>,
}

impl<R> Guard<R> {
    pub(super) fn new(inner: R) -> Self {
        let (in_string, escaped) = (false, false);
        Self { inner, depth: 0, in_string, escaped, string_bytes: 0, refused: None }
    }

    fn watch(&mut self, bytes: &[u8]) -> Option<&'static str> {
        for &byte in bytes {
            if self.in_string {
                self.string_bytes += 1;
                if self.string_bytes > STRING_BYTES_MAX {
                    return Some("a string in it is longer than 64 KiB");
                }
                // an escaped byte ends nothing
                let escaped = std::mem::take(&mut self.escaped);
                match byte {
                    b'\\' if !escaped => self.escaped = true,
                    b'"' if !escaped => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => (self.in_string, self.string_bytes) = (true, 0),
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth > DEPTH_MAX {
                return Some("it is nested deeper than 64 levels");
            }
        }
        None
    }
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.refused.is_none() {
            let n = self.inner.read(buf)?;
            self.refused = self.watch(&buf[..n]);
            if self.refused.is_none() {
                return Ok(n);
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, self.refused.unwrap_or_default()))
    }
}
