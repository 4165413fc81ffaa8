//! Logical volumes of LVM, made by its own tools, which say where their extents are. Bytes are put
//! there by that, and what the kernel shows of the same bytes is what has to be read.

use super::tree::{entries, same};
use super::{PLAIN, Stage};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::{Lvm, run_ok};

const MIB: u64 = 1 << 20;
/// Of the file system of [`Stage`], in extents of 1 MiB.
const EXTENTS: u64 = 96;
/// The tools put the first extent there, and so does the test in the striped volume.
const FIRST: u64 = MIB;
const STRIPE: u64 = 64 << 10;

/// A physical volume with `root` in two pieces at the least, and others beside it.
fn make(stage: &Stage) -> (PathBuf, Lvm) {
    let image = stage.path("pv");
    File::create(&image).unwrap().set_len(400 * MIB).unwrap();
    let lvm = Lvm::new(&stage.path("lvm"), std::slice::from_ref(&image));
    let device = lvm.device(0);
    lvm.ok("pvcreate", &["-ff", &device]);
    lvm.ok("vgcreate", &["-s", "1m", "vg", &device]);
    let plain = ["-an", "-Zn", "-Wn", "vg"];
    for (name, extents) in [("a", "11"), ("root", "40"), ("home", "7"), ("striped", "96")] {
        lvm.ok("lvcreate", &[&plain[..], &["-n", name, "-l", extents]].concat());
    }
    lvm.ok("lvremove", &["vg/a"]);
    lvm.ok("lvextend", &["-l", &EXTENTS.to_string(), "vg/root"]);
    (image, lvm)
}

/// Physical extents of a logical volume, in its order, as LVM says.
fn extents(lvm: &Lvm, name: &str) -> Vec<u64> {
    let fields = ["--noheadings", "--segments", "-o", "seg_start_pe,seg_pe_ranges"];
    let said = lvm.ok("lvs", &[&fields[..], &[name]].concat());
    let segment = |line: &str| {
        let (start, ranges) = line.trim().split_once(char::is_whitespace)?;
        let (_, range) = ranges.trim().rsplit_once(':')?;
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| text.parse::<u64>().ok();
        Some((number(start)?, number(first)?..=number(last)?))
    };
    let mut all: Vec<_> = said.lines().map(|line| segment(line).expect(line)).collect();
    all.sort_by_key(|(start, _)| *start);
    all.into_iter().flat_map(|(_, extents)| extents).collect()
}

fn backup(stage: &Stage, image: &Path, volume: &str) {
    stage.mover.ok(["backup", image.to_str().unwrap(), "--volume", volume, "--quiet"]);
}

/// A copy of all files, by that place.
fn copied(stage: &Stage, to: &str, volume: &str, place: &[&str]) -> PathBuf {
    let target = stage.path(to);
    fs::create_dir(&target).unwrap();
    let line = ["cp", volume, "/", target.to_str().unwrap(), "--privileged"];
    stage.mover.ok([&line[..], place].concat());
    target
}

