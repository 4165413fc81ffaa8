//! Where the repositories of a test of the real program are: a directory, or a bucket of a real
//! server.

use crate::{Mover, S3Bucket, S3Server, expect_clean};
use chunkstore::{Credential, Repository, Store, StoreOptions, store::open_url_with};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// See the module.
#[derive(Debug)]
pub enum Place {
    /// Each repository is a directory in it.
    Directory(tempfile::TempDir),
    /// Each repository is a prefix in it.
    Bucket(Box<S3Server>, S3Bucket),
}

impl Place {
    /// A bucket of its own on the server.
    pub fn on(server: S3Server) -> Self {
        let bucket = server.bucket();
        Self::Bucket(Box::new(server), bucket)
    }

    /// Makes the repository `name`, encrypted, and its key file; gives the program that uses it.
    pub fn init(&self, name: &str, key: &Path) -> Mover {
        let mover = Mover::new().env("MOVER_KEY_FILE", key);
        let mover = match self {
            Self::Directory(dir) => mover.env("MOVER_REPO", dir.path().join(name)),
            Self::Bucket(server, bucket) => {
                mover.env("MOVER_REPO", bucket.url(name)).envs(server.environment())
            }
        };
        mover.ok(["init", "-q", "--new-key-file"]
            .map(OsStr::new)
            .into_iter()
            .chain([key.as_os_str()]));
        mover
    }

    /// The store that holds the repository.
    pub fn store(&self, name: &str) -> Store {
        let options = StoreOptions::default();
        let opened = match self {
            Self::Directory(dir) => {
                let path = dir.path().join(name);
                open_url_with(path.to_str().expect("a path of ours"), &options, &[])
            }
            Self::Bucket(server, bucket) => {
                let settings = [
                    ("aws_endpoint", server.endpoint.as_str()),
                    ("aws_access_key_id", &server.key),
                    ("aws_secret_access_key", &server.secret),
                    ("aws_region", "us-east-1"),
                    ("aws_allow_http", "true"),
                ];
                open_url_with(&bucket.url(name), &options, &settings)
            }
        };
        opened.expect("open the store")
    }

    /// As if time had passed: the leases of the dead are gone, and temporary files are old. For
    /// when nobody is at work.
    pub fn age(&self, name: &str) {
        let store = self.store(name);
        run(async {
            for lease in store.list("leases").await.expect("list the leases") {
                store.delete(&lease.key).await.expect("delete a lease");
            }
        });
        if let Self::Directory(dir) = self {
            let before = SystemTime::now() - Duration::from_secs(3600);
            for path in files(&dir.path().join(name)) {
                let file = fs::File::options().write(true).open(path).expect("open a file");
                file.set_modified(before).expect("set its time");
            }
        }
    }

    /// Panics unless the repository holds so many backups and nothing that nobody refers to.
    pub fn expect_clean(&self, name: &str, key: &Path, backups: usize) {
        run(async {
            let key = fs::read(key).expect("read the key");
            let key = Credential::from_key_file_bytes(&key).expect("it is a key");
            let repo = Repository::open(self.store(name), &[key]).await.expect("open it");
            expect_clean(&repo, backups, name).await;
        });
        if let Self::Directory(dir) = self {
            let left = files(&dir.path().join(name));
            let temporary = |path: &&PathBuf| path.to_string_lossy().contains('#');
            assert_eq!(left.iter().find(temporary), None, "a temporary file stays");
        }
    }
}

fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("start a runtime").block_on(task)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("read a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}
