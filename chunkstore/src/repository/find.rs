//! Finding the backup that a user means. `selector` says what a text means; here the manifests come
//! from the store, as few as will do, and what cannot be found is an error that says what there is.

use super::backups::{Attempt, before};
use super::selector::{ID_PREFIX_MIN, Meaning, TimePrefix, Wanted, Way};
use super::{BackupEntry, Repository};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::names::AttemptName;
use crate::ids::{BackupId, VolumeName};
use chrono::{DateTime, Utc};
use std::collections::BTreeSet;

/// Backups and volumes named in an error.
const NAMED_MAX: usize = 10;
/// Of a name, for the likeness of two.
const COMPARED_CHARS: usize = 64;

/// Which ids a text finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// The one that it is.
    Whole,
    /// That one, or else those that begin so.
    Beginning,
}

impl Repository {
    /// The backup that a user means.
    ///
    /// Without a volume: an id, or the beginning of one that no other has. As `VOLUME@` and, in this
    /// order, `latest`, an id, the beginning of an id, the name of a snapshot (its newest backup), the
    /// beginning of a time (the newest backup that finished within it). A text that means one backup
    /// in one way and another in another is refused; `id:`, `snapshot:` or `time:` before it decides.
    pub async fn find_backup(&self, spec: &str) -> Result<Manifest> {
        match split(spec)? {
            (Some(volume), text) => self.find_in(spec, &volume, text).await,
            (None, id) => self.find_by_id(spec, None, id, Ids::Beginning).await,
        }
    }

    /// The newest backup of a volume of which no data is younger than that time:
    /// [`BackupEntry::data_time`].
    pub async fn find_before(&self, volume: &VolumeName, time: DateTime<Utc>) -> Result<Manifest> {
        let shown = format!("{volume} before {}", moment(time));
        let (mut backups, problems) = self.all_of(&shown, volume).await?;
        let younger = backups.extract_if(.., |b| b.data_time() > time).collect::<Vec<_>>();
        let found = Wanted::Latest.meanings(&backups).into_iter().next();
        let Some(found) = found else {
            if let Some((_, e)) = problems.into_iter().next() {
                return Err(e.within(format!("find backup {shown}")));
            }
            let oldest = younger.iter().min_by_key(|b| b.data_time());
            let error = self.no_such_backup(&shown);
            return Err(match oldest {
                Some(b) => {
                    let (name, data) = (full_name(b), moment(b.data_time()));
                    error
                        .without_hint()
                        .hint(format!("the oldest data is that of {name}, of {data}"))
                }
                None => error,
            });
        };
        certain(volume, &found, problems, |_| true)
    }

    /// The backup that is to be forgotten, which does not come back: named by its id or the beginning
    /// of it, as whatever else a name means may be another one by then. `VOLUME@id:ID` is for programs:
    /// it means this very id, as another one that begins so may be the only one left. Named in full as
    /// `VOLUME@ID` it may be one whose manifest is damaged. Otherwise such a backup could never be got
    /// rid of, and no garbage could be collected beside it.
    pub async fn find_to_forget(&self, spec: &str) -> Result<AttemptName> {
        let (volume, text) = split(spec)?;
        let (id, ids) = match (&volume, Wanted::parse(text)) {
            (None, _) => (text, Ids::Beginning),
            (_, Ok(Wanted::Id(id))) if BackupId::new(id).is_ok() => (id, Ids::Whole),
            (_, Ok(Wanted::Any(id))) if BackupId::new(id).is_ok() => (id, Ids::Beginning),
            (Some(volume), _) => return Err(self.only_by_id(spec, volume, text).await),
        };
        let e = match self.find_by_id(spec, volume.as_ref(), id, ids).await {
            Ok(manifest) => return Ok(manifest.name()),
            Err(e) if e.kind() == ErrorKind::Corrupt => e,
            Err(e) if e.kind() == ErrorKind::NotFound && ids == Ids::Whole => {
                return Err(e.hint("forget takes the whole id behind id:"));
            }
            Err(e) if e.kind() == ErrorKind::NotFound && volume.is_some() => {
                // a snapshot or a time leads to the id that is to be given
                let Some(volume) = &volume else { return Err(e) };
                let other = self.find_in(spec, volume, text).await.is_ok();
                return Err(if other { self.only_by_id(spec, volume, text).await } else { e });
            }
            Err(e) => return Err(e),
        };
        let hint = format!(
            "{}; to forget a backup that cannot be read name it in full: VOLUME@ID",
            Advice::FindRoots.words()
        );
        let Some(volume) = volume else { return Err(e.hint(hint)) };
        let mut attempts = self.list_attempts(Some(&volume)).await?;
        attempts.retain(|a| a.name.backup_id.as_str() == id);
        let (backups, mut problems) = self.read_attempts(attempts).await?;
        match (backups.is_empty(), problems.pop(), problems.is_empty()) {
            (true, Some((attempt, e)), true) if e.kind() == ErrorKind::Corrupt => Ok(attempt.name),
            _ => Err(e.hint(hint)),
        }
    }

