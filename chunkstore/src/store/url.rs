//! From a repository's URL to a [`Store`].
//!
//! Credentials and endpoints of object stores come from the environment, as `object_store` reads it
//! (`AWS_*`, `GOOGLE_*`, `AZURE_*`, web identity, instance metadata); profile files are not read.
//! Nothing is sent before the first request.

use super::lock::{LockClient, RetainPolicy, retaining};
use super::place::Place;
use super::retry::{
    Connector, RETRIES_MAX, RETRY_GROWTH, RETRY_PAUSE, RETRY_PAUSE_MAX, RETRY_TIME, SeenOptions,
};
use super::retry_budget::RetryBudget;
use super::{Counters, Store};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::secrets::remember_secret;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path as FilePath;
use std::str::FromStr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Total time of one transfer on the bulk client; `retry_budget.rs` ends it long before.
const BULK_TIMEOUT: &str = "1 hour";
const BULK_TIMEOUT_TIME: Duration = Duration::from_secs(3600);

/// How [`open_url`] opens a place.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// For `file:` URLs and paths: make the directory (mode 0700) and its parents where they are
    /// absent.
    pub create_dir: bool,
    /// Take nothing from the environment: where another store than the usual one is meant.
    pub settings_only: bool,
    /// Lock packs and manifests that are written. Refused where it is not known how; whether the
    /// bucket can is for [`Store::require_object_lock`] to find out.
    pub retain: Option<RetainPolicy>,
}

/// As `retry.rs` has it.
fn retry() -> RetryConfig {
    let (init_backoff, max_backoff) = (RETRY_PAUSE, RETRY_PAUSE_MAX);
    RetryConfig {
        backoff: BackoffConfig { init_backoff, max_backoff, base: f64::from(RETRY_GROWTH) },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_TIME,
    }
}

/// As [`retry`], for the metadata service of a machine where nothing else gives credentials. It is
/// near; where it does not exist at all, that should not take a minute to find out.
fn retry_metadata() -> RetryConfig {
    RetryConfig { retry_timeout: Duration::from_secs(6), ..retry() }
}

/// The two clients of a store, which share their credentials. The three builders have the same
/// methods, but no trait. The keys are those that name credentials: without any of them the
/// machine's metadata service is asked. The `secret` ones appear in no text from now on.
macro_rules! clients {
    (
        $url:ident, $settings:ident, $builder:ident, $keys:ident::{$($key:ident),*},
        secret {$($secret:ident),*}
    ) => {{
        let counters = Arc::<Counters>::default();
        let mut builder = $builder.with_http_connector(Connector::new(Arc::clone(&counters)));
        for (name, value) in $settings {
            builder = builder.with_config(setting($url, name)?, *value);
        }
        let named = [$($keys::$key),*].iter().any(|key| builder.get_config_value(key).is_some());
        $(remember_setting(builder.get_config_value(&$keys::$secret));)*
        let built = |e| not_built($url, e);
        let first = if named {
            builder.clone().with_retry(retry())
        } else {
            let connector = Connector::unwatched(Arc::clone(&counters));
            builder.clone().with_http_connector(connector).with_retry(retry_metadata())
        };
        let first = first.build().map_err(built)?;
        let builder =
            builder.with_credentials(Arc::clone(first.credentials())).with_retry(retry());
        let small = if named { first } else { builder.clone().build().map_err(built)? };
        let timeout = $keys::Client(ClientConfigKey::Timeout);
        let bulk = builder.clone().with_config(timeout, BULK_TIMEOUT).build().map_err(built)?;
        (small, bulk, builder, counters)
    }};
}

/// A builder with what the environment says, or with nothing.
macro_rules! builder {
    ($builder:ident, $options:ident) => {
        if $options.settings_only { $builder::new() } else { $builder::from_env() }
    };
}

/// Opens `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, `file:///path` or a
/// path. What begins like another URL is `Usage`, an absent directory `NotFound`.
pub fn open_url(url: &str, options: &StoreOptions) -> Result<Store> {
    open_url_with(url, options, &[])
}

