//! From a location's settings to those of a Repository: its place, the variables of its Jobs, their
//! credentials and the store's authority. Velero's own Secret is copied, as its form is one that
//! only Velero's plug-in reads; whoever changes it runs the same command again.

use super::{ENTRIES, Location, SecretMember, entries_key};
use crate::api::{Api, ApiError};
use crate::engine::{self, Failure, Key, Kind, MANAGER, Meta, SERVICE_ACCOUNT, exit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Velero's credentials where a location names none.
const CREDENTIALS: (&str, &str) = ("cloud-credentials", "cloud");
const MANAGED: &str = "app.kubernetes.io/managed-by";
/// What the profile has, and the variable that it becomes.
const KEYS: [(&str, &str); 3] = [
    ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
    ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("aws_session_token", "AWS_SESSION_TOKEN"),
];

/// What was said of the Repository, which goes before what the location says.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub url: Option<String>,
    /// Secret with the store's variables.
    pub credentials: Option<String>,
    /// ConfigMap with the store's authority.
    pub ca: Option<String>,
    /// Variables of the Jobs.
    pub env: BTreeMap<String, String>,
    /// Account of the Jobs.
    pub service_account: String,
    /// Whether its key is given: then the repository exists.
    pub has_key: bool,
}

/// What the Repository of a location needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// Where it is.
    pub url: String,
    /// Secret with the store's variables.
    pub credentials: Option<String>,
    /// ConfigMap with the store's authority.
    pub ca: Option<String>,
    /// Variables of the Jobs.
    pub env: BTreeMap<String, String>,
}

/// Works out what the Repository of a location needs, and makes its Secret and its ConfigMap. Those
/// that were made before are brought up to date.
///
/// # Errors
///
/// The location has settings that have no counterpart, its credentials cannot be read, or the API
/// refuses a write.
pub async fn needs(api: &Api, location: &Location, given: &Chosen) -> Result<Needs, Failure> {
    let url = match &given.url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => location.sibling()?,
    };
    if location.holds(&url) {
        let what = format!(
            "{url} is among the folders of Velero in {}: the location would become Unavailable",
            location.key()
        );
        return Err(Failure::new(exit::USAGE, what)
            .hint("leave --url away, or name a place beside them: s3://BUCKET/PREFIX-mover"));
    }
    if location.read_only && !given.has_key {
        let what = format!("{} is ReadOnly: nothing new is made beside it", location.key());
        return Err(Failure::new(exit::USAGE, what).hint(
            "give the key of the repository that is there: --key-file FILE, or the Secret with it: \
             --key-secret SECRET",
        ));
    }
    let bucket = url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(""));
    let mut env = variables(location, bucket, given)?;
    env.extend(given.env.clone());
    let credentials = match &given.credentials {
        Some(name) => Some(name.clone()),
        None => credentials(api, location, given).await?,
    };
    let ca = match &given.ca {
        Some(name) => Some(name.clone()),
        None => authority(api, location, given).await?,
    };
    Ok(Needs { url, credentials, ca, env })
}

/// Says in Velero's namespace which Repository is meant for a location.
///
/// # Errors
///
/// The API refuses it.
pub async fn enter(api: &Api, location: &Location, repository: &str) -> Result<(), Failure> {
    let key = entries_key(&location.namespace);
    let data = json!({ &location.name: repository });
    let labels = json!({ MANAGED: MANAGER });
    let metadata = json!({ "name": ENTRIES, "namespace": location.namespace, "labels": labels });
    match api.create(&engine::object(&key, metadata, json!({ "data": data }))).await {
        Err(ApiError::Conflict(_)) => {}
        made => return made.map(drop).map_err(Failure::from),
    }
    let found = api.get(&key).await?.unwrap_or_default();
    if found["data"][&location.name] == repository {
        return Ok(());
    }
    let patch = json!({ "metadata": { "labels": labels }, "data": data });
    api.patch(&key, (&Meta::of(&found).uid, None), &patch).await?;
    Ok(())
}

