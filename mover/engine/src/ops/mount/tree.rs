//! Backups as a tree of files: `volume.img`, and what a file system has, below `files/`.
//!
//! What a number means is in `inodes`, what is open in `handles`, which backups are open in `shelf`.
//! Nothing of it is locked while anything is waited for.

use super::backup::Filesystem;
use super::content;
use super::handles::{Failures, Handles, Thing};
use super::inodes::{Inodes, Meaning, Place, number};
use super::list::{Catalogue, LIST_EVERY, Listed};
use super::names;
use super::shelf::{Held, Shelf, Slot};
use crate::ops::files::{FileId, FileKind, FileNode, FileTime};
use chunkstore::{Result, VolumeName};
use mover_fuse::{
    Answer, Attribute, Content, DirectoryEntry, Entry, Errno, Handle, Inode, Kind, Node,
    OpenDirectory, Space, Time, Tree,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a backup has never changes.
const FOR_GOOD: Duration = Duration::from_secs(24 * 3600);
/// Names that are looked at together.
const NAMES: usize = 128;
const BLOCK_BYTES: u32 = 4096;
const SECTOR_BYTES: u64 = 512;

/// All that is mounted.
#[derive(Debug)]
pub(super) struct Backups {
    pub(super) shelf: Shelf,
    /// `None`: one backup was named.
    catalogue: Option<Catalogue>,
    inodes: Mutex<Inodes>,
    handles: Handles,
    failures: Failures,
    /// Whoever mounts.
    owner: (u32, u32),
    began: Time,
}

impl Backups {
    pub(super) fn new(
        shelf: Shelf,
        one: Option<&Arc<Slot>>,
        owner: (u32, u32),
        began: Time,
    ) -> Self {
        let catalogue = one.is_none().then(|| Catalogue::new(&shelf.means().repo));
        let inodes = Mutex::new(Inodes::new(one));
        let (handles, failures) = Default::default();
        Self { shelf, catalogue, inodes, handles, failures, owner, began }
    }

    /// Ends everything; gives what the user should know.
    pub(super) fn end(&self) -> Vec<String> {
        self.handles.end();
        self.shelf.end()
    }

    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meaning(&self, inode: Inode) -> Answer<Meaning> {
        self.inodes().meaning(inode).ok_or(Errno::STALE)
    }

    /// A backup, open from now on.
    async fn hold(&self, slot: &Arc<Slot>) -> Answer<Held> {
        let held = Box::pin(self.shelf.hold(slot)).await;
        held.map_err(|e| self.failures.told(&format!("backup {}", slot.name), &e))
    }

    /// Of a backup whose files can be read: them, and their numbers.
    fn files(&self, slot: &Arc<Slot>, held: &Held) -> Answer<Option<(Filesystem, Range<Inode>)>> {
        let Ok(files) = &held.open.files else { return Ok(None) };
        let range = self.inodes().range(slot).ok_or(Errno::OVERFLOW)?;
        Ok(Some((files.clone(), range)))
    }

    async fn listed(&self, volume: &VolumeName) -> Answer<Arc<Vec<Listed>>> {
        let catalogue = self.catalogue.as_ref().ok_or(Errno::STALE)?;
        let listed = catalogue.backups(volume).await;
        listed.map_err(|e| self.failures.told(&format!("list backups of {volume}"), &e))
    }

    async fn volumes(&self) -> Answer<Arc<Vec<(String, VolumeName)>>> {
        let catalogue = self.catalogue.as_ref().ok_or(Errno::STALE)?;
        catalogue.volumes().await.map_err(|e| self.failures.told("list volumes", &e))
    }

    /// A directory or file of ours.
    fn ours(&self, inode: Inode, kind: Kind, mode: u16, size_bytes: u64, time: Time) -> Node {
        let (uid, gid) = self.owner;
        Node {
            inode,
            kind,
            mode,
            links: if kind == Kind::Directory { 2 } else { 1 },
            uid,
            gid,
            size_bytes,
            sectors: size_bytes.div_ceil(SECTOR_BYTES),
            preferred_bytes: BLOCK_BYTES,
            accessed: time,
            modified: time,
            changed: time,
        }
    }

    fn directory(&self, inode: Inode, time: Time) -> Node {
        self.ours(inode, Kind::Directory, 0o555, 0, time)
    }

    async fn node_of(&self, inode: Inode, place: &Place) -> Answer<Entry> {
        let valid = if self.catalogue.is_some() { LIST_EVERY } else { FOR_GOOD };
        let node = match place {
            Place::Volumes | Place::Volume(_) => self.directory(inode, self.began),
            Place::Latest(volume) => {
                let target = self.newest(volume).await?;
                self.ours(inode, Kind::Symlink, 0o777, target.len() as u64, self.began)
            }
            Place::Backup(slot) => self.directory(inode, slot.time),
            Place::Image(slot) => self.image(inode, slot),
            Place::Note(slot) => {
                let held = self.hold(slot).await?;
                let text = held.open.files.as_ref().err().ok_or(Errno::NOENT)?;
                self.ours(inode, Kind::File, 0o444, note(text).len() as u64, slot.time)
            }
        };
        Ok(Entry { node, valid })
    }

    fn image(&self, inode: Inode, slot: &Slot) -> Node {
        self.ours(inode, Kind::File, 0o400, slot.size_bytes, slot.time)
    }

    /// What the link of a volume leads to.
    async fn newest(&self, volume: &VolumeName) -> Answer<String> {
        let listed = self.listed(volume).await?;
        listed.last().map(|newest| newest.shown.clone()).ok_or(Errno::NOENT)
    }

    fn backup_of(&self, listed: &Listed) -> (Arc<Slot>, Inode) {
        let (slot, inode, is_new) = self.inodes().backup(listed);
        if is_new {
            self.shelf.add(&slot);
        }
        (slot, inode)
    }

    async fn lookup_in(&self, place: &Place, name: &[u8]) -> Answer<Entry> {
        match place {
            Place::Volumes => {
                let volumes = self.volumes().await?;
                let found = volumes.iter().find(|(shown, _)| shown.as_bytes() == name);
                let (_, volume) = found.ok_or(Errno::NOENT)?;
                let (inode, _) = self.inodes().volume(volume);
                Ok(Entry { node: self.directory(inode, self.began), valid: LIST_EVERY })
            }
            Place::Volume(volume) if name == names::LATEST.as_bytes() => {
                let (_, inode) = self.inodes().volume(volume);
                self.node_of(inode, &Place::Latest(volume.clone())).await
            }
            Place::Volume(volume) => {
                let listed = self.listed(volume).await?;
                let found = listed.iter().find(|one| one.shown.as_bytes() == name);
                let (slot, inode) = self.backup_of(found.ok_or(Errno::NOENT)?);
                Ok(Entry { node: self.directory(inode, slot.time), valid: LIST_EVERY })
            }
            Place::Backup(slot) => {
                let (image, its_note) = self.inodes().beside(slot);
                if name == names::IMAGE.as_bytes() {
                    return Ok(Entry { node: self.image(image, slot), valid: FOR_GOOD });
                }
                let held = self.hold(slot).await?;
                match self.files(slot, &held)? {
                    Some((files, range)) if name == names::FILES.as_bytes() => {
                        self.file(slot, &held, files.root, &range).await
                    }
                    None if name == names::NOTE.as_bytes() => {
                        self.node_of(its_note, &Place::Note(Arc::clone(slot))).await
                    }
                    _ => Err(Errno::NOENT),
                }
            }
            Place::Latest(_) | Place::Image(_) | Place::Note(_) => Err(Errno::NOTDIR),
        }
    }

    /// Asks a file system something about a file of it.
    async fn asked<T: Send + 'static>(
        &self,
        slot: &Slot,
        held: &Held,
        id: FileId,
        question: impl FnOnce(&mut super::backup::FileReader<'_>) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let answer = Box::pin(held.open.ask(question)).await;
        answer.map_err(|e| self.failures.told(&format!("backup {}, file {}", slot.name, id.0), &e))
    }

    async fn file(
        &self,
        slot: &Slot,
        held: &Held,
        id: FileId,
        range: &Range<Inode>,
    ) -> Answer<Entry> {
        let node = self.asked(slot, held, id, move |reader| reader.open.node(id)).await?;
        let inode = number(range, node.id).ok_or(Errno::IO)?;
        Ok(Entry { node: shown(inode, &node), valid: FOR_GOOD })
    }

    /// Names of a directory of ours.
    async fn list(&self, inode: Inode, place: &Place) -> Answer<Vec<DirectoryEntry>> {
        let entry = |inode, kind, name: &str| DirectoryEntry {
            inode,
            kind,
            name: name.as_bytes().to_vec(),
        };
        match place {
            Place::Volumes => {
                let volumes = self.volumes().await?;
                let mut inodes = self.inodes();
                let entries = volumes
                    .iter()
                    .map(|(shown, name)| entry(inodes.volume(name).0, Kind::Directory, shown));
                Ok(entries.collect())
            }
            Place::Volume(volume) => {
                let listed = self.listed(volume).await?;
                let mut entries: Vec<DirectoryEntry> = listed
                    .iter()
                    .map(|one| entry(self.backup_of(one).1, Kind::Directory, &one.shown))
                    .collect();
                if !entries.is_empty() {
                    let link = self.inodes().volume(volume).1;
                    entries.push(entry(link, Kind::Symlink, names::LATEST));
                }
                Ok(entries)
            }
            Place::Backup(slot) => {
                let held = self.hold(slot).await?;
                let (image, note) = self.inodes().beside(slot);
                let mut entries = vec![entry(image, Kind::File, names::IMAGE)];
                entries.push(match self.files(slot, &held)? {
                    Some((files, range)) => {
                        let root = number(&range, files.root).unwrap_or(inode);
                        entry(root, Kind::Directory, names::FILES)
                    }
                    None => entry(note, Kind::File, names::NOTE),
                });
                Ok(entries)
            }
            Place::Latest(_) | Place::Image(_) | Place::Note(_) => Err(Errno::NOTDIR),
        }
    }
}

impl Tree for Backups {
    async fn lookup(&self, directory: Inode, name: &[u8]) -> Answer<Entry> {
        match self.meaning(directory)? {
            Meaning::Ours(place) => self.lookup_in(&place, name).await,
            Meaning::File(slot, id, range) => {
                let held = self.hold(&slot).await?;
                let name = name.to_vec();
                let find = move |reader: &mut super::backup::FileReader<'_>| {
                    let found = reader.find(id, &name)?;
                    found.map(|id| reader.open.node(id)).transpose()
                };
                let node = self.asked(&slot, &held, id, find).await?.ok_or(Errno::NOENT)?;
                let inode = number(&range, node.id).ok_or(Errno::IO)?;
                Ok(Entry { node: shown(inode, &node), valid: FOR_GOOD })
            }
        }
    }

    async fn node(&self, inode: Inode) -> Answer<Entry> {
        match self.meaning(inode)? {
            Meaning::Ours(place) => self.node_of(inode, &place).await,
            Meaning::File(slot, id, range) => {
                let held = self.hold(&slot).await?;
                self.file(&slot, &held, id, &range).await
            }
        }
    }

    async fn open(&self, inode: Inode) -> Answer<Handle> {
        let thing = match self.meaning(inode)? {
            Meaning::Ours(Place::Image(slot)) => Thing::Image(self.hold(&slot).await?),
            Meaning::Ours(Place::Note(slot)) => {
                let held = self.hold(&slot).await?;
                Thing::Note(note(held.open.files.as_ref().err().ok_or(Errno::NOENT)?))
            }
            Meaning::Ours(_) => return Err(Errno::ISDIR),
            Meaning::File(slot, id, _) => {
                let held = self.hold(&slot).await?;
                let node = self.asked(&slot, &held, id, move |reader| reader.open.node(id)).await?;
                let pieces = Box::pin(held.open.pieces(id)).await;
                let place = || format!("backup {}, file {}", slot.name, id.0);
                let pieces = pieces.map_err(|e| self.failures.told(&place(), &e))?;
                let pieces = pieces.ok_or(Errno::NFILE)?;
                Thing::File { held, inode: id.0, pieces, size_bytes: node.size_bytes }
            }
        };
        self.handles.add(thing)
    }

    async fn read(&self, file: Handle, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        let thing = self.handles.get(file)?;
        let within = |size: u64, buffer: &[u8]| {
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            left.min(buffer.len())
        };
        match &*thing {
            Thing::Image(held) => {
                let len = within(held.open.view.size_bytes(), buffer);
                if len > 0 {
                    let read = Box::pin(held.open.view.read(offset, &mut buffer[..len])).await;
                    read.map_err(|e| {
                        let name = &held.open.name;
                        self.failures.told(&format!("backup {name}, {}", names::IMAGE), &e)
                    })?;
                }
                Ok(len)
            }
            Thing::File { held, inode, pieces, size_bytes } => {
                let len = within(*size_bytes, buffer);
                let Ok(files) = &held.open.files else { return Err(Errno::STALE) };
                let (view, part) = (&held.open.view, &mut buffer[..len]);
                let read = Box::pin(content::read(view, files, &pieces.pieces, offset, part)).await;
                read.map_err(|e| {
                    self.failures.told(&format!("backup {}, file {inode}", held.open.name), &e)
                })?;
                Ok(len)
            }
            Thing::Note(text) => {
                let len = within(text.len() as u64, buffer);
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                buffer[..len].copy_from_slice(text.as_bytes().get(from..from + len).unwrap_or(&[]));
                Ok(len)
            }
            Thing::List(_) | Thing::Directory { .. } => Err(Errno::ISDIR),
        }
    }

    async fn seek(&self, file: Handle, offset: u64, content: Content) -> Answer<u64> {
        let thing = self.handles.get(file)?;
        let found = match &*thing {
            Thing::Image(held) => {
                let view = &held.open.view;
                let next = Box::pin(content::next_of_volume(view, offset, content)).await;
                next.map_err(|e| {
                    self.failures.told(&format!("backup {}: its map", held.open.name), &e)
                })?
            }
            Thing::File { pieces, size_bytes, .. } => {
                content::next(&pieces.pieces, *size_bytes, offset, content)
            }
            Thing::Note(text) => content::next(&[], text.len() as u64, offset, Content::Hole)
                .map(|_| if content == Content::Data { offset } else { text.len() as u64 }),
            Thing::List(_) | Thing::Directory { .. } => return Err(Errno::ISDIR),
        };
        found.ok_or(Errno::NXIO)
    }

    fn close(&self, file: Handle) {
        self.handles.close(file);
    }

    async fn open_directory(&self, inode: Inode) -> Answer<OpenDirectory> {
        let (thing, kept) = match self.meaning(inode)? {
            Meaning::Ours(place) => (Thing::List(self.list(inode, &place).await?), false),
            Meaning::File(slot, id, range) => {
                let held = self.hold(&slot).await?;
                // what is wrong with it is told now
                self.asked(&slot, &held, id, move |reader| reader.names(id).map(drop)).await?;
                (Thing::Directory { held, id, range }, true)
            }
        };
        Ok(OpenDirectory { handle: self.handles.add(thing)?, kept })
    }

    async fn names(&self, directory: Handle, place: u64) -> Answer<Vec<DirectoryEntry>> {
        let thing = self.handles.get(directory)?;
        let from = usize::try_from(place).unwrap_or(usize::MAX);
        match &*thing {
            Thing::List(entries) => Ok(entries.iter().skip(from).take(NAMES).cloned().collect()),
            Thing::Directory { held, id, range } => {
                let (id, range) = (*id, range.clone());
                let part = Box::pin(held.open.ask(move |reader| part(reader, id, from, &range)));
                part.await.map_err(|e| {
                    self.failures.told(&format!("backup {}, file {}", held.open.name, id.0), &e)
                })
            }
            _ => Err(Errno::NOTDIR),
        }
    }

    fn close_directory(&self, directory: Handle) {
        self.handles.close(directory);
    }

    async fn target(&self, link: Inode) -> Answer<Vec<u8>> {
        match self.meaning(link)? {
            Meaning::Ours(Place::Latest(volume)) => Ok(self.newest(&volume).await?.into_bytes()),
            Meaning::Ours(_) => Err(Errno::INVAL),
            Meaning::File(slot, id, _) => {
                let held = self.hold(&slot).await?;
                self.asked(&slot, &held, id, move |reader| reader.open.target(id)).await
            }
        }
    }

    async fn attributes(&self, inode: Inode) -> Answer<Vec<Attribute>> {
        let Meaning::File(slot, id, _) = self.meaning(inode)? else { return Ok(Vec::new()) };
        let held = self.hold(&slot).await?;
        let all = self.asked(&slot, &held, id, move |reader| reader.open.attributes(id)).await?;
        Ok(all.into_iter().map(|one| Attribute { name: one.name, value: one.value }).collect())
    }

    async fn space(&self, inode: Inode) -> Answer<Space> {
        let bytes = match self.meaning(inode)? {
            Meaning::Ours(Place::Backup(slot) | Place::Image(slot) | Place::Note(slot))
            | Meaning::File(slot, ..) => slot.size_bytes,
            Meaning::Ours(_) => 0,
        };
        Ok(Space { bytes })
    }
}

