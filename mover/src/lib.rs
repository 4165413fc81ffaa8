//! The `mover` program: flags, settings, output, exit codes, and the supervision of a run.
//!
//! [`mover_engine`] moves the volumes, [`chunkstore`] is the repository, [`mover_changes`] has the
//! lists of changed blocks. `docs/architecture.md` has the code map, `docs/glossary.md` the words.

pub mod cgroup;
pub mod cli;
pub mod inspect;
pub mod price;
