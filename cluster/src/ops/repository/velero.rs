//! A BackupStorageLocation of Velero, and the Repository for the volumes that are backed up to it.
//!
//! Velero keeps its own objects below the bucket's prefix: `backups/`, `restores/` and a few more.
//! It calls a location invalid that has any other folder at that level. So a repository is never
//! inside of it: its default place is the sibling prefix `PREFIX-mover`. Without a prefix the whole
//! bucket is Velero's, and there is no such place.
//!
//! Which Repository is meant for a location says the ConfigMap [`ENTRIES`] of Velero's namespace;
//! without an entry it is that of the location's name. It lies in Velero's namespace in any case.

mod store;

use crate::api::Api;
use crate::engine::{Failure, Key, Kind, exit};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
pub use store::{Chosen, Needs, enter, needs};

/// Where Velero is unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "velero";
/// ConfigMap of Velero's namespace: location to Repository.
pub const ENTRIES: &str = "mover";
/// The providers that are S3.
const PROVIDERS: [&str; 2] = ["aws", "velero.io/aws"];
/// Ends the prefix of a repository beside Velero's own.
const SUFFIX: &str = "-mover";

/// Part of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SecretMember {
    /// The Secret.
    #[serde(default)]
    pub name: String,
    /// Its member.
    #[serde(default)]
    pub key: String,
}

/// Where Velero keeps backups, as far as it matters for a repository beside them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Location {
    /// Velero's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Kind of the store, such as `aws`.
    pub provider: String,
    /// Its bucket.
    pub bucket: String,
    /// Velero's part of the bucket, without slashes around it; empty for all of it.
    pub prefix: String,
    /// Settings of the provider.
    pub config: BTreeMap<String, String>,
    /// Authority of the store's certificate: PEM in base64.
    pub ca_cert: Option<String>,
    /// The same, in a Secret.
    pub ca_cert_ref: Option<SecretMember>,
    /// Credentials of its own.
    pub credential: Option<SecretMember>,
    /// Whether Velero only reads it.
    pub read_only: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    provider: String,
    config: Option<BTreeMap<String, String>>,
    credential: Option<SecretMember>,
    object_storage: Option<ObjectStorage>,
    access_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectStorage {
    bucket: String,
    prefix: Option<String>,
    ca_cert: Option<String>,
    ca_cert_ref: Option<SecretMember>,
}

/// Reads a location.
///
/// # Errors
///
/// There is none of that name, or the API refuses it.
pub async fn location(api: &Api, namespace: &str, name: &str) -> Result<Location, Failure> {
    let key = Key::new(Kind::BackupStorageLocation, namespace, name);
    match api.get(&key).await? {
        Some(found) => Location::read(&key, &found),
        None => Err(Failure::new(exit::USAGE, format!("there is no {key}")).hint(format!(
            "kubectl -n {namespace} get backupstoragelocations lists them; --velero-namespace \
             names Velero's namespace"
        ))),
    }
}

/// The name of the Repository for a location, in Velero's namespace: that of the entry, else the
/// location's own name. Whether it is there is for whoever uses it.
///
/// # Errors
///
/// The API refuses the ConfigMap.
pub async fn repository_of(api: &Api, namespace: &str, location: &str) -> Result<String, Failure> {
    let found = api.get(&entries_key(namespace)).await?.unwrap_or_default();
    let entry = found["data"][location].as_str().map(str::trim).filter(|name| !name.is_empty());
    Ok(entry.unwrap_or(location).to_owned())
}

fn entries_key(namespace: &str) -> Key {
    Key::new(Kind::ConfigMap, namespace, ENTRIES)
}

impl Location {
    /// Out of the object.
    ///
    /// # Errors
    ///
    /// It names no bucket, or is not as Velero writes it.
    pub fn read(key: &Key, object: &Value) -> Result<Self, Failure> {
        let wrong =
            |why: String| Failure::new(exit::USAGE, format!("{key}: {why}")).hint(key.shown_by());
        let spec: Spec = serde_json::from_value(object["spec"].clone())
            .map_err(|why| wrong(format!("read its spec: {why}")))?;
        let storage = spec.object_storage.unwrap_or_default();
        let prefix = storage.prefix.unwrap_or_default();
        let found = Self {
            namespace: key.namespace.clone().unwrap_or_default(),
            name: key.name.clone(),
            provider: spec.provider,
            bucket: storage.bucket.trim_matches('/').to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            config: spec.config.unwrap_or_default(),
            ca_cert: storage.ca_cert.filter(|text| !text.is_empty()),
            ca_cert_ref: storage.ca_cert_ref.filter(|of| !of.name.is_empty()),
            credential: spec.credential.filter(|of| !of.name.is_empty()),
            read_only: spec.access_mode.as_deref() == Some("ReadOnly"),
        };
        if found.bucket.is_empty() || found.bucket.contains('/') {
            let bucket = &found.bucket;
            return Err(wrong(format!("its spec.objectStorage.bucket is {bucket:?}, no bucket")));
        }
        Ok(found)
    }

