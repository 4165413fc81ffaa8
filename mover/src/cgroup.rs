//! How much memory and processor time the control groups of this process allow.
//!
//! A pod's limits are files of its control group: `memory.max` and `cpu.max` (version 2), or
//! `memory.limit_in_bytes`, `cpu.cfs_quota_us` and `cpu.cfs_period_us` (version 1). Which directory
//! it is comes from two files of the kernel: `/proc/self/cgroup` names the group of each hierarchy,
//! `/proc/self/mountinfo` where that hierarchy is mounted, and which part of it. A limit of any
//! group above counts as well, so the way up to the mount point is walked and the least one taken.
//! In a container the group often shows as `/` of its own mount, or as a path that is not below it:
//! then the mount point is the group.
//!
//! Must not: decide what is done with a limit; `cli/settings.rs` does. What cannot be read is no
//! limit.

use std::path::{Path, PathBuf};

/// What version 1 shows for "none": the largest number of whole pages.
const NO_LIMIT_BYTES_MIN: u64 = 1 << 62;

/// What the control groups allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CgroupLimits {
    /// Memory, page cache and kernel buffers included.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
}

/// A mounted hierarchy: where, and which of its groups is the mount point.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    root: String,
    /// Of version 1; empty for version 2.
    controllers: Vec<String>,
}

impl CgroupLimits {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::find(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// From the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn find(groups: &str, mountinfo: &str) -> Self {
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
        let mut limits = Self::default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            for mount in mounts.iter().filter(|m| m.holds(controllers)) {
                for directory in mount.way_up(path) {
                    limits.lower(&Self::in_directory(&directory));
                }
            }
        }
        limits
    }

    /// Of one group, of either version: the files of the other one are not there.
    fn in_directory(directory: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let memory = number("memory.max").or_else(|| number("memory.limit_in_bytes"));
        let cpu = text("cpu.max").and_then(|text| {
            let (quota, period) = text.trim().split_once(' ')?;
            millis(quota.parse().ok()?, period.parse().ok()?)
        });
        // a quota of -1 is none
        let cpu = cpu.or_else(|| millis(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?));
        Self { memory_bytes: memory.filter(|n| *n < NO_LIMIT_BYTES_MIN), cpu_millis: cpu }
    }

    fn lower(&mut self, other: &Self) {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        self.memory_bytes = least(self.memory_bytes, other.memory_bytes);
        self.cpu_millis = least(self.cpu_millis, other.cpu_millis);
    }

    /// Threads that may be busy at once on a machine that offers `online`: whole processors of the
    /// limit, at least one. One more would use up the quota before its period ends, and then all of
    /// them stand still.
    pub fn threads(&self, online: usize) -> usize {
        let whole = self
            .cpu_millis
            .map_or(usize::MAX, |millis| usize::try_from(millis / 1000).unwrap_or(usize::MAX));
        online.min(whole).max(1)
    }
}

fn millis(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1000)?.checked_div(period)
}

