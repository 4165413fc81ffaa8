//! What is in the target already, and what a copy can build on: decided over two listings. Pure.

use chrono::{DateTime, Utc};
use chunkstore::{BackupEntry, BackupId, Manifest, RepositoryId, VolumeName};

/// What the target has under the name of a backup of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing<'a> {
    /// Nothing.
    Absent,
    /// The same backup.
    There(&'a Manifest),
    /// Another backup of that name.
    Taken(&'a Manifest),
}

/// A backup that is in both repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// As it is in the source.
    pub original: Manifest,
    /// As it is in the target.
    pub copy: Manifest,
}

/// Which run made a backup, wherever copies of it lie. Not the attempt: a repair makes another one
/// of the same run. Times tell apart what two byte for byte copies of one repository have made
/// since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Made<'a> {
    repository: RepositoryId,
    volume: &'a VolumeName,
    backup_id: &'a BackupId,
    size_bytes: u64,
    started: DateTime<Utc>,
    finished: DateTime<Utc>,
    snapshot: Option<&'a str>,
}

impl<'a> Made<'a> {
    fn of(repository: RepositoryId, m: &'a Manifest) -> Self {
        let origin = m.copied_from.as_ref();
        let repository = origin.map_or(repository, |from| from.origin_repository_id);
        Self {
            repository,
            volume: &m.volume,
            backup_id: &m.backup_id,
            size_bytes: m.size_bytes,
            started: m.started,
            finished: m.finished,
            snapshot: m.snapshot.id.as_deref(),
        }
    }
}

/// Whether `backup` of repository `from` is among the backups of repository `to`.
pub fn standing<'a>(
    from: RepositoryId,
    backup: &Manifest,
    to: RepositoryId,
    there: impl IntoIterator<Item = &'a Manifest>,
) -> Standing<'a> {
    let same_name = |m: &&Manifest| m.volume == backup.volume && m.backup_id == backup.backup_id;
    match there.into_iter().find(same_name) {
        None => Standing::Absent,
        Some(m) if Made::of(to, m) == Made::of(from, backup) => Standing::There(m),
        Some(m) => Standing::Taken(m),
    }
}

