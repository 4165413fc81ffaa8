//! Names, labels and annotations. All names of an operation follow from the uid of its anchor.

use super::object::{Key, Kind};
use serde_json::{Map, Value, json};

/// The group of our labels, annotations and kinds.
pub const GROUP: &str = "mover.dev";
/// Who we are, in `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "mover";
/// On each object that an operation makes: the uid of its anchor.
pub const OWNER: &str = "mover.dev/owner";
/// On each object that an operation makes: `NAMESPACE/NAME` of its anchor.
pub const ANCHOR: &str = "mover.dev/anchor";
/// On anchors: `backup` or `restore`. On all else: the part that it has.
pub const ROLE: &str = "mover.dev/role";
/// The part of a claim that a restore has made for its user.
pub const TARGET: &str = "target";
/// On anchors: `running` or `ended`.
pub const STATE: &str = "mover.dev/state";
/// On anchors, Leases and bases: the uid of the claim that is backed up.
pub const SOURCE: &str = "mover.dev/source-uid";
/// On an anchor whose operation is to stop.
pub const CANCEL: &str = "mover.dev/cancel";
/// On a record of the controller: the uid of the object that it is for.
pub const FOR: &str = "mover.dev/for";
/// On a record of the controller: that it wrote the request.
pub const SEAL: &str = "mover.dev/seal";
/// Finalizer on our own objects while an operation runs for them.
pub const OPERATION: &str = "mover.dev/operation";
/// Finalizer on the VolumeRestore of a drill until its claim and its Job are gone.
pub const DRILL: &str = "mover.dev/drill";
/// Finalizer on a claim that is populated.
pub const POPULATE: &str = "mover.dev/populate";
/// Label of what a BackupSchedule makes: its uid.
pub const SCHEDULE: &str = "mover.dev/schedule";
/// On what a BackupSchedule makes: when it was due (RFC 3339).
pub const SCHEDULED: &str = "mover.dev/scheduled-time";
/// On a base: `VOLUME in URL`, where its backup is.
pub const BASE_OF: &str = "mover.dev/base-of";
/// On a VolumeGroupSnapshot that stays: whose snapshots it has, as JSON.
pub const MEMBERS: &str = "mover.dev/members";
/// On a snapshot that somebody else took and gave away: its own uid. Labels may have been copied from
/// a claim, and so from another object; that they are meant for this one shows here.
pub const GIVEN: &str = "mover.dev/given";
/// On a snapshot, `true`: it stays by count and age. It may be a base as well.
pub const RETAINED: &str = "mover.dev/retained";
/// Where there was no room for a snapshot: which refusal, and which older snapshot goes for that.
pub const ROOM: &str = "mover.dev/makes-room";
/// On a Lease: the attempt to take a snapshot under a lock.
pub const ATTEMPT: &str = "mover.dev/attempt";
/// The number of the only attempt where there is no lock.
pub(super) const FIRST: &str = "1";
/// On a Lease: the driver that makes this attempt.
pub const DRIVER: &str = "mover.dev/driver";
/// On a snapshot: `true` where the lock lived until it was taken, else why not.
pub const QUIESCED: &str = "mover.dev/quiesced";
/// On ConfigMaps that are Repositories, and on pods that share the nodes of one.
pub const REPOSITORY: &str = "mover.dev/repository";
/// On a pod: its place on a node, of which each has one pod at most.
pub const SLOT: &str = "mover.dev/slot";
/// On a volume: the restore that began to write it in place, and has not proved it.
pub const HALF_WRITTEN: &str = "mover.dev/half-written";
/// On a volume that is restored in place: how its claim was, and which operation holds it.
pub const HELD: &str = "mover.dev/in-place";
/// On a volume: the uid of the operation that was restored in place last, and has ended.
pub const ENDED: &str = "mover.dev/in-place-ended";
/// On a claim that is about to be exchanged: the uid of the operation.
pub const CLAIMED: &str = "mover.dev/in-place";
/// On a volume: the backup that it came out of.
pub const RESTORED: &str = "mover.dev/restored-from";
/// On our block claim: why it was made of no snapshot, where one was preferred.
pub const FROM_BUCKET: &str = "mover.dev/from-bucket";
/// Member of a summary: the backup that an earlier restore gave to the claim, and that was all.
pub const COMPLETED: &str = "completed_earlier";
/// Role of the Jobs' account: it may look at snapshots, for the service of changed blocks.
pub const CHANGES_ROLE: &str = "mover-changed-blocks";
/// Role of the Jobs that look after a repository; each goes once its result is recorded.
pub const MAINTENANCE: &str = "maintenance";
/// On a VolumeBackup that a Repository made of what it found: the uid of the Repository.
pub const RECORDED: &str = "mover.dev/recorded";
/// On it: how the backup is, as the repository says.
pub const FOUND: &str = "mover.dev/found";
/// Of a snapshot that was imported, and of its content: the backup that was made of it.
pub const IMPORTED: &str = "mover.dev/imported-of";
/// Of both: the run of the command that made it.
pub const IMPORT: &str = "mover.dev/import";
/// Lets a block volume be made of a filesystem's snapshot.
pub const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// The anchor of an operation: its object of record, and whose uid names everything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// A ConfigMap in the claim's namespace.
    pub key: Key,
    /// Its uid.
    pub uid: String,
    /// The number of one of its claims, where it is about several: names of its own follow for each.
    pub member: Option<u32>,
}

