//! Files that cannot be read: left out, named and counted, whichever command meets them. Everything
//! else goes on.

use chunkstore::{Error, ErrorKind, Result};
use serde::Serialize;
use std::fmt::Display;

/// Files that are named; more are counted.
const NAMED_MAX: usize = 100;

/// Files that could not be read.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Their paths, each with the reason; at most 100 of them.
    pub damaged: Vec<String>,
    /// How many they are.
    pub damaged_files: u64,
}

impl LeftOut {
    /// Leaves out a file that cannot be read.
    ///
    /// # Errors
    ///
    /// A failure of any other kind ends the run, and is given back: a store that is away fails every
    /// file.
    pub fn add(&mut self, path: impl Display, e: Error) -> Result<()> {
        if !is_of_one_file(&e) {
            return Err(e);
        }
        self.damaged_files += 1;
        if self.damaged.len() < NAMED_MAX {
            self.damaged.push(format!("{path}: {e}"));
        }
        Ok(())
    }

    /// Adds those that were left out later.
    pub fn extend(&mut self, later: Self) {
        self.damaged_files += later.damaged_files;
        self.damaged.extend(later.damaged);
        self.damaged.truncate(NAMED_MAX);
    }
}

/// Whether a failure is one of a file, and not of the store or of this machine.
pub(super) fn is_of_one_file(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing | ErrorKind::Unsupported)
}

/// Of a directory that was entered before. Only a damaged file system has one in two places.
#[must_use]
pub fn in_two_places() -> Error {
    let what = "a directory is in two places: the file system is damaged";
    Error::new(ErrorKind::Corrupt, "enter it", what)
}
