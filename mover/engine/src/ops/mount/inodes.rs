//! What the numbers of files mean. A number means one thing as long as it is mounted.
//!
//! Below [`FIRST_RANGE`] are our own directories and files, one after the other. Above, each backup
//! whose files were looked at has a range: its start, plus the number that the file system itself
//! has for a file. So hard links have one number, and no table grows with what is looked at.

use super::list::Listed;
use super::shelf::Slot;
use crate::ops::files::FileId;
use chunkstore::VolumeName;
use chunkstore::format::names::AttemptName;
use mover_fuse::Inode;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

const FIRST_RANGE: u64 = 1 << 40;
/// ext4 counts its inodes with 32 bits, and those of NTFS have eight more.
const SPAN_MIN: u64 = 1 << 40;
/// XFS numbers an inode by its place: with 256 bytes each, and groups that fill half of the numbers
/// that they take, twice. FAT does by the place of a name, of 32 bytes.
const BYTES_OF_INODE: u64 = 32;

/// Something of ours.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Volumes,
    Volume(VolumeName),
    Latest(VolumeName),
    Backup(Arc<Slot>),
    Image(Arc<Slot>),
    Note(Arc<Slot>),
}

/// What a number means.
#[derive(Debug, Clone)]
pub(super) enum Meaning {
    Ours(Place),
    /// A file of a backup, and the backup's range.
    File(Arc<Slot>, FileId, Range<Inode>),
}

#[derive(Debug)]
pub(super) struct Inodes {
    /// By their numbers, from 1 on.
    places: Vec<Place>,
    volumes: HashMap<VolumeName, Inode>,
    slots: HashMap<AttemptName, (Arc<Slot>, Inode)>,
    ranges: Vec<(Range<Inode>, Arc<Slot>)>,
    /// Where a backup's range is in `ranges`.
    ranged: HashMap<AttemptName, usize>,
}

/// Behind a volume's number is that of its link; behind a backup's are these.
const OF_IMAGE: Inode = 1;
const OF_NOTE: Inode = 2;

impl Inodes {
    /// The root is one backup, or all volumes.
    pub(super) fn new(one: Option<&Arc<Slot>>) -> Self {
        let (volumes, slots, ranged) = Default::default();
        let mut inodes = Self { places: Vec::new(), volumes, slots, ranges: Vec::new(), ranged };
        match one {
            Some(slot) => drop(inodes.add_slot(slot)),
            None => inodes.places.push(Place::Volumes),
        }
        inodes
    }

    fn add_slot(&mut self, slot: &Arc<Slot>) -> Inode {
        let inode = self.places.len() as u64 + 1;
        let places = [Place::Backup, Place::Image, Place::Note];
        self.places.extend(places.map(|place| place(Arc::clone(slot))));
        self.slots.insert(slot.name.clone(), (Arc::clone(slot), inode));
        inode
    }

    /// A volume's directory, and the link in it.
    pub(super) fn volume(&mut self, name: &VolumeName) -> (Inode, Inode) {
        let inode = self.volumes.get(name).copied().unwrap_or_else(|| {
            let inode = self.places.len() as u64 + 1;
            self.places.push(Place::Volume(name.clone()));
            self.places.push(Place::Latest(name.clone()));
            self.volumes.insert(name.clone(), inode);
            inode
        });
        (inode, inode + 1)
    }

    /// A backup's directory; also whether it is new.
    pub(super) fn backup(&mut self, listed: &Listed) -> (Arc<Slot>, Inode, bool) {
        if let Some((slot, inode)) = self.slots.get(&listed.name) {
            return (Arc::clone(slot), *inode, false);
        }
        let slot = Arc::new(Slot::listed(listed));
        let inode = self.add_slot(&slot);
        (slot, inode, true)
    }

    /// Of a backup's own files: that of the volume's bytes, and of the note.
    pub(super) fn beside(&self, slot: &Slot) -> (Inode, Inode) {
        let inode = self.slots.get(&slot.name).map_or(0, |(_, inode)| *inode);
        (inode + OF_IMAGE, inode + OF_NOTE)
    }

