//! A client of the SnapshotMetadata services: of Kubernetes over TLS, and of a CSI driver on its UNIX
//! socket.
//!
//! It makes one call, hands on its messages as they come, and says truly how the call ended: only a
//! status at the border of a message is an end. [`CsiStream`] holds a stream to the promises of the
//! protocol. What follows from an end, whether to ask again, and what the ranges are for is the
//! caller's.

#![forbid(unsafe_code)]

mod stream;
mod transport;
mod wire;

pub use stream::{BlockMetadataType, CsiStream};
pub use tonic::{Code, Status};
pub use transport::{BadAddress, Call, Connection, Ended, Message, Patience};
