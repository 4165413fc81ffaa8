//! Reparse points: what stands where a file's bytes or names would be, for a driver of its own.
//!
//! Links of Windows and of its subsystem for Linux are links; one of Windows that begins at a drive
//! is shown with it (`C:/Users`). Nothing else is followed: it is named.
//!
//! Layout: [MS-FSCC] 2.1.2.

use crate::files::FileKind;
use crate::{le16, le32, utf16};

/// Of one: what the format allows.
pub(super) const BYTES_MAX: u64 = 16 << 10;
const HEAD: usize = 8;

mod tag {
    pub(super) const JUNCTION: u32 = 0xa000_0003;
    pub(super) const SYMLINK: u32 = 0xa000_000c;
    pub(super) const LINUX_SYMLINK: u32 = 0xa000_001d;
    pub(super) const SOCKET: u32 = 0x8000_0023;
    pub(super) const FIFO: u32 = 0x8000_0024;
    /// What is named, though not read.
    pub(super) const KNOWN: [(u32, &str); 6] = [
        (0x8000_0013, "deduplicated"),
        (0x8000_0017, "compressed by Windows (WOF)"),
        (0x8000_001b, "an application's link"),
        (0x8000_0025, "a device of the subsystem for Linux"),
        (0x8000_0026, "a device of the subsystem for Linux"),
        (CLOUD, "kept elsewhere (cloud files)"),
    ];
    /// One of sixteen that differ in these bits.
    pub(super) const CLOUD: u32 = 0x9000_001a;
    pub(super) const CLOUD_BITS: u32 = 0xf000;
}

/// See the module.
pub(super) struct Reparse {
    tag: u32,
    target: Option<Vec<u8>>,
}

impl Reparse {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let tag = le32(bytes, 0);
        let data = bytes.get(HEAD..)?.get(..usize::from(le16(bytes, 4)))?;
        let target = match tag {
            tag::JUNCTION => Some(windows(data, 8)?),
            tag::SYMLINK => Some(windows(data, 12)?),
            // a version stands before the path
            tag::LINUX_SYMLINK if le32(data, 0) == 2 => Some(data.get(4..)?.to_vec()),
            tag::LINUX_SYMLINK => return None,
            _ => None,
        };
        let is_path = |path: &Vec<u8>| !path.is_empty() && !path.contains(&0);
        target.as_ref().is_none_or(is_path).then_some(Self { tag, target })
    }

    /// What it makes of its file; `None`: that is what it is.
    pub(super) fn kind(&self) -> Option<FileKind> {
        match self.tag {
            _ if self.target.is_some() => Some(FileKind::Symlink),
            tag::SOCKET => Some(FileKind::Socket),
            tag::FIFO => Some(FileKind::Fifo),
            _ => None,
        }
    }

    pub(super) fn target(&self) -> Option<Vec<u8>> {
        self.target.clone()
    }

    /// Whether it only says that files below it may be kept elsewhere.
    pub(super) fn is_cloud(&self) -> bool {
        self.tag & !tag::CLOUD_BITS == tag::CLOUD
    }

    /// Why it is not read.
    pub(super) fn unread(&self) -> String {
        let tag = if self.is_cloud() { tag::CLOUD } else { self.tag };
        let known = tag::KNOWN.iter().find(|(one, _)| *one == tag);
        let what = known.map_or("of an unknown kind", |(_, what)| what);
        format!("it is a reparse point, {what} ({:#010x}), which is not followed", self.tag)
    }
}

/// The path of a link of Windows: the one that counts, not the one that is shown.
fn windows(data: &[u8], names: usize) -> Option<Vec<u8>> {
    let (from, len) = (usize::from(le16(data, 0)), usize::from(le16(data, 2)));
    let path = data.get(names..)?.get(from..)?.get(..len)?;
    let path = utf16::name(path.chunks_exact(2).map(|unit| le16(unit, 0)));
    let path = path.strip_prefix(b"\\??\\").unwrap_or(&path);
    Some(path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(tag: u32, path: &str) -> Vec<u8> {
        let path: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let len = u16::try_from(path.len()).unwrap().to_le_bytes();
        let flags: &[u8] = if tag == tag::SYMLINK { &[1, 0, 0, 0] } else { &[] };
        // the name that is shown comes first
        let names = [&[2, 0], &len[..], &[0, 0, 2, 0], flags, b"x\0", &path].concat();
        let len = u16::try_from(names.len()).unwrap().to_le_bytes();
        [&tag.to_le_bytes()[..], &len, &[0, 0], &names].concat()
    }

    #[test]
    fn links_are_those_of_their_own_system() {
        let target = |bytes: &[u8]| {
            let one = Reparse::parse(bytes)?;
            assert_eq!(one.kind(), Some(FileKind::Symlink));
            String::from_utf8(one.target()?).ok()
        };
        let found = target(&link(tag::SYMLINK, r"..\Grüße\b"));
        assert_eq!(found.as_deref(), Some("../Grüße/b"));
        let found = target(&link(tag::JUNCTION, r"\??\C:\Users"));
        assert_eq!(found.as_deref(), Some("C:/Users"));
        let linux = [&tag::LINUX_SYMLINK.to_le_bytes()[..], &[9, 0, 0, 0, 2, 0, 0, 0], b"../\xff!"];
        let one = Reparse::parse(&linux.concat()).and_then(|one| one.target());
        assert_eq!(one.as_deref(), Some(&b"../\xff!"[..]));
        for len in 0..link(tag::SYMLINK, "ab").len() {
            assert!(Reparse::parse(&link(tag::SYMLINK, "ab")[..len]).is_none(), "{len}");
        }
        assert!(Reparse::parse(&link(tag::SYMLINK, "a\0b")).is_none());
        assert!(Reparse::parse(&link(tag::SYMLINK, "")).is_none());
    }

    #[test]
    fn others_are_named() {
        for (tag, word, cloud) in [
            (0x8000_0017, "WOF", false),
            (0x9000_601a, "cloud", true),
            (0x1234, "unknown kind (0x00001234)", false),
        ] {
            let bytes = [&u32::to_le_bytes(tag)[..], &[0; 4]].concat();
            let one = Reparse::parse(&bytes).unwrap();
            assert!(one.unread().contains(word), "{}", one.unread());
            assert_eq!((one.is_cloud(), one.kind()), (cloud, None));
        }
    }
}