impl Anchor {
    /// All of it.
    pub fn new(key: Key, uid: String) -> Self {
        Self { key, uid, member: None }
    }

    /// The part of it that is about one of its claims.
    pub fn of_member(&self, number: u32) -> Self {
        Self { member: Some(number), ..self.clone() }
    }

    /// The id of the backup that it makes.
    pub fn id(&self) -> String {
        match self.member {
            Some(number) => format!("{}-m{number}", self.uid),
            None => self.uid.clone(),
        }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.key.namespace.as_deref().unwrap_or_default()
    }

    /// The volume that the Job reads or writes.
    pub fn volume(&self, namespace: &str) -> Key {
        Key::new(Kind::PersistentVolumeClaim, namespace, &format!("mover-{}", self.id()))
    }

    /// The snapshot of an attempt.
    pub fn snapshot(&self, attempt: u32) -> Key {
        let name = format!("mover-{}-{attempt}", self.id());
        Key::new(Kind::VolumeSnapshot, self.namespace(), &name)
    }

    /// The snapshot of all its claims, of an attempt.
    pub fn group(&self, attempt: u32) -> Key {
        let name = format!("mover-{}-{attempt}", self.uid);
        Key::new(Kind::VolumeGroupSnapshot, self.namespace(), &name)
    }

    /// The snapshot that stands for it in the Repository's namespace.
    pub fn handed_snapshot(&self, namespace: &str) -> Key {
        Key::new(Kind::VolumeSnapshot, namespace, &format!("mover-{}", self.id()))
    }

    /// The content of that.
    pub fn handed_content(&self) -> Key {
        Key::wide(Kind::VolumeSnapshotContent, &format!("mover-{}", self.id()))
    }

    /// The Job of a try: another one only where a pod took its result with it.
    pub fn job(&self, namespace: &str, number: u32) -> Key {
        Key::new(Kind::Job, namespace, &format!("mover-{}-{number}", self.id()))
    }

    /// The Secret with a part of the objects that go with its backups: one for all of its claims.
    pub fn part(&self, namespace: &str, number: u32) -> Key {
        Key::new(Kind::Secret, namespace, &format!("mover-{}-objects-{number}", self.uid))
    }

    /// The volume object that is made for a volume of the storage which has one already.
    pub fn handed_volume(&self) -> Key {
        handed_volume(&self.uid)
    }

    /// `metadata` of an object that the operation makes.
    pub fn meta(&self, key: &Key, role: &str) -> Value {
        let mut meta = Map::new();
        meta.insert("name".into(), key.name.clone().into());
        if let Some(namespace) = &key.namespace {
            meta.insert("namespace".into(), namespace.clone().into());
        }
        meta.insert(
            "labels".into(),
            json!({ "app.kubernetes.io/managed-by": MANAGER, OWNER: self.uid, ROLE: role }),
        );
        let anchor = format!("{}/{}", self.namespace(), self.key.name);
        meta.insert("annotations".into(), json!({ ANCHOR: anchor }));
        if key.namespace == self.key.namespace {
            meta.insert("ownerReferences".into(), json!([self.reference()]));
        }
        meta.into()
    }

    /// As an owner.
    pub fn reference(&self) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": self.key.name, "uid": self.uid })
    }
}

/// The uid of the operation that made a backup of this id, if one of ours did.
pub fn operation_of(id: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match id.rsplit_once("-m") {
        Some((uid, number)) if is_number(number) => uid,
        _ => id,
    }
}

/// This very backup of this very volume, as `mover` takes it. A bare id is looked for in all volumes,
/// where it may be the beginning of another one.
pub fn stored_name(volume: &str, id: &str) -> String {
    format!("{volume}@id:{id}")
}

/// The volume object that an operation of this uid makes.
pub(super) fn handed_volume(uid: &str) -> Key {
    Key::wide(Kind::PersistentVolume, &format!("mover-{uid}"))
}

/// The Lease that serialises operations on one claim that exists.
pub fn source_lease(namespace: &str, claim_uid: &str) -> Key {
    Key::new(Kind::Lease, namespace, &format!("mover-{claim_uid}"))
}

/// The Lease that serialises restores to one claim that does not exist yet.
pub fn target_lease(namespace: &str, claim: &str) -> Key {
    Key::new(Kind::Lease, namespace, &format!("mover-to-{claim}"))
}

/// A number that follows from a text: FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>), so that
/// names which begin alike differ.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// An object to be made.
pub fn object(key: &Key, metadata: Value, mut body: Value) -> Value {
    let members = body.as_object_mut().expect("a body is an object");
    members.insert("apiVersion".into(), key.kind.api_version().into());
    members.insert("kind".into(), key.kind.word().into());
    members.insert("metadata".into(), metadata);
    body
}