    /// The volumes that have backups, by name.
    pub async fn volumes(&self) -> Result<Vec<VolumeName>> {
        let attempts = self.list_attempts(None).await?;
        let names: BTreeSet<_> = attempts.into_iter().map(|a| a.name.volume).collect();
        Ok(names.into_iter().collect())
    }

    /// That a volume has no backup, with the volumes that have.
    pub async fn no_such_volume(&self, volume: &VolumeName) -> Error {
        let context = format!("find backups in {}", self.store.url());
        self.unknown_volume(context, volume).await
    }

    async fn unknown_volume(&self, context: String, volume: &VolumeName) -> Error {
        let detail = format!("there is no backup of volume {volume}");
        let error = Error::new(ErrorKind::NotFound, context, detail);
        let roots = Advice::FindRoots.words();
        match self.volumes().await {
            Ok(known) if known.is_empty() => {
                error.hint(format!("nor of any other volume; {roots}"))
            }
            Ok(known) => {
                let named = nearest(volume.as_str(), &known);
                let of =
                    if known.len() == 1 { "there are backups of" } else { "there are those of" };
                error.hint(format!("{of} {named}; {roots}"))
            }
            Err(_) => error.hint(Advice::ListBackups.words()),
        }
    }

    pub(super) fn no_such_backup(&self, spec: &str) -> Error {
        let context = format!("find backup {spec} in {}", self.store.url());
        let (list, roots) = (Advice::ListBackups.words(), Advice::FindRoots.words());
        Error::new(ErrorKind::NotFound, context, "there is no such backup")
            .hint(format!("{list}; {roots}"))
    }

    /// All backups of a volume that has one.
    async fn all_of(
        &self,
        spec: &str,
        volume: &VolumeName,
    ) -> Result<(Vec<BackupEntry>, Vec<(Attempt, Error)>)> {
        let attempts = self.list_attempts(Some(volume)).await?;
        let (backups, problems) = self.read_attempts(attempts).await?;
        if backups.is_empty() && problems.is_empty() {
            let context = format!("find backup {spec} in {}", self.store.url());
            return Err(self.unknown_volume(context, volume).await);
        }
        Ok((backups, problems))
    }