    /// The object.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::new(Kind::BackupStorageLocation, &self.namespace, &self.name)
    }

    /// The folder of one of Velero's backups: something is in it exactly as long as Velero knows
    /// the backup, whatever clusters are left.
    ///
    /// # Errors
    ///
    /// The store is none that `mover` reaches by this location's settings, or no backup has such a
    /// name.
    pub fn folder_of(&self, backup: &str) -> Result<String, Failure> {
        let root = self.root()?;
        if backup.is_empty() || backup.contains('/') || backup == "." || backup == ".." {
            return Err(Failure::new(exit::USAGE, format!("{backup:?} is no name of a backup")));
        }
        Ok(format!("{root}/backups/{backup}/"))
    }

    /// That folder with its store, to tell whether it is still the same.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn place_of(&self, backup: &str) -> Result<String, Failure> {
        let setting = |name: &str| self.config.get(name).map_or("", |text| text.trim());
        let store = match (setting("s3Url").trim_end_matches('/'), setting("region")) {
            ("", "") => "the store".to_owned(),
            ("", region) => region.to_owned(),
            (url, _) => url.to_owned(),
        };
        Ok(format!("{} at {store}", self.folder_of(backup)?))
    }

    /// Whether Jobs with these variables that look into this location's bucket look into this store,
    /// and into this bucket.
    #[must_use]
    pub fn is_reached_by(&self, env: &BTreeMap<String, String>) -> bool {
        let of = |text: &String| text.trim().trim_end_matches('/').to_owned();
        let location = self.config.get("s3Url").map(of).filter(|url| !url.is_empty());
        // In the order in which a Job takes them.
        let names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
        let jobs = names.iter().find_map(|name| env.get(*name)).map(of);
        match (location, jobs) {
            (None, None) => true,
            (Some(location), Some(jobs)) => {
                // With a host of its own for each bucket the endpoint names it.
                let hosted = location.replacen("://", &format!("://{}.", self.bucket), 1);
                let is_hosted =
                    env.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST").is_some_and(|at| at == "true");
                jobs == if is_hosted { hosted } else { location }
            }
            _ => false,
        }
    }

    /// Where a repository beside Velero's objects is.
    ///
    /// # Errors
    ///
    /// The store is another one, or all of the bucket is Velero's.
    pub fn sibling(&self) -> Result<String, Failure> {
        let root = self.root()?;
        if self.prefix.is_empty() {
            let what = format!(
                "{} has no prefix: all of bucket {} is Velero's, and a folder of others at its top \
                 makes the location Unavailable",
                self.key(),
                self.bucket
            );
            return Err(Failure::new(exit::USAGE, what).hint(
                "name a place in another bucket: --url s3://BUCKET/PREFIX. Or make a location with \
                 a prefix: velero backup-location create NAME --bucket … --prefix …",
            ));
        }
        Ok(format!("{root}{SUFFIX}"))
    }

    /// Whether a repository at this URL is among Velero's own folders.
    #[must_use]
    pub fn holds(&self, url: &str) -> bool {
        let Ok(root) = self.root() else { return false };
        let url = url.trim_end_matches('/');
        url == root || url.strip_prefix(&root).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Velero's part of the bucket, without a slash at its end.
    fn root(&self) -> Result<String, Failure> {
        if !PROVIDERS.contains(&self.provider.as_str()) {
            let what = format!(
                "{}: its provider is {}, and only locations of provider aws are read",
                self.key(),
                self.provider
            );
            return Err(Failure::new(exit::USAGE, what).hint(format!(
                "make the Repository by hand: kubectl mover repository add {name} -n {namespace} \
                 --url URL --credentials SECRET; then name it for the location: kubectl -n \
                 {namespace} create configmap {ENTRIES} --from-literal={name}={name}",
                name = self.name,
                namespace = self.namespace,
            )));
        }
        let root = format!("s3://{}/{}", self.bucket, self.prefix);
        Ok(root.trim_end_matches('/').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(spec: &Value) -> Result<Location, Failure> {
        let key = Key::new(Kind::BackupStorageLocation, "velero", "main");
        Location::read(&key, &json!({ "spec": spec }))
    }

    #[test]
    fn a_repository_is_beside_the_location_and_never_in_it() {
        let spec = json!({
            "provider": "aws", "objectStorage": { "bucket": "vault", "prefix": "/a/velero/" },
            "config": null, "accessMode": "ReadWrite",
        });
        let found = read(&spec).expect("a location");
        assert_eq!(found.sibling().expect("a place"), "s3://vault/a/velero-mover");
        assert_eq!(found.folder_of("b1").expect("a folder"), "s3://vault/a/velero/backups/b1/");
        for (url, inside) in [
            ("s3://vault/a/velero", true),
            ("s3://vault/a/velero/mover/", true),
            ("s3://vault/a/velero-mover", false),
            ("s3://other/a/velero/mover", false),
        ] {
            assert_eq!(found.holds(url), inside, "{url}");
        }
        for backup in ["", "..", "a/b"] {
            found.folder_of(backup).expect_err("no name of a backup");
        }
    }

    #[test]
    fn a_bucket_that_is_all_velero_s_has_no_place_for_it() {
        let spec = json!({ "provider": "velero.io/aws", "objectStorage": { "bucket": "vault" } });
        let found = read(&spec).expect("a location");
        assert_eq!(found.folder_of("b1").expect("a folder"), "s3://vault/backups/b1/");
        assert!(found.holds("s3://vault/mover") && !found.holds("s3://vault2/mover"));
        let why = found.sibling().expect_err("there is none");
        assert!(why.hint.expect("a next step").contains("--url"));
    }

    #[test]
    fn another_provider_is_told_how_it_is_done_by_hand() {
        let spec =
            json!({ "provider": "gcp", "objectStorage": { "bucket": "vault", "prefix": "p" } });
        let found = read(&spec).expect("a location");
        for why in [found.sibling().expect_err("gcp"), found.folder_of("b").expect_err("gcp")] {
            assert!(why.message.contains("gcp"), "{why}");
            let next = why.hint.expect("a next step");
            assert!(next.contains("repository add main -n velero --url"), "{next}");
            assert!(next.contains("create configmap mover --from-literal=main=main"), "{next}");
        }
        assert!(!found.holds("gs://vault/p/x"), "nothing is known of it");
        for spec in [json!({ "provider": "aws" }), json!({ "provider": "aws", "config": [] })] {
            read(&spec).expect_err("no bucket, or no location");
        }
    }
}
