//! Decisions about a claim before anything is made: its volume, its classes, its driver's service.
//!
//! A backup follows them, and `doctor` tells their failures beforehand. So each rule stands here
//! once, and takes objects that somebody else has read.

use super::names::{self, MANAGER, STATE};
use super::object::{Key, Kind};
use super::observed::{Meta, Object, Observed};
use super::request::ChangesService;
use super::step::{Failure, Planned, exit};
use super::views::{
    Claim, ConfigMap, CsiSource, Event, Lease, MetadataService, SnapshotClass, Volume,
};
use base64::Engine as _;
use serde_json::Value;

const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
const DEFAULT_GROUP_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";
/// Members of a PersistentVolume's `spec` that say where its data is.
const SOURCES: [&str; 23] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
    "ephemeral",
];

/// The volume of a claim, which has to be bound and to stay.
///
/// # Errors
///
/// It is not bound, or is being deleted.
pub fn bound(key: &Key, meta: &Meta, claim: &Claim) -> Result<Key, Failure> {
    let namespace = key.namespace.as_deref().unwrap_or_default();
    let describe = format!("kubectl -n {namespace} describe pvc {} says why", key.name);
    if meta.deletion_timestamp.is_some() {
        // The snapshot controller refuses a snapshot of it.
        return Err(Failure::new(exit::USAGE, format!("{key} is being deleted"))
            .hint("it goes once no pod uses it, and no snapshot of it can be taken any more"));
    }
    match (claim.status.phase.as_deref().unwrap_or("Pending"), &claim.spec.volume_name) {
        ("Bound", Some(name)) => Ok(Key::wide(Kind::PersistentVolume, name)),
        ("Lost", name) => {
            let name = name.as_deref().unwrap_or("?");
            let what = format!("{key} is Lost, not Bound: its pv/{name} is gone");
            Err(Failure::new(exit::USAGE, what)
                .hint("delete the claim, and restore it from its newest backup"))
        }
        (phase, _) => {
            Err(Failure::new(exit::USAGE, format!("{key} is {phase}, not Bound")).hint(describe))
        }
    }
}

/// The CSI volume behind a claim. `raw` is the PersistentVolume as it stands in the API.
///
/// # Errors
///
/// It has none, and so no snapshots.
pub fn csi(key: &Key, volume: &Key, raw: &Value) -> Result<CsiSource, Failure> {
    let body: Volume = serde_json::from_value(raw.clone())
        .map_err(|why| Failure::new(exit::USAGE, format!("{volume}: {why}")))?;
    body.spec.csi.ok_or_else(|| {
        let of = SOURCES.into_iter().find(|name| raw["spec"].get(name).is_some());
        let of = of.map(|name| format!("is of type {name}, ")).unwrap_or_default();
        let what = format!("{key} is on {volume}, which {of}has no CSI driver and so no snapshots");
        Failure::new(exit::USAGE, what)
            .hint("move its data to a claim of a storage class whose driver has snapshots")
    })
}

/// Whether all of the volume's data is of one state.
///
/// # Errors
///
/// A restore began to write it in place, and has not proved it.
pub fn whole(claim: &Key, volume: &Key, meta: &Meta) -> Result<(), Failure> {
    let Some(mark) = meta.annotations.get(names::HALF_WRITTEN) else { return Ok(()) };
    let restore = mark.split(' ').next().unwrap_or_default();
    let namespace = claim.namespace.as_deref().unwrap_or_default();
    let what = format!(
        "{claim} may be half written: restore {restore} began to write {volume} in place, and did \
         not prove it"
    );
    Err(Failure::new(exit::INTEGRITY, what).hint(format!(
        "restore it again: kubectl mover -n {namespace} restore BACKUP --to pvc/{} --in-place",
        claim.name
    )))
}

