//! Which backups of a repository a namespace may restore.

use super::super::request::notes::NAMESPACE_UID;
use super::super::step::{Failure, exit};
use crate::kinds::Grant;

/// Whoever wants to restore.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The uid of that: one that is made anew under an old name is another one.
    pub uid: &'a str,
}

/// Whether a backup of a volume may be restored to a namespace. In that of the Repository
/// everything may: the keys are there. Elsewhere a volume has to be of that very namespace in this
/// cluster, which its notes say, or be granted.
///
/// `home` is the Repository's namespace and `cluster` how this cluster's volumes begin. `note` reads
/// one of the backup's labels.
///
/// # Errors
///
/// It may not, with the next step.
pub fn may_restore<'n>(
    (home, cluster): (&str, &str),
    grants: &[Grant],
    volume: &str,
    note: impl Fn(&str) -> Option<&'n str>,
    asker: Asker<'_>,
) -> Result<(), Failure> {
    let Asker { namespace, uid } = asker;
    if namespace == home {
        return Ok(());
    }
    let granted = |grant: &Grant| {
        grant.namespace == namespace && grant.volumes.iter().any(|of| covers(of, volume))
    };
    if grants.iter().any(granted) {
        return Ok(());
    }
    let mut parts = volume.splitn(3, '/');
    let own = parts.next() == Some(cluster) && parts.next() == Some(namespace);
    let what = match (own && parts.next().is_some(), note(NAMESPACE_UID)) {
        (true, Some(noted)) if noted == uid && !uid.is_empty() => return Ok(()),
        (true, Some(_)) => format!(
            "volume {volume} was backed up in an earlier namespace {namespace}, which is another one"
        ),
        (true, None) => {
            format!("the backup of volume {volume} does not say in which namespace it was made")
        }
        (false, _) => format!("volume {volume} is not of namespace {namespace}"),
    };
    Err(Failure::new(exit::DENIED, what).hint(format!(
        "whoever owns the Repository grants it: spec.grants with namespace {namespace} and this volume"
    )))
}

/// Whether a text with `*` for whole parts means a volume.
fn covers(text: &str, volume: &str) -> bool {
    let (wanted, parts): (Vec<&str>, Vec<&str>) =
        (text.splitn(3, '/').collect(), volume.splitn(3, '/').collect());
    wanted.len() == parts.len()
        && wanted.iter().zip(&parts).all(|(wanted, part)| *wanted == "*" || wanted == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(namespace: &str, volume: &str) -> Grant {
        Grant { namespace: namespace.into(), volumes: vec![volume.into()] }
    }

    /// Asks as the namespace `shop` of uid `u1` for a backup whose note is this one.
    fn ask(grants: &[Grant], volume: &str, noted: Option<&str>) -> Result<(), String> {
        let note = |name: &str| noted.filter(|_| name == "kubernetes/namespace-uid");
        let asker = Asker { namespace: "shop", uid: "u1" };
        may_restore(("mover-system", "c1"), grants, volume, note, asker).map_err(|why| {
            assert_eq!(why.exit_code, exit::DENIED);
            assert!(why.hint.is_some_and(|hint| hint.contains("spec.grants")));
            why.message
        })
    }

    #[test]
    fn a_namespace_has_its_own_backups_and_no_others() {
        ask(&[], "c1/shop/db", Some("u1")).expect("its own");
        for (volume, noted, why) in [
            ("c1/shop/db", Some("u0"), "earlier namespace"),
            ("c1/shop/db", None, "does not say"),
            ("c1/web/db", Some("u1"), "not of namespace shop"),
            ("c2/shop/db", Some("u1"), "not of namespace shop"),
            ("c1/shop", Some("u1"), "not of namespace shop"),
            ("db", Some("u1"), "not of namespace shop"),
            ("c1/shopping/db", Some("u1"), "not of namespace shop"),
        ] {
            let said = ask(&[], volume, noted).expect_err(volume);
            assert!(said.contains(why), "{volume}: {said}");
        }
    }

    #[test]
    fn a_uid_that_nobody_knows_is_nobodys() {
        let asker = Asker { namespace: "shop", uid: "" };
        let note = |_: &str| Some("");
        may_restore(("mover-system", "c1"), &[], "c1/shop/db", note, asker)
            .expect_err("two unknown ones are not the same");
    }

    #[test]
    fn a_grant_is_for_its_namespace_and_its_volumes() {
        let volume = "old/shop/db";
        ask(&[grant("shop", volume)], volume, None).expect("by its name");
        ask(&[grant("shop", "old/shop/*")], volume, None).expect("any claim");
        ask(&[grant("shop", "*/*/*")], volume, None).expect("all");
        for other in ["*", "old/*", "old/sho*/db", "old/shop/db/x", "old/shop/"] {
            ask(&[grant("shop", other)], volume, None).expect_err(other);
        }
        ask(&[grant("web", "*/*/*")], volume, None).expect_err("another namespace's");
    }

    #[test]
    fn where_the_keys_are_everything_may_be_restored() {
        let asker = Asker { namespace: "mover-system", uid: "x" };
        may_restore(("mover-system", "c1"), &[], "any/thing/here", |_| None, asker).expect("all");
    }
}
