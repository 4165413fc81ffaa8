//! A path of the backup: links are followed within it, as its own kernel would with this file system
//! as the root.

use super::{FileId, FileKind, FileNode, OpenFiles};
use chunkstore::{Error, ErrorKind, Result};
use mover_fsmap::files::is_plain;
use std::collections::HashMap;

/// As the kernel counts.
const LINKS_MAX: u32 = 40;

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The path without links, `.` and `..`; the root's is `/`.
    pub path: Vec<u8>,
    /// What is there.
    pub node: FileNode,
}

impl Found {
    /// The last part of the path; the root has none.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        self.path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())
    }
}

/// Refuses sources that would have one name where they go.
pub(super) fn distinct(sources: &[Found]) -> Result<()> {
    let mut names = HashMap::new();
    for source in sources {
        let Some(first) = names.insert(source.name(), source) else { continue };
        let shown = |found: &Found| String::from_utf8_lossy(&found.path).into_owned();
        let what = format!("{} and {} would have one name", shown(first), shown(source));
        return Err(
            Error::new(ErrorKind::Usage, "copy files", what).hint("copy one after the other")
        );
    }
    Ok(())
}

/// Follows a path from the root of the file system. `last` is whether a link at its end is followed
/// too.
///
/// # Errors
///
/// `NotFound`, with the first part that is not there.
pub fn resolve(open: &OpenFiles<'_>, path: &[u8], last: bool) -> Result<Found> {
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let failed = |kind, what: String| Err(Error::new(kind, format!("find {}", shown(path)), what));
    let mut at: Vec<(Vec<u8>, FileId)> = Vec::new();
    let mut left: Vec<Vec<u8>> = parts(path);
    let mut links = 0;
    let here = |at: &[(Vec<u8>, FileId)]| at.last().map_or(open.root(), |(_, id)| *id);
    while let Some(part) = left.pop() {
        if part == b".." {
            at.pop();
            continue;
        }
        if open.node(here(&at))?.kind != FileKind::Directory {
            return failed(ErrorKind::NotFound, format!("{} is no directory", shown(&joined(&at))));
        }
        let found = if is_plain(&part) { open.find(here(&at), &part)? } else { None };
        let Some(id) = found else {
            at.push((part, open.root()));
            return failed(ErrorKind::NotFound, format!("there is no {}", shown(&joined(&at))));
        };
        let follows = last || !left.is_empty();
        if !follows || open.node(id)?.kind != FileKind::Symlink {
            at.push((part, id));
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return failed(ErrorKind::Usage, "it leads through too many links".to_owned());
        }
        let target = open.target(id)?;
        if target.starts_with(b"/") {
            at.clear();
        }
        left.extend(parts(&target));
    }
    Ok(Found { path: joined(&at), node: open.node(here(&at))? })
}

/// The last one first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let all = path.split(|byte| *byte == b'/');
    let some = all.filter(|part| !matches!(*part, b"" | b"."));
    let mut all: Vec<Vec<u8>> = some.map(<[u8]>::to_vec).collect();
    all.reverse();
    all
}

fn joined(at: &[(Vec<u8>, FileId)]) -> Vec<u8> {
    match at {
        [] => b"/".to_vec(),
        at => at.iter().flat_map(|(name, _)| [&b"/"[..], name]).flatten().copied().collect(),
    }
}
