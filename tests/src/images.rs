//! A volume that lives: a filesystem with real files and a database, changed step by step, each
//! state kept.

use crate::devices::{LoopDevice, Mount, run_ok};
use crate::extents::copy_image;
use crate::filesystems::{Filesystem, TreeListing, copy_real_files};
use crate::random::Rng;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const DATABASE: &str = "db/accounts.sqlite";

/// What the volume held at one moment.
#[derive(Debug)]
pub struct VolumeState {
    /// A copy of the whole volume, unmounted cleanly.
    pub image: PathBuf,
    /// The files in it.
    pub listing: TreeListing,
    filesystem: Filesystem,
}

impl VolumeState {
    /// Takes a restored volume (an image or a block device) apart: it equals the state bit for bit,
    /// the filesystem's own check is clean, the mounted files are the same, and the database's
    /// integrity check says `ok`.
    pub fn expect_restored(&self, restored: &Path) {
        assert_eq!(crate::first_difference(&self.image, restored), None, "bit for bit");
        self.filesystem.check(restored);
        let is_image = fs::metadata(restored).expect("the restored volume").is_file();
        let device = is_image.then(|| LoopDevice::attach_read_only(restored));
        let point = crate::work_dir("restored");
        let options = self.filesystem.read_only_options();
        let mount = Mount::new(
            device.as_ref().map_or(restored, LoopDevice::path),
            point.path(),
            self.filesystem.name(),
            options,
        );
        TreeListing::of(mount.path()).expect_same(&self.listing);
        check_database(&mount.path().join(DATABASE));
        drop(mount);
    }
}

/// A filesystem on a loop device that goes through changes. Needs root.
#[derive(Debug)]
pub struct LiveVolume {
    directory: PathBuf,
    filesystem: Filesystem,
    rng: Rng,
    states: u32,
    files: Vec<PathBuf>,
}

impl LiveVolume {
    /// Formats `volume.img` of `volume_bytes` in `directory`, and fills it with real files of about
    /// `file_bytes` and a database; gives the first state too.
    pub fn create(
        directory: &Path,
        filesystem: Filesystem,
        volume_bytes: u64,
        file_bytes: u64,
        mut rng: Rng,
    ) -> (Self, VolumeState) {
        let image = directory.join("volume.img");
        let file = File::create(&image).expect("create the image");
        file.set_len(volume_bytes).expect("size the image");
        filesystem.make(&image);
        let mut volume = Self {
            directory: directory.to_owned(),
            filesystem,
            rng: rng.fork(),
            states: 0,
            files: Vec::new(),
        };
        let state = volume.next_state(|volume, root| {
            let files = copy_real_files(&root.join("first"), file_bytes, &mut volume.rng);
            volume.remember(root, files);
            volume.add_odd_files(root);
            create_database(&root.join(DATABASE));
        });
        (volume, state)
    }

    /// The volume itself; not to be written by others.
    pub fn image(&self) -> PathBuf {
        self.directory.join("volume.img")
    }

    /// What an hour of use does: files appended to, overwritten, cut, renamed, removed, new ones,
    /// changes all over the database; freed blocks are discarded every other time.
    pub fn change(&mut self) -> VolumeState {
        self.next_state(|volume, root| {
            let step = volume.states;
            volume.touch_files(root);
            let new = copy_real_files(&root.join(format!("new-{step}")), 4 << 20, &mut volume.rng);
            volume.remember(root, new);
            update_database(&root.join(DATABASE), step);
            if step % 2 == 0 {
                run_ok("sync", ["--file-system".as_ref(), root.as_os_str()]);
                run_ok("fstrim", [root]);
            }
        })
    }

    fn next_state(&mut self, change: impl FnOnce(&mut Self, &Path)) -> VolumeState {
        let device = LoopDevice::attach(&self.image());
        let point = self.directory.join("mnt");
        let name = self.filesystem.name();
        let mount = Mount::new(device.path(), &point, name, "rw");
        change(self, mount.path());
        drop(mount);
        // What is in the files after all was written back, access times of the change included.
        let mount = Mount::new(device.path(), &point, name, "ro");
        let listing = TreeListing::of(mount.path());
        drop(mount);
        drop(device);
        let image = self.directory.join(format!("state-{}.img", self.states));
        copy_image(&self.image(), &image);
        self.states += 1;
        VolumeState { image, listing, filesystem: self.filesystem }
    }

    fn remember(&mut self, root: &Path, files: Vec<PathBuf>) {
        let relative =
            |path: PathBuf| path.strip_prefix(root).expect("a file is below its root").to_owned();
        self.files.extend(files.into_iter().map(relative));
    }

