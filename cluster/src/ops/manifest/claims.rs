//! What objects say of claims, before any of them is made again.
//!
//! The volume of a claim comes back by a restore of its own, and the new claim has nothing but its
//! name. Whoever looks after volumes knows them by more: an operator takes a claim without its labels
//! for none, and begins with an empty one, or sets aside what it finds in it. So claims come first:
//! each has to be there, and gets the labels and annotations that it lacks. Its owners do not come
//! back: an owner that is deleted takes what it owns along, and a volume is not to go by a restore.

use super::restore::{CONTENDED, Maker, Place, Remade, RemadeObject, Updates, contended};
use crate::api::{ApiError, FIELD_MANAGER};
use crate::engine::{Failure, MANAGER, exit};
use crate::manifest::{Item, Pairs};
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
    /// A claim that is not there, unless this is a dry run, and one that may not be read or changed:
    /// nothing was made by then.
    pub(super) async fn claims(&self, items: &[Item]) -> Result<Vec<RemadeObject>, Failure> {
        let mut all = Vec::new();
        let mut absent = Vec::new();
        let claims = items.iter().filter(|item| item.is_claim());
        for item in claims {
            let namespace = self.how.namespaces.of(&item.namespace).to_owned();
            let place = Place { of: (*item.of).clone(), namespace, name: item.name.to_string() };
            let what = match self.found(&place).await? {
                None => Remade::Missing,
                Some(found) if is_going(&found) => Remade::Going,
                Some(found) => self.marks(&place, item, &found).what(),
            };
            if matches!(what, Remade::Missing | Remade::Going) {
                absent.push(place.clone());
            }
            all.push((item, place, what));
        }
        if !self.how.dry_run {
            if !absent.is_empty() {
                return Err(absence(&absent));
            }
            for (item, place, what) in &mut all {
                if matches!(what, Remade::Marked(_)) {
                    *what = self.mark(place, item).await?;
                }
            }
        }
        let told =
            |(_, place, what): (&Item, Place, Remade)| RemadeObject { object: place.shown(), what };
        Ok(all.into_iter().map(told).collect())
    }

    fn marks(&self, place: &Place, item: &Item, found: &Value) -> Marks {
        let replaces = match &self.how.updates {
            Updates::None => false,
            Updates::All => true,
            Updates::These(all) => all.contains(&place.shown()),
        };
        let mut kept = 0;
        let mut missing = |saved: &Pairs, member: &str| {
            let now = &found["metadata"][member];
            let mut new = Map::new();
            for (name, value) in saved.iter().filter(|(name, value)| is_kept(name, value)) {
                match now.get(name).and_then(Value::as_str) {
                    Some(now) if now == value => {}
                    Some(_) if !replaces => kept += 1,
                    _ => drop(new.insert(name.to_owned(), value.into())),
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
            let found = self.found(place).await?.filter(|found| !is_going(found));
            let Some(found) = found else {
                return Err(absence(std::slice::from_ref(place)));
            };
            let marks = self.marks(place, item, &found);
            if marks.is_empty {
                return Ok(marks.what());
            }
            let what = marks.what();
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

fn is_going(found: &Value) -> bool {
    !found["metadata"]["deletionTimestamp"].is_null()
}

fn absence(absent: &[Place]) -> Failure {
    let text = |place: &Place| format!("pvc/{} in namespace {}", place.name, place.namespace);
    let mut shown = absent.iter().take(NAMED).map(text).collect::<Vec<_>>().join(", ");
    if absent.len() > NAMED {
        shown = format!("{shown} and {} more", absent.len() - NAMED);
    }
    let what = format!("{shown}: not there, or being deleted, and no object was made");
    Failure::new(exit::USAGE, what).hint(
        "restore volumes first, by `kubectl mover restore`: whoever does not find them begins with \
         empty ones. --without-claims makes the objects all the same",
    )
}
