//! Metadata that is damaged: what is said of it, and that nothing else suffers.

use super::super::content::walk;
use super::super::tree::{attribute, fill, random};
use super::{Form, Ground, Image, PLAIN};
use mover_fsmap::ReadAt;
use mover_fsmap::files::{FileKind, FileName, open};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tests::{LoopDevice, Mount, Rng};

/// A kind of metadata: what it begins with, from which byte on, and where it has its checksum and
/// its owner.
struct Kind {
    name: &'static str,
    magic: (usize, &'static [u8]),
    crc: usize,
    owner: usize,
}

const KINDS: [Kind; 8] = [
    Kind { name: "inode", magic: (0, b"IN"), crc: 100, owner: 152 },
    Kind { name: "names in a block", magic: (0, b"XDB3"), crc: 4, owner: 40 },
    Kind { name: "names", magic: (0, b"XDD3"), crc: 4, owner: 40 },
    Kind { name: "extents", magic: (0, b"BMA3"), crc: 64, owner: 56 },
    Kind { name: "attributes", magic: (8, b"\x3b\xee"), crc: 12, owner: 48 },
    Kind { name: "a tree of attributes", magic: (8, b"\x3e\xbe"), crc: 12, owner: 48 },
    Kind { name: "an attribute", magic: (0, b"XARM"), crc: 12, owner: 32 },
    Kind { name: "a link", magic: (0, b"XSLM"), crc: 12, owner: 32 },
];

/// A piece of metadata: where it is, how long, its kind, and whose.
struct Place {
    at: u64,
    len: usize,
    kind: &'static Kind,
    owner: u64,
}

/// All that there is, and some that was.
fn places(image: &Path) -> Vec<Place> {
    let bytes = fs::read(image).unwrap();
    let be = |at: usize| u64::from(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()));
    let block = be(4) as usize;
    let directory = block << bytes[192];
    let inode = usize::from(u16::from_be_bytes([bytes[104], bytes[105]]));
    let mut places = Vec::new();
    for at in (0..bytes.len()).step_by(512) {
        for kind in &KINDS {
            let (from, magic) = kind.magic;
            let len = match kind.name {
                "inode" => inode,
                name if name.starts_with("names") => directory,
                _ => block,
            };
            if !bytes[at + from..].starts_with(magic) || at % len.min(block) != 0 {
                continue;
            }
            let owner = be(at + kind.owner) << 32 | be(at + kind.owner + 4);
            // an inode that nobody uses has no mode
            if kind.name != "inode" || bytes[at + 2..at + 4] != [0; 2] {
                places.push(Place { at: at as u64, len, kind, owner });
            }
        }
    }
    places
}

/// Files of which anything cannot be read, with what is said of it.
fn failing(volume: &dyn ReadAt, bytes: u64) -> Vec<(u64, String)> {
    let files = open(volume, bytes).unwrap();
    let (mut failing, mut left) = (Vec::new(), vec![files.root()]);
    while let Some(directory) = left.pop() {
        let names = match files.names(directory) {
            Ok(names) => names,
            Err(why) => {
                failing.push((directory.0, why.to_string()));
                continue;
            }
        };
        for FileName { id, .. } in names {
            let read = || -> Result<FileKind, mover_fsmap::Refusal> {
                let node = files.node(id)?;
                files.attributes(id)?;
                match node.kind {
                    FileKind::File => drop(files.content(id)?),
                    FileKind::Symlink => drop(files.target(id)?),
                    _ => {}
                }
                Ok(node.kind)
            };
            match read() {
                Ok(FileKind::Directory) => left.push(id),
                Ok(_) => {}
                Err(why) => failing.push((id.0, why.to_string())),
            }
        }
    }
    failing
}

