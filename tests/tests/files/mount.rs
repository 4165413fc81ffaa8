//! `mover mount`, and the kernel's own programs on what it shows.

mod ends;
pub(crate) mod server;

use super::tree::{entries, same};
use super::{FORMS, PLAIN, Stage, xfs};
use server::Mounted;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use tests::{LoopDevice, Mount, Rng, run_ok};

/// The bytes of the volume, by several who read at a time, and by the kernel's own file systems.
#[test]
fn the_image_is_the_volume() {
    for (form, options) in [(PLAIN, "ro,noload"), (xfs::PLAIN, "ro,norecovery,nouuid")] {
        let Some(stage) = Stage::new(&form) else { return };
        let mounted = Mounted::new(&stage, &["db@latest"]);
        let image = mounted.path("volume.img");
        run_ok("cmp", [&image, &stage.image]);
        let wanted = fs::read(&stage.image).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (image, wanted) = (&image, &wanted);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let mut file = fs::File::open(image).unwrap();
                    let mut buffer = vec![0; 300_000];
                    for _ in 0..100 {
                        let at = (rng.next_u64() % wanted.len() as u64) as usize;
                        let len = (1 + rng.next_u64() % 300_000) as usize;
                        let len = len.min(wanted.len() - at);
                        file.seek(SeekFrom::Start(at as u64)).unwrap();
                        file.read_exact(&mut buffer[..len]).unwrap();
                        assert!(buffer[..len] == wanted[at..at + len], "{seed}: {len} at {at}");
                    }
                });
            }
        });
        let room = stage.path("loop");
        let device = LoopDevice::attach(&image);
        let by_kernel = Mount::new(device.path(), &room, form.kind(), options);
        // what is in the log alone is not there
        fs::read_dir(by_kernel.path()).unwrap().for_each(|entry| drop(entry.unwrap()));
        drop((by_kernel, device));
        refused(&image);
    }
}

/// Whatever is tried, it is read-only.
fn refused(image: &Path) {
    for (what, done) in [
        ("open", fs::OpenOptions::new().write(true).open(image).map(drop)),
        ("remove", fs::remove_file(image)),
        ("make", fs::write(image.with_file_name("new"), "")),
        ("rename", fs::rename(image, image.with_file_name("other"))),
    ] {
        let e = done.expect_err(what);
        assert_eq!(e.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{what}: {e}");
    }
}

/// Names, contents, owners, times, attributes, links, holes.
#[test]
fn files_are_what_the_kernel_shows() {
    for form in FORMS {
        let Some(stage) = Stage::new(&form) else { return };
        let mounted = Mounted::new(&stage, &["db@latest"]);
        let files = mounted.path("files");
        stage.kernels(|kernels| {
            let (wanted, got) = (entries(kernels), entries(&files));
            assert!(wanted.len() > 500, "{}: {} entries", form.name, wanted.len());
            same(form.name, &wanted, &got);
            let sparse = files.join("sparse");
            if let (Ok(ours), Ok(theirs)) =
                (fs::File::open(sparse), fs::File::open(kernels.join("sparse")))
            {
                assert_eq!(data_of(&ours), data_of(&theirs), "{}: holes", form.name);
            }
        });
    }
}

/// Where data begins and ends.
fn data_of(file: &fs::File) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(data) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
    }
    found
}

/// All backups of a repository: names that no directory can have, the newest, one that comes while
/// it is mounted.
#[test]
fn all_backups_have_directories() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let small = stage.path("small");
    let backup = |volume: &str, id: &str, byte: u8| {
        fs::write(&small, vec![byte; 70_000]).unwrap();
        let line = ["backup", small.to_str().unwrap(), "--quiet", "--volume", volume];
        stage.mover.ok([&line[..], &["--backup-id", id]].concat());
    };
    for (volume, id, byte) in [("pvc:shop/db", "b1", 1), ("a%b", "b2", 2), ("..", "b3", 3)] {
        backup(volume, id, byte);
    }
    let mounted = Mounted::new(&stage, &[]);
    let names = |path: &str| {
        let names = fs::read_dir(mounted.path(path)).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(""), ["%2E%2E", "a%25b", "db", "pvc:shop%2Fdb"]);
    let image = |path: &str| fs::read(mounted.path(path).join("volume.img")).unwrap();
    assert_eq!(names("pvc:shop%2Fdb"), ["b1", "latest"]);
    assert!(image("pvc:shop%2Fdb/b1") == vec![1; 70_000]);
    assert!(image("a%25b/latest") == vec![2; 70_000]);
    assert!(image("%2E%2E/b3") == vec![3; 70_000]);
    // no file system, and a note that says so
    assert_eq!(names("a%25b/b2"), ["no-files.txt", "volume.img"]);
    assert!(names("db/latest/files").len() > 5);
    backup("a%b", "b9", 9);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while names("a%25b") != ["b2", "b9", "latest"] {
        assert!(std::time::Instant::now() < end, "it is not shown: {:?}", names("a%25b"));
        std::thread::park_timeout(std::time::Duration::from_millis(200));
    }
    assert!(image("a%25b/latest") == vec![9; 70_000]);
    assert!(image("a%25b/b2") == vec![2; 70_000]);
}
