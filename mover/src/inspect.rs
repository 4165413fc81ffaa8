//! Looks at a changed-block list without making a backup: what it would cost, what other tools call
//! it.
//!
//! [`Figures`] are those that a backup of the list would have, at every chunk size; [`Form`] writes
//! the list in the shapes that other tools read. Nothing here decides what a backup does.

mod figures;
mod forms;

pub use figures::{ChunkFigures, Figures, Sample, sample};
pub use forms::Form;