/// The class of the volume that is made of the snapshot: the named one, else the claim's.
///
/// # Errors
///
/// There is neither.
pub fn storage_class(key: &Key, claim: &Claim, named: Option<&str>) -> Result<String, Failure> {
    let class = named.or(claim.spec.storage_class_name.as_deref());
    class.filter(|name| !name.is_empty()).map(str::to_owned).ok_or_else(|| {
        Failure::new(exit::USAGE, format!("{key} has no storage class"))
            .hint("name the class of the volume that is made of its snapshot: --storage-class NAME")
    })
}

/// The class of snapshots: the named one, else the default, else the only one of the driver.
///
/// # Errors
///
/// None of `all` fits, or more than one.
pub fn snapshot_class<'a>(
    driver: &str,
    named: Option<&str>,
    all: &'a [Object<SnapshotClass>],
) -> Result<&'a Object<SnapshotClass>, Failure> {
    let of_driver: Vec<_> = all.iter().filter(|class| class.body.driver == driver).collect();
    let names = |all: &[&Object<SnapshotClass>]| {
        let names: Vec<&str> = all.iter().map(|class| class.key.name.as_str()).collect();
        names.join(", ")
    };
    let wrong = |what: String, hint: String| Err(Failure::new(exit::USAGE, what).hint(hint));
    if let Some(named) = named {
        let one = all.iter().find(|class| class.key.name == named);
        let hint = match of_driver.is_empty() {
            true => format!("driver {driver} has none: make one"),
            false => format!("it has: {}", names(&of_driver)),
        };
        return match one {
            Some(one) if one.body.driver == driver => Ok(one),
            Some(one) => {
                let of = &one.body.driver;
                wrong(format!("VolumeSnapshotClass {named} is of driver {of}, not {driver}"), hint)
            }
            None => {
                wrong(format!("there is no VolumeSnapshotClass {named} of driver {driver}"), hint)
            }
        };
    }
    let is_default = |class: &Object<SnapshotClass>| {
        class.meta.annotations.get(DEFAULT_CLASS).map(String::as_str) == Some("true")
    };
    let default: Vec<_> = of_driver.iter().copied().filter(|class| is_default(class)).collect();
    match (default.as_slice(), of_driver.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one),
        (_, []) if all.is_empty() => wrong(
            "the cluster has no VolumeSnapshotClass".into(),
            "install the snapshot controller and its CRDs, and make a class for the driver".into(),
        ),
        (_, []) => wrong(
            format!("no VolumeSnapshotClass is of driver {driver}"),
            "make one; the driver has to support snapshots".into(),
        ),
        ([], many) => wrong(
            format!("driver {driver} has several VolumeSnapshotClasses and no default"),
            format!("name one by --snapshot-class: {}", names(many)),
        ),
        (many, _) => wrong(
            format!("driver {driver} has several default VolumeSnapshotClasses"),
            format!("name one by --snapshot-class: {}", names(many)),
        ),
    }
}

/// The class of groups: the driver's default, else its only one; none where it has none.
///
/// # Errors
///
/// There are several, and not one of them is the default.
pub fn group_class<'a>(
    driver: &str,
    all: &'a [Object<SnapshotClass>],
) -> Result<Option<&'a Object<SnapshotClass>>, Failure> {
    let all: Vec<_> = all.iter().filter(|class| class.body.driver == driver).collect();
    let is_default = |class: &&&Object<SnapshotClass>| {
        class.meta.annotations.get(DEFAULT_GROUP_CLASS).map(String::as_str) == Some("true")
    };
    let default: Vec<_> = all.iter().filter(is_default).copied().collect();
    match (default.as_slice(), all.as_slice()) {
        ([one], _) | ([], [one]) => Ok(Some(one)),
        (_, []) => Ok(None),
        (default, many) => {
            let names: Vec<&str> = many.iter().map(|class| class.key.name.as_str()).collect();
            let which = if default.is_empty() { "and no default" } else { "and several defaults" };
            let what = format!("driver {driver} has several VolumeGroupSnapshotClasses {which}");
            Err(Failure::new(exit::USAGE, what).hint(format!(
                "have one of them alone be the default, by the annotation {DEFAULT_GROUP_CLASS}: {}",
                names.join(", ")
            )))
        }
    }
}

