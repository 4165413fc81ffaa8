//! The S3 servers that `tests/run` started: found through the environment, used over loopback.
//!
//! `MOVER_TEST_S3_CEPH` and `MOVER_TEST_S3_MOTO` hold `ENDPOINT KEY SECRET`, separated by blanks.

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions, Signer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const REGION: &str = "us-east-1";
const OBJECT_LOCK: &str = "x-amz-bucket-object-lock-enabled: true";
const EMPTY_BODY: &str =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A running S3 server and credentials for it.
#[derive(Debug, Clone)]
pub struct S3Server {
    /// `ceph` or `moto`.
    pub name: &'static str,
    /// Such as `http://127.0.0.1:7480`.
    pub endpoint: String,
    /// Access key id.
    pub key: String,
    /// Secret access key.
    pub secret: String,
}

impl S3Server {
    /// Ceph's RADOS Gateway: `MOVER_TEST_S3_CEPH`.
    pub fn ceph() -> Option<Self> {
        Self::from_environment("ceph", "MOVER_TEST_S3_CEPH")
    }

    /// moto: `MOVER_TEST_S3_MOTO`. It checks no credentials.
    pub fn moto() -> Option<Self> {
        Self::from_environment("moto", "MOVER_TEST_S3_MOTO")
    }

    fn from_environment(name: &'static str, variable: &str) -> Option<Self> {
        let text = std::env::var(variable).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let [endpoint, key, secret] = words[..] else {
            panic!("{variable} is \"{text}\", not ENDPOINT KEY SECRET");
        };
        let [endpoint, key, secret] = [endpoint, key, secret].map(str::to_owned);
        Some(Self { name, endpoint, key, secret })
    }

    /// The environment that lets the program reach it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", self.endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", self.key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// A new, empty bucket; emptied and removed when dropped.
    pub fn bucket(&self) -> S3Bucket {
        self.new_bucket(false)
    }

    /// A new, empty bucket with object lock, and so with versions. What is locked in it stays as
    /// long as the server does.
    pub fn locking_bucket(&self) -> S3Bucket {
        self.new_bucket(true)
    }

    fn new_bucket(&self, locking: bool) -> S3Bucket {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mover-test-{}-{number}", std::process::id());
        let bucket = S3Bucket { server: self.clone(), name, locking };
        bucket.request("PUT", locking.then_some(OBJECT_LOCK));
        bucket
    }
}

/// A bucket of one test.
#[derive(Debug)]
pub struct S3Bucket {
    server: S3Server,
    name: String,
    locking: bool,
}

/// One version of an object, or a mark that it was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Version {
    /// Of the object.
    pub key: String,
    /// Id of the version.
    pub id: String,
    /// Whether it is a delete marker.
    pub marker: bool,
}

