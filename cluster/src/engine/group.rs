//! A backup of several claims, each as it was at one moment.
//!
//! One anchor, one Lease for each claim, and one attempt to take their snapshots: a VolumeGroupSnapshot,
//! or, where the driver has none, a snapshot of each under one lock. From there each member goes the
//! way of the backup of one claim, under names of its own. What becomes of one member ends no other.
//!
//! The snapshot controller names the members of a VolumeGroupSnapshot. So they are found by what the
//! status of each says, and taken only if the contents say the same: the content of the group names the
//! volume and its snapshot in the storage, and the content of the member points back.

mod kept;

use super::backup::{self, Begun, await_ready, await_snapshot, content_of, is_content_of};
use super::carried;
use super::names::{self, Anchor};
use super::object::{Key, Kind, Query, Selection};
use super::observed::Object;
use super::parts::Context;
use super::quiesce::{self, Cut};
use super::request::{Backup, ClaimRef, Group};
use super::step::{Failure, Next, Planned, Step, Stop, Wait, exit};
use super::views::{Claim, Content, GroupContent, Snapshot};
pub use kept::claims_of;
pub(super) use kept::{keep, remove_own};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Members whose volume or Job is there at the same time.
const AT_ONCE: usize = 10;
const NO_CLASS: &str = "the driver has no VolumeGroupSnapshotClass: the snapshots are of single volumes, \
                        taken under one lock";

/// What an operation has come to.
#[derive(Debug)]
pub(super) struct Ended {
    /// What its Job said; of a group, what became of each member.
    pub(super) summary: Value,
    /// Why it is not complete, if it is not.
    pub(super) failed: Option<Failure>,
}

impl From<Value> for Ended {
    fn from(summary: Value) -> Self {
        Self { summary, failed: None }
    }
}

/// The members, each with the part of the anchor that is about it.
pub(super) fn members<'a>(
    anchor: &Anchor,
    group: &'a Group,
) -> impl Iterator<Item = (Anchor, &'a Backup)> {
    (1..).zip(&group.members).map(|(number, member)| (anchor.of_member(number), member))
}

/// Asks for the snapshot of all claims.
pub(super) fn make(anchor: &Anchor, group: &Group, class: &str, key: &Key) -> Step {
    let body = json!({ "spec": {
        "source": { "selector": { "matchLabels": group.selector } },
        "volumeGroupSnapshotClassName": class,
    } });
    Step::Create(names::object(key, anchor.meta(key, "snapshot"), body))
}

/// What became of each member, or what comes before that.
pub(super) fn plan(context: &Context<'_>, group: &Group) -> Planned<Ended> {
    let all: Vec<(Anchor, &Backup)> = members(context.anchor, group).collect();
    // In one order for all groups: some wait for others while they hold some already.
    let lease = |of: &ClaimRef| names::source_lease(&of.namespace, &of.uid);
    let mut sources: Vec<&ClaimRef> = all.iter().map(|(_, member)| &member.source).collect();
    sources.sort_by_key(|of| lease(of));
    for source in sources {
        let of = format!("pvc/{} in namespace {}", source.name, source.namespace);
        context.hold(&lease(source), &of)?;
    }
    let mut begun = Vec::new();
    for (anchor, member) in &all {
        let at = backup::begun(&Context { anchor, ..*context }, member);
        begun.push(match at {
            Ok(at) => Ok(at),
            Err(Stop::Failure(why)) => Err(why),
            Err(next) => return Err(next),
        });
    }
    let any =
        |wanted: &[Begun]| begun.iter().any(|at| at.as_ref().is_ok_and(|at| wanted.contains(at)));
    if any(&[Begun::Nothing, Begun::Volume])
        && let Some(first) = group.members.first()
    {
        carried::hand_over(context, first)?;
    }
    let cut = Cut::of_group(context.anchor, group);
    let taken = match () {
        () if !any(&[Begun::Nothing, Begun::Volume]) => Vec::new(),
        () if any(&[Begun::Volume, Begun::Job]) => {
            let keys = cut.keys(quiesce::attempt(context, &cut)?);
            keys.iter().map(|key| backup::taken(context, key)).collect::<Planned<_>>()?
        }
        () => {
            for (_, member) in &all {
                backup::whole(context, member)?;
            }
            quiesce::snapshots(context, &cut)?
        }
    };
    let name = of_one_moment(context, group, &begun, &taken)?;
    let of_group = match (&group.class, taken.as_slice()) {
        (Some(_), [one]) => of_members(context, group, one)?,
        _ => Vec::new(),
    };
    let mut ends = Ends::default();
    for (number, (anchor, member)) in all.iter().enumerate() {
        if ends.waits.len() >= AT_ONCE {
            break;
        }
        let context = Context { anchor, ..*context };
        let done = match (&begun[number], of_group.get(number), taken.get(number)) {
            (Err(why), ..) => Err(why.clone().into()),
            (Ok(Begun::Job), ..) => {
                backup::resumed(&context, member, || by_its_job(&context, group, member, &cut))
            }
            (_, Some((snapshot, content)), _) => {
                backup::moved(&context, member, (snapshot, content), name.as_deref())
            }
            (_, None, Some(snapshot)) => one(&context, member, snapshot, name.as_deref()),
            (_, None, None) => unreachable!("a member without a Job has a snapshot"),
        };
        ends.add(member, context.seen.settle(done))?;
    }
    ends.all(group)
}