/// Some names of a directory, with what they are the names of: inodes are read together.
fn part(
    reader: &mut super::backup::FileReader<'_>,
    directory: FileId,
    from: usize,
    range: &Range<Inode>,
) -> Result<Vec<DirectoryEntry>> {
    let names = reader.names(directory)?;
    let part = &names[from.min(names.len())..(from.saturating_add(NAMES)).min(names.len())];
    let ids: Vec<FileId> = part.iter().map(|entry| entry.id).collect();
    reader.open.expect(&ids);
    let entries = part.iter().map(|entry| {
        // who looks at a file that cannot be read hears of it: its name is there all the same
        let kind = reader.open.node(entry.id).map_or(Kind::File, |node| kind(node.kind));
        let inode = number(range, entry.id).unwrap_or(range.start);
        DirectoryEntry { inode, kind, name: entry.name.clone() }
    });
    Ok(entries.collect())
}

fn note(why: &str) -> String {
    format!("{why}\n")
}

fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::File => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
        FileKind::Characters(major, minor) => Kind::Characters(major, minor),
        FileKind::Blocks(major, minor) => Kind::Blocks(major, minor),
    }
}

fn shown(inode: Inode, node: &FileNode) -> Node {
    let time = |time: FileTime| Time { seconds: time.seconds, nanoseconds: time.nanoseconds };
    Node {
        inode,
        kind: kind(node.kind),
        mode: u16::try_from(node.mode & 0o7777).unwrap_or(0),
        links: node.links,
        uid: node.uid,
        gid: node.gid,
        size_bytes: node.size_bytes,
        sectors: node.stored_bytes.div_ceil(SECTOR_BYTES),
        preferred_bytes: BLOCK_BYTES,
        accessed: time(node.accessed),
        modified: time(node.modified),
        changed: time(node.changed),
    }
}