#[test]
fn files_of_logical_volumes_are_what_the_kernel_shows() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let (image, lvm) = make(&stage);
    let bytes = fs::read(&stage.image).unwrap();
    let root = extents(&lvm, "vg/root");
    let striped = extents(&lvm, "vg/striped");
    assert!(root.windows(2).any(|pair| pair[0] + 1 != pair[1]), "it is in one piece");
    assert_eq!((root.len() as u64, striped.len() as u64), (EXTENTS, EXTENTS));
    // in turns over three stretches of the one device, which LVM does not make by itself
    let first = striped[0];
    lvm.edit(|group| {
        let at = |n: u64| format!("\"pv0\", {}", first + n * EXTENTS / 3);
        let from = "stripe_count = 1\t# linear\n\n\t\t\t\tstripes = [\n\t\t\t\t\t\"pv0\", ";
        let from = format!("{from}{first}\n");
        assert!(group.contains(&from), "{group}");
        let stripes = [at(0), at(1), at(2)].join(", ");
        let to = format!("stripe_count = 3\nstripe_size = 128\nstripes = [ {stripes}\n");
        group.replace(&from, &to)
    });
    let said = lvm.ok("lvs", &["--noheadings", "--segments", "-o", "stripes", "vg/striped"]);
    assert_eq!(said.trim(), "3", "LVM takes it as striped");
    drop(lvm);
    let file = File::options().write(true).open(&image).unwrap();
    for (n, extent) in root.iter().enumerate() {
        let part = &bytes[n * MIB as usize..][..MIB as usize];
        file.write_all_at(part, FIRST + extent * MIB).unwrap();
    }
    for (n, part) in (0..).zip(bytes.chunks(STRIPE as usize)) {
        let stretch = FIRST + (first + n % 3 * EXTENTS / 3) * MIB;
        file.write_all_at(part, stretch + n / 3 * STRIPE).unwrap();
    }
    drop(file);
    backup(&stage, &image, "pv");
    // the same in a partition
    let disk = stage.path("disk");
    File::create(&disk).unwrap().set_len(420 * MIB).unwrap();
    let table = ["--new=1:2048:+8M", "--new=2:18432:+400M", "--typecode=2:8e00"];
    run_ok("sgdisk", [&table[..], &[disk.to_str().unwrap()]].concat());
    let line = ["bs=1M", "seek=9", "conv=notrunc,sparse", "status=none"];
    let (from, to) = (format!("if={}", image.display()), format!("of={}", disk.display()));
    run_ok("dd", [&line[..], &[&from, &to]].concat());
    backup(&stage, &disk, "disk");
    stage.kernels(|mounted| {
        let wanted = entries(mounted);
        for (to, volume, place) in [
            ("root", "pv@latest", &["--lv", "vg/root"][..]),
            ("striped", "pv@latest", &["--lv", "vg/striped"]),
            ("within", "disk@latest", &["--lv", "vg/root", "--partition", "2"]),
        ] {
            let got = entries(&copied(&stage, to, volume, place));
            assert!(got.len() > 500, "{to}: {}", got.len());
            same(to, &wanted, &got);
        }
        let line = ["pv@latest", "--lv", "vg/striped"];
        let shown = super::mount::server::Mounted::new(&stage, &line);
        same("mounted", &wanted, &entries(&shown.path("files")));
    });
    for (place, volume, words) in [
        (&[][..], "pv", "logical volumes vg/home, vg/root, vg/striped: name one with --lv"),
        (&["--partition", "2"], "disk", "vg/striped: name one with --lv"),
        (&[], "disk", "partitions 1, 2: name one with --partition"),
        (&["--lv", "vg/none"], "pv", "it has logical volumes vg/home, vg/root"),
        (&["--lv", "vg/root"], "db", "no physical volume"),
        (&["--lv", "vg/home"], "pv", "the volume begins with none that is known"),
    ] {
        let line = ["ls", &format!("{volume}@latest")];
        let said = stage.mover.run([&line[..], place].concat()).expect_code(2).stderr;
        assert!(said.contains(words), "{place:?} of {volume}: {said}");
    }
}

/// Extents that are moved between two backups: a file that is where it was by its file system is
/// elsewhere in the volume, and one that is elsewhere may be the same.
#[test]
fn what_moved_with_its_extents_is_told_apart_by_its_bytes() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let (image, lvm) = make(&stage);
    let bytes = fs::read(&stage.image).unwrap();
    let fill = |bytes: &[u8]| {
        let file = File::options().write(true).open(&image).unwrap();
        for (n, extent) in extents(&lvm, "vg/root").iter().enumerate() {
            let part = &bytes[n * MIB as usize..][..MIB as usize];
            file.write_all_at(part, FIRST + extent * MIB).unwrap();
        }
    };
    fill(&bytes);
    backup(&stage, &image, "pv");
    let first = stage.mover.ok(["show", "pv@latest", "--json"]).document();
    let first = format!("pv@{}", first["backup_id"].as_str().unwrap());
    // another volume takes its place, whose bytes are its own but for one file
    lvm.ok("lvrename", &["vg", "root", "old"]);
    let made = ["-an", "-Zn", "-Wn", "-n", "root", "-l", "96", "vg"];
    lvm.ok("lvcreate", &made);
    let content = fs::read(stage.copied("whole", &["--privileged"]).join("lengths/65536")).unwrap();
    let at = bytes.windows(content.len()).position(|part| part == content).expect("in one piece");
    let mut changed = bytes.clone();
    changed[at] ^= 1;
    fill(&changed);
    drop(lvm);
    backup(&stage, &image, "pv");
    let line = ["diff", &first, "pv@latest", "--files", "--lv", "vg/root"];
    assert_eq!(stage.mover.ok(line).text(), "M /lengths/65536\n");
}