impl S3Bucket {
    /// Without a scheme.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For `--repo`.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{}/{prefix}", self.name)
    }

    /// The bucket as a store, to look at it and to damage what is in it.
    pub fn store(&self) -> Arc<AmazonS3> {
        let store = AmazonS3Builder::new()
            .with_endpoint(&self.server.endpoint)
            .with_access_key_id(&self.server.key)
            .with_secret_access_key(&self.server.secret)
            .with_region(REGION)
            .with_allow_http(true)
            .with_bucket_name(&self.name)
            .build();
        Arc::new(store.expect("the settings make sense"))
    }

    /// All keys in it. Not for use in async code.
    pub fn keys(&self) -> Vec<String> {
        let store = self.store();
        wait(async move {
            let list = store.list(None).map_ok(|meta| meta.location.to_string());
            list.try_collect().await.expect("list the bucket")
        })
    }

    /// Sends one signed request that `object_store` has no call for; gives the status, and what
    /// came with it: the head and the body.
    pub fn call(&self, method: Method, key: &str, query: &[(&str, &str)]) -> (u16, String) {
        let store = self.store();
        let path = Path::parse(key).expect("a key");
        let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let options = SignedUrlOptions::new().with_query(query.collect::<Vec<_>>());
        let signed = method.clone();
        let url = wait(async move {
            let url = store.signed_url_opts(signed, &path, Duration::from_secs(300), &options);
            url.await.expect("sign a request")
        });
        let how: &[&str] = if method == Method::HEAD { &["--head"] } else { &["--include"] };
        let common = ["--silent", "--show-error", "--max-time", "60", "--request"];
        let how = how.iter().chain(&common).copied().chain([method.as_str(), url.as_str()]);
        let answer = crate::run_ok("curl", how);
        let status = answer.split_whitespace().nth(1).and_then(|code| code.parse().ok());
        (status.unwrap_or_else(|| panic!("no status in {answer:?}")), answer)
    }

    /// Until when, and how, the newest version of an object is locked, in the words of its HEAD:
    /// such as `("GOVERNANCE", "2027-01-31T00:00:00")`. `None`: it is not locked.
    pub fn lock_of(&self, key: &str) -> Option<(String, String)> {
        let (status, head) = self.call(Method::HEAD, key, &[]);
        assert_eq!(status, 200, "{key}: {head}");
        let header = |name: &str| {
            let found = head.lines().filter_map(|line| line.split_once(':'));
            let value = found.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name))?.1;
            Some(value.trim().to_owned())
        };
        let until = header("x-amz-object-lock-retain-until-date")?;
        Some((header("x-amz-object-lock-mode")?, until.get(..19)?.to_owned()))
    }

    /// All versions of all objects, and all delete markers.
    pub fn versions(&self) -> Vec<S3Version> {
        let (status, text) = self.call(Method::GET, "", &[("versions", "")]);
        assert_eq!(status, 200, "{text}");
        assert!(!text.contains("<IsTruncated>true<"), "more than one page of versions");
        let of = |tag: &str, marker: bool| {
            let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
            let pieces = text.split(&open).skip(1).filter_map(|piece| piece.split(&close).next());
            let inner = |piece: &str, tag: &str| {
                let rest = piece.split(&format!("<{tag}>")).nth(1).expect("a field").to_owned();
                rest.split('<').next().unwrap_or_default().to_owned()
            };
            let version = |piece: &str| S3Version {
                key: inner(piece, "Key"),
                id: inner(piece, "VersionId"),
                marker,
            };
            pieces.map(version).collect::<Vec<_>>()
        };
        [of("Version", false), of("DeleteMarker", true)].concat()
    }

    fn empty(&self) {
        let store = self.store();
        wait(async move {
            let locations = store.list(None).map_ok(|meta| meta.location).boxed();
            let deleted = store.delete_stream(locations).try_collect::<Vec<_>>().await;
            if let Err(error) = deleted {
                println!("empty the bucket: {error}");
            }
        });
    }

    /// object_store has no calls for buckets themselves; curl can sign.
    fn request(&self, method: &str, header: Option<&str>) {
        let S3Server { endpoint, key, secret, .. } = &self.server;
        let url = format!("{endpoint}/{}", self.name);
        let user = format!("{key}:{secret}");
        let signature = format!("aws:amz:{REGION}:s3");
        crate::run_ok(
            "curl",
            [
                "--silent",
                "--show-error",
                "--fail-with-body",
                "--max-time",
                "60",
                "--aws-sigv4",
                &signature,
                "--user",
                &user,
                // Ceph refuses a signature that does not cover the (empty) body.
                "--header",
                EMPTY_BODY,
                "--header",
                header.unwrap_or("x-amz-meta-none: none"),
                "--request",
                method,
                &url,
            ],
        );
    }
}

impl Drop for S3Bucket {
    fn drop(&mut self) {
        if self.locking {
            return;
        }
        self.empty();
        if !std::thread::panicking() {
            self.request("DELETE", None);
        }
    }
}

/// Runs to the end on a thread and a runtime of its own, so that the caller may be anywhere.
fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("start a runtime").block_on(future)
    });
    thread.join().expect("the task does not panic")
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::{Error, ObjectStoreExt, PutMode, PutPayload};

    fn holds_create_once(server: &S3Server) {
        let bucket = server.bucket();
        let store = bucket.store();
        wait(async move {
            let path = "a/b".into();
            let create =
                || store.put_opts(&path, PutPayload::from_static(b"1"), PutMode::Create.into());
            create().await.expect("the first create");
            let second = create().await;
            assert!(matches!(second, Err(Error::AlreadyExists { .. })), "{second:?}");
            let got = store.get(&path).await.expect("get").bytes().await.expect("body");
            assert_eq!(&got[..], b"1");
        });
        assert_eq!(bucket.keys(), ["a/b"]);
    }

    #[test]
    fn ceph_creates_once() {
        holds_create_once(&crate::require_s3!(ceph));
    }

    #[test]
    fn moto_creates_once() {
        holds_create_once(&crate::require_s3!(moto));
    }
}