/// What the copy of `backup` can build on: its parent if that is in both repositories; else the
/// newest of its volume that is and was made before it; else the first that was made after it.
pub fn base_of(
    from: RepositoryId,
    source: &[BackupEntry],
    to: RepositoryId,
    there: &[Manifest],
    backup: &Manifest,
) -> Option<Base> {
    let of_volume: Vec<&Manifest> = there.iter().filter(|m| m.volume == backup.volume).collect();
    let others = source.iter().filter(|b| b.manifest.volume == backup.volume);
    let others = others.filter(|b| b.manifest.backup_id != backup.backup_id);
    let mut both: Vec<(&BackupEntry, &Manifest)> = others
        .filter_map(|b| match standing(from, &b.manifest, to, of_volume.iter().copied()) {
            Standing::There(copy) => Some((b, copy)),
            Standing::Absent | Standing::Taken(_) => None,
        })
        .collect();
    both.sort_by(|(a, _), (b, _)| a.manifest.order().cmp(&b.manifest.order()));
    let is_parent = |m: &Manifest| backup.parent.as_ref() == Some(&m.as_parent());
    let parent = both.iter().find(|(b, _)| is_parent(&b.manifest));
    let before = || both.iter().rfind(|(b, _)| b.manifest.order() <= backup.order());
    let (original, copy) = parent.or_else(before).or_else(|| both.first())?;
    Some(Base { original: original.manifest.clone(), copy: (*copy).clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunkstore::format::{
        BackupStats, ChangeKind, CopiedFrom, MapRoot, ParentRef, SnapshotInfo, SourceInfo,
    };

    fn repository(n: u8) -> RepositoryId {
        RepositoryId::from_bytes([n; 16])
    }

    fn made(volume: &str, id: &str, day: i64) -> Manifest {
        let time = DateTime::from_timestamp(1_700_000_000 + day * 86400, 0).unwrap();
        Manifest {
            volume: VolumeName::new(volume).unwrap(),
            backup_id: BackupId::new(id).unwrap(),
            attempt: 0,
            size_bytes: 4096,
            map: MapRoot { depth: 1, root: None },
            parent: None,
            snapshot: SnapshotInfo::default(),
            source: SourceInfo {
                path: "/dev/x".into(),
                kind: ChangeKind::Whole,
                origin: "device".into(),
                listed_bytes: 0,
                listed_extents: 0,
                identity: None,
            },
            started: time,
            finished: time,
            ordered: time,
            clock_offset_ms: None,
            stats: BackupStats::default(),
            tool: "test".into(),
            labels: [].into(),
            degraded: Vec::new(),
            copied_from: None,
            attachments: Vec::new(),
        }
    }

    fn copied(m: &Manifest, from: u8) -> Manifest {
        let id = repository(from);
        let origin = m.copied_from.as_ref();
        let copied_from = Some(CopiedFrom {
            repository_id: id,
            attempt: m.attempt,
            origin_repository_id: origin.map_or(id, |o| o.origin_repository_id),
            origin_attempt: origin.map_or(m.attempt, |o| o.origin_attempt),
            time: m.finished,
        });
        Manifest { attempt: m.attempt + 3, copied_from, ..m.clone() }
    }

    fn entry(m: &Manifest) -> BackupEntry {
        BackupEntry { manifest: m.clone(), stored: m.finished }
    }

    #[test]
    fn a_copy_of_a_copy_is_known_and_so_is_the_way_back() {
        let (a, b, c) = (repository(1), repository(2), repository(3));
        let first = made("v", "x", 0);
        let second = copied(&first, 1);
        let third = copied(&second, 2);
        assert_eq!(standing(a, &first, b, []), Standing::Absent);
        assert_eq!(standing(a, &first, b, [&second]), Standing::There(&second));
        assert_eq!(standing(b, &second, c, [&third]), Standing::There(&third));
        assert_eq!(standing(a, &first, c, [&third]), Standing::There(&third));
        assert_eq!(standing(c, &third, a, [&first]), Standing::There(&first));
        // another run of that name, there or in a byte for byte copy of the repository
        let other = made("v", "x", 1);
        assert_eq!(standing(a, &first, b, [&other]), Standing::Taken(&other));
        assert_eq!(standing(a, &first, a, [&other]), Standing::Taken(&other));
        let elsewhere = made("w", "x", 0);
        assert_eq!(standing(a, &first, b, [&elsewhere]), Standing::Absent);
    }

    #[test]
    fn the_parent_is_built_on_and_without_it_the_nearest() {
        let (a, b) = (repository(1), repository(2));
        let days: Vec<Manifest> =
            (0..5).map(|day| made("v", &format!("d{day}"), i64::from(day))).collect();
        let source: Vec<BackupEntry> = days.iter().map(entry).collect();
        let base = |there: &[usize], parent: Option<usize>| {
            let there: Vec<_> = there.iter().map(|i| copied(&days[*i], 1)).collect();
            let parent = parent.map(|i| days[i].as_parent());
            let backup = Manifest { parent, ..days[3].clone() };
            let base = base_of(a, &source, b, &there, &backup)?;
            assert_eq!(base.copy, copied(&base.original, 1));
            Some(base.original.backup_id.to_string())
        };
        assert_eq!(base(&[], Some(2)), None);
        assert_eq!(base(&[0, 1, 2], Some(0)).as_deref(), Some("d0"));
        assert_eq!(base(&[0, 1, 4], Some(2)).as_deref(), Some("d1"));
        assert_eq!(base(&[4], None).as_deref(), Some("d4"));
        // of another attempt it is another backup
        let stranger = ParentRef { attempt: 7, ..days[0].as_parent() };
        let backup = Manifest { parent: Some(stranger), ..days[3].clone() };
        let there = [copied(&days[0], 1), copied(&days[1], 1)];
        let base = base_of(a, &source, b, &there, &backup).unwrap();
        assert_eq!(base.original, days[1]);
    }
}
