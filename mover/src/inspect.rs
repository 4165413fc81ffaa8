//! Looks at a changed-block list without making a backup: what it would cost, what it looks like,
//! what other tools call it.
//!
//! [`Figures`] are those that a backup of the list would have, at every chunk size; [`draw`] is a
//! map of the volume as SVG; [`Form`] writes the list in the shapes that other tools read. Nothing
//! here decides what a backup does.

mod figures;
mod forms;
mod picture;

pub use figures::{ChunkFigures, Figures, Sample, sample};
pub use forms::Form;
pub use picture::draw;
