//! Where io_uring is forbidden: by seccomp (as in containers), or its buffers by RLIMIT_MEMLOCK.
//!
//! A seccomp filter and capabilities belong to a thread, so the tests forbid things to a thread of
//! their own. The limit belongs to the process, so that test runs itself again in a child.

use super::*;

/// From now on, system call `number` of this thread fails with `errno`.
fn forbid(number: libc::c_long, errno: i32) {
    let number = u32::try_from(number).unwrap();
    let errno = u32::try_from(errno).unwrap();
    let instruction =
        |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: both calls only read what they are given, which lives until they return; they change
    // this thread only.
    let (a, b) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        )
    };
    assert_eq!((a, b), (0, 0), "{}", std::io::Error::last_os_error());
}

/// From now on this thread has no CAP_IPC_LOCK.
fn drop_ipc_lock() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: capget writes two sets of three words, capset reads them; both read the header of two
    // words.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
        for word in &mut sets[0] {
            *word &= !(1 << CAP_IPC_LOCK);
        }
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()), 0);
    }
}

/// Starts engines on a thread that first forbids something to itself; gives the name and the notes
/// of the one that worked.
fn fallback(forbid_it: impl FnOnce() + Send) -> (&'static str, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = patterned_file(dir.path(), 1 << 20, 4);
    let source = source(&path, DirectIo::Auto);
    let arena = Arena::new(4, 64 << 10).unwrap();
    assert!(source.direct(), "these tests need a file system with direct I/O in TMPDIR");
    std::thread::scope(|s| {
        let run = || {
            forbid_it();
            let start = |c| Engine::start(c, &arena, source.io_file(), 4);
            let mut engine = start(EngineChoice::Auto).unwrap();
            let told = (engine.name(), engine.notes().to_vec());
            read_all(&mut engine, &arena, 1 << 20, 64 << 10, 4);
            drop(engine);
            let e = start(EngineChoice::Uring).unwrap_err();
            assert_eq!(e.kind(), chunkstore::ErrorKind::Unsupported);
            assert!(e.to_string().contains("`engine` auto"), "{e}");
            assert!(arena.all_home());
            told
        };
        s.spawn(run).join().unwrap()
    })
}

#[test]
fn a_forbidden_ring_falls_back_to_threads() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        for call in
            [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register]
        {
            let (name, notes) = fallback(move || forbid(call, errno));
            assert_eq!(name, "blocking");
            assert!(notes[0].starts_with("io_uring: ") && notes[1].starts_with("io_uring-plain: "));
        }
    }
}

#[test]
#[ignore = "run by without_locked_memory_nothing_is_registered, in a process of its own"]
fn child_without_locked_memory() {
    let limit = |bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: it reads the limit that it is given.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
    };
    // room for a ring, not for 256 KiB of buffers
    limit(128 << 10);
    let (name, notes) = fallback(drop_ipc_lock);
    assert_eq!(name, "io_uring");
    assert!(notes.len() == 1 && notes[0].contains("RLIMIT_MEMLOCK"), "{notes:?}");
    limit(0);
    // Linux 5.12 to 6.13 count only buffers, others the ring itself too
    let (name, notes) = fallback(drop_ipc_lock);
    assert!(matches!(name, "io_uring" | "blocking") && !notes.is_empty(), "{name} {notes:?}");
    println!("fell back without locked memory: {name} {notes:?}");
}

#[test]
fn without_locked_memory_nothing_is_registered() {
    let (_crate, here) = module_path!().split_once("::").unwrap();
    let child = format!("{here}::child_without_locked_memory");
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &child])
        .args(["--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("fell back without"), "{text}");
}