/// The name of the attempt that all members are of. Drivers that do not know of each other may have
/// made Jobs of two attempts: such members are not of one moment.
fn of_one_moment(
    context: &Context<'_>,
    group: &Group,
    begun: &[Result<Begun, Failure>],
    taken: &[Object<Snapshot>],
) -> Planned<Option<String>> {
    let attempt = taken.first().and_then(|first| first.key.name.rsplit('-').next());
    let name = attempt.map(|attempt| format!("mover-{}-{attempt}", context.anchor.uid));
    let mut names: BTreeSet<String> = name.iter().cloned().collect();
    for ((anchor, member), at) in members(context.anchor, group).zip(begun) {
        if matches!(at, Ok(Begun::Job)) {
            names.extend(backup::group_of_job(&Context { anchor: &anchor, ..*context }, member)?);
        }
    }
    if names.len() > 1 {
        let names: Vec<String> = names.into_iter().collect();
        let what = format!("the claims were snapshotted at several moments: {}", names.join(", "));
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again").into());
    }
    Ok(name)
}

/// A member that has a snapshot of its own.
fn one(
    context: &Context<'_>,
    member: &Backup,
    snapshot: &Object<Snapshot>,
    group: Option<&str>,
) -> Planned<Value> {
    await_ready(context, member, snapshot)?;
    let content = content_of(context, member, snapshot)?;
    backup::moved(context, member, (snapshot, &content), group)
}

/// The snapshot of a member that has a Job, as the volume of that Job names it.
fn by_its_job(
    context: &Context<'_>,
    group: &Group,
    member: &Backup,
    cut: &Cut<'_>,
) -> Planned<Option<Object<Snapshot>>> {
    let volume = context.anchor.volume(&member.repository.namespace);
    let named = context.seen.find::<Claim>(&volume)?;
    let named = named.and_then(|claim| claim.body.spec.data_source?.name);
    let key = match (&group.class, named) {
        (Some(_), Some(name)) => Key::new(Kind::VolumeSnapshot, &group.namespace, &name),
        (Some(_), None) => return Ok(None),
        (None, _) => context.anchor.snapshot(quiesce::attempt(context, cut)?),
    };
    context.seen.find(&key)
}

/// What became of members so far.
#[derive(Default)]
struct Ends {
    summaries: Vec<Value>,
    failed: Vec<(String, Failure)>,
    waits: Vec<Wait>,
}

