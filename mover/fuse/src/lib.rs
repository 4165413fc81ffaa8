//! A tree of files that nobody changes, shown to the kernel over FUSE.
//!
//! | file | |
//! |---|---|
//! | `tree` | what is shown: a trait, and the words of its answers |
//! | `session` | the kernel's requests: each one asked of the tree, side by side with others |
//! | `caller` | whether somebody who waits for an answer has been killed |
//! | `reply` | an answer in the kernel's words |
//! | `point` | the directory: looked at, and mounted on |
//! | `mounted` | what is mounted, until it is unmounted, by whomever |
//! | `users` | who has a file of it open |
//! | `helper` | the program that mounts for users who may not |
//! | `table` | the mounts that there are |
//!
//! The tree knows nothing of the protocol, and this crate nothing of backups.
//!
//! A request is a task of the runtime. Their number and the bytes of their answers are bounded; what
//! does not fit waits as a task without memory of its own. The thread that reads requests waits for
//! the kernel alone.
//!
//! Cannot deadlock: a task waits for its place, then for its share of memory, then for the tree, and
//! never for another task.
//!
//! Must not: unmount what it did not mount, or what is dead and of another kind.

mod caller;
mod helper;
mod mounted;
mod point;
mod reply;
mod session;
mod table;
mod tree;
mod users;

pub use mounted::{Mounted, Unmounted};
pub use point::{MountError, MountOptions, MountPoint, PointFailure};
pub use rustix::io::Errno;
pub use session::{Counts, SessionLimits};
pub use tree::{
    Answer, Attribute, Content, DirectoryEntry, Entry, Handle, Inode, Kind, Node, OpenDirectory,
    Space, Time, Tree,
};
