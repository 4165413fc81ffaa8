//! The journal of a copy-on-write volume: what is read of it is within the volume, and is read again
//! from a base made of it.

use mover_engine::live::{encode_base, encode_record, replay};

/// Replays a journal, goes on with it, and replays that.
pub fn journal(data: &[u8]) {
    let Ok(read) = replay(data) else { return };
    let (end, chunks) = (usize::try_from(read.end).unwrap_or(usize::MAX), read.terms.chunks());
    assert!(read.done.ones() <= chunks && read.base_bytes <= read.end);
    assert_eq!(read.end + read.torn_bytes, data.len() as u64);
    let whole = replay(&data[..end]).unwrap_or_else(|e| panic!("without its torn end: {e}"));
    assert_eq!((&whole.done, whole.number, whole.torn_bytes), (&read.done, read.number, 0));

    let mut again = encode_base(&read.terms, &read.done, read.number);
    if let Some(chunk) = read.done.next(0, chunks, false).filter(|_| read.number < u64::MAX - 1) {
        again.extend(encode_record(
            &read.terms,
            read.number + 1,
            std::slice::from_ref(&(chunk..chunk + 1)),
        ));
        let next = replay(&again).unwrap_or_else(|e| panic!("with another record: {e}"));
        assert_eq!(next.done.ones(), read.done.ones() + 1);
    }
}