impl Ends {
    /// Takes in what comes next for a member. What it has to do is done before others are looked at.
    fn add(&mut self, member: &Backup, planned: Planned<Value>) -> Planned<()> {
        let (claim, volume) = (&member.source.name, &member.volume);
        match planned {
            Ok(mut summary) => {
                summary["claim"] = claim.clone().into();
                summary["volume"] = volume.clone().into();
                self.summaries.push(summary);
            }
            Err(Stop::Failure(why)) => {
                self.summaries.push(json!({
                    "claim": claim,
                    "volume": volume,
                    "failed": why.to_string(),
                    "exit_code": why.exit_code,
                }));
                self.failed.push((claim.clone(), why));
            }
            Err(Stop::Next(Next::Wait(wait))) => self.waits.push(*wait),
            Err(next) => return Err(next),
        }
        Ok(())
    }

    /// All together, once nothing is waited for.
    fn all(self, group: &Group) -> Planned<Ended> {
        if let Some(first) = self.waits.first() {
            let rest = self.waits.len() - 1;
            let why = match rest {
                0 => first.why.clone(),
                _ => format!("{}; and {rest} more", first.why),
            };
            let on: BTreeSet<Query> = self.waits.iter().flat_map(|at| at.on.clone()).collect();
            let time = self.waits.iter().map(|at| at.time).min().unwrap_or_default();
            let pod = self.waits.iter().find_map(|at| at.pod.clone());
            return Err(Wait { pod, ..Wait::new(on.into_iter().collect(), why, time) }.into());
        }
        let mut summary = json!({ "members": self.summaries });
        if group.class.is_none() {
            summary["warnings"] = json!([NO_CLASS]);
        }
        let failed = self.failed.first().map(|(_, first)| {
            let each =
                self.failed.iter().map(|(claim, why)| format!("pvc/{claim}: {}", why.message));
            let each = each.collect::<Vec<_>>().join("; ");
            let (bad, all) = (self.failed.len(), group.members.len());
            let message = format!("{bad} of {all} claims of the group failed: {each}");
            Failure { message, ..first.clone() }
        });
        Ok(Ended { summary, failed })
    }
}

/// The content of a group, if each of both names the other.
fn content_of_group(
    context: &Context<'_>,
    group: &Group,
    snapshot: &Object<Snapshot>,
) -> Planned<Object<GroupContent>> {
    let Some(name) = &snapshot.body.status.bound_volume_group_snapshot_content_name else {
        return await_snapshot(context, snapshot, "bound", Vec::new());
    };
    let key = Key::wide(Kind::VolumeGroupSnapshotContent, name);
    let Some(content) = context.seen.find::<GroupContent>(&key)? else {
        let what = format!("{} names {key}, which does not exist", snapshot.key);
        return Err(Failure::new(exit::RETRYABLE, what).into());
    };
    let is_driver = group.members.iter().all(|member| member.driver == content.body.spec.driver);
    if !is_bound(&content, snapshot) || !is_driver {
        let what = format!(
            "{} names {key}, which is the content of another group or driver",
            snapshot.key
        );
        return Err(Failure::new(exit::DENIED, what)
            .hint("somebody wrote the status of the VolumeGroupSnapshot: find out who may")
            .into());
    }
    Ok(content)
}

/// Whether a content points back to its group.
fn is_bound(content: &Object<GroupContent>, snapshot: &Object<Snapshot>) -> bool {
    let back = &content.body.spec.volume_group_snapshot_ref;
    back.uid.as_deref() == Some(&snapshot.meta.uid)
        && back.namespace == snapshot.key.namespace
        && back.name.as_deref() == Some(&snapshot.key.name)
}

type Member = (Object<Snapshot>, Object<Content>);

/// The snapshot of each member, in their order, once the group is ready.
fn of_members(
    context: &Context<'_>,
    group: &Group,
    snapshot: &Object<Snapshot>,
) -> Planned<Vec<Member>> {
    let content = content_of_group(context, group, snapshot)?;
    is_whole(context, group, &content)?;
    if snapshot.body.status.ready_to_use != Some(true) {
        return await_snapshot(context, snapshot, "ready", vec![content.key.into()]);
    }
    let mut found = Vec::new();
    for member in &group.members {
        let mut on = vec![all_snapshots(&group.namespace).into(), content.key.clone().into()];
        let Some(one) = member_of(context, snapshot, &content, member, &mut on)? else {
            let what = format!("{} has no snapshot of pvc/{}", snapshot.key, member.source.name);
            let seconds = context.limits.snapshot_seconds;
            return context.wait(on, &snapshot.meta.uid, seconds, what);
        };
        found.push(one);
    }
    Ok(found)
}

