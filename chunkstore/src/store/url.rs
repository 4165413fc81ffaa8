//! From a repository's URL to a [`Store`].
//!
//! Credentials and endpoints of object stores come from the environment, as `object_store` reads it (`AWS_*`, `GOOGLE_*`,
//! `AZURE_*`, web identity, instance metadata); profile files are not read. Nothing is sent before the first request.

use super::Store;
use crate::error::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

/// Total time of one transfer on the patient client; `patience.rs` ends it long before.
const BULK_TIMEOUT: &str = "1 hour";

const URL_FORMS: &str =
    "use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path";

/// How [`open_url`] opens a place.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// For `file:` URLs and paths: make the directory (mode 0700) and its parents where they are absent.
    pub create_dir: bool,
}

/// Retries end after this long: a dead network is one error in about a minute (one more timeout may follow), a store
/// that restarts is waited for.
fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(8),
            base: 3.0,
        },
        max_retries: 100,
        retry_timeout: Duration::from_secs(40),
    }
}

/// Opens `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///path` or a path. An unknown scheme is
/// `Usage`, an absent directory `NotFound`.
pub fn open_url(url: &str, options: &StoreOptions) -> Result<Store> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return open_dir(url, url, options);
    };
    match scheme {
        "file" => open_dir(url, &file_path(url, rest)?, options),
        "s3" | "s3a" => {
            let (bucket, prefix) = bucket_and_prefix(url, rest)?;
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry());
            let patient = builder
                .clone()
                .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), BULK_TIMEOUT);
            remote(url, prefix, builder.build(), patient.build())
        }
        "gs" => {
            let (bucket, prefix) = bucket_and_prefix(url, rest)?;
            let builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry());
            let patient = builder
                .clone()
                .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), BULK_TIMEOUT);
            remote(url, prefix, builder.build(), patient.build())
        }
        "az" | "azure" => {
            let (container, prefix) = bucket_and_prefix(url, rest)?;
            let builder = MicrosoftAzureBuilder::from_env()
                .with_container_name(container)
                .with_retry(retry());
            let patient = builder
                .clone()
                .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), BULK_TIMEOUT);
            remote(url, prefix, builder.build(), patient.build())
        }
        _ => Err(Error::new(
            ErrorKind::Usage,
            format!("open repository {url}"),
            format!("unknown scheme {scheme:?}"),
        )
        .hint(URL_FORMS)),
    }
}

fn remote<S: ObjectStore>(
    url: &str,
    prefix: Path,
    small: object_store::Result<S>,
    bulk: object_store::Result<S>,
) -> Result<Store> {
    let usage = |e: object_store::Error| {
        Error::new(ErrorKind::Usage, format!("open repository {url}"), e.to_string())
            .hint("set the store's endpoint, account and credentials in the environment")
    };
    let mut store = Store::new(Arc::new(small.map_err(usage)?), prefix, url.trim_end_matches('/'));
    store.bulk = Arc::new(bulk.map_err(usage)?);
    store.watched = true;
    Ok(store)
}

fn bucket_and_prefix<'a>(url: &str, rest: &'a str) -> Result<(&'a str, Path)> {
    let usage = |detail: String| {
        Error::new(ErrorKind::Usage, format!("open repository {url}"), detail).hint(URL_FORMS)
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if bucket.is_empty() || !bucket.chars().all(fits) {
        return Err(usage(format!("{bucket:?} is not the name of a bucket or container")));
    }
    let prefix = Path::parse(prefix).map_err(|e| usage(e.to_string()))?;
    Ok((bucket, prefix))
}

/// The path of a `file:` URL; `%` escapes are taken as in any URL.
fn file_path(url: &str, rest: &str) -> Result<String> {
    let usage = |detail: &str| {
        Error::new(ErrorKind::Usage, format!("open repository {url}"), detail).hint(URL_FORMS)
    };
    if !rest.starts_with('/') {
        return Err(usage("a file URL has three slashes and an absolute path"));
    }
    let mut bytes = Vec::with_capacity(rest.len());
    let mut left = rest.as_bytes();
    while let Some((&byte, tail)) = left.split_first() {
        left = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = tail.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let escaped = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(escaped.ok_or_else(|| usage("a % is not followed by two hex digits"))?);
        left = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| usage("the path is not UTF-8"))
}

fn open_dir(url: &str, dir: &str, options: &StoreOptions) -> Result<Store> {
    let context = || format!("open repository {url}");
    if dir.is_empty() {
        return Err(Error::new(ErrorKind::Usage, context(), "no place is named").hint(URL_FORMS));
    }
    let dir = FilePath::new(dir);
    if options.create_dir && !dir.exists() {
        create_dir(dir).map_err(|e| dir_error(context(), &e))?;
    }
    match std::fs::metadata(dir) {
        Ok(meta) if !meta.is_dir() => {
            return Err(Error::new(ErrorKind::Usage, context(), "it is not a directory"));
        }
        Ok(_) => {}
        Err(e) => return Err(dir_error(context(), &e)),
    }
    let store = LocalFileSystem::new_with_prefix(dir)
        .map_err(|e| Error::new(ErrorKind::Unavailable, context(), e.to_string()))?
        .with_fsync(true);
    Ok(Store::new(Arc::new(store), Path::default(), url.trim_end_matches('/')))
}

fn create_dir(dir: &FilePath) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // the directory must survive a power cut as what is written into it does
    match dir.canonicalize()?.parent() {
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn dir_error(context: String, e: &std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let (kind, hint) = match e.kind() {
        Io::NotFound => (ErrorKind::NotFound, "create the repository with `init` first"),
        Io::PermissionDenied | Io::ReadOnlyFilesystem => {
            (ErrorKind::Denied, "give this user the right to use the directory")
        }
        Io::StorageFull | Io::QuotaExceeded => (ErrorKind::NoSpace, "free space there"),
        Io::NotADirectory => (ErrorKind::Usage, "correct the path"),
        _ => (ErrorKind::Unavailable, "check the file system"),
    };
    Error::new(kind, context, e.to_string()).hint(hint)
}