/// A checksum that does not fit fails what it is of, by its number, and nothing else.
#[test]
fn a_wrong_checksum_is_of_its_own_file() {
    let form = Form { name: "xfs-damaged", options: &["-b", "size=1024"], dirty: false, ..PLAIN };
    let Some(ground) = Ground::filled(&form) else { return };
    let places = places(&ground.image);
    let (volume, bytes) = Image::open(&ground.image);
    assert_eq!(failing(&volume, bytes), []);
    let file = File::options().write(true).open(&ground.image).unwrap();
    let mut rng = Rng::new(0xc5c);
    for kind in &KINDS {
        let mut of_kind: Vec<&Place> = places.iter().filter(|p| p.kind.name == kind.name).collect();
        rng.shuffle(&mut of_kind);
        let mut hits = 0;
        // some are left over, and nobody reads them
        for place in of_kind.into_iter().take(40) {
            let at = place.at + 200 + rng.below(place.len as u64 - 200);
            let mut byte = [0];
            file.sync_all().unwrap();
            volume.0.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            let failing = failing(&volume, bytes);
            file.write_all_at(&byte, at).unwrap();
            for (number, why) in &failing {
                assert_eq!(*number, place.owner, "{}: {why}", kind.name);
                let own = format!("inode {number}: the checksum of ");
                let own = why.contains(&own) || why.contains(&format!("inode {number}: its check"));
                assert!(own, "{}: {why}", kind.name);
            }
            assert!(failing.len() <= 6, "a file and its hard links: {failing:?}");
            hits += usize::from(!failing.is_empty());
            if hits == 3 {
                break;
            }
        }
        assert!(hits > 0, "{}: none was hit", kind.name);
    }
}

/// CRC-32C, by its definition.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    };
    !bytes.iter().fold(!0, step)
}

/// Whatever stands in metadata, with checksums that fit: reading it ends, and never panics.
#[test]
fn rubbish_with_sound_checksums_is_read_to_an_end() {
    const ROUNDS: u64 = 300;
    let form = Form { name: "xfs-rubbish", options: &["-b", "size=1024"], ..PLAIN };
    let Some(ground) = Ground::new(&form) else { return };
    {
        let device = LoopDevice::attach(&ground.image);
        let mounted = Mount::new(device.path(), &ground.path("live"), "xfs", form.mounted);
        fill(mounted.path(), "xfs");
        let path = mounted.path().join("dressed");
        File::create(&path).unwrap();
        let mut rng = Rng::seeded(1);
        for n in 0..200 {
            attribute(&path, &format!("user.{n}"), &random(&mut rng, 40));
        }
    }
    let places = places(&ground.image);
    let (volume, bytes) = Image::open(&ground.image);
    let file = File::options().write(true).open(&ground.image).unwrap();
    let mut rng = Rng::new(0xba5e);
    let mut walked = 0;
    for _ in 0..ROUNDS {
        let mut before = Vec::new();
        for _ in 0..=rng.below(4) {
            // of each kind as often, though most are inodes
            let kind = &KINDS[rng.below(KINDS.len() as u64) as usize];
            let of_kind: Vec<&Place> = places.iter().filter(|p| p.kind.name == kind.name).collect();
            let Some(place) = of_kind.get(rng.below(of_kind.len().max(1) as u64) as usize) else {
                continue;
            };
            let mut block = vec![0; place.len];
            volume.0.read_exact_at(&mut block, place.at).unwrap();
            before.push((place.at, block.clone()));
            for _ in 0..=rng.below(4) {
                let most = if rng.once_in(2) { 256 } else { place.len as u64 };
                let at = rng.below(most) as usize;
                block[at] = match rng.below(4) {
                    0 => 0,
                    1 => 0xff,
                    _ => rng.next_u64() as u8,
                };
            }
            block[kind.crc..kind.crc + 4].fill(0);
            let sum = crc32c(&block);
            block[kind.crc..kind.crc + 4].copy_from_slice(&sum.to_le_bytes());
            file.write_all_at(&block, place.at).unwrap();
        }
        walked += walk(&volume, bytes);
        for (at, block) in before.into_iter().rev() {
            file.write_all_at(&block, at).unwrap();
        }
    }
    assert!(walked > ROUNDS * 100, "only {walked} files were seen in all");
    assert_eq!(failing(&volume, bytes), [], "all is as it was");
}