/// As Go reads it.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// The location's settings as variables of the Jobs, for a repository in this bucket.
fn variables(
    location: &Location,
    bucket: &str,
    given: &Chosen,
) -> Result<BTreeMap<String, String>, Failure> {
    let setting =
        |name: &str| location.config.get(name).map(|text| text.trim()).filter(|at| !at.is_empty());
    let wrong = |why: &str, hint: &str| {
        Failure::new(exit::USAGE, format!("{}: {why}", location.key())).hint(hint.to_owned())
    };
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
    if let Some(region) = setting("region") {
        set("AWS_REGION", region);
    } else if setting("s3Url").is_none() && !given.env.contains_key("AWS_REGION") {
        let why = "it has neither config.region nor config.s3Url, and the region of a bucket is \
                   not asked for";
        return Err(wrong(why, "name it: --env AWS_REGION=REGION"));
    }
    if let Some(url) = setting("s3Url") {
        let (scheme, host) = match url.split_once("://") {
            Some((scheme @ ("http" | "https"), host)) => (scheme, host.trim_end_matches('/')),
            _ => {
                let why = "its config.s3Url begins with neither http:// nor https://";
                return Err(wrong(why, "write it there as https://HOST, with its port if need be"));
            }
        };
        let is_path = setting("s3ForcePathStyle").is_some_and(is_true)
            || is_address(host)
            || (scheme == "https" && bucket.contains('.'));
        if is_path {
            set("AWS_ENDPOINT_URL", &format!("{scheme}://{host}"));
        } else {
            set("AWS_ENDPOINT_URL", &format!("{scheme}://{bucket}.{host}"));
            set("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
        }
        if scheme == "http" {
            set("AWS_ALLOW_HTTP", "true");
        }
    }
    match (setting("kmsKeyId"), setting("serverSideEncryption")) {
        (Some(key), _) => {
            set("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms");
            set("AWS_SSE_KMS_KEY_ID", key);
        }
        (None, Some(kind)) => {
            set("AWS_SERVER_SIDE_ENCRYPTION", kind);
        }
        (None, None) => {}
    }
    let is_checked = given.ca.is_some() || location.has_authority();
    if setting("insecureSkipTLSVerify").is_some_and(is_true) && !is_checked {
        let why = "its config.insecureSkipTLSVerify is set, and mover trusts no store whose \
                   certificate it cannot check";
        let hint = "put the authority's certificate into the location's objectStorage.caCert, or \
                    into a ConfigMap as ca.crt and name that: --ca CONFIGMAP";
        return Err(wrong(why, hint));
    }
    Ok(env)
}

/// Whether a host with or without a port is an address, which has no names below it.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}

impl Location {
    fn has_authority(&self) -> bool {
        self.ca_cert.is_some() || self.ca_cert_ref.is_some()
    }
}

/// The ConfigMap with the store's authority, if the location has one of its own.
async fn authority(
    api: &Api,
    location: &Location,
    given: &Chosen,
) -> Result<Option<String>, Failure> {
    let what = format!("{}: its objectStorage.caCert", location.key());
    let bytes = match (&location.ca_cert, &location.ca_cert_ref) {
        (None, None) => return Ok(None),
        (Some(text), _) => STANDARD
            .decode(text.trim())
            .map_err(|why| Failure::new(exit::USAGE, format!("{what} is no base64: {why}")))?,
        (None, Some(of)) => member(api, &location.namespace, of).await?,
    };
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::new(exit::USAGE, format!("{what} is no certificate in PEM")))?;
    let key = Key::new(Kind::ConfigMap, &location.namespace, &format!("mover-ca-{}", given.name));
    let data = Map::from_iter([("ca.crt".to_owned(), Value::from(text))]);
    keep(api, &key, json!({}), data, "--ca CONFIGMAP").await?;
    Ok(Some(key.name))
}

