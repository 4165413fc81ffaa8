//! From a DifferentialSnapshot to the two snapshots that it means, and the service that knows them.
//!
//! A name alone proves nothing: a VolumeSnapshot counts by the content that it is bound to, if that
//! content points back at it. Base and target must be of one driver and of one source volume, as
//! the content of a snapshot says it that was taken of a volume; drivers and their sidecar compare
//! any two snapshots without looking. What is decided is pure: [`snapshot`] and [`Found::judged`]
//! see objects.

use super::offset::{Listing, Pair, pair};
use crate::api::{Api, ApiError};
use crate::engine::{Key, Kind, Meta};
use crate::kinds::{DifferentialSnapshot, DifferentialSnapshotSpec};
use base64::Engine as _;
use serde_json::Value;

/// Why there is no list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such DifferentialSnapshot.
    Absent,
    /// Something is not ready.
    Pending(String),
    /// It stays so.
    Failure(String),
    /// The API server does not say.
    Unavailable(String),
}

impl From<ApiError> for Trouble {
    fn from(error: ApiError) -> Self {
        let passes = matches!(
            error,
            ApiError::Unavailable(_) | ApiError::Expired(_) | ApiError::Conflict(_)
        );
        let text = crate::engine::Failure::from(error).message;
        if passes { Self::Unavailable(text) } else { Self::Failure(text) }
    }
}

/// A snapshot that is bound both ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    name: String,
    uid: String,
    driver: String,
    handle: String,
    /// The driver's handle of the volume that it was taken of, where its content says so.
    volume: Option<String>,
}

/// The service that knows a driver's snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Service {
    /// `host:port`.
    pub(super) address: String,
    pub(super) audience: String,
    /// Certificates, in PEM.
    pub(super) ca: Vec<u8>,
}

/// What the list is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) namespace: String,
    pub(super) listing: Listing,
    /// Name and uid of the target.
    pub(super) target: (String, String),
    /// The driver's handle of the base.
    pub(super) base: Option<String>,
    pub(super) driver: String,
    pub(super) service: Service,
    /// The snapshots, as a digest.
    pub(super) pair: Pair,
    pub(super) all_changed_without_base: bool,
    /// As the spec has it.
    pub(super) start: Option<String>,
}

/// All that a spec names.
#[derive(Debug)]
struct Found {
    spec: DifferentialSnapshotSpec,
    target: Snapshot,
    /// Of a spec that names one: the base, if it is still there.
    base: Option<Option<Snapshot>>,
}

/// The snapshot that a VolumeSnapshot and its content are; none where one of them is gone.
fn snapshot(object: Option<&Value>, content: Option<&Value>) -> Result<Option<Snapshot>, Trouble> {
    let Some(object) = object else { return Ok(None) };
    let Meta { name, uid, namespace, .. } = Meta::of(object);
    let of = format!("volumesnapshot/{name}");
    let Some(bound) = content_name(object) else {
        return Err(Trouble::Pending(format!("{of} is not bound to a content yet")));
    };
    let Some(content) = content else { return Ok(None) };
    let back = &content["spec"]["volumeSnapshotRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let points_back = text(&back["name"]) == name
        && back["namespace"].as_str() == namespace.as_deref()
        && !uid.is_empty()
        && text(&back["uid"]) == uid;
    if !points_back {
        let what = format!("{of} names volumesnapshotcontent/{bound}, which does not point back");
        return Err(Trouble::Failure(what));
    }
    if content["status"]["readyToUse"] != true || object["status"]["readyToUse"] != true {
        return Err(Trouble::Pending(format!("{of} is not ready yet")));
    }
    let handle = text(&content["status"]["snapshotHandle"]);
    if handle.is_empty() {
        return Err(Trouble::Pending(format!("volumesnapshotcontent/{bound} has no handle yet")));
    }
    let driver = text(&content["spec"]["driver"]);
    let volume = content["spec"]["source"]["volumeHandle"].as_str().map(str::to_owned);
    Ok(Some(Snapshot { name, uid, driver, handle, volume }))
}

/// The content that a VolumeSnapshot says to be bound to.
fn content_name(object: &Value) -> Option<&str> {
    let name = object["status"]["boundVolumeSnapshotContentName"].as_str()?;
    is_name(name).then_some(name)
}

/// Whether a text can be the name of an object: what else it might be would be another place of the
/// API.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b);
    let ends_plain = |end: Option<&u8>| end.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 253
        && text.bytes().all(plain)
        && ends_plain(bytes.first())
        && ends_plain(bytes.last())
}