    async fn find_in(&self, spec: &str, volume: &VolumeName, text: &str) -> Result<Manifest> {
        let wanted = Wanted::parse(text).map_err(|e| e.within(format!("find backup {spec}")))?;
        match wanted {
            Wanted::Id(id) => {
                return self.find_by_id(spec, Some(volume), id, Ids::Beginning).await;
            }
            // nobody calls a snapshot so: no other manifest has to be read
            Wanted::Any(id) if is_random(id) => {
                match self.find_by_id(spec, Some(volume), id, Ids::Beginning).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    found => return found,
                }
            }
            _ => {}
        }
        let (backups, problems) = self.all_of(spec, volume).await?;
        let mut meanings = wanted.meanings(&backups);
        let fits = |a: &Attempt| {
            let (id, known) = (text, a.name.backup_id.as_str());
            known == id || (id.len() >= ID_PREFIX_MIN && known.starts_with(id))
        };
        let mut same = meanings.iter().flat_map(|m| &m.backups).map(|b| b.manifest.name());
        let first = same.next();
        let one = same.all(|name| Some(name) == first);
        match (one, meanings.len()) {
            (_, 0) => Err(match problems.into_iter().next() {
                // it may be the one that is meant
                Some((_, e)) => e.within(format!("find backup {spec}")),
                None => self.nothing_fits(spec, text, &backups),
            }),
            (false, 1) => Err(ambiguous(spec, &meanings[0].backups)),
            (false, _) => Err(two_meanings(spec, volume, text, &meanings)),
            (true, _) => {
                let found = meanings.swap_remove(0);
                let time =
                    TimePrefix::parse(text.strip_prefix(Way::Time.mark()).unwrap_or(text)).ok();
                certain(volume, &found, problems, |attempt| match (wanted, found.way) {
                    (Wanted::Latest, _) => true,
                    (_, Way::Id) => false,
                    (_, Way::IdPrefix) => fits(attempt),
                    // all backups of one snapshot are alike
                    (_, Way::Snapshot) => false,
                    (_, Way::Time) => time.is_none_or(|t| !before(attempt.stored, t.start)),
                })
            }
        }
    }

    /// By an id, or the beginning of one where that will do, of one volume or of any.
    async fn find_by_id(
        &self,
        spec: &str,
        volume: Option<&VolumeName>,
        id: &str,
        ids: Ids,
    ) -> Result<Manifest> {
        if BackupId::new(id).is_err() {
            let context = format!("find backup {spec:?}");
            let detail = "that is neither a backup id nor VOLUME@latest";
            return Err(Error::new(ErrorKind::Usage, context, detail).hint(format!(
                "{}; {ID_PREFIX_MIN} characters of an id are enough if no other starts so",
                Advice::ListBackups.words()
            )));
        }
        let mut attempts = self.list_attempts(volume).await?;
        let is_a_volume = attempts.iter().any(|a| a.name.volume.as_str() == spec);
        let exact = |a: &Attempt| a.name.backup_id.as_str() == id;
        if attempts.iter().any(exact) {
            attempts.retain(exact);
        } else {
            let fits = ids == Ids::Beginning && id.len() >= ID_PREFIX_MIN;
            attempts.retain(|a| fits && a.name.backup_id.as_str().starts_with(id));
        }
        let (mut backups, problems) = self.read_attempts(attempts).await?;
        backups.sort_by_cached_key(|b| b.manifest.name());
        let mut problems = problems.into_iter();
        match (backups.as_slice(), problems.next()) {
            ([_, _, ..], _) => Err(ambiguous(spec, &backups.iter().collect::<Vec<_>>())),
            (_, Some((_, e))) => Err(e.within(format!("find backup {spec}"))),
            ([backup], None) => Ok(backup.manifest.clone()),
            ([], None) => {
                let e = self.no_such_backup(spec);
                Err(if is_a_volume {
                    e.hint(format!("{spec} is a volume: its newest backup is {spec}@latest"))
                } else if id.len() < ID_PREFIX_MIN {
                    e.hint(format!(
                        "{}; {ID_PREFIX_MIN} characters of an id are the least",
                        Advice::ListBackups.words()
                    ))
                } else {
                    e
                })
            }
        }
    }

    /// That a text means no backup of these, which are all that the volume has.
    fn nothing_fits(&self, spec: &str, text: &str, backups: &[BackupEntry]) -> Error {
        let error = self.no_such_backup(spec);
        let time = TimePrefix::parse(text.strip_prefix(Way::Time.mark()).unwrap_or(text));
        let mut near = Vec::new();
        if let Ok(time) = time {
            let before = backups.iter().filter(|b| b.time() < time.start).max_by_key(|b| b.time());
            let after = backups.iter().filter(|b| b.time() >= time.end).min_by_key(|b| b.time());
            near.extend(before.map(|b| format!("{} before it", named(b))));
            near.extend(after.map(|b| format!("{} after it", named(b))));
        } else {
            let newest = backups.iter().max_by(|a, b| a.manifest.order().cmp(&b.manifest.order()));
            near.extend(newest.map(|b| format!("{}, the newest", named(b))));
        }
        let least = if text.len() < ID_PREFIX_MIN {
            format!("; {ID_PREFIX_MIN} characters of an id are the least")
        } else {
            String::new()
        };
        error.hint(format!(
            "there is {}{least}; {}",
            near.join(", and "),
            Advice::ListBackups.words()
        ))
    }

    /// That `forget` takes nothing that may mean another backup tomorrow.
    async fn only_by_id(&self, spec: &str, volume: &VolumeName, text: &str) -> Error {
        let detail = "what is forgotten does not come back, so it is named by its id alone";
        let error = Error::new(ErrorKind::Usage, format!("forget backup {spec}"), detail);
        match self.find_in(spec, volume, text).await {
            Ok(m) => error.hint(format!("now that would be {volume}@{}", m.backup_id)),
            Err(_) => error.hint(Advice::ListBackups.words()),
        }
    }
}

