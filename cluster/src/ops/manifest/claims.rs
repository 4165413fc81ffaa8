//! What objects say of claims, before any of them is made again.
//!
//! The volume of a claim comes back by a restore of its own, and the new claim has nothing but its
//! name. Whoever looks after volumes knows them by more: an operator takes a claim without its labels
//! for none, and begins with an empty one, or sets aside what it finds in it. So claims come first:
//! each has to be there, and gets the labels and annotations that it lacks. Its owners do not come
//! back: an owner that is deleted takes what it owns along, and a volume is not to go by a restore.

use super::place::Place;
use super::restore::{CONTENDED, Maker, Remade, RemadeObject, Updates, contended};
use crate::api::{ApiError, FIELD_MANAGER};
use crate::engine::{Failure, GROUP, MANAGER, RESTORED, ROLE, TARGET, exit};
use crate::manifest::{Item, ItemKind, ObjectManifest, Pairs, is_object_name};
use http::Method;
use serde_json::{Map, Value, json};

/// Annotations of whoever made and bound the volume, which is another one now.
const OF_THE_VOLUME: &[&str] =
    &["pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/"];
/// Labels and annotations of our own.
const OURS: &str = "mover.dev/";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Claims that are named in one error.
const NAMED: usize = 10;

/// What a claim gets, and what it keeps.
struct Marks {
    patch: Value,
    is_empty: bool,
    /// Labels and annotations that have another value, which stays.
    kept: usize,
}