impl Found {
    /// What is listed, and the driver's handle of the base.
    fn judged(&self) -> Result<(Listing, Option<String>), Trouble> {
        let failure = |what: String| Err(Trouble::Failure(what));
        let target = &self.target;
        if let Some(wanted) = &self.spec.volume_id
            && target.volume.as_ref() != Some(wanted)
        {
            let what = format!("volumesnapshot/{} is not of the volume {wanted:?}", target.name);
            return failure(what);
        }
        let Some(base) = &self.base else { return Ok((Listing::Allocated, None)) };
        let Some(base) = base else {
            if self.spec.all_changed_without_base() {
                return Ok((Listing::AllChanged, None));
            }
            let name = self.spec.base_volume_snapshot_name.as_deref().unwrap_or_default();
            return failure(format!("the base volumesnapshot/{name} is gone: {ALL_CHANGED}"));
        };
        let names = format!("volumesnapshot/{} and volumesnapshot/{}", base.name, target.name);
        if base.driver != target.driver {
            let what = format!("{names} are of the drivers {} and {}", base.driver, target.driver);
            return failure(what);
        }
        match (&base.volume, &target.volume) {
            (Some(old), Some(new)) if old == new => {}
            (Some(_), Some(_)) => return failure(format!("{names} are of two volumes")),
            _ => {
                return failure(format!(
                    "{names}: the content of one of them does not say of which volume it was taken"
                ));
            }
        }
        if base.handle == target.handle {
            return failure(format!("{names} are one snapshot of the storage"));
        }
        Ok((Listing::Delta, Some(base.handle.clone())))
    }
}

/// What to do where a base is gone.
pub(super) const ALL_CHANGED: &str = "make another DifferentialSnapshot, without a base or with the parameter deletedBase: all-changed";

/// The service in a SnapshotMetadataService.
fn service(driver: &str, object: Option<&Value>) -> Result<Service, Trouble> {
    let Some(object) = object else {
        return Err(Trouble::Failure(format!(
            "the driver {driver} tells nobody what changed: it has no snapshotmetadataservice/{driver}"
        )));
    };
    let member = |name: &str| object["spec"][name].as_str().filter(|text| !text.is_empty());
    let wrong = |what: &str| {
        Trouble::Failure(format!("snapshotmetadataservice/{driver} has no good member {what}"))
    };
    let ca = member("caCert").ok_or_else(|| wrong("caCert"))?;
    let ca = base64::engine::general_purpose::STANDARD.decode(ca).map_err(|_| wrong("caCert"))?;
    Ok(Service {
        address: member("address").ok_or_else(|| wrong("address"))?.to_owned(),
        audience: member("audience").ok_or_else(|| wrong("audience"))?.to_owned(),
        ca,
    })
}

async fn read_snapshot(
    api: &Api,
    namespace: &str,
    name: &str,
) -> Result<Option<Snapshot>, Trouble> {
    if !is_name(name) {
        return Err(Trouble::Failure(format!("{name:?} is no name of a volumesnapshot")));
    }
    let object = api.get(&Key::new(Kind::VolumeSnapshot, namespace, name)).await?;
    let content = match object.as_ref().and_then(content_name) {
        Some(bound) => api.get(&Key::wide(Kind::VolumeSnapshotContent, bound)).await?,
        None => None,
    };
    snapshot(object.as_ref(), content.as_ref())
}

/// What a DifferentialSnapshot means now.
pub(super) async fn find(api: &Api, namespace: &str, name: &str) -> Result<Subject, Trouble> {
    let object = api.get(&Key::new(Kind::DifferentialSnapshot, namespace, name)).await?;
    let object = object.ok_or(Trouble::Absent)?;
    if Meta::of(&object).deletion_timestamp.is_some() {
        return Err(Trouble::Absent);
    }
    of_object(api, &object).await
}

/// The same of one that was read.
pub(super) async fn of_object(api: &Api, object: &Value) -> Result<Subject, Trouble> {
    let namespace = Meta::of(object).namespace.unwrap_or_default();
    let read: DifferentialSnapshot = serde_json::from_value(object.clone())
        .map_err(|why| Trouble::Failure(format!("its spec is not understood: {why}")))?;
    let spec = read.spec;
    let name = &spec.target_volume_snapshot_name;
    let Some(target) = read_snapshot(api, &namespace, name).await? else {
        return Err(Trouble::Failure(format!("the target volumesnapshot/{name} is not there")));
    };
    let base = match &spec.base_volume_snapshot_name {
        Some(name) => Some(read_snapshot(api, &namespace, name).await?),
        None => None,
    };
    let found = Found { spec, target, base };
    let (listing, base) = found.judged()?;
    let Found { spec, target, .. } = found;
    let driver = target.driver;
    if !is_name(&driver) {
        return Err(Trouble::Failure(format!("{driver:?} is no name of a driver")));
    }
    let at = Key::wide(Kind::SnapshotMetadataService, &driver);
    let service = service(&driver, api.get(&at).await?.as_ref())?;
    let base_or_none = base.as_deref().unwrap_or_default();
    let pair = pair(&[&namespace, &target.uid, &target.handle, &driver, base_or_none]);
    Ok(Subject {
        namespace,
        listing,
        target: (target.name, target.uid),
        base,
        driver,
        service,
        pair,
        all_changed_without_base: spec.all_changed_without_base(),
        start: spec.start_offset.filter(|text| !text.is_empty()),
    })
}

/// Whether the target's name still stands for the same snapshot.
pub(super) async fn is_same(api: &Api, subject: &Subject) -> Result<bool, Trouble> {
    let (name, uid) = &subject.target;
    let object = api.get(&Key::new(Kind::VolumeSnapshot, &subject.namespace, name)).await?;
    Ok(object.is_some_and(|object| Meta::of(&object).uid == *uid))
}

#[cfg(test)]
mod tests;
