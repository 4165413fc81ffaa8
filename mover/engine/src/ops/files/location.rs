//! Where in a volume the file system is: all of it, a partition, a logical volume of LVM, one in a
//! partition.

use super::failure;
use chunkstore::{Error, ErrorKind, Result, Setting};
use mover_fsmap::files::NO_FILES;
use mover_fsmap::{
    LaidOut, Layout, LogicalVolume, Partition, ReadAt, Refusal, logical_volumes, partitions,
};

/// Which part of a volume has the file system. By default all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilesLocation {
    /// It is in this partition, from 1 on.
    pub partition: Option<usize>,
    /// It is in this logical volume, `VG/LV`, of the volume or of the partition.
    pub logical_volume: Option<String>,
}

impl FilesLocation {
    /// Whether somebody has said where it is.
    pub(crate) fn is_named(&self) -> bool {
        self.partition.is_some() || self.logical_volume.is_some()
    }

    /// Where its bytes are in the volume.
    pub(super) fn find(&self, whole: &dyn ReadAt, size: u64) -> Result<Layout> {
        let part = match self.partition {
            None => Layout::of(0..size),
            Some(number) => partition(whole, size, number)?,
        };
        let Some(name) = &self.logical_volume else { return Ok(part) };
        let all = volumes(whole, &part).map_err(failure)?;
        let Some(found) = all.iter().find(|one| one.name == *name) else {
            let what = match named(&all) {
                None => "it is no physical volume of LVM with logical volumes".to_owned(),
                Some(names) => format!("it has {names}"),
            };
            return Err(Error::new(ErrorKind::Usage, format!("find logical volume {name}"), what));
        };
        match &found.layout {
            // a partition is in one piece
            Ok(layout) => Ok(layout.clone().behind(start(&part))),
            Err(why) => {
                let context = format!("read logical volume {name}");
                Err(Error::new(ErrorKind::Unsupported, context, why.clone())
                    .hint("serve the backup or restore it, and let LVM activate the volume"))
            }
        }
    }

    /// A refusal of all files, with the place that helps.
    pub(super) fn hinted(&self, why: Refusal, whole: &dyn ReadAt, size: u64) -> Error {
        // a file system that is refused for what it says itself is no physical volume, whatever a
        // label says that an earlier use has left
        let is_another_kind =
            matches!(why, Refusal::Unknown | Refusal::Unusable { kind: NO_FILES, .. });
        let error = failure(why);
        if error.kind() != ErrorKind::Unsupported || self.logical_volume.is_some() {
            return error;
        }
        let part = match self.partition {
            None => Ok(Layout::of(0..size)),
            Some(number) => partition(whole, size, number),
        };
        let Ok(part) = part else { return error };
        match volumes(whole, &part).map(|all| named(&all)) {
            Ok(Some(names)) if is_another_kind => {
                return error.hint(format!("it has {names}: name one with {}", Setting("lv")));
            }
            // what is wrong with its metadata
            Err(why @ Refusal::Unusable { .. }) if is_another_kind => return failure(why),
            _ => {}
        }
        if self.partition.is_some() {
            return error;
        }
        match partitions(whole, size).unwrap_or_default() {
            all if all.is_empty() => error,
            all => error.hint(format!(
                "the volume has {}: name one with {}",
                listed(&all),
                Setting("partition")
            )),
        }
    }
}

fn start(part: &Layout) -> u64 {
    part.ranges(0..part.bytes().min(1)).and_then(|mut all| all.next()).map_or(0, |one| one.start)
}

fn volumes(whole: &dyn ReadAt, part: &Layout) -> Result<Vec<LogicalVolume>, Refusal> {
    logical_volumes(&LaidOut::new(whole, part), part.bytes())
}

fn named(all: &[LogicalVolume]) -> Option<String> {
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("logical volumes {}", names.join(", ")))
}

fn partition(whole: &dyn ReadAt, size: u64, number: usize) -> Result<Layout> {
    let all = partitions(whole, size).map_err(failure)?;
    match all.iter().find(|one| one.number == number) {
        Some(one) => Ok(Layout::of(one.range.clone())),
        None => Err(Error::new(
            ErrorKind::Usage,
            format!("find partition {number}"),
            format!("the volume has {}", listed(&all)),
        )),
    }
}

fn listed(all: &[Partition]) -> String {
    match all {
        [] => "no partitions".to_owned(),
        all => {
            let all: Vec<String> = all.iter().map(|one| one.number.to_string()).collect();
            format!("partitions {}", all.join(", "))
        }
    }
}
