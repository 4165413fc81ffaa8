//! NBD servers: whatever one says, what is taken of it lies within its export and is in order, and
//! all else is an error.

use mover_nbd::replay;

/// Takes the bytes for a whole conversation, from the server's greeting to the state of its blocks.
pub fn nbd(data: &[u8]) {
    let heard = replay(data);
    if let Some(error) = &heard.error {
        assert!(error.len() < 2000, "a long message: {error}");
    }
    let Some((size_bytes, block_bytes, payload_bytes)) = heard.export else {
        assert!(heard.error.is_some() && heard.data.is_none(), "{heard:?}");
        return;
    };
    assert!(i64::try_from(size_bytes).is_ok());
    assert!(block_bytes.is_power_of_two() && block_bytes <= 64 << 10, "{heard:?}");
    assert!(payload_bytes > 0 && payload_bytes <= 32 << 20, "{heard:?}");
    assert!(payload_bytes.is_multiple_of(block_bytes), "{heard:?}");
    if let Some(read) = &heard.data {
        assert_eq!(read.len() as u64, size_bytes.min(4096));
    }
    let Some(states) = &heard.states else { return };
    assert!(heard.data.is_some() && heard.error.is_none(), "{heard:?}");
    let mut at = 0;
    let mut before = None;
    for (range, state) in states {
        assert!(range.start == at && range.end > at && range.end <= size_bytes, "{heard:?}");
        assert!(before != Some(state), "neighbours that are one: {heard:?}");
        (at, before) = (range.end, Some(state));
    }
    assert!(at > 0, "no state at all");
}
