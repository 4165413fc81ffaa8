//! The first and last bytes of a device, where the signatures of its content are.

use crate::volume::io::{Direction, IoFile, transfer_error};
use chunkstore::Result;
use mover_fsmap::signatures::{HEAD_BYTES, NAMES_BYTES, TAIL_BYTES, detect};

/// The first bytes of a device, where the names are.
pub(super) fn read_names(io: &IoFile, size_bytes: u64) -> Result<Vec<u8>> {
    read(io, 0, size_bytes.min(NAMES_BYTES))
}

/// What is on a device, by its first and last bytes.
pub(super) fn look(io: &IoFile, size_bytes: u64) -> Result<Option<&'static str>> {
    let (head, tail) = ends(io, size_bytes)?;
    Ok(detect(&head, &tail))
}

fn ends(io: &IoFile, size_bytes: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let tail_bytes = size_bytes.min(TAIL_BYTES);
    let head = read(io, 0, size_bytes.min(HEAD_BYTES))?;
    Ok((head, read(io, size_bytes - tail_bytes, tail_bytes)?))
}

fn read(io: &IoFile, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut buf = vec![0; usize::try_from(len).unwrap_or(0)];
    io.read_exact_at(&mut buf, offset).map_err(|e| {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        transfer_error(Direction::Read, io.path(), offset, len, e)
    })?;
    Ok(buf)
}
