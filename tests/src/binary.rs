//! The built program, run as a stranger would: a fresh home and nothing else in its environment.

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// A run that takes longer hangs.
const RUN_SECONDS_MAX: u64 = 600;

/// Cargo's target directory that this test was built into.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile's directory is in the target directory").to_owned()
}

/// Such as `target/debug`: this test is in its `deps`.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    test.ancestors().nth(2).expect("a test is in target/PROFILE/deps").to_owned()
}

/// A directory for images and repositories, on the disk that the target directory is on (`/tmp` may
/// be memory); removed when dropped.
pub fn work_dir(name: &str) -> TempDir {
    let parent = target_dir().join("test-work");
    std::fs::create_dir_all(&parent).expect("make the work directory");
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(parent)
        .expect("make a work directory")
}

/// A directory for volumes: in memory where there is plenty of it and direct I/O works on it, else
/// as [`work_dir`]. Loop devices over it are as real as over a disk, and a round trip moves
/// gigabytes that nobody keeps.
pub fn volume_dir(name: &str) -> TempDir {
    const MEMORY: &str = "/dev/shm";
    const AVAILABLE_KIB_MIN: u64 = 8 << 20;
    let plenty = available_kib() >= AVAILABLE_KIB_MIN;
    let made = tempfile::Builder::new().prefix(&format!("mover-{name}-")).tempdir_in(MEMORY);
    match made {
        Ok(directory) if plenty && takes_direct_io(directory.path()) => directory,
        _ => work_dir(name),
    }
}

fn available_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// tmpfs does from Linux 6.6 on; loop devices refuse direct I/O elsewhere.
fn takes_direct_io(directory: &Path) -> bool {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    options.open(directory.join("probe")).is_ok()
}

/// The Python of the environment that `tests/setup` made; `None` where it made none.
pub fn python() -> Option<PathBuf> {
    let python = match std::env::var_os("MOVER_TEST_PYTHON") {
        Some(path) => PathBuf::from(path),
        None => target_dir().join("test-python/bin/python3"),
    };
    python.exists().then_some(python)
}

/// The `mover` program of the same profile as this test: `MOVER_TEST_BIN`, else built by cargo,
/// once a process.
pub fn mover_bin() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("MOVER_TEST_BIN") {
            return PathBuf::from(path);
        }
        built("--bin", "mover").join("mover")
    })
}

/// An example of a library, built by cargo in the same profile as this test.
pub fn example_bin(name: &str) -> PathBuf {
    built("--example", name).join("examples").join(name)
}

/// The profile's directory, once one target has been built there.
fn built(kind: &str, name: &str) -> PathBuf {
    let profile_dir = profile_dir();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace's features, as in the test build: no dependency is built twice.
    cargo.args(["build", "--quiet", "--workspace", kind, name]);
    cargo.arg("--target-dir").arg(target_dir());
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile_dir.file_name() == Some(OsStr::new("release")) {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("start cargo");
    assert!(status.success(), "cargo build {kind} {name}: {status}");
    profile_dir
}

/// Stack of each thread of the program in all tests: a thread that takes more crashes. On top of
/// what commands take (`tests/tests/cli/small_stack.rs`), clients of object stores take some 40 KiB,
/// and TLS does.
const THREAD_STACK_BYTES_MAX: u32 = 256 << 10;

/// Runs of the program with one home directory, fresh at first.
#[derive(Debug)]
pub struct Mover {
    home: TempDir,
    environment: Vec<(OsString, OsString)>,
}

impl Default for Mover {
    fn default() -> Self {
        Self::new()
    }
}

impl Mover {
    /// With an empty home and an environment of nothing but `HOME` and `PATH`.
    pub fn new() -> Self {
        Self { home: work_dir("home"), environment: Vec::new() }
    }

    /// Sets a variable for all runs.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets several variables for all runs.
    #[must_use]
    pub fn envs<N: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.environment.extend(variables.into_iter().map(|(n, v)| (n.into(), v.into())));
        self
    }

    /// Its home directory.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A command to start by oneself: to kill it, to feed it, to watch it.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(mover_bin());
        command.args(args);
        self.dress(&mut command);
        command
    }

    /// Gives another command (of a [`Cgroup`](crate::Cgroup), say) the same home and environment.
    pub fn dress(&self, command: &mut Command) {
        command.env_clear();
        command.env("HOME", self.home.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("RUST_BACKTRACE", "1");
        command.env("RUST_MIN_STACK", THREAD_STACK_BYTES_MAX.to_string());
        // where the tests run in a pod themselves, its message is not theirs to write
        command.env("MOVER_TERMINATION_LOG", "none");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
    }

    /// Runs to the end, whatever comes of it. Ten minutes are taken for a hang: exit code 124.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> MoverOutput {
        self.run_within(RUN_SECONDS_MAX, args)
    }

    /// As [`run`](Self::run), with another time after which it is killed: exit code 124.
    pub fn run_within<S: AsRef<OsStr>>(
        &self,
        seconds: u64,
        args: impl IntoIterator<Item = S>,
    ) -> MoverOutput {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &seconds.to_string()]).arg(mover_bin()).args(args);
        self.dress(&mut command);
        MoverOutput::of(&mut command)
    }

    /// Runs, and panics with all that was printed unless the exit code is 0.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> MoverOutput {
        self.run(args).expect_code(0)
    }
}

/// What a run printed and how it ended.
#[derive(Debug)]
pub struct MoverOutput {
    /// The command, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output, which is data for `restore … -`.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl MoverOutput {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        Self {
            command: command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" "),
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The exit code; `None` when a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Panics with all that was printed unless the exit code is `code`; a panic of the program
    /// never will do.
    #[must_use]
    pub fn expect_code(self, code: i32) -> Self {
        assert!(
            self.code() == Some(code) && !self.stderr.contains("panicked at"),
            "{}\nended with {} instead of {code}\n--- stdout\n{}\n--- stderr\n{}",
            self.command,
            self.status,
            self.text(),
            self.stderr
        );
        self
    }

    /// Each line of standard output that is a JSON object.
    pub fn json_lines(&self) -> Vec<Value> {
        objects(&self.text())
    }

    /// What `--json` ends with: the last JSON object of standard output, else of standard error
    /// (where it is when standard output is data).
    pub fn summary(&self) -> Value {
        let last = objects(&self.text()).pop().or_else(|| objects(&self.stderr).pop());
        last.unwrap_or_else(|| {
            panic!("{}: no JSON object in\n{}\n{}", self.command, self.text(), self.stderr)
        })
    }

    /// The last JSON object, deserialized from all of standard output when that is one
    /// (pretty-printed) document.
    pub fn document(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| {
            panic!("{}: not one JSON document: {error}\n{}", self.command, self.text())
        })
    }
}

fn objects(text: &str) -> Vec<Value> {
    let values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    values.filter(Value::is_object).collect()
}