/// The Secret with the store's credentials as variables. There is none where the account of the Jobs
/// brings them.
async fn credentials(
    api: &Api,
    location: &Location,
    given: &Chosen,
) -> Result<Option<String>, Failure> {
    let of = location.credential.clone().unwrap_or_else(|| SecretMember {
        name: CREDENTIALS.0.to_owned(),
        key: CREDENTIALS.1.to_owned(),
    });
    let has_account = given.service_account != SERVICE_ACCOUNT;
    let source = Key::new(Kind::Secret, &location.namespace, &of.name);
    // An account that was chosen has a role, and Velero's may have the same.
    if has_account && location.credential.is_none() && api.get(&source).await?.is_none() {
        return Ok(None);
    }
    let bytes = member(api, &location.namespace, &of).await?;
    let text = String::from_utf8_lossy(&bytes);
    let profile = location.config.get("profile").map_or("default", |name| name.trim());
    let found = profile_of(&text, if profile.is_empty() { "default" } else { profile });
    let mut data = Map::new();
    for (name, variable) in KEYS {
        if let Some(value) = found.get(name) {
            data.insert(variable.to_owned(), STANDARD.encode(value).into());
        }
    }
    if !data.contains_key(KEYS[0].1) || !data.contains_key(KEYS[1].1) {
        if has_account {
            return Ok(None);
        }
        let what = format!(
            "{source}: profile {profile} in its member {} has no aws_access_key_id with \
             aws_secret_access_key",
            of.key
        );
        return Err(Failure::new(exit::USAGE, what).hint(
            "where Velero has a role of the cloud, give one to an account of the Jobs and name \
             that: --service-account NAME. Or name a Secret with AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY: --credentials SECRET",
        ));
    }
    let key = Key::new(Kind::Secret, &location.namespace, &format!("mover-store-{}", given.name));
    keep(api, &key, json!({ "type": "Opaque" }), data, "--credentials SECRET").await?;
    Ok(Some(key.name))
}

/// What a member of a Secret holds.
async fn member(api: &Api, namespace: &str, of: &SecretMember) -> Result<Vec<u8>, Failure> {
    let key = Key::new(Kind::Secret, namespace, &of.name);
    let hint = format!(
        "Velero's credentials are in there; kubectl -n {namespace} get secrets lists what is. Or \
         name a Secret with the store's variables: --credentials SECRET"
    );
    let fail = |why: &str| Failure::new(exit::USAGE, format!("{key} {why}")).hint(hint.clone());
    let found = api.get(&key).await?.ok_or_else(|| fail("does not exist"))?;
    let text = found["data"][&of.key].as_str();
    let text = text.ok_or_else(|| fail(&format!("has no member {}", of.key)))?;
    STANDARD.decode(text).map_err(|why| fail(&format!("has a member {} of {why}", of.key)))
}