/// How a driver's service of changed blocks is asked. `issuer` is that of the API server's own
/// tokens, where it is known.
///
/// # Errors
///
/// Its object is wrong: no certificate to check it by, or an audience that is not its own.
pub fn service(
    found: &Object<MetadataService>,
    issuer: Option<&str>,
) -> Result<ChangesService, Failure> {
    let spec = &found.body.spec;
    let hint = "correct the object, or read whole volumes by --whole";
    let wrong = |why: &str| Failure::new(exit::USAGE, format!("{}: {why}", found.key)).hint(hint);
    let ca = base64::engine::general_purpose::STANDARD
        .decode(spec.ca_cert.trim())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|text| text.contains("-----BEGIN CERTIFICATE-----"));
    let ca = ca.ok_or_else(|| wrong("caCert is not PEM in base64"))?;
    if spec.address.trim().is_empty() {
        return Err(wrong("address is empty"));
    }
    if spec.audience.trim().is_empty() {
        return Err(wrong("audience is empty"));
    }
    if is_api_server(&spec.audience, issuer) {
        return Err(wrong(
            "audience is that of the API server: whoever serves there could act as the Job's \
             account",
        ));
    }
    Ok(ChangesService { address: spec.address.clone(), audience: spec.audience.clone(), ca })
}

/// Whether a token of this audience would be taken by the API server itself.
fn is_api_server(audience: &str, issuer: Option<&str>) -> bool {
    let host = audience.trim().trim_start_matches("https://").trim_end_matches('/');
    let own = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    issuer.is_some_and(|issuer| issuer.trim_end_matches('/') == audience.trim_end_matches('/'))
        || own.contains(&host)
        || host.starts_with("kubernetes.default.svc.")
}

/// The operation that holds a Lease and has not ended, as namespace and name; none where the Lease
/// may be taken over.
///
/// # Errors
///
/// The read of its anchor, which comes first; or a Lease that is not ours.
pub fn holder(seen: &Observed, lease: &Object<Lease>) -> Planned<Option<(String, String)>> {
    let key = &lease.key;
    let holder = lease.meta.annotations.get(names::ANCHOR).map(String::as_str);
    let holder = holder.and_then(|text| text.split_once('/'));
    let (Some((namespace, name)), Some(MANAGER)) =
        (holder, lease.meta.labels.get("app.kubernetes.io/managed-by").map(String::as_str))
    else {
        return Err(Failure::new(exit::USAGE, format!("{key} exists and was not made by mover"))
            .hint(format!(
                "{} shows where it comes from; delete it if nobody needs it",
                key.shown_by()
            ))
            .into());
    };
    let anchor = seen.find::<ConfigMap>(&Key::new(Kind::ConfigMap, namespace, name))?;
    let runs = anchor.is_some_and(|anchor| {
        Some(&anchor.meta.uid) == lease.body.spec.holder_identity.as_ref()
            && anchor.meta.labels.get(STATE).map(String::as_str) != Some("ended")
    });
    Ok(runs.then(|| (namespace.to_owned(), name.to_owned())))
}

/// Another operation is at work on a claim: its namespace and name.
pub fn busy((namespace, name): (&str, &str), of: &str) -> Failure {
    Failure::new(
        exit::RETRYABLE,
        format!("{name} in namespace {namespace} is at work on {of} already"),
    )
    .hint(format!("wait for it, or end it: kubectl mover cancel {name} -n {namespace}"))
}

/// What the newest warning among events says.
pub fn newest_warning(events: &[Object<Event>]) -> Option<String> {
    let warnings = events.iter().filter(|event| event.body.r#type.as_deref() == Some("Warning"));
    let newest = warnings.max_by_key(|event| event.body.last_timestamp.clone());
    newest.and_then(|event| event.body.message.clone())
}
