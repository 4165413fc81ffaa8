//! The seccomp profile: generated of the table beside it, and every system call of this machine is run
//! under it, in a container, for what it allows and what it refuses.

use super::manifests::{deploy, list, strings};
use super::text;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Containers, python, run_ok, work_dir};

const PROBE: &str = include_str!("seccomp.py");

/// The refusal of a call under the profile of the test: no kernel returns this number, whereas
/// without capabilities EPERM comes from everywhere.
const REFUSED: i64 = 200;

/// From a runtime for what is newer than its libseccomp, and from `clone3`.
const ENOSYS: i64 = 38;

/// What nobody may take out of the table's refusals, whatever else changes in it.
const NEVER: &str = "acct add_key bpf chroot delete_module fanotify_init finit_module fsconfig fsmount \
    fsopen fspick init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl \
    lookup_dcookie mbind migrate_pages mount mount_setattr move_mount move_pages nfsservctl \
    open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise quotactl \
    quotactl_fd reboot request_key set_mempolicy setdomainname sethostname setns settimeofday \
    swapoff swapon sysfs syslog umount2 unshare userfaultfd vhangup";

/// What mover, its allocator and its runtime cannot do without.
const ALWAYS: &str = "accept4 bind clock_gettime close connect copy_file_range epoll_pwait eventfd2 \
    exit_group fallocate fcntl fdatasync flock fstat fsync ftruncate futex getdents64 getrandom \
    io_uring_enter io_uring_register io_uring_setup ioctl linkat listen lseek madvise mkdirat \
    mlock mmap mprotect mremap munmap newfstatat openat openat2 pread64 preadv pwrite64 pwritev \
    read recvfrom renameat2 rt_sigaction sched_getaffinity sendto setsockopt statx \
    sync_file_range unlinkat write writev";

fn folder() -> PathBuf {
    deploy().join("kubernetes/seccomp")
}