/// As [`open_url`], with settings that go before those of the environment, named as `object_store`
/// names them (`aws_endpoint`, `aws_access_key_id`, …).
pub fn open_url_with(
    url: &str,
    options: &StoreOptions,
    settings: &[(&str, &str)],
) -> Result<Store> {
    match Place::parse(url)? {
        Place::Directory(path) => open_dir(url, &path, options),
        Place::S3 { bucket, prefix } => {
            let builder = builder!(AmazonS3Builder, options)
                .with_bucket_name(bucket)
                // a bulk request of one, which not every server knows, gives nothing but worse
                // errors
                .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
            let (small, bulk, builder, counters) = clients!(url, settings, builder, AmazonS3ConfigKey::{
                AccessKeyId, SecretAccessKey, WebIdentityTokenFile,
                ContainerCredentialsRelativeUri, ContainerCredentialsFullUri
            }, secret { SecretAccessKey, Token });
            let signer = small.clone();
            let store = remote(url, prefix, small, bulk, Arc::clone(&counters));
            with_locks(store, signer, builder, counters, options.retain)
                .map_err(|e| not_built(url, e))
        }
        Place::Google { bucket, prefix } => {
            let builder = builder!(GoogleCloudStorageBuilder, options).with_bucket_name(bucket);
            refuse_retain(url, options)?;
            let (small, bulk, _, counters) = clients!(url, settings, builder, GoogleConfigKey::{
                ServiceAccount, ServiceAccountKey, ApplicationCredentials, BearerToken
            }, secret { ServiceAccountKey, BearerToken });
            Ok(remote(url, prefix, small, bulk, counters))
        }
        Place::Azure { container, prefix } => {
            let builder = builder!(MicrosoftAzureBuilder, options).with_container_name(container);
            refuse_retain(url, options)?;
            let (small, bulk, _, counters) = clients!(url, settings, builder, AzureConfigKey::{
                AccessKey, ClientId, SasKey, Token, FederatedTokenFile
            }, secret { AccessKey, ClientSecret, SasKey, Token });
            Ok(remote(url, prefix, small, bulk, counters))
        }
    }
}

/// A signature within a query is a secret by itself.
fn remember_setting(value: Option<String>) {
    let value = Zeroizing::new(value.unwrap_or_default());
    remember_secret(&value);
    for (_, part) in value.split('&').filter_map(|pair| pair.split_once("sig=")) {
        remember_secret(part);
    }
}

fn setting<K: FromStr<Err = object_store::Error>>(url: &str, name: &str) -> Result<K> {
    name.parse().map_err(|_| {
        let detail = format!("{name:?} is not a setting of this kind of store");
        Error::new(ErrorKind::Usage, format!("open repository {url}"), detail)
    })
}

fn not_built(url: &str, e: object_store::Error) -> Error {
    let cause = match e {
        object_store::Error::Generic { source, .. } => source,
        e => e.into(),
    };
    Error::caused(ErrorKind::Usage, format!("open repository {url}"), cause).hint(
        "set the store's endpoint, account and credentials in the environment; SSL_CERT_FILE names the authorities of TLS",
    )
}

fn remote<S: ObjectStore>(
    url: &str,
    prefix: Path,
    small: S,
    bulk: S,
    counters: Arc<Counters>,
) -> Store {
    let mut store = Store::new(Arc::new(small), prefix, url.trim_end_matches('/'));
    store.bulk = Arc::new(bulk);
    store.counters = counters;
    store.retry_budget = Some(RetryBudget::default());
    store
}

/// With the requests about locks, and clients that lock what they write.
fn with_locks(
    mut store: Store,
    signer: AmazonS3,
    builder: AmazonS3Builder,
    counters: Arc<Counters>,
    retain: Option<RetainPolicy>,
) -> object_store::Result<Store> {
    let seen = SeenOptions::default();
    let connector = Connector::seen_by(Arc::clone(&counters), Arc::clone(&seen));
    // its credentials are there already, so nothing else is connected to
    builder.clone().with_http_connector(connector).build()?;
    let options = seen.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    store.lock = Some(Arc::new(LockClient::new(signer, &options, counters)?));
    store.retaining = retain
        .map(|policy| retaining(policy, &builder, &options, BULK_TIMEOUT_TIME))
        .transpose()?;
    Ok(store)
}

fn refuse_retain(url: &str, options: &StoreOptions) -> Result<()> {
    if options.retain.is_none() {
        return Ok(());
    }
    let detail = "only S3 buckets with object lock can lock single objects";
    Err(Error::new(ErrorKind::Unsupported, format!("lock what is written to {url}"), detail)
        .hint(Advice::RetainElsewhere.words()))
}

fn open_dir(url: &str, dir: &str, options: &StoreOptions) -> Result<Store> {
    refuse_retain(url, options)?;
    let context = || format!("open repository {url}");
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
    let mut store = Store::new(Arc::new(store), Path::default(), url.trim_end_matches('/'));
    store.directory = Some(dir.into());
    Ok(store)
}

/// With its parents. Their names must survive a power cut as what is written into the directory
/// does.
fn create_dir(dir: &FilePath) -> std::io::Result<()> {
    let absolute = std::path::absolute(dir)?;
    let absent = absolute.ancestors().take_while(|dir| !dir.exists()).count();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&absolute)?;
    for parent in absolute.ancestors().skip(1).take(absent) {
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
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
