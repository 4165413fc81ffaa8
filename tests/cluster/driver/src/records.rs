//! Records in files next to the data: one JSON file for each volume, snapshot and group.
//!
//! A record is written to a temporary file and renamed, so a driver that is killed at any moment
//! leaves the old record or the new one. A record is the truth about its data file: it is written
//! after the data and removed before it, and data without a record is removed at the next start.

use crate::system::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use tonic::Status;

/// What a table holds.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// The handle that callers know it by.
    fn id(&self) -> &str;
    /// The name that a caller chose when it was made.
    fn name(&self) -> &str;
}

/// The records of one kind, all in memory.
#[derive(Debug)]
pub(crate) struct Table<R> {
    folder: PathBuf,
    records: BTreeMap<String, R>,
}

impl<R: Record> Table<R> {
    /// Reads all records and removes what a killed driver left half done.
    pub(crate) fn open(folder: PathBuf) -> Result<Self, Status> {
        fs::create_dir_all(&folder).context(|| format!("make {}", folder.display()))?;
        let list = || format!("list {}", folder.display());
        let mut records = BTreeMap::new();
        let mut others = Vec::new();
        for entry in fs::read_dir(&folder).context(list)? {
            let path = entry.context(list)?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                let bytes = fs::read(&path).context(|| format!("read {}", path.display()))?;
                let record: R = serde_json::from_slice(&bytes)
                    .context(|| format!("parse the record {}", path.display()))?;
                records.insert(record.id().to_owned(), record);
            } else {
                others.push(path);
            }
        }
        for path in others {
            let owner = path.file_stem().unwrap_or_default().to_string_lossy();
            let data = path.extension().is_some_and(|ending| ending == "img");
            if !data || !records.contains_key(owner.as_ref()) {
                fs::remove_file(&path).context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(Self { folder, records })
    }

    pub(crate) fn get(&self, id: &str) -> Option<&R> {
        self.records.get(id)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&R> {
        self.all().find(|record| record.name() == name)
    }

    /// In the order of their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = &R> {
        self.records.values()
    }

    /// Where the data of `id` lies.
    pub(crate) fn data(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.img"))
    }

    /// Writes a record, new or changed.
    pub(crate) fn put(&mut self, record: R) -> Result<(), Status> {
        let path = self.folder.join(format!("{}.json", record.id()));
        let write = || format!("write {}", path.display());
        let bytes = serde_json::to_vec_pretty(&record).context(write)?;
        replace(&path, &bytes).context(write)?;
        self.records.insert(record.id().to_owned(), record);
        Ok(())
    }

    /// Removes a record and its data, if it is there.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), Status> {
        if !self.records.contains_key(id) {
            return Ok(());
        }
        let path = self.folder.join(format!("{id}.json"));
        remove_if_there(&path).context(|| format!("remove {}", path.display()))?;
        self.records.remove(id);
        let data = self.data(id);
        remove_if_there(&data).context(|| format!("remove {}", data.display()))
    }
}

/// Puts `bytes` into a file at once: readers, and the next start, see all of them or none.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// Removes a file that may be gone already.
pub(crate) fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Serialize, Deserialize)]
    struct Thing {
        id: String,
        name: String,
    }

    impl Record for Thing {
        fn id(&self) -> &str {
            &self.id
        }
        fn name(&self) -> &str {
            &self.name
        }
    }

    #[test]
    fn a_new_start_finds_records_and_removes_what_has_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let mut table = Table::open(folder.path().to_owned()).expect("a table");
        table.put(Thing { id: "a".to_owned(), name: "one".to_owned() }).expect("a record");
        for name in ["a.img", "b.img", "b.new"] {
            fs::write(at(name), name).expect("a file");
        }
        let mut table: Table<Thing> = Table::open(folder.path().to_owned()).expect("again");
        assert_eq!(table.named("one").expect("a record").id, "a");
        assert!(at("a.img").exists() && !at("b.img").exists() && !at("b.new").exists());
        table.remove("a").expect("removed");
        assert!(!at("a.img").exists() && !at("a.json").exists() && table.all().next().is_none());
        table.remove("a").expect("removed twice");
    }
}
