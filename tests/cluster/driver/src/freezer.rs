//! Pods that stand still: their control groups, frozen for a moment.
//!
//! The list of what is frozen is written down before anything is, so that a driver that is killed
//! meanwhile thaws it at its next start.

use crate::records::{remove_if_there, replace};
use crate::system::{Context, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Status;

/// Where control groups of pods begin: version 1 with its own freezer, and version 2.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"];
const LEVELS_MAX: usize = 4;
const DEADLINE: Duration = Duration::from_secs(5);

/// Control groups that stand still until this is thawed.
#[derive(Debug)]
pub(crate) struct Frozen {
    list: PathBuf,
    groups: Vec<PathBuf>,
}

impl Frozen {
    /// Freezes pods by their uids, and waits until they stand still. `folder` keeps the list.
    pub(crate) fn freeze(pods: BTreeSet<String>, folder: &Path) -> Result<Self, Status> {
        let mut groups = Vec::new();
        for pod in &pods {
            let found = control_groups(pod);
            if found.is_empty() {
                return Err(Status::aborted(format!(
                    "pod {pod} has a volume and no control group that can be frozen: repeat when \
                     it has ended"
                )));
            }
            groups.extend(found);
        }
        let frozen = Self { list: folder.join("frozen.json"), groups };
        if frozen.groups.is_empty() {
            return Ok(frozen);
        }
        let list = serde_json::to_vec(&frozen.groups).context(|| "list pods".to_owned())?;
        replace(&frozen.list, &list).context(|| format!("write {}", frozen.list.display()))?;
        for group in &frozen.groups {
            set(group, true)?;
        }
        let moving = || frozen.groups.iter().find(|group| !stands_still(group));
        if !wait_until(DEADLINE, || Ok(moving().is_none()))?
            && let Some(group) = moving()
        {
            return Err(Status::aborted(format!(
                "the pod in {} does not stand still within {DEADLINE:?}: repeat",
                group.display()
            )));
        }
        Ok(frozen)
    }

    /// Lets them go on, and says if one cannot.
    pub(crate) fn thaw(mut self) -> Result<(), Status> {
        self.thaw_all()
    }

    /// Lets go on what a killed driver has frozen.
    pub(crate) fn thaw_left_over(folder: &Path) -> Result<(), Status> {
        let list = folder.join("frozen.json");
        let Ok(bytes) = fs::read(&list) else { return Ok(()) };
        let groups = serde_json::from_slice(&bytes)
            .context(|| format!("parse the list {}", list.display()))?;
        Self { list, groups }.thaw()
    }

    fn thaw_all(&mut self) -> Result<(), Status> {
        let groups = std::mem::take(&mut self.groups);
        if groups.is_empty() {
            return Ok(());
        }
        // A pod may have ended meanwhile, with its group.
        let all = groups.iter().filter(|group| group.exists()).map(|group| set(group, false));
        let failed: Vec<_> = all.filter_map(Result::err).collect();
        failed.into_iter().next().map_or(Ok(()), Err)?;
        remove_if_there(&self.list).context(|| format!("remove {}", self.list.display()))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = self.thaw_all() {
            tracing::error!("pods stay frozen: {}", error.message());
        }
    }
}

/// The groups of a pod: one in each hierarchy that can freeze.
fn control_groups(pod: &str) -> Vec<PathBuf> {
    let names = [format!("pod{pod}"), format!("pod{}.slice", pod.replace('-', "_"))];
    let mut found = Vec::new();
    for root in ROOTS {
        let mut folders = vec![(PathBuf::from(root), 0)];
        while let Some((folder, level)) = folders.pop() {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            let entries = entries.flatten().map(|entry| entry.path());
            for path in entries.filter(|path| path.is_dir()) {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let is_pod = names.iter().any(|pod| name.ends_with(pod.as_str()));
                if is_pod && (path.join(V1).exists() || path.join(V2).exists()) {
                    found.push(path);
                } else if level < LEVELS_MAX && (level > 0 || name.contains("kubepods")) {
                    folders.push((path, level + 1));
                }
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    found
}

const V1: &str = "freezer.state";
const V2: &str = "cgroup.freeze";

fn set(group: &Path, frozen: bool) -> Result<(), Status> {
    let (file, value) = match (group.join(V1).exists(), frozen) {
        (true, true) => (V1, "FROZEN"),
        (true, false) => (V1, "THAWED"),
        (false, true) => (V2, "1"),
        (false, false) => (V2, "0"),
    };
    fs::write(group.join(file), value)
        .context(|| format!("write {value} to {file} of {}", group.display()))
}

fn stands_still(group: &Path) -> bool {
    match fs::read_to_string(group.join(V1)) {
        Ok(state) => state.trim() == "FROZEN",
        Err(_) => fs::read_to_string(group.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "frozen 1")),
    }
}
