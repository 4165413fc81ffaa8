//! NBD clients: whatever one says, what a server is about to do for it lies within the export, and
//! what it keeps for it is bounded.

use mover_nbd::server::{Access, ExportTerms, Overheard, overhear};

const SIZE: u64 = 5 << 30;

fn exports() -> [ExportTerms; 2] {
    [("db", Access::ReadOnly), ("web@1", Access::Writable)].map(|(name, access)| ExportTerms {
        names: vec![name.to_owned()],
        description: "a volume".to_owned(),
        size_bytes: SIZE,
        access,
        preferred_bytes: 65536,
        contexts: vec!["base:allocation".to_owned(), "qemu:dirty-bitmap:b".to_owned()],
    })
}

/// Takes the bytes for all that a client sends, from its flags to its goodbye.
pub fn nbd_client(data: &[u8]) {
    let exports = exports();
    let heard = overhear(&exports, data);
    let Overheard { options, answered_bytes, export, reads, states, refused, .. } = &heard;
    let Overheard { writes, clears, flushes, .. } = &heard;
    // an option has 16 bytes at least, and what is said of it does not grow with them
    assert!(options * 16 <= data.len() && *answered_bytes <= options * 8192, "{heard:?}");
    // and a request 28
    let changes = writes.len() + clears.len() + flushes;
    let requests = reads.len() + states.len() + refused + changes;
    assert!(requests * 28 <= data.len(), "{heard:?}");
    assert!(export.is_some_and(|at| at < exports.len()) || requests == 0, "{heard:?}");
    // nothing of what is read-only is changed, and what is written has come
    assert!(*export == Some(1) || changes == 0, "{heard:?}");
    let written: u64 = writes.iter().map(|range| range.end - range.start).sum();
    assert!(written <= data.len() as u64, "{heard:?}");
    for range in reads.iter().chain(writes) {
        assert!(range.start < range.end && range.end <= SIZE, "{heard:?}");
        assert!(range.end - range.start <= 32 << 20, "{heard:?}");
    }
    let mut others = states.iter().chain(clears);
    assert!(others.all(|range| range.start < range.end && range.end <= SIZE), "{heard:?}");
}
