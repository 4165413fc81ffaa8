//! The script in a real shell, and its processes killed one by one.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A folder whose file `lock` is the lock.
struct Shop {
    folder: PathBuf,
}

impl Shop {
    fn new(name: &str) -> Self {
        let name = format!("mover-hook-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn is_locked(&self) -> bool {
        self.folder.join("lock").exists()
    }

    /// A hook of one command, as users write it.
    fn session(&self) -> String {
        let lock = self.path("lock");
        format!("touch {lock}; echo held; cat >/dev/null; rm {lock}")
    }

    fn pair(&self) -> String {
        let lock = self.path("lock");
        pair(&format!("touch {lock}"), &format!("rm -f {lock}"), Half::LetGo)
    }

    /// A program of that name comes before the system's.
    fn program(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a program");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("its mode");
    }

    fn programs(&self) -> String {
        format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.folder.display())
    }

    fn run(&self, command: &str, seconds: u32) -> Running {
        let form = if command.starts_with("exec 7") { "pair" } else { "session" };
        let mut child = Command::new("sh")
            .args(["-c", SESSION, "mover", command, &seconds.to_string(), form])
            .env("PATH", self.programs())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a shell");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Running { input: child.stdin.take(), output, child }
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// All lines until it has no more.
    fn rest(&mut self) -> Vec<String> {
        std::iter::repeat_with(|| self.line()).take_while(|line| !line.is_empty()).collect()
    }

    fn end(&mut self) {
        self.input.as_mut().expect("its input").write_all(END).expect("it reads");
    }

    /// All of its processes but its sleeps, which come and go.
    fn processes(&self) -> Vec<u32> {
        let group = self.child.id();
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut found: Vec<u32> = numbers
            .filter(|number| {
                let stat = std::fs::read_to_string(format!("/proc/{number}/stat"));
                let Ok(stat) = stat else { return false };
                let (name, after) = stat.rsplit_once(')').unwrap_or_default();
                let fields: Vec<&str> = after.split_whitespace().collect();
                let in_group = fields.get(2).and_then(|it| it.parse().ok()) == Some(group);
                in_group && fields[0] != "Z" && !name.ends_with("(sleep")
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn signal(process: u32, signal: &str) {
        let told = Command::new("kill").args([signal, &process.to_string()]).output();
        told.expect("kill");
    }

    /// Until nobody is left who could hold or let go of anything.
    fn wait(mut self) {
        drop(self.input.take());
        self.child.wait().expect("it ends");
        while !self.processes().is_empty() {
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        Self::signal_group(self.child.id());
        let _ = self.child.wait();
    }
}

impl Running {
    fn signal_group(group: u32) {
        let _ = Command::new("kill").args(["-9", "--", &format!("-{group}")]).output();
    }
}

#[test]
fn a_lock_holds_from_its_first_line_until_it_is_asked() {
    let shop = Shop::new("plain");
    for command in [shop.session(), shop.pair()] {
        let mut lock = shop.run(&command, 60);
        assert_eq!(lock.line(), "mover: locked");
        assert!(shop.is_locked());
        lock.end();
        assert_eq!(lock.rest(), ["mover: asked", "mover: unlocked"]);
        assert!(!shop.is_locked());
        lock.wait();
    }
}

/// Nobody asks: the connection is gone, or its time is over.
#[test]
fn a_lock_ends_with_its_input_or_after_its_time() {
    let shop = Shop::new("ends");
    for command in [shop.session(), shop.pair()] {
        let mut lock = shop.run(&command, 60);
        assert_eq!(lock.line(), "mover: locked");
        drop(lock.input.take());
        assert_eq!(lock.rest(), ["mover: unlocked"]);
        assert!(!shop.is_locked());
        lock.wait();

        let mut lock = shop.run(&command, 4);
        assert_eq!(lock.line(), "mover: locked");
        assert_eq!(lock.rest(), ["mover: timeout", "mover: unlocked"]);
        assert!(!shop.is_locked());
        lock.wait();
    }
}

#[test]
fn a_lock_that_ends_before_it_is_asked_says_so_first() {
    let shop = Shop::new("early");
    for (command, said) in [
        ("echo held; exit 0", "mover: unlocked"),
        ("echo held; exit 3", "mover: failed 3"),
        ("echo held; printf more; kill -9 $$", "mover: failed 137"),
    ] {
        let mut lock = shop.run(command, 60);
        assert_eq!(lock.line(), "mover: locked", "{command}");
        assert_eq!(lock.line(), said, "{command}");
        lock.end();
        lock.wait();
    }
    let mut none = shop.run("exit 4", 60);
    assert_eq!(none.line(), "mover: failed 4");
    none.wait();
    let mut failed = shop.run("echo held; cat >/dev/null; exit 5", 60);
    assert_eq!(failed.line(), "mover: locked");
    failed.end();
    assert_eq!(failed.rest(), ["mover: asked", "mover: failed 5"]);
    failed.wait();
}

/// Each process once, by itself: the lock is let go of, by its input's end or its time at the
/// latest, and nothing that is said could be taken for a lock that lived.
#[test]
fn whichever_process_is_killed_the_lock_ends() {
    for is_pair in [false, true] {
        // Each takes its time: all at once.
        let killed = |number: usize| -> bool {
            let shop = Shop::new(&format!("killed-{is_pair}-{number}"));
            let command = if is_pair { shop.pair() } else { shop.session() };
            let mut lock = shop.run(&command, 6);
            assert_eq!(lock.line(), "mover: locked");
            let all = lock.processes();
            let Some(victim) = all.get(number) else { return false };
            let about = std::fs::read_to_string(format!("/proc/{victim}/cmdline"));
            let about = about.unwrap_or_default().replace('\0', " ");
            Running::signal(*victim, "-9");
            let said = lock.rest();
            let good = ["mover: asked", "mover: unlocked"];
            assert!(!said.ends_with(&good.map(str::to_owned)), "{about}: {said:?}");
            lock.wait();
            // A session's own shell cannot let go of what it held when it is dead itself. A pair's
            // second half is the one that lets go, and the driver runs that once more.
            let own = !is_pair && about.starts_with("sh -c touch");
            let second = is_pair && about.starts_with("sh -c exec 7");
            if !own && !second {
                assert!(!shop.is_locked(), "{number}: {about}: {said:?}");
            }
            true
        };
        let count = std::thread::scope(|scope| {
            let all: Vec<_> = (0..24).map(|number| scope.spawn(move || killed(number))).collect();
            all.into_iter().map(|it| it.join().expect("it holds")).filter(|it| *it).count()
        });
        assert!((9..24).contains(&count), "{count} processes were killed");
    }
}

/// A process that has stopped takes no signal but the last one.
#[test]
fn a_reader_that_has_stopped_holds_no_lock_past_its_time() {
    let shop = Shop::new("stopped");
    let mut lock = shop.run(&shop.session(), 5);
    assert_eq!(lock.line(), "mover: locked");
    let is_reader = |process: &u32| {
        let stdin = std::fs::read_link(format!("/proc/{process}/fd/3"));
        let ours = std::fs::read_link(format!("/proc/{}/fd/0", lock.child.id()));
        *process != lock.child.id() && stdin.ok().zip(ours.ok()).is_some_and(|(a, b)| a == b)
    };
    let readers: Vec<u32> = lock.processes().into_iter().filter(is_reader).collect();
    assert_eq!(readers.len(), 1, "{readers:?}");
    Running::signal(readers[0], "-STOP");
    assert_eq!(lock.rest(), ["mover: timeout", "mover: unlocked"]);
    assert!(!shop.is_locked());
    lock.wait();
}

/// Nobody reads what it writes, and its lock ends in time all the same.
#[test]
fn a_hook_that_writes_without_end_holds_up_nothing() {
    let shop = Shop::new("chatty");
    let lock = shop.path("lock");
    let much = "head -c 1000000 /dev/zero | tr '\\0' x";
    let command = format!("touch {lock}; echo held; {much}; {much} >&2; cat >/dev/null; rm {lock}");
    let mut running = shop.run(&command, 60);
    assert_eq!(running.line(), "mover: locked");
    running.end();
    assert_eq!(running.rest(), ["mover: asked", "mover: unlocked"]);
    assert!(!shop.is_locked());
    let mut errors = Vec::new();
    let mut stderr = running.child.stderr.take().expect("its errors");
    std::io::Read::read_to_end(&mut stderr, &mut errors).expect("its errors");
    assert_eq!(errors.len(), 2000);
    running.wait();
}

/// A first command that failed may have taken half a lock. A filesystem that somebody else has
/// frozen is not thawed.
#[test]
fn half_a_lock_is_let_go_of_and_somebody_elses_is_not() {
    let shop = Shop::new("half");
    let lock = shop.path("lock");
    let (before, after) = (format!("touch {lock}; exit 1"), format!("rm -f {lock}"));
    for (half, stays) in [(Half::LetGo, false), (Half::IsNone, true)] {
        let mut running = shop.run(&pair(&before, &after, half), 60);
        assert_ne!(running.line(), "mover: locked");
        running.wait();
        assert_eq!(shop.is_locked(), stays);
    }
}

#[test]
fn the_second_command_says_how_it_ended() {
    let shop = Shop::new("after");
    let mut running = shop.run(&pair("true", "echo 'it'\\''s stuck' >&2; exit 9", Half::LetGo), 60);
    assert_eq!(running.line(), "mover: locked");
    running.end();
    assert_eq!(running.rest(), ["mover: asked", "mover: failed 9"]);
    running.wait();
}

#[test]
fn the_probe_finds_what_the_script_needs() {
    let ask = |path: &str| {
        let output = Command::new("/bin/sh").args(["-c", PROBE]).env("PATH", path).output();
        String::from_utf8(output.expect("a shell").stdout).expect("text")
    };
    assert_eq!(ask("/usr/bin:/bin"), "mover: here\n");
    assert_eq!(ask("/nowhere"), "");
}

/// A client that waits for a lock, for example, does not look at its input.
#[test]
fn a_hook_that_does_not_read_its_input_is_ended() {
    let shop = Shop::new("stuck");
    let mut session = shop.run("sleep 1000 | sleep 1001; echo late", 1);
    assert_eq!(session.rest(), ["mover: timeout", "mover: failed 143"]);
    session.wait();
    let lock = shop.path("lock");
    let stuck = pair(&format!("touch {lock}; sleep 1002"), &format!("rm {lock}"), Half::LetGo);
    let mut running = shop.run(&stuck, 1);
    assert_eq!(running.line(), "mover: timeout");
    running.wait();
    assert!(!shop.is_locked());
}

/// Whoever kills all sleeps of a container, or leaves it no more processes, ends the lock.
#[test]
fn a_watchdog_that_cannot_wait_ends_the_lock() {
    let shop = Shop::new("sleepless");
    shop.program("sleep", "exit 1");
    let mut lock = shop.run(&shop.session(), 60);
    let said = lock.rest();
    assert!(said.contains(&"mover: timeout".to_owned()), "{said:?}");
    lock.wait();
    assert!(!shop.is_locked());
}

/// The thaw is the proof that the freeze lived.
#[test]
fn a_filesystem_that_was_thawed_meanwhile_was_not_frozen() {
    let shop = Shop::new("frozen");
    let frozen = shop.path("lock");
    shop.program(
        "fsfreeze",
        &format!(
            "case $1 in
               --freeze) mkdir {frozen} || {{ echo 'Device or resource busy' >&2; exit 1; }} ;;
               --unfreeze) rmdir {frozen} || {{ echo 'Invalid argument' >&2; exit 1; }} ;;
             esac"
        ),
    );
    let command = pair(&freeze("/data"), &thaw("/data"), Half::IsNone);
    let mut lock = shop.run(&command, 60);
    assert_eq!(lock.line(), "mover: locked");
    lock.end();
    assert_eq!(lock.rest(), ["mover: asked", "mover: unlocked"]);
    lock.wait();

    let mut lock = shop.run(&command, 60);
    assert_eq!(lock.line(), "mover: locked");
    std::fs::remove_dir(&frozen).expect("it is frozen");
    lock.end();
    assert_eq!(lock.rest(), ["mover: asked", "mover: failed 1"]);
    lock.wait();

    // Somebody else's stays.
    std::fs::create_dir(&frozen).expect("a freeze");
    let mut lock = shop.run(&command, 60);
    assert_eq!(lock.line(), "mover: failed 1");
    lock.wait();
    assert!(shop.is_locked());
    // What is left of ours is thawed once more, without harm.
    for wanted in [false, false] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &thawed("/data")]).env("PATH", shop.programs());
        assert!(shell.status().expect("a shell").success());
        assert_eq!(shop.is_locked(), wanted);
    }
}
