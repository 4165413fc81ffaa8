//! The volume of a claim that is restored in place, as the objects have it: looked at before
//! anything is begun, and when an unfinished restore is gone on with.

use super::choice;
use super::object::{Key, Kind, Selection};
use super::observed::{Object, Observed};
use super::rebind::Record;
use super::request::InPlace;
use super::step::{Failure, Planned, exit};
use super::users;
use super::views::{Claim, CsiDriver, CsiSource, Volume};

/// How it is known that no node has the volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detached {
    /// By VolumeAttachments.
    #[default]
    Seen,
    /// Whoever asks has looked, or knows: not every driver has those.
    Assumed,
}

/// What is written in place.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its volume.
    pub place: InPlace,
    /// Whether the claim is of mode Filesystem.
    pub is_filesystem: bool,
    /// Type of the filesystem, where the volume names one.
    pub fs_type: Option<String>,
    /// Class of the volume, or nothing.
    pub storage_class: String,
    /// Its size, as Kubernetes writes it.
    pub capacity: String,
    /// Its access modes.
    pub access_modes: Vec<String>,
}

/// The volume of a claim that nobody uses. While a restore exchanges the claim it is told by the
/// volume's own record, so it is the same one however far that has come.
///
/// # Errors
///
/// A read, which comes first; or why it cannot be restored in place.
pub fn target(seen: &Observed, claim: &Key, detached: Detached) -> Planned<Target> {
    let found = seen.find::<Claim>(claim)?;
    let volume = match &found {
        Some(found) => of_claim(seen, found)?,
        None => held(seen, claim)?,
    };
    let raw = seen.raw(&volume.key)?.unwrap_or_default();
    let csi = choice::csi(claim, &volume.key, &raw)?;
    // One that has its restored data may be in use: nothing is written to it.
    if !Record::of(&volume.key, &volume.meta)?.is_some_and(|record| record.is_restored()) {
        users::without_pods(seen, claim, None)?;
        if detached == Detached::Seen {
            shows_attachments(seen, &volume.key, &csi)?;
        }
    }
    let spec = volume.body.spec;
    Ok(Target {
        place: InPlace { volume: volume.key.name, uid: volume.meta.uid },
        is_filesystem: spec.volume_mode.as_deref() != Some("Block"),
        fs_type: csi.fs_type.filter(|name| !name.is_empty()),
        storage_class: spec.storage_class_name.unwrap_or_default(),
        capacity: spec.capacity.get("storage").cloned().unwrap_or_default(),
        access_modes: spec.access_modes,
    })
}

/// A driver without attachments leaves no trace in the API of a node that has the volume mounted,
/// such as one that is cut off, or whose pod was deleted by force.
fn shows_attachments(seen: &Observed, volume: &Key, csi: &CsiSource) -> Planned<()> {
    let key = Key::wide(Kind::CSIDriver, &csi.driver);
    let found = seen.find::<CsiDriver>(&key)?;
    if found.is_none_or(|found| found.body.spec.attach_required != Some(false)) {
        return Ok(());
    }
    let (name, handle) = (&volume.name, &csi.volume_handle);
    let what = format!("{key} has no attachments: nothing tells whether a node still has {volume}");
    Err(Failure::new(exit::USAGE, what)
        .hint(format!(
            "on each node that may have run its pods, `grep {name} /proc/mounts` and `grep -l \
             {handle} /var/lib/kubelet/plugins/kubernetes.io/csi/*/*/vol_data.json` have to find \
             nothing, or the node has to be off; then add --assume-detached"
        ))
        .into())
}

fn of_claim(seen: &Observed, claim: &Object<Claim>) -> Planned<Object<Volume>> {
    let key = match &claim.body.spec.volume_name {
        Some(name) => Key::wide(Kind::PersistentVolume, name),
        None => choice::bound(&claim.key, &claim.meta, &claim.body)?,
    };
    let Some(volume) = seen.find::<Volume>(&key)? else {
        return Err(Failure::new(exit::USAGE, format!("{} names {key}, which is gone", claim.key))
            .hint("delete the claim, and restore to a new one without --in-place")
            .into());
    };
    match Record::of(&key, &volume.meta)? {
        Some(record) if record.is_of(&claim.key) => return Ok(volume),
        Some(_) => {
            let what = format!("{key} is held for another claim than {}", claim.key);
            return Err(Failure::new(exit::DENIED, what).into());
        }
        None => {}
    }
    choice::bound(&claim.key, &claim.meta, &claim.body)?;
    let holder = volume.body.spec.claim_ref.as_ref().and_then(|holder| holder.uid.as_ref());
    if holder != Some(&claim.meta.uid) {
        let what = format!("{key} is not the volume of {}", claim.key);
        return Err(Failure::new(exit::DENIED, what)
            .hint(format!("look at claimRef of {key}, and at the claim"))
            .into());
    }
    Ok(volume)
}

/// The volume that an unfinished restore holds for a claim which is not there at this moment.
fn held(seen: &Observed, claim: &Key) -> Planned<Object<Volume>> {
    let all: Vec<Object<Volume>> = seen.list(&Selection::all(Kind::PersistentVolume))?;
    let of = |volume: &Object<Volume>| {
        let holder = volume.body.spec.claim_ref.as_ref();
        holder.is_some_and(|holder| {
            holder.namespace == claim.namespace && holder.name.as_ref() == Some(&claim.name)
        }) && Record::of(&volume.key, &volume.meta)
            .is_ok_and(|record| record.is_some_and(|record| record.is_of(claim)))
    };
    let mut fitting = all.into_iter().filter(of);
    match (fitting.next(), fitting.next()) {
        (Some(volume), None) => {
            // Read by itself, as it stands in the API.
            let found = seen.find::<Volume>(&volume.key)?;
            found.ok_or_else(|| {
                Failure::new(exit::RETRYABLE, format!("{} is gone", volume.key)).into()
            })
        }
        (Some(one), Some(other)) => {
            let what = format!("{} and {} are both held for {claim}", one.key, other.key);
            Err(Failure::new(exit::USAGE, what)
                .hint("make the claim again by hand, with the volumeName that is meant")
                .into())
        }
        (None, _) => Err(Failure::new(exit::USAGE, format!("there is no {claim}"))
            .hint("leave --in-place away: the restore makes it")
            .into()),
    }
}
