//! Files: names of directories, and chains of clusters.
//!
//! | file | |
//! |---|---|
//! | `entry` | 32 bytes of a directory: a file, and its short name |
//! | `names` | long names, which stand in entries before the file's own |
//!
//! There is no journal and no checksum. What was mounted is read as the next mount would show it,
//! and that is said. A file is its entry's place: it has no other number. The whole table is read
//! before the first file, four bytes a cluster at most: a cluster that two chains lead to is a
//! file's own in neither. That also ends each chain, for one that goes round comes to such a
//! cluster. Two entries that begin at one cluster are not told apart from two good files.

mod entry;
mod names;

use super::{FIRST, KIND};
use super::{Fat, Linked, PIECE, PIECE_LEN, unusable};
use crate::fat::boot::Boot;
use crate::files::{Attribute, FileId, FileKind, FileName, FileNode, Files, Piece, Place};
use crate::{ReadAt, Refusal, read};
use entry::{ENTRY, Entry};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

/// No number of an entry: the boot sector is there.
const ROOT: FileId = FileId(0);
/// Pieces of the table that are kept.
const KEPT_MAX: usize = 256;
/// As the kernel has it, and the format's own rule: 65,536 entries.
const DIRECTORY_BYTES_MAX: u64 = 2 << 20;
/// Stretches of one file: 40 bytes each.
const PIECES_MAX: usize = 4 << 20;
/// Clusters that two chains lead to; more are no accident.
const CROSSED_MAX: usize = 1 << 16;

/// See [`crate::files::open`].
pub(crate) fn files<'a>(
    volume: &'a dyn ReadAt,
    volume_bytes: u64,
) -> Result<Box<dyn Files + 'a>, Refusal> {
    let fat = Fat { volume, boot: Boot::read(volume, volume_bytes)? };
    let marks = fat.marks()?;
    let mut warnings = Vec::new();
    if marks.not_unmounted {
        warnings.push(
            "vfat: it was not unmounted, and has no journal: what was being written then may be \
             missing or be in part; fsck.fat checks it"
                .to_owned(),
        );
    }
    if marks.wants_check {
        warnings.push("vfat: it has recorded errors: fsck.fat checks it".to_owned());
    }
    let (linked, crossed) = fat.crossings()?;
    Ok(Box::new(FatFiles { fat, linked, crossed, warnings, kept: RefCell::default() }))
}

impl Fat<'_> {
    /// Clusters that a chain leads to, and those that two do.
    fn crossings(&self) -> Result<(Linked, BTreeSet<u64>), Refusal> {
        let mut linked = Linked::new(&self.boot);
        let mut crossed = BTreeSet::new();
        self.walk(&mut |_, entry| {
            let next = u64::from(entry);
            if !self.boot.is_cluster(next) {
                return Ok(());
            }
            if linked.has(next) {
                crossed.insert(next);
            }
            linked.add(next);
            match crossed.len() <= CROSSED_MAX {
                true => Ok(()),
                false => Err(unusable("its chains are crossed all over: check it with fsck.fat")),
            }
        })?;
        Ok((linked, crossed))
    }
}

struct FatFiles<'a> {
    fat: Fat<'a>,
    linked: Linked,
    crossed: BTreeSet<u64>,
    warnings: Vec<String>,
    /// Pieces of the table, by their numbers.
    kept: RefCell<HashMap<u64, Rc<[u8]>>>,
}

/// A refusal of one file.
fn wrong(id: FileId, why: &str) -> Refusal {
    match id {
        ROOT => unusable(format!("the root directory: {why}")),
        FileId(entry) => unusable(format!("the file of entry {entry}: {why}")),
    }
}

