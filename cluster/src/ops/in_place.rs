//! A restore onto the volume of a claim that exists: what has to fit, and which rights it needs.

use crate::api::{Api, Asked};
use crate::engine::{Failure, Kind, Resource, Restore, Target, exit};
use http::Method;
use serde_json::json;

/// Whether the backup may go there, of the size and the filesystem that it has.
///
/// # Errors
///
/// What does not fit, and what to do about it.
pub(super) fn fits(
    claim: &str,
    target: &Target,
    filesystem: Option<&str>,
    (size, room): (u64, Option<u64>),
) -> Result<(), Failure> {
    let wrong = |what: String, hint: &str| Err(Failure::new(exit::USAGE, what).hint(hint));
    match (target.is_filesystem, filesystem) {
        (true, None) => {
            return wrong(
                format!("pvc/{claim} is of mode Filesystem, and the backup is one of a device"),
                "name its filesystem by --filesystem TYPE if it holds one, or restore to a new claim",
            );
        }
        (false, Some(_)) => {
            return wrong(
                format!("pvc/{claim} is of mode Block, and the backup is one of a filesystem"),
                "--block writes it to the device as it is",
            );
        }
        _ => {}
    }
    if let (Some(of), Some(wanted)) = (&target.fs_type, filesystem.filter(|name| !name.is_empty()))
        && of != wanted
    {
        return wrong(
            format!("the volume of pvc/{claim} is mounted as {of}, and the backup is of {wanted}"),
            "restore to a new claim, without --in-place",
        );
    }
    if room.is_none_or(|room| room < size) {
        return wrong(
            format!(
                "the backup has {size} bytes, and the volume of pvc/{claim} has room for {}",
                target.capacity
            ),
            "enlarge the claim, or restore to a new one without --in-place",
        );
    }
    Ok(())
}

/// Whether whoever runs this may do all of it: nobody is to be left without a claim by a right that
/// is missing. Where the API server does not tell, each step asks for itself.
///
/// # Errors
///
/// The rights that are missing.
pub async fn allowed(api: &Api, restore: &Restore) -> Result<(), Failure> {
    let mut missing = Vec::new();
    for (verb, kind, namespace) in needed(restore) {
        if !may(api, verb, kind, namespace).await {
            let place = namespace.map_or(String::new(), |name| format!(" in namespace {name}"));
            missing.push(format!("{verb} {}{place}", kind.resource().plural));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("a restore in place needs more rights: {}", missing.join(", "));
    Err(Failure::new(exit::DENIED, what)
        .hint("nothing was changed; ask for them, or restore to a new claim"))
}

/// A verb, what of, and in which namespace.
type Right<'a> = (&'static str, Kind, Option<&'a str>);

/// All rights of a restore in place, and of the next one that goes on where this one was cut off.
fn needed(restore: &Restore) -> Vec<Right<'_>> {
    let (of, jobs) = (restore.namespace.as_str(), restore.repository.namespace.as_str());
    let claims = Kind::PersistentVolumeClaim;
    let mut needed = vec![
        ("get", claims, Some(of)),
        ("get", claims, Some(jobs)),
        ("get", Kind::CSIDriver, None),
        ("get", Kind::PersistentVolume, None),
        ("list", Kind::PersistentVolume, None),
        ("patch", Kind::PersistentVolume, None),
        ("list", Kind::VolumeAttachment, None),
        ("list", Kind::Pod, Some(of)),
        ("list", Kind::Pod, Some(jobs)),
        ("get", Kind::Job, Some(jobs)),
        ("create", Kind::Job, Some(jobs)),
        ("patch", Kind::Job, Some(jobs)),
        ("delete", Kind::Job, Some(jobs)),
    ];
    if restore.filesystem.is_some() || of != jobs {
        needed.extend([
            ("create", claims, Some(of)),
            ("patch", claims, Some(of)),
            ("delete", claims, Some(of)),
            ("create", claims, Some(jobs)),
            ("delete", claims, Some(jobs)),
            ("create", Kind::PersistentVolume, None),
            ("delete", Kind::PersistentVolume, None),
        ]);
    }
    needed.sort();
    needed.dedup();
    needed
}

/// Whether the server says that its user may do this.
async fn may(api: &Api, verb: &str, kind: Kind, namespace: Option<&str>) -> bool {
    let Resource { group, plural, .. } = kind.resource();
    let asked = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": verb, "group": group, "resource": plural, "namespace": namespace,
        } },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let sent = Some(("application/json", asked.to_string().into_bytes()));
    let right = Asked::other("ask for the rights of its user", "create selfsubjectaccessreviews");
    match api.request(Method::POST, path, &[], sent, right).await {
        Ok(answer) => answer["status"]["allowed"] != false,
        Err(why) => {
            tracing::debug!("whether {verb} of {plural} is allowed: {}", Failure::from(why));
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::InPlace;

    fn volume(is_filesystem: bool, fs_type: Option<&str>) -> Target {
        Target {
            place: InPlace { volume: "pv".into(), uid: "1".into() },
            is_filesystem,
            fs_type: fs_type.map(str::to_owned),
            storage_class: "fast".into(),
            capacity: "1Gi".into(),
            access_modes: vec!["ReadWriteOnce".into()],
        }
    }

    #[test]
    fn rights_of_whoever_goes_on_are_asked_for_as_well() {
        let restore: Restore = serde_json::from_value(json!({
            "repository": {
                "namespace": "vault", "url": "s3://b", "cluster": "c", "keySecret": "k",
                "serviceAccount": "mover", "image": "i", "imagePullPolicy": "Never",
                "memory": "1Gi", "cpu": "1",
            },
            "volume": "c/shop/db", "asked": "db@latest", "backup": "b1", "sizeBytes": 1,
            "namespace": "shop", "claim": "db", "storageClass": "fast", "capacity": "1Gi",
            "accessModes": [], "filesystem": "ext4",
        }))
        .expect("a restore");
        let all = needed(&restore);
        for right in [
            // A claim that is not there is found by its volume's record.
            ("list", Kind::PersistentVolume, None),
            ("get", Kind::PersistentVolume, None),
            ("get", Kind::CSIDriver, None),
            ("get", Kind::PersistentVolumeClaim, Some("shop")),
            ("create", Kind::PersistentVolumeClaim, Some("shop")),
            ("create", Kind::PersistentVolumeClaim, Some("vault")),
        ] {
            assert!(all.contains(&right), "{right:?}: {all:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_said_before_anything_is_touched() {
        let room = (10, Some(10));
        assert_eq!(fits("db", &volume(true, Some("ext4")), Some("ext4"), room), Ok(()));
        assert_eq!(fits("db", &volume(true, None), Some("ext4"), room), Ok(()));
        assert_eq!(fits("db", &volume(true, Some("ext4")), Some(""), room), Ok(()));
        assert_eq!(fits("db", &volume(false, None), None, room), Ok(()));
        for (target, filesystem, room, said) in [
            (volume(true, Some("ext4")), None, room, "is of mode Filesystem"),
            (volume(false, None), Some("ext4"), room, "is of mode Block"),
            (volume(true, Some("ext4")), Some("xfs"), room, "is mounted as ext4"),
            (volume(false, None), None, (11, Some(10)), "has room for 1Gi"),
            (volume(false, None), None, (11, None), "has room for 1Gi"),
        ] {
            let why = fits("db", &target, filesystem, room).unwrap_err();
            assert_eq!(why.exit_code, exit::USAGE);
            assert!(why.message.contains(said), "{why:?}");
            assert!(why.hint.is_some());
        }
    }
}
