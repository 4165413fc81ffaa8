//! NBD clients: whatever one says, what a server is about to do for it lies within the export, and
//! what it keeps for it is bounded.

use mover_nbd::server::{ExportTerms, Overheard, overhear};

const SIZE: u64 = 5 << 30;

fn exports() -> [ExportTerms; 2] {
    ["db", "web@1"].map(|name| ExportTerms {
        names: vec![name.to_owned()],
        description: "a volume".to_owned(),
        size_bytes: SIZE,
        preferred_bytes: 65536,
        contexts: vec!["base:allocation".to_owned(), "qemu:dirty-bitmap:b".to_owned()],
    })
}

/// Takes the bytes for all that a client sends, from its flags to its goodbye.
pub fn nbd_client(data: &[u8]) {
    let exports = exports();
    let heard = overhear(&exports, data);
    let Overheard { options, answered_bytes, export, reads, states, refused, .. } = &heard;
    // an option has 16 bytes at least, and what is said of it does not grow with them
    assert!(options * 16 <= data.len() && *answered_bytes <= options * 8192, "{heard:?}");
    // and a request 28
    assert!((reads.len() + states.len() + refused) * 28 <= data.len(), "{heard:?}");
    assert!(export.is_some_and(|at| at < exports.len()) || refused + reads.len() == 0);
    for range in reads {
        assert!(range.start < range.end && range.end <= SIZE, "{heard:?}");
        assert!(range.end - range.start <= 32 << 20, "{heard:?}");
    }
    assert!(states.iter().all(|range| range.start < range.end && range.end <= SIZE), "{heard:?}");
}