impl Maker<'_> {
    /// Looks at all claims, and then gives them what they lack.
    ///
    /// # Errors
    ///
    /// A claim that is not there, or that is somebody else's, and one that may not be read or changed,
    /// unless this is a dry run or claims are ignored. Nothing was made by then.
    pub(super) async fn claims(
        &self,
        manifest: &ObjectManifest,
    ) -> Result<Vec<RemadeObject>, Failure> {
        let mut all = Vec::new();
        let mut wrong = Vec::new();
        for item in manifest.claims() {
            let namespace = self.how.namespaces.of(&item.namespace).to_owned();
            let place = Place { of: (*item.of).clone(), namespace, name: item.name.to_string() };
            let what = self.or_ignored(self.claim(&place, item).await.map(|(what, _)| what))?;
            wrong.extend(why_not(&what).map(|why| claim_is(&place, why)));
            all.push((item, place, what));
        }
        if !self.how.dry_run {
            if !self.how.ignore_claims && !wrong.is_empty() {
                return Err(stopped(&wrong));
            }
            for (item, place, what) in &mut all {
                if matches!(what, Remade::Marked(_)) {
                    *what = self.or_ignored(self.mark(place, item).await)?;
                }
            }
        }
        let told = |(_, place, what): (&Item, Place, Remade)| {
            let what = match what {
                Remade::Going if self.how.ignore_claims => {
                    Remade::Ignored("it is being deleted".into())
                }
                what => what,
            };
            RemadeObject { object: place.shown(), what }
        };
        Ok(all.into_iter().map(told).collect())
    }

    /// What is wrong with a claim is no error where claims are ignored.
    fn or_ignored(&self, looked: Result<Remade, Failure>) -> Result<Remade, Failure> {
        match looked {
            Err(why) if self.how.ignore_claims && why.exit_code != exit::RETRYABLE => {
                Ok(Remade::Ignored(why.message))
            }
            looked => looked,
        }
    }

    /// What a claim is, and what it would get; nothing of one that is not there.
    async fn claim(&self, place: &Place, item: &Item) -> Result<(Remade, Option<Marks>), Failure> {
        let Some(found) = self.found(place).await? else { return Ok((Remade::Missing, None)) };
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return Ok((Remade::Going, None));
        }
        let marks = self.marks(place, item, &found);
        let is_it = marks.is_empty && marks.kept == 0;
        match is_it || self.replaces(place) || self.is_known(item, &found).await? {
            true => Ok((marks.what(), Some(marks))),
            false => Ok((Remade::Foreign, None)),
        }
    }

    /// Whether a restore made the claim, or wrote its volume, or it is the very one that was saved. Any
    /// other one of its name may be empty, or of another application.
    async fn is_known(&self, item: &Item, found: &Value) -> Result<bool, Failure> {
        let metadata = &found["metadata"];
        let is_restored = metadata["annotations"].get(RESTORED).is_some()
            || metadata["labels"].get(ROLE).and_then(Value::as_str) == Some(TARGET)
            || metadata["uid"].as_str() == Some(&item.uid)
            || found["spec"]["dataSourceRef"]["apiGroup"] == GROUP;
        let volume = found["spec"]["volumeName"].as_str().unwrap_or_default();
        if is_restored || volume.is_empty() || !is_object_name(volume) {
            return Ok(is_restored);
        }
        let of = ItemKind {
            group: String::new(),
            resource: "persistentvolumes".into(),
            version: "v1".into(),
            kind: "PersistentVolume".into(),
            namespaced: false,
        };
        let place = Place { of, namespace: String::new(), name: volume.to_owned() };
        match self.found(&place).await {
            Ok(found) => {
                Ok(found.is_some_and(|at| at["metadata"]["annotations"].get(RESTORED).is_some()))
            }
            // Whoever may not look cannot know.
            Err(ApiError::Refused(_)) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    fn replaces(&self, place: &Place) -> bool {
        match &self.how.updates {
            Updates::None => false,
            Updates::All => true,
            Updates::These(all) => all.contains(&place.shown()),
        }
    }

    fn marks(&self, place: &Place, item: &Item, found: &Value) -> Marks {
        let replaces = self.replaces(place);
        let mut kept = 0;
        let mut missing = |saved: &Pairs, member: &str| {
            let now = &found["metadata"][member];
            let mut new = Map::new();
            for (name, value) in saved.iter().filter(|(name, value)| is_kept(name, value)) {
                match now.get(name).and_then(Value::as_str) {
                    Some(now) if now == value => {}
                    // A restore has said that of it, and it is its user's by now.
                    Some(now) if replaces || (name, now) == (MANAGED_BY, MANAGER) => {
                        new.insert(name.to_owned(), value.into());
                    }
                    Some(_) => kept += 1,
                    None => drop(new.insert(name.to_owned(), value.into())),
                }
            }
            new
        };
        let (labels, annotations) =
            (missing(&item.labels, "labels"), missing(&item.annotations, "annotations"));
        let is_empty = labels.is_empty() && annotations.is_empty();
        let patch = json!({ "metadata": {
            "uid": found["metadata"]["uid"],
            "resourceVersion": found["metadata"]["resourceVersion"],
            "labels": labels,
            "annotations": annotations,
        }});
        Marks { patch, is_empty, kept }
    }

    async fn mark(&self, place: &Place, item: &Item) -> Result<Remade, Failure> {
        for _ in 0..CONTENDED {
            let (what, marks) = self.claim(place, item).await?;
            if let Some(why) = why_not(&what) {
                return Err(stopped(&[claim_is(place, why)]));
            }
            let Some(marks) = marks.filter(|marks| !marks.is_empty) else { return Ok(what) };
            let body = serde_json::to_vec(&marks.patch).expect("JSON");
            let sent = Some(("application/merge-patch+json", body));
            let query = [("fieldManager", FIELD_MANAGER)];
            let asked = place.asked("label", "patch");
            match self.api.request(Method::PATCH, &place.path(), &query, sent, asked).await {
                Ok(_) => return Ok(what),
                // Somebody changed it meanwhile, or it is gone.
                Err(ApiError::Conflict(_) | ApiError::Absent(_)) => {}
                Err(why) => return Err(why.into()),
            }
        }
        Err(contended(place))
    }
}

impl Marks {
    fn what(&self) -> Remade {
        match (self.is_empty, self.kept) {
            (true, 0) => Remade::Same,
            (true, _) => Remade::Differs,
            (false, kept) => Remade::Marked(kept),
        }
    }
}

fn is_kept(name: &str, value: &str) -> bool {
    !name.starts_with(OURS)
        && (name, value) != (MANAGED_BY, MANAGER)
        && !OF_THE_VOLUME.iter().any(|of| name.starts_with(of))
}

fn why_not(what: &Remade) -> Option<&'static str> {
    match what {
        Remade::Missing => Some("is not there"),
        Remade::Going => Some("is being deleted"),
        Remade::Foreign => {
            Some("was made by no restore, and has not the labels and annotations that were saved")
        }
        _ => None,
    }
}

fn claim_is(place: &Place, why: &str) -> String {
    format!("pvc/{} in namespace {} {why}", place.name, place.namespace)
}

fn stopped(wrong: &[String]) -> Failure {
    let mut shown = wrong.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if wrong.len() > NAMED {
        shown = format!("{shown}, and {} more", wrong.len() - NAMED);
    }
    Failure::new(exit::USAGE, format!("{shown}: no object was made")).hint(
        "restore volumes first, by `kubectl mover restore`: whoever does not find them begins with \
         empty ones. One that others made becomes it by its labels (kubectl label, or --existing \
         update), and --ignore-claims makes the objects all the same",
    )
}
