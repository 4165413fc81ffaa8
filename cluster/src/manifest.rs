//! The object manifest: which objects an application has, which of them own or need which, and in
//! what order they are made again.
//!
//! It is built before anything moves. [`ManifestBuilder`] gets each object once, keeps what
//! identifies it and what it refers to, and forgets the rest, so that 50,000 objects take a few
//! dozen MiB. [`ManifestBuilder::finish`] resolves references to [`Item`]s. An [`ObjectManifest`] is
//! saved as JSON and read back, compared with another one ([`differences`]), searched for objects
//! of both ([`shared`]), and put into the order of a restore ([`restore_order`]).
//!
//! All of it is pure: no API, no clock, no randomness. Objects may mean ill: nothing here recurses,
//! indexes by what an object says, or takes longer than its input is long, but for a logarithm.

mod build;
mod clean;
mod compare;
mod file;
mod item;
mod kinds;
mod left_out;
mod order;
mod path;
mod references;

pub use build::ManifestBuilder;
pub use clean::{NamespaceMap, OWNERS_LATER, ready, stored};
pub use compare::{Difference, differences, shared};
pub use file::{FORMAT, read_manifest, write_manifest};
pub use item::{
    Identity, Item, ItemKind, ItemOwner, ManifestScope, OBJECTS_MAX, ObjectManifest, Pairs,
    Strength, Unread, is_object_name,
};
pub use kinds::RANKS;
pub(crate) use left_out::{is_listed, left_out};
pub use order::{RestoreOrder, restore_order};
pub use path::OwnerRule;
pub use references::SOFT_OWNERS;
