//! Containers as a pod has them, of the program or of its image: podman with runc, a root
//! filesystem that cannot be written, no capability, the default seccomp profile, few files and
//! processes, and the devices that are mapped.

use crate::{MoverOutput, mover_bin, run, run_ok};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Where containers are kept, and the root filesystem that they share: nothing but the program and
/// its libraries.
#[derive(Debug)]
pub struct Containers {
    directory: PathBuf,
    /// Its path may have 50 bytes at most.
    running: TempDir,
    environment: Vec<(String, String)>,
    /// What they are made of instead of a root filesystem of the test's.
    image: Option<String>,
}

/// One container, to be run once; removed when dropped.
#[derive(Debug)]
pub struct Container<'a> {
    home: &'a Containers,
    name: String,
    options: Vec<String>,
    termination: PathBuf,
    program: &'static str,
}

impl Containers {
    /// In `directory`, which is this test's own. `None`, with a `SKIP:` line, where there is no
    /// podman.
    pub fn new(directory: &Path) -> Option<Self> {
        let containers = Self::empty(directory)?;
        let rootfs = containers.rootfs();
        for name in ["dev", "etc/ssl/certs", "proc", "sys", "run", "scratch"] {
            fs::create_dir_all(rootfs.join(name)).expect("make the root filesystem");
        }
        // as in the image: without authorities there is no client, not even for plain http
        fs::copy(AUTHORITIES, rootfs.join(AUTHORITIES.trim_start_matches('/'))).expect("copy");
        let libraries = run_ok("ldd", [mover_bin()]);
        let paths = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        for library in paths.map(Path::new) {
            let copy = rootfs.join(library.strip_prefix("/").expect("it begins with a slash"));
            fs::create_dir_all(copy.parent().expect("a directory")).expect("make a directory");
            fs::copy(library, copy).expect("copy a library");
        }
        fs::write(rootfs.join("mover"), "").expect("make the program's place");
        Some(containers)
    }

    /// Of the image in an OCI archive, as it is. `None` as above.
    pub fn of_image(directory: &Path, archive: &Path) -> Option<Self> {
        let mut containers = Self::empty(directory)?;
        let load = ["load", "--quiet", "--input"].map(str::to_owned);
        let archive = archive.display().to_string();
        let words = containers.podman().into_iter().chain(load).chain([archive]);
        let said = run_ok("podman", words.collect::<Vec<_>>());
        let name = said.trim().rsplit(' ').next().expect("the name of the image");
        containers.image = Some(name.to_owned());
        Some(containers)
    }

    fn empty(directory: &Path) -> Option<Self> {
        if !run("sh", ["-c", "command -v podman && command -v runc"]).status.success() {
            crate::skip("containers need podman and runc (tests/setup gets them)");
            return None;
        }
        let running = tempfile::Builder::new().prefix("mover-pod").tempdir_in("/tmp");
        let running = running.expect("make a directory for podman");
        let directory = directory.join("podman");
        fs::create_dir_all(&directory).expect("make a directory for podman");
        Some(Self { directory, running, environment: Vec::new(), image: None })
    }

    /// Sets a variable in all containers.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    fn podman(&self) -> Vec<String> {
        let root = self.directory.join("storage");
        let places = [("--root", root.as_path()), ("--runroot", self.running.path())];
        let mut words = Vec::new();
        for (option, path) in places {
            words.extend([option.to_owned(), path.display().to_string()]);
        }
        // crun, which is podman's first choice, refuses hybrid cgroups
        let fixed =
            ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc"];
        words.extend(fixed.map(str::to_owned));
        words
    }

    /// A container as unprivileged as a pod's.
    pub fn container(&self) -> Container<'_> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mover-test-{}-{number}", std::process::id());
        let termination = self.directory.join(format!("{name}.termination"));
        // as a kubelet makes it
        fs::write(&termination, "").expect("make the termination log");
        fs::set_permissions(&termination, fs::Permissions::from_mode(0o666)).expect("open it");
        let mut container =
            Container { home: self, name, options: Vec::new(), termination, program: "/mover" };
        let fixed = "--read-only --cap-drop ALL --security-opt no-new-privileges --network host \
                     --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --pull never";
        container.options.extend(fixed.split(' ').filter(|w| !w.is_empty()).map(str::to_owned));
        let termination = container.termination.clone();
        let container = container.mount(&termination, "/dev/termination-log");
        match self.image {
            Some(_) => container,
            None => container.mount(mover_bin(), "/mover:ro"),
        }
    }
}

impl Container<'_> {
    /// Runs another program of this machine than `mover`, from `/usr`, which it sees. Not in a
    /// container of an image.
    #[must_use]
    pub fn program(mut self, path: &'static str) -> Self {
        self.program = path;
        self.mount(Path::new("/usr"), "/usr:ro")
    }

    /// Options of `podman run`.
    #[must_use]
    pub fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// Shows a file or directory of this machine at another place.
    #[must_use]
    pub fn mount(self, from: &Path, to: &str) -> Self {
        let volume = format!("{}:{to}", from.display());
        self.with(&["--volume", &volume])
    }

    /// Maps a block device, with the rights that a kubelet gives: `r`, or `rwm`.
    #[must_use]
    pub fn device(self, device: &Path, to: &str, rights: &str) -> Self {
        let device = format!("{}:{to}:{rights}", device.display());
        self.with(&["--device", &device])
    }

    /// The termination message that it has left.
    pub fn termination(&self) -> serde_json::Value {
        let bytes = fs::read(&self.termination).expect("read the termination log");
        assert!(bytes.len() <= 4096, "a kubelet reads 4096 bytes of {}", bytes.len());
        serde_json::from_slice(&bytes).expect("one JSON object")
    }

    /// `podman run` with these arguments of the program, to start by oneself.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(self.home.podman()).args(["run", "--name", &self.name]);
        for (name, value) in &self.home.environment {
            command.arg("--env").arg(format!("{name}={value}"));
        }
        // the last one of a name counts
        command.args(&self.options);
        match &self.home.image {
            Some(image) => command.arg(image),
            None => command.arg("--rootfs").arg(self.home.rootfs()).arg(self.program),
        };
        command.args(args);
        command
    }

    /// Runs it to its end.
    pub fn run(&self, args: &[&str]) -> MoverOutput {
        MoverOutput::of(&mut self.command(args))
    }

    /// Another command of podman about this container, such as `stop`.
    pub fn podman(&self, words: &[&str]) {
        let mut args = self.home.podman();
        args.extend(words.iter().map(|word| (*word).to_owned()));
        args.push(self.name.clone());
        run_ok("podman", args);
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let mut args = self.home.podman();
        args.extend(["rm", "--force", "--ignore", &self.name].map(str::to_owned));
        let _ = run("podman", args);
    }
}