/// Volume and the rest; a snapshot that is marked as one may have any name.
fn split(spec: &str) -> Result<(Option<VolumeName>, &str)> {
    let marked = spec.find(&format!("@{}", Way::Snapshot.mark())).map(|at| spec.split_at(at));
    let cut = marked.map(|(volume, rest)| (volume, &rest[1..])).or_else(|| spec.rsplit_once('@'));
    Ok(match cut {
        Some((_, "")) => {
            let detail = "nothing stands behind the @";
            return Err(Error::new(ErrorKind::Usage, format!("find backup {spec:?}"), detail)
                .hint("write VOLUME@latest, or VOLUME@ and an id, a snapshot or a date"));
        }
        Some((volume, text)) => (Some(VolumeName::new(volume)?), text),
        None => (None, spec),
    })
}

/// Whether it is of the form of a random id.
fn is_random(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The one backup that was found, unless one that cannot be read may be the one that is meant.
fn certain(
    volume: &VolumeName,
    found: &Meaning<'_>,
    problems: Vec<(Attempt, Error)>,
    may_fit: impl Fn(&Attempt) -> bool,
) -> Result<Manifest> {
    let Some(best) = found.backups.first() else {
        return Err(Error::new(ErrorKind::Bug, "find a backup", "a meaning without a backup"));
    };
    let newer = |a: &Attempt| a.stored >= best.stored || !before(a.stored, best.manifest.ordered);
    let in_the_way = |a: &Attempt| may_fit(a) && (matches!(found.way, Way::IdPrefix) || newer(a));
    match problems.into_iter().find(|(attempt, _)| in_the_way(attempt)) {
        Some((attempt, e)) => {
            let hint = format!(
                "{} cannot be read; to use an older one name it by its id; {}",
                attempt.name,
                Advice::FindRoots.words()
            );
            Err(e.within(format!("find the latest backup of {volume}")).hint(hint))
        }
        None => Ok(best.manifest.clone()),
    }
}

fn moment(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%SZ").to_string()
}

fn full_name(backup: &BackupEntry) -> String {
    format!("{}@{}", backup.manifest.volume, backup.manifest.backup_id)
}

fn named(backup: &BackupEntry) -> String {
    format!("{} of {}", full_name(backup), moment(backup.time()))
}

fn ambiguous(spec: &str, backups: &[&BackupEntry]) -> Error {
    let mut all: Vec<String> = backups.iter().take(NAMED_MAX).map(|b| named(b)).collect();
    if backups.len() > NAMED_MAX {
        all.push(format!("{} more", backups.len() - NAMED_MAX));
    }
    let detail = format!("it fits {} backups: {}", backups.len(), all.join(", "));
    Error::new(ErrorKind::Usage, format!("find backup {spec}"), detail)
        .hint("write VOLUME@ID, or more of the id")
}

/// A text that means one backup in one way, and others in other ways.
fn two_meanings(spec: &str, volume: &VolumeName, text: &str, ways: &[Meaning<'_>]) -> Error {
    let mut means = Vec::new();
    for Meaning { way, backups } in ways {
        let mut names: Vec<_> = backups.iter().take(NAMED_MAX).map(|b| named(b)).collect();
        if backups.len() > NAMED_MAX {
            names.push(format!("{} more", backups.len() - NAMED_MAX));
        }
        means.push(format!("{}: {}", way.as_str(), names.join(", ")));
    }
    let marks: Vec<_> = ways.iter().map(|m| format!("{volume}@{}{text}", m.way.mark())).collect();
    let detail = format!("it means more than one backup: {}", means.join("; "));
    Error::new(ErrorKind::Usage, format!("find backup {spec}"), detail)
        .hint(format!("write {}, or the id of the one that is meant", marks.join(" or ")))
}

/// Names, those most like the wanted one first, and no more than fit into a line.
fn nearest(wanted: &str, known: &[VolumeName]) -> String {
    let likeness = |name: &&VolumeName| {
        let contains = name.as_str().contains(wanted) || wanted.contains(name.as_str());
        (!contains, distance(wanted, name.as_str()), name.as_str().to_owned())
    };
    let mut names: Vec<&VolumeName> = known.iter().collect();
    names.sort_by_cached_key(likeness);
    let mut shown: Vec<_> = names.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if names.len() > NAMED_MAX {
        shown.push(format!("{} more", names.len() - NAMED_MAX));
    }
    shown.join(", ")
}

/// The least number of characters to put in, take out or replace (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(COMPARED_CHARS).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(COMPARED_CHARS).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