impl FatFiles<'_> {
    fn piece(&self, number: u64) -> Result<Rc<[u8]>, Refusal> {
        if let Some(kept) = self.kept.borrow().get(&number) {
            return Ok(Rc::clone(kept));
        }
        let piece: Rc<[u8]> = self.fat.piece(self.fat.boot.active(), number * PIECE)?.into();
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(number, Rc::clone(&piece));
        Ok(piece)
    }

    /// What the table says of a cluster.
    fn entry(&self, cluster: u64) -> Result<u64, Refusal> {
        let width = self.fat.boot.width;
        let in_piece = match self.fat.boot.entries_bytes() {
            bytes if bytes <= PIECE => u64::MAX,
            _ => width.entries_in(PIECE_LEN as u64),
        };
        let piece = self.piece(cluster / in_piece)?;
        Ok(width.entry(&piece, cluster % in_piece).into())
    }

    /// A chain as ranges of clusters; no more than so many clusters are looked at. Also whether it
    /// ends there.
    fn chain(&self, id: FileId, first: u64, most: u64) -> Result<(Vec<Range<u64>>, bool), Refusal> {
        let boot = &self.fat.boot;
        if !boot.is_cluster(first) {
            return Err(wrong(id, &format!("it begins at cluster {first}, which is none")));
        }
        if self.linked.has(first) {
            let why = format!("it begins at cluster {first}, which is in the middle of a chain");
            return Err(wrong(id, &why));
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        let (mut cluster, mut count) = (first, 0);
        loop {
            if self.crossed.contains(&cluster) {
                let why = format!("two chains lead to cluster {cluster}: check it with fsck.fat");
                return Err(wrong(id, &why));
            }
            match runs.last_mut() {
                Some(last) if last.end == cluster => last.end += 1,
                _ => runs.push(cluster..cluster + 1),
            }
            count += 1;
            if runs.len() > PIECES_MAX {
                return Err(wrong(id, "it is in too many pieces"));
            }
            let next = self.entry(cluster)?;
            if boot.width.is_end(next) {
                return Ok((runs, true));
            }
            // also behind the last one that is needed: one that is free may be anybody's next
            if !boot.is_cluster(next) {
                let why = format!("cluster {cluster} leads to {next}, which is none");
                return Err(wrong(id, &why));
            }
            if count >= most {
                return Ok((runs, false));
            }
            cluster = next;
        }
    }

    fn place(&self, clusters: &Range<u64>) -> Range<u64> {
        let Boot { data_start, cluster_bytes, .. } = self.fat.boot;
        let place = |cluster: u64| data_start + (cluster - FIRST) * cluster_bytes;
        place(clusters.start)..place(clusters.end)
    }

    /// The entry of a file. It is one of a directory, as far as its place can say.
    fn file(&self, id: FileId) -> Result<Entry, Refusal> {
        let boot = &self.fat.boot;
        let clusters = self.place(&(FIRST..boot.clusters + FIRST));
        let at =
            id.0.checked_mul(ENTRY as u64)
                .filter(|at| boot.root_entries.contains(at) || clusters.contains(at));
        let at = at.ok_or_else(|| wrong(id, "there is no entry"))?;
        Entry::parse(&read(self.fat.volume, at, ENTRY)?, boot.width)
            .ok_or_else(|| wrong(id, "there is no file"))
    }

    /// Where the entries of a directory are.
    fn directory(&self, id: FileId) -> Result<Vec<Range<u64>>, Refusal> {
        let boot = &self.fat.boot;
        let first = match (id, boot.root) {
            (ROOT, None) => return Ok(vec![boot.root_entries.clone()]),
            (ROOT, Some(root)) => root,
            _ => {
                let entry = self.file(id)?;
                if entry.kind() != FileKind::Directory {
                    return Err(wrong(id, "it is no directory"));
                }
                entry.first
            }
        };
        let most = DIRECTORY_BYTES_MAX.div_ceil(boot.cluster_bytes);
        let (runs, ends) = self.chain(id, first, most)?;
        if !ends {
            return Err(wrong(id, "it is longer than a directory can be"));
        }
        let places: Vec<_> = runs.iter().map(|run| self.place(run)).collect();
        let start = places.first().map_or(0, |place| place.start);
        if id != ROOT {
            let own = Entry::raw(&read(self.fat.volume, start, ENTRY)?, boot.width);
            if !own.is_itself() || own.first != first {
                return Err(wrong(id, "it does not begin as a directory does"));
            }
        }
        Ok(places)
    }
}

impl Files for FatFiles<'_> {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn root(&self) -> FileId {
        ROOT
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn node(&self, id: FileId) -> Result<FileNode, Refusal> {
        match id {
            ROOT => Ok(Entry::default().node(ROOT, self.fat.boot.cluster_bytes)),
            _ => Ok(self.file(id)?.node(id, self.fat.boot.cluster_bytes)),
        }
    }

    fn expect(&self, _ids: &[FileId]) {
        // they are in the blocks that their names were read from
    }

    fn names(&self, directory: FileId) -> Result<Vec<FileName>, Refusal> {
        let places = self.directory(directory)?;
        if places.len() > 1 {
            self.fat.volume.expect(&places);
        }
        let mut names = names::Names::default();
        for place in places {
            let len = usize::try_from(place.end - place.start).unwrap_or(0);
            let bytes = read(self.fat.volume, place.start, len)?;
            let first = place.start / ENTRY as u64;
            if names.add(&bytes, first, self.fat.boot.width).is_none() {
                break;
            }
        }
        Ok(names.found)
    }

    fn content(&self, file: FileId) -> Result<Vec<Piece>, Refusal> {
        let entry = if file == ROOT { Entry::default() } else { self.file(file)? };
        if entry.kind() != FileKind::File {
            return Err(wrong(file, "it is no file with bytes"));
        }
        if entry.size == 0 {
            return Ok(Vec::new());
        }
        let size = u64::from(entry.size);
        let clusters = size.div_ceil(self.fat.boot.cluster_bytes);
        let (runs, _) = self.chain(file, entry.first, clusters)?;
        let mut at = 0;
        let mut pieces = Vec::with_capacity(runs.len());
        for run in runs {
            let place = self.place(&run);
            let end = size.min(at + (place.end - place.start));
            pieces.push(Piece { range: at..end, place: Place::Volume(place.start) });
            at = end;
        }
        match at == size {
            true => Ok(pieces),
            false => Err(wrong(file, &format!("its chain ends at byte {at} of {size}"))),
        }
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, Refusal> {
        Err(wrong(link, "it is no symbolic link"))
    }

    fn attributes(&self, _file: FileId) -> Result<Vec<Attribute>, Refusal> {
        Ok(Vec::new())
    }
}