fn profile() -> Value {
    let text = fs::read_to_string(folder().join("io-uring.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The names that are allowed whatever their arguments.
fn allowed(profile: &Value) -> BTreeSet<String> {
    let rules = list(profile, "syscalls").into_iter();
    let rules = rules.filter(|rule| rule["action"] == "SCMP_ACT_ALLOW" && rule["args"].is_null());
    rules.flat_map(|rule| strings(&list(rule, "names"))).collect()
}

#[test]
fn the_profile_is_what_the_table_says() {
    let python = python().expect("tests/setup made a Python environment");
    let script = folder().join("make-profile");
    let made = run_ok(text(&python), [text(&script), "--print"]);
    let there = fs::read_to_string(folder().join("io-uring.json")).unwrap();
    assert!(made.trim() == there.trim(), "run deploy/kubernetes/seccomp/make-profile");
}

/// Names and numbers of the system calls that the C library's headers of this machine know.
fn numbers() -> BTreeMap<String, i64> {
    let script = "echo '#include <asm/unistd.h>' | cc -E -dM -";
    let text = run_ok("sh", ["-c", script]);
    let lines = text.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
    let numbers = lines.filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
    let numbers: BTreeMap<_, _> = numbers.filter(|(name, _)| name != "syscalls").collect();
    assert!(numbers.len() > 300, "{numbers:?}");
    numbers
}

/// Those of the names that libseccomp does not know; a runtime leaves them out of a filter.
fn unknown(names: &BTreeSet<String>) -> BTreeSet<String> {
    const ASK: &str = "import ctypes, json, sys
ask = ctypes.CDLL('libseccomp.so.2').seccomp_syscall_resolve_name
print(json.dumps([name for name in sys.argv[1:] if ask(name.encode()) == -1]))";
    let python = python().expect("tests/setup made a Python environment");
    let words = ["-c", ASK].into_iter().chain(names.iter().map(String::as_str));
    serde_json::from_str(&run_ok(text(&python), words.collect::<Vec<_>>())).unwrap()
}

/// Calls by a name of the test's, each a number and its arguments.
type Calls = BTreeMap<String, Vec<i64>>;

/// Error numbers of calls under the profile; `None` where the call has ended its process.
fn tried(directory: &Path, calls: &Calls) -> Option<BTreeMap<String, Option<i64>>> {
    let mut profile = profile();
    profile["defaultErrnoRet"] = json!(REFUSED);
    let file = directory.join("profile.json");
    fs::write(&file, profile.to_string()).unwrap();
    let containers = Containers::new(directory)?;
    let option = format!("seccomp={}", file.display());
    let pod = containers.container().program("/usr/bin/python3");
    let pod = pod.with(&["--security-opt", &option]);
    let output = pod.run(&["-c", PROBE, &json!(calls).to_string()]).expect_code(0);
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn every_system_call_is_run_under_the_profile() {
    tests::require_root!();
    let directory = work_dir("seccomp");
    let numbers = numbers();
    let allowed = allowed(&profile());
    let conditional = ["clone", "clone3", "personality", "socket"];
    // sync would wait for all disks of this machine
    let left_out = |name: &str| name == "sync" || conditional.contains(&name);
    let calls: Calls = numbers.iter().filter(|(name, _)| !left_out(name)).map(all_ones).collect();
    let Some(tried) = tried(directory.path(), &calls) else { return };
    let unknown = unknown(&allowed);
    let (mut passed, mut refused) = (0, 0);
    for (name, errno) in &tried {
        let errno = *errno;
        if !allowed.contains(name) {
            assert!(matches!(errno, Some(REFUSED | ENOSYS)), "{name} is let through: {errno:?}");
            refused += 1;
        } else if !unknown.contains(name) {
            assert_ne!(errno, Some(REFUSED), "{name} is refused");
            passed += 1;
        }
    }
    assert!(passed > 200 && refused > 40, "{passed} and {refused}");
    // a table that allows more would allow it here as well
    for name in NEVER.split_whitespace().filter(|name| numbers.contains_key(*name)) {
        assert!(tried.contains_key(name) && !allowed.contains(name), "{name} is allowed");
    }
    for name in ALWAYS.split_whitespace() {
        assert!(allowed.contains(name) && !unknown.contains(name), "{name} is not allowed");
    }
}

/// Arguments that nothing accepts: what is let through fails at once.
fn all_ones((name, number): (&String, &i64)) -> (String, Vec<i64>) {
    (name.clone(), vec![*number, -1, -1, -1, -1, -1, -1])
}

#[test]
fn arguments_decide_about_namespaces_sockets_and_personalities() {
    tests::require_root!();
    const SIGCHLD: i64 = 17;
    let directory = work_dir("seccomp-arguments");
    let numbers = numbers();
    let mut calls = Calls::new();
    let mut expected = BTreeMap::new();
    let mut case = |name: &str, arguments: &[i64], errno: Option<i64>| {
        let label = format!("{name} {arguments:x?}");
        calls.insert(label.clone(), [&[numbers[name]], arguments].concat());
        expected.insert(label, errno);
    };
    let none = [0; 4];
    case("clone", &[&[SIGCHLD], &none[..]].concat(), Some(0));
    for bit in [17, 25, 26, 27, 28, 29, 30] {
        case("clone", &[&[SIGCHLD | 1 << bit], &none[..]].concat(), Some(REFUSED));
    }
    case("clone3", &[-1, -1], Some(ENOSYS));
    for family in [1, 2, 10] {
        case("socket", &[family, 1, 0], Some(0));
    }
    for family in [38, 40, 46] {
        case("socket", &[family, 1, 0], Some(REFUSED));
    }
    case("personality", &[0xffff_ffff], Some(0));
    // ADDR_NO_RANDOMIZE
    case("personality", &[0x0004_0000], Some(REFUSED));
    let Some(tried) = tried(directory.path(), &calls) else { return };
    assert_eq!(tried, expected);
}
