//! The S3 servers that `tests/run` started: found through the environment, used over loopback.
//!
//! `MOVER_TEST_S3_CEPH` and `MOVER_TEST_S3_MOTO` hold `ENDPOINT KEY SECRET`, separated by blanks.

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const REGION: &str = "us-east-1";
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
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mover-test-{}-{number}", std::process::id());
        let bucket = S3Bucket { server: self.clone(), name };
        bucket.request("PUT");
        bucket
    }
}

/// A bucket of one test.
#[derive(Debug)]
pub struct S3Bucket {
    server: S3Server,
    name: String,
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
    fn request(&self, method: &str) {
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
                "--request",
                method,
                &url,
            ],
        );
    }
}

impl Drop for S3Bucket {
    fn drop(&mut self) {
        self.empty();
        if !std::thread::panicking() {
            self.request("DELETE");
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