/// A profile of a file of AWS: lines of `NAME = VALUE` below `[PROFILE]`.
fn profile_of(text: &str, profile: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut is_in = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(head) = line.strip_prefix('[') {
            let name = head.split(']').next().unwrap_or_default().trim();
            is_in = name.strip_prefix("profile ").map_or(name, str::trim) == profile;
            continue;
        }
        if let Some((name, value)) = line.split_once('=').filter(|_| is_in) {
            found.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found.retain(|_, value| !value.is_empty());
    found
}

/// Makes an object with this data, or has one that was made here before have it.
async fn keep(
    api: &Api,
    key: &Key,
    mut body: Value,
    data: Map<String, Value>,
    flag: &str,
) -> Result<(), Failure> {
    let metadata = json!({
        "name": key.name, "namespace": key.namespace, "labels": { MANAGED: MANAGER },
    });
    body["data"] = data.clone().into();
    match api.create(&engine::object(key, metadata, body)).await {
        Err(ApiError::Conflict(_)) => {}
        made => return made.map(drop).map_err(Failure::from),
    }
    let found = api.get(key).await?.unwrap_or_default();
    if Meta::of(&found).labels.get(MANAGED).map(String::as_str) != Some(MANAGER) {
        let what = format!("{key} exists, and was not made by mover");
        return Err(Failure::new(exit::USAGE, what).hint(format!(
            "name it, if it is meant: {flag}; else delete it, or name another NAME"
        )));
    }
    let mut patch = data;
    // What is not said any more goes: the token of temporary keys, for one.
    for name in found["data"].as_object().into_iter().flat_map(Map::keys) {
        patch.entry(name).or_insert(Value::Null);
    }
    if found["data"].as_object() == Some(&patch) {
        return Ok(());
    }
    api.patch(key, (&Meta::of(&found).uid, None), &json!({ "data": patch })).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(config: &[(&str, &str)]) -> Location {
        let config = config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Location {
            namespace: "velero".into(),
            name: "main".into(),
            provider: "aws".into(),
            bucket: "vault".into(),
            prefix: "velero".into(),
            config: config.collect(),
            ..Location::default()
        }
    }

    fn said(config: &[(&str, &str)]) -> String {
        let env = variables(&location(config), "vault", &Chosen::default()).expect("variables");
        env.iter().map(|(name, value)| format!("{name}={value} ")).collect()
    }

    #[test]
    fn settings_become_variables() {
        assert_eq!(said(&[("region", "eu-1"), ("profile", "p")]), "AWS_REGION=eu-1 ");
        let minio = [("s3Url", "http://minio.velero.svc:9000/"), ("s3ForcePathStyle", "true")];
        assert_eq!(
            said(&minio),
            "AWS_ALLOW_HTTP=true AWS_ENDPOINT_URL=http://minio.velero.svc:9000 "
        );
        assert_eq!(
            said(&[("s3Url", "https://s3.example.com"), ("region", "x")]),
            "AWS_ENDPOINT_URL=https://vault.s3.example.com AWS_REGION=x \
             AWS_VIRTUAL_HOSTED_STYLE_REQUEST=true "
        );
        // A repository in another bucket has the host of that one.
        let hosted = location(&[("s3Url", "https://s3.example.com")]);
        let other = variables(&hosted, "other", &Chosen::default()).expect("variables");
        assert_eq!(other["AWS_ENDPOINT_URL"], "https://other.s3.example.com");
        let own = variables(&hosted, "vault", &Chosen::default()).expect("variables");
        assert!(hosted.is_reached_by(&own), "its Jobs look into the location's bucket");
        assert!(!hosted.is_reached_by(&other), "they would look into another one");
        // A Job takes this one first, whatever else it has.
        let mut elsewhere = own.clone();
        elsewhere.insert("AWS_ENDPOINT_URL_S3".into(), "https://s3.elsewhere.example".into());
        assert!(!hosted.is_reached_by(&elsewhere), "they look into another store");
        for host in ["10.0.0.1:9000", "[::1]:9000", "localhost:9000"] {
            let url = format!("http://{host}");
            let wanted = format!("AWS_ALLOW_HTTP=true AWS_ENDPOINT_URL={url} ");
            assert_eq!(said(&[("s3Url", &url)]), wanted, "no name is below an address");
        }
        assert_eq!(
            said(&[("region", "x"), ("kmsKeyId", "k"), ("serverSideEncryption", "AES256")]),
            "AWS_REGION=x AWS_SERVER_SIDE_ENCRYPTION=aws:kms AWS_SSE_KMS_KEY_ID=k "
        );
    }

    #[test]
    fn settings_without_a_counterpart_are_errors_with_a_next_step() {
        let fails = |config: &[(&str, &str)]| {
            let why =
                variables(&location(config), "vault", &Chosen::default()).expect_err("an error");
            (why.message, why.hint.expect("a next step"))
        };
        let (what, next) = fails(&[]);
        assert!(what.contains("config.region") && next.contains("--env AWS_REGION"), "{what}");
        let (what, next) = fails(&[("region", "x"), ("insecureSkipTLSVerify", "true")]);
        assert!(what.contains("insecureSkipTLSVerify") && next.contains("--ca"), "{what}");
        let (what, _) = fails(&[("s3Url", "minio:9000")]);
        assert!(what.contains("s3Url"), "{what}");
        let env = BTreeMap::from([("AWS_REGION".to_owned(), "x".to_owned())]);
        let given = Chosen { env, ..Chosen::default() };
        assert!(
            variables(&location(&[]), "vault", &given).expect("the region is named").is_empty()
        );
    }

    #[test]
    fn profiles_are_read_as_aws_writes_them() {
        let text = "# of velero\n[default]\naws_access_key_id = A\r\naws_secret_access_key=S=/+\n\
                    region = x\n\n[other]\nAWS_ACCESS_KEY_ID=B\naws_secret_access_key =\n";
        let all = profile_of(text, "default");
        assert_eq!(all["aws_access_key_id"], "A");
        assert_eq!(all["aws_secret_access_key"], "S=/+");
        let all = profile_of(text, "other");
        assert_eq!(all["aws_access_key_id"], "B");
        assert!(!all.contains_key("aws_secret_access_key"), "nothing is no secret");
        assert!(profile_of(text, "none").is_empty());
    }
}