/// Whatever is not plain extents of the one physical volume is named, and what to do about it.
#[test]
fn other_kinds_are_refused_by_name() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let (image, lvm) = make(&stage);
    lvm.edit(|group| {
        let volume = |name: &str, number: u32, visible: &str, segment: &str| {
            format!(
                "{name} {{\nid = \"AAAAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA{number:02}\"\n\
                 status = [\"READ\", \"WRITE\"{visible}]\nflags = []\nsegment_count = 1\n\
                 segment1 {{\nstart_extent = 0\n{segment}\n}}\n}}\n"
            )
        };
        let shown = ", \"VISIBLE\"";
        let striped = |extents: u32, first: u32| {
            format!(
                "extent_count = {extents}\ntype = \"striped\"\nstripe_count = 1\n\
                 stripes = [ \"pv0\", {first} ]"
            )
        };
        let pool = "extent_count = 20\ntype = \"thin-pool\"\nmetadata = \"pool_tmeta\"\n\
                    pool = \"pool_tdata\"\ntransaction_id = 1\nchunk_size = 128\n\
                    discards = \"passdown\"\nzero_new_blocks = 1";
        let thin = "extent_count = 500\ntype = \"thin\"\nthin_pool = \"pool\"\n\
                    transaction_id = 0\ndevice_id = 1";
        let snapshot = "extent_count = 7\ntype = \"snapshot\"\nchunk_size = 8\n\
                        origin = \"home\"\ncow_store = \"kept\"";
        let all = [
            volume("pool_tmeta", 1, "", &striped(2, 260)),
            volume("pool_tdata", 2, "", &striped(20, 270)),
            volume("pool", 3, shown, pool),
            volume("thin", 4, shown, thin),
            volume("kept", 5, shown, &striped(3, 300)),
            volume("snapshot0", 6, "", snapshot),
        ];
        group.replace("logical_volumes {", &format!("logical_volumes {{\n{}", all.concat()))
    });
    drop(lvm);
    backup(&stage, &image, "pv");
    // of two devices
    let images = ["one", "two"].map(|name| {
        let image = stage.path(name);
        File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        image
    });
    let lvm = Lvm::new(&stage.path("lvm"), &images);
    let [one, two] = [0, 1].map(|number| lvm.device(number));
    lvm.ok("pvcreate", &["-ff", &one, &two]);
    lvm.ok("vgcreate", &["-s", "1m", "both", &one, &two]);
    let plain = ["-an", "-Zn", "-Wn", "both", "-l"];
    lvm.ok("lvcreate", &[&plain[..], &["4", "-n", "half", "-i", "2", "-I", "64k"]].concat());
    lvm.ok("lvcreate", &[&plain[..], &["100", "-n", "long"]].concat());
    drop(lvm);
    backup(&stage, &images[0], "one");
    for (volume, name, words) in [
        ("pv", "vg/thin", "it is of kind thin"),
        ("pv", "vg/pool", "it is of kind thin-pool"),
        ("pv", "vg/kept", "it is a snapshot"),
        ("one", "both/long", "on another physical volume"),
        ("one", "both/half", "on another physical volume"),
    ] {
        let line = ["ls", &format!("{volume}@latest"), "--lv", name];
        let said = stage.mover.run(line).expect_code(2).stderr;
        assert!(said.contains(words) && said.contains("restore it"), "{name}: {said}");
    }
}

/// A disk that was LVM's has become one of ext4: its own fault is told, not that of the label that
/// has stayed.
#[test]
fn a_label_that_was_left_behind_hides_no_other_reason() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let (image, lvm) = make(&stage);
    drop(lvm);
    let faulty = stage.path("faulty");
    fs::copy(&stage.image, &faulty).unwrap();
    run_ok("debugfs", ["-w", "-R", "ssv state 3", faulty.to_str().unwrap()]);
    let mut label = vec![0; 512];
    File::open(&image).unwrap().read_exact_at(&mut label, 512).unwrap();
    assert!(label.starts_with(b"LABELONE"));
    File::options().write(true).open(&faulty).unwrap().write_all_at(&label, 512).unwrap();
    backup(&stage, &faulty, "faulty");
    let said = stage.mover.run(["ls", "faulty@latest"]).expect_code(2).stderr;
    assert!(said.contains("e2fsck") && !said.contains("lvm"), "{said}");
}