/// The snapshot of a member, if it is there and ready. `on` is what may change about that.
fn member_of(
    context: &Context<'_>,
    group: &Object<Snapshot>,
    content: &Object<GroupContent>,
    member: &Backup,
    on: &mut Vec<Query>,
) -> Planned<Option<Member>> {
    let namespace = group.key.namespace.as_deref().unwrap_or_default();
    let infos = &content.body.status.volume_snapshot_info_list;
    let info = infos.iter().find(|at| at.volume_handle == member.volume_handle);
    for candidate in context.seen.list::<Snapshot>(&all_snapshots(namespace))? {
        let name = &candidate.body.status.bound_volume_snapshot_content_name;
        let Some(name) = name.as_ref().filter(|_| is_named(&candidate, group, member)) else {
            continue;
        };
        let key = Key::wide(Kind::VolumeSnapshotContent, name);
        on.push(key.clone().into());
        let Some(of) = context.seen.find::<Content>(&key)? else { continue };
        let handle = of.body.status.snapshot_handle.as_ref();
        if is_content_of(&of, &candidate, member)
            && handle.is_some()
            && handle == info.map(|info| &info.snapshot_handle)
            && candidate.body.status.ready_to_use == Some(true)
        {
            return Ok(Some((candidate, of)));
        }
    }
    Ok(None)
}

/// Whether a snapshot says that it is that of a member in this group.
fn is_named(candidate: &Object<Snapshot>, group: &Object<Snapshot>, member: &Backup) -> bool {
    let claim = &candidate.body.spec.source.persistent_volume_claim_name;
    candidate.body.status.volume_group_snapshot_name.as_ref() == Some(&group.key.name)
        && claim.as_ref() == Some(&member.source.name)
        && candidate.meta.deletion_timestamp.is_none()
}

/// Members have no label that would choose them: the snapshot controller makes them.
fn all_snapshots(namespace: &str) -> Selection {
    Selection::labelled(Kind::VolumeSnapshot, namespace, "")
}

/// Whether the group is of the very volumes that were asked for: claims come and go, and get labels.
fn is_whole(context: &Context<'_>, group: &Group, content: &Object<GroupContent>) -> Planned<()> {
    let handles: BTreeSet<&String> = content.body.spec.source.volume_handles.iter().collect();
    let missing = group.members.iter().find(|member| !handles.contains(&member.volume_handle));
    let wanted: BTreeSet<&String> = group.members.iter().map(|at| &at.volume_handle).collect();
    let extra: Vec<&&String> = handles.difference(&wanted).collect();
    let what = match (missing, extra.as_slice()) {
        (None, []) => return Ok(()),
        (Some(member), _) => {
            format!("pvc/{} has left the group while it was made", member.source.name)
        }
        (None, [first, ..]) => match newcomer(context, group)? {
            Some(name) => format!("pvc/{name} has joined the group while it was made"),
            None => format!("volume {first} has joined the group while it was made"),
        },
    };
    Err(Failure::new(exit::RETRYABLE, format!("{what}: {} is of other claims", content.key))
        .hint("run the same command again")
        .into())
}

/// A claim that has the labels and is no member.
fn newcomer(context: &Context<'_>, group: &Group) -> Planned<Option<String>> {
    let labels = group.selector.iter().map(|(name, value)| format!("{name}={value}"));
    let labels = labels.collect::<Vec<_>>().join(",");
    let selection = Selection::labelled(Kind::PersistentVolumeClaim, &group.namespace, labels);
    let all = context.seen.list::<Claim>(&selection)?;
    let is_member = |claim: &Object<Claim>| {
        group.members.iter().any(|member| member.source.uid == claim.meta.uid)
    };
    Ok(all.into_iter().find(|claim| !is_member(claim)).map(|claim| claim.key.name))
}