impl Mount {
    /// `31 23 0:28 ROOT POINT OPTIONS [more …] - TYPE SOURCE SUPER_OPTIONS`
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut fields = after.split(' ');
        let controllers = match fields.next()? {
            "cgroup2" => Vec::new(),
            "cgroup" => fields.nth(1)?.split(',').map(str::to_owned).collect(),
            _ => return None,
        };
        Some(Self { point: PathBuf::from(point), root: root.to_owned(), controllers })
    }

    /// Whether it is the hierarchy of these controllers, as `/proc/self/cgroup` lists them.
    fn holds(&self, controllers: &str) -> bool {
        if controllers.is_empty() {
            return self.controllers.is_empty();
        }
        controllers.split(',').any(|name| self.controllers.iter().any(|c| c == name))
    }

    /// The group's directory and all above it up to the mount point.
    fn way_up(&self, group: &str) -> Vec<PathBuf> {
        let below = match self.root.as_str() {
            "/" => group.strip_prefix('/'),
            root => group.strip_prefix(root).map(|rest| rest.trim_start_matches('/')),
        };
        let below = below.filter(|path| !path.split('/').any(|name| name == ".."));
        let leaf = below.map_or_else(|| self.point.clone(), |below| self.point.join(below));
        leaf.ancestors().take_while(|d| d.starts_with(&self.point)).map(Path::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    const GIB: u64 = 1 << 30;

    /// A tree of groups with the files that the kernel would show.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn v2(root: &str, point: &Path) -> String {
        format!("36 31 0:38 {root} {} ro,nosuid - cgroup2 cgroup rw,nsdelegate\n", point.display())
    }

    fn v1(controllers: &str, root: &str, point: &Path) -> String {
        format!("35 31 0:32 {root} {} ro - cgroup cgroup rw,{controllers}\n", point.display())
    }

    #[test]
    fn version_2_in_a_namespace_of_its_own() {
        let dir = tree(&[("memory.max", "134217728\n"), ("cpu.max", "50000 100000\n")]);
        let limits = CgroupLimits::find("0::/\n", &v2("/", dir.path()));
        assert_eq!(limits, CgroupLimits { memory_bytes: Some(128 << 20), cpu_millis: Some(500) });
    }

    #[test]
    fn version_2_takes_the_least_of_all_groups_above() {
        let dir = tree(&[
            ("kubepods.slice/memory.max", "8589934592\n"),
            ("kubepods.slice/cpu.max", "150000 100000\n"),
            ("kubepods.slice/pod1/memory.max", "1073741824\n"),
            ("kubepods.slice/pod1/cpu.max", "max 100000\n"),
            ("kubepods.slice/pod1/main/memory.max", "max\n"),
            ("kubepods.slice/pod1/main/cpu.max", "400000 100000\n"),
        ]);
        let limits = CgroupLimits::find("0::/kubepods.slice/pod1/main\n", &v2("/", dir.path()));
        assert_eq!(limits, CgroupLimits { memory_bytes: Some(GIB), cpu_millis: Some(1500) });
    }

    #[test]
    fn version_2_without_limits_is_none() {
        let dir = tree(&[("memory.max", "max\n"), ("cpu.max", "max 100000\n")]);
        assert_eq!(CgroupLimits::find("0::/\n", &v2("/", dir.path())), CgroupLimits::default());
        assert_eq!(CgroupLimits::find("", ""), CgroupLimits::default());
        assert_eq!(CgroupLimits::find("nonsense\n::\n", "a b - c\n"), CgroupLimits::default());
    }

    #[test]
    fn a_group_outside_of_the_mount_is_the_mount_point() {
        let dir = tree(&[("memory.max", "268435456\n")]);
        for group in ["0::/../../other\n", "0::/kubepods/pod1/main\n"] {
            let limits = CgroupLimits::find(group, &v2("/kubepods/pod2", dir.path()));
            assert_eq!(limits.memory_bytes, Some(256 << 20), "{group}");
        }
    }

    #[test]
    fn version_1_has_a_hierarchy_for_each_controller() {
        let dir = tree(&[
            ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/b/memory.limit_in_bytes", "268435456\n"),
            ("cpu/a/b/cpu.cfs_quota_us", "250000\n"),
            ("cpu/a/b/cpu.cfs_period_us", "100000\n"),
            ("cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("cpu/a/cpu.cfs_period_us", "100000\n"),
        ]);
        let mounts = v1("memory", "/", &dir.path().join("memory"))
            + &v1("cpu,cpuacct", "/", &dir.path().join("cpu"));
        let groups = "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/\n";
        let limits = CgroupLimits::find(groups, &mounts);
        let expected = CgroupLimits { memory_bytes: Some(256 << 20), cpu_millis: Some(2500) };
        assert_eq!(limits, expected);
        // the same from inside a container, whose mount shows its own part only
        let mounts = v1("memory", "/a/b", &dir.path().join("memory/a/b"));
        let limits = CgroupLimits::find("4:memory:/a/b\n", &mounts);
        assert_eq!(limits.memory_bytes, Some(256 << 20));
    }

    #[test]
    fn threads_follow_whole_processors() {
        let with = |cpu_millis| CgroupLimits { memory_bytes: None, cpu_millis }.threads(8);
        assert_eq!(with(None), 8);
        assert_eq!([Some(500), Some(1000), Some(2900), Some(64_000)].map(with), [1, 1, 2, 8]);
    }
}