    /// The range of a backup's files. `None`: there are no numbers left.
    pub(super) fn range(&mut self, slot: &Arc<Slot>) -> Option<Range<Inode>> {
        if let Some(at) = self.ranged.get(&slot.name) {
            return Some(self.ranges[*at].0.clone());
        }
        let start = self.ranges.last().map_or(FIRST_RANGE, |(range, _)| range.end);
        let span = SPAN_MIN.max(slot.size_bytes / BYTES_OF_INODE);
        let end = start.checked_add(span).filter(|end| i64::try_from(*end).is_ok())?;
        self.ranged.insert(slot.name.clone(), self.ranges.len());
        self.ranges.push((start..end, Arc::clone(slot)));
        Some(start..end)
    }

    pub(super) fn meaning(&self, inode: Inode) -> Option<Meaning> {
        if inode < FIRST_RANGE {
            let at = usize::try_from(inode.checked_sub(1)?).ok()?;
            return self.places.get(at).cloned().map(Meaning::Ours);
        }
        let at = self.ranges.partition_point(|(range, _)| range.end <= inode);
        let (range, slot) = self.ranges.get(at)?;
        let id = FileId(inode.checked_sub(range.start)?);
        Some(Meaning::File(Arc::clone(slot), id, range.clone()))
    }
}

/// The number of a file; `None`: the file system names one that it cannot have.
pub(super) fn number(range: &Range<Inode>, id: FileId) -> Option<Inode> {
    range.start.checked_add(id.0).filter(|inode| range.contains(inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Utc;
    use chunkstore::BackupId;

    fn listed(volume: &str, id: &str, size_bytes: u64) -> Listed {
        let name = AttemptName {
            volume: VolumeName::new(volume).unwrap(),
            backup_id: BackupId::new(id).unwrap(),
            attempt: 0,
        };
        Listed { shown: id.to_owned(), name, time: Utc::now(), size_bytes }
    }

    #[test]
    fn a_number_means_one_thing_for_good() {
        let mut inodes = Inodes::new(None);
        let (volume, link) = inodes.volume(&VolumeName::new("db").unwrap());
        let mut backups = Vec::new();
        for (n, size) in [1 << 20, 1 << 50, 512, 1 << 40].into_iter().enumerate() {
            let (slot, inode, is_new) = inodes.backup(&listed("db", &format!("b{n}"), size));
            assert!(is_new);
            let range = inodes.range(&slot).unwrap();
            backups.push((slot, inode, range));
        }
        assert_eq!(inodes.volume(&VolumeName::new("db").unwrap()), (volume, link));
        assert!(matches!(inodes.meaning(1), Some(Meaning::Ours(Place::Volumes))));
        assert!(matches!(inodes.meaning(link), Some(Meaning::Ours(Place::Latest(_)))));
        for (n, (slot, inode, range)) in backups.iter().enumerate() {
            let again = inodes.backup(&listed("db", &format!("b{n}"), 7));
            assert_eq!((again.1, again.2), (*inode, false));
            assert_eq!(inodes.range(slot).unwrap(), *range);
            let (image, note) = inodes.beside(slot);
            for (number, wanted) in [(*inode, "Backup"), (image, "Image"), (note, "Note")] {
                let Some(Meaning::Ours(place)) = inodes.meaning(number) else { panic!("{number}") };
                assert!(format!("{place:?}").starts_with(wanted), "{place:?}");
            }
            for id in [0, 2, range.end - range.start - 1] {
                let number = number(range, FileId(id)).unwrap();
                let Some(Meaning::File(of, found, _)) = inodes.meaning(number) else { panic!() };
                assert_eq!((&of.name, found), (&slot.name, FileId(id)));
            }
            assert_eq!(number(range, FileId(range.end - range.start)), None);
            assert_eq!(number(range, FileId(u64::MAX)), None);
        }
        for unknown in [0, 99, FIRST_RANGE - 1, u64::MAX] {
            assert!(inodes.meaning(unknown).is_none(), "{unknown}");
        }
    }
}
