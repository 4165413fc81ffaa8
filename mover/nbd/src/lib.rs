//! The NBD protocol: a client, and in `server` a server.
//!
//! The client reads and writes volumes over a socket, and asks what the server knows of their
//! blocks.
//!
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>, as far as a reader of whole volumes needs it: the fixed
//! newstyle handshake with `NBD_OPT_GO`, structured replies, the metadata contexts
//! `base:allocation` and `qemu:dirty-bitmap:…`, reads, writes, write-zeroes and flush. With `nbds://`
//! all of it goes through TLS: the client shows a certificate, if it has one, and the server must.
//!
//! An [`Export`] takes the place of a file's descriptors: worker threads call it as they would
//! `pread`, and their calls share a few connections, each with many requests in flight
//! (`connection.rs` has how). One connection is opened with the export and serves everything; more
//! are added for an engine where the server says that they see the same, since many servers serve
//! one client at a time.
//!
//! Everything that comes from the server is checked before it is used: magics, cookies, lengths,
//! counts, ranges. What breaks the protocol ends the connection, for nothing behind it can be
//! understood. A server that is silent for the time of `x-timeout` while an answer is due has
//! failed. Nothing is asked twice: a failed transfer is the caller's to report, and a run that ends
//! for it is gone on with by the next.
//!
//! Must not: know chunks or lists of changed blocks.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod export;
mod handshake;
#[cfg(any(test, feature = "testkit"))]
mod replay;
mod reply;
pub mod server;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod uri;
mod wire;

pub use error::{Error, ErrorKind, Parts, Result};
pub use export::{BASE_ALLOCATION, BlockStatus, DIRTY_BITMAP, Export, STATE_DIRTY, STATE_ZERO};
#[cfg(any(test, feature = "testkit"))]
pub use replay::{Replayed, replay};
pub use uri::{NbdUri, is_nbd};
