//! Moving bytes between a device and memory: page-aligned buffers and the engines that fill and
//! drain them.
//!
//! An [`Arena`] is one mapping cut into equal slots. A [`Slot`] is owned like a `Box`: by its free
//! list, by one queue, by one worker, or by an [`Engine`] while its bytes are in flight. An engine
//! takes an [`Op`] (a slot, where, how much) and gives it back in a [`Completion`], whether the
//! transfer worked or not, so a slot is never lost.
//!
//! Three engines do the same work: io_uring with registered buffers and files, io_uring without,
//! and `pread`/`pwrite` on worker threads. [`EngineChoice::Auto`] takes the first that the kernel,
//! seccomp and the limits allow, and [`Engine::notes`] says why others were not taken.
//!
//! An [`IoFile`] holds up to two descriptors of one device: the main one, opened with `O_DIRECT`
//! where that works, and a buffered one for the bytes that are not aligned (the odd end of a file).
//! Which bytes go which way is decided in `transfer.rs`, once for all engines. Reads and writes
//! beside an engine's take any offset and any memory, and are rounded to whole blocks
//! (`rounded.rs`): the page cache of a device may be older than the device.
//!
//! Invariants: a slot is in one place at a time; memory that the kernel may still write is never
//! freed (an engine that cannot get its slots back leaks them, and with them the arena). Unsafe
//! code is in `arena.rs` and `uring.rs` only.
//!
//! Must not: know volumes, chunks or repositories; retry failed devices; log.

mod allocator;
mod arena;
mod blocking;
mod engine;
mod file;
mod op;
mod rounded;
mod transfer;
mod uring;

#[cfg(test)]
mod tests;

pub use allocator::bound as bound_allocator;
pub use arena::{Arena, Slot};
pub use engine::{Engine, EngineChoice};
pub use file::IoFile;
pub(crate) use op::transfer_error;
pub use op::{Completion, Direction, Op, Rejected, Span};