    /// What real trees have beside plain files: holes, long zeros, links, an empty file, random
    /// bytes.
    fn add_odd_files(&mut self, root: &Path) {
        let odd = root.join("odd");
        fs::create_dir_all(&odd).expect("make a directory");
        let holes = File::create(odd.join("holes")).expect("create");
        holes.set_len(64 << 20).expect("extend");
        holes.write_all_at(b"in the middle", 20 << 20).expect("write");
        fs::write(odd.join("zeros"), vec![0; 5 << 20]).expect("write");
        fs::write(odd.join("random"), self.rng.bytes(3 << 20)).expect("write");
        fs::write(odd.join("empty"), b"").expect("write");
        fs::hard_link(odd.join("random"), odd.join("hard")).expect("link");
        std::os::unix::fs::symlink("random", odd.join("soft")).expect("link");
    }

    fn touch_files(&mut self, root: &Path) {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        self.rng.shuffle(&mut order);
        let share = (order.len() / 60).max(1);
        let mut groups = order.chunks(share);
        for &i in groups.next().unwrap_or_default() {
            let len = usize::try_from(self.rng.below(100_000)).expect("fits");
            let mut content = fs::read(root.join(&self.files[i])).expect("read a file");
            content.extend(self.rng.bytes(len));
            fs::write(root.join(&self.files[i]), content).expect("append to a file");
        }
        for &i in groups.next().unwrap_or_default() {
            let file = OpenOptions::new().write(true).open(root.join(&self.files[i]));
            let file = file.expect("open a file");
            let len = file.metadata().expect("its size").len();
            let bytes = self.rng.bytes(5000);
            file.write_all_at(&bytes, self.rng.below(len.max(1))).expect("overwrite");
        }
        for &i in groups.next().unwrap_or_default() {
            let file = OpenOptions::new().write(true).open(root.join(&self.files[i]));
            let file = file.expect("open a file");
            let len = file.metadata().expect("its size").len();
            file.set_len(len / 2).expect("cut a file");
        }
        for &i in groups.next().unwrap_or_default() {
            let renamed = PathBuf::from(format!("moved-{}-{i}", self.states));
            fs::rename(root.join(&self.files[i]), root.join(&renamed)).expect("rename a file");
            self.files[i] = renamed;
        }
        let mut removed = groups.next().unwrap_or_default().to_vec();
        removed.sort_unstable();
        for i in removed.into_iter().rev() {
            fs::remove_file(root.join(self.files.swap_remove(i))).expect("remove a file");
        }
    }
}

/// About 10 MiB in 40,000 rows, the same each time.
fn create_database(path: &Path) {
    fs::create_dir_all(path.parent().expect("it is in a directory")).expect("make a directory");
    sqlite(
        path,
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, note TEXT);
         CREATE INDEX by_balance ON accounts (balance);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
         INSERT INTO accounts SELECT i, (i * 2654435761) % 4294967291,
           printf('%08x-%08x-', (i * 40503) % 65521, (i * 2246822519) % 4294967291) || hex(zeroblob(64))
         FROM n;",
    );
}

fn update_database(path: &Path, step: u32) {
    sqlite(
        path,
        &format!(
            "BEGIN;
             UPDATE accounts SET balance = (balance + id * 7919 + {step}) % 4294967291 WHERE id % 53 = {step};
             DELETE FROM accounts WHERE id % 997 = {step};
             INSERT INTO accounts (balance, note) SELECT balance + 1, note || '{step}' FROM accounts
               WHERE id % 211 = {step};
             COMMIT;"
        ),
    );
}

fn check_database(path: &Path) {
    // Immutable: no lock and no journal can be made on a read-only mount.
    let uri = format!("file:{}?immutable=1", path.display());
    assert_eq!(run_ok("sqlite3", ["-readonly", &uri, "PRAGMA integrity_check;"]), "ok");
}

fn sqlite(path: &Path, statements: &str) {
    run_ok("sqlite3", ["-bail".as_ref(), path.as_os_str(), statements.as_ref()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_changes_and_its_states_stay() {
        crate::require_root!();
        let dir = crate::volume_dir("live-volume");
        let (mut volume, first) =
            LiveVolume::create(dir.path(), Filesystem::Ext4, 96 << 20, 24 << 20, Rng::new(1));
        let second = volume.change();
        first.expect_restored(&first.image);
        second.expect_restored(&second.image);
        assert_ne!(first.listing, second.listing);
        let extents = crate::changed_extents(&first.image, &second.image, 4096);
        let changed: u64 = extents.iter().map(|extent| extent.end - extent.start).sum();
        assert!(extents.len() > 10 && changed < 48 << 20, "{changed} in {}", extents.len());
    }
}
