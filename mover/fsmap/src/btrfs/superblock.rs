//! The superblock: what is refused at once, and where the trees begin.

use super::checksum::Checksum;
use super::tree::Pointer;
use super::{owner, unusable, uuid};
use crate::{ReadAt, Refusal, field, le16, le32, le64, read};

/// Where it and its copies are. The kernel mounts by the first alone.
pub(super) const OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const LEN: usize = 4096;
const MAGIC: &[u8; 8] = b"_BHRfS_M";
const SYSTEM_CHUNKS: usize = 0x32b;
const SYSTEM_CHUNKS_LEN: usize = 2048;

/// WRITTEN and RELOC, which every superblock has or may have.
const FLAGS_HARMLESS: u64 = 3;
const FLAG_ERROR: u64 = 1 << 2;
const FLAG_SEEDING: u64 = 1 << 32;

mod incompat {
    pub(super) const MIXED_BACKREF: u64 = 1;
    pub(super) const METADATA_UUID: u64 = 1 << 10;
    pub(super) const ZONED: u64 = 1 << 12;
    /// And DEFAULT_SUBVOL, MIXED_GROUPS, COMPRESS_LZO, COMPRESS_ZSTD, BIG_METADATA, EXTENDED_IREF,
    /// RAID56, SKINNY_METADATA, NO_HOLES, RAID1C34, SIMPLE_QUOTA. What profile a chunk has is
    /// looked up in the chunk.
    pub(super) const KNOWN: u64 = MIXED_BACKREF | METADATA_UUID | 0x1_0bfe;
}

mod ro_compat {
    pub(super) const BLOCK_GROUP_TREE: u64 = 1 << 3;
    /// And FREE_SPACE_TREE, FREE_SPACE_TREE_VALID, VERITY.
    pub(super) const KNOWN: u64 = BLOCK_GROUP_TREE | 7;
}

#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) checksum: Checksum,
    /// What tree blocks carry.
    pub(super) metadata_uuid: [u8; 16],
    pub(super) node_bytes: u64,
    pub(super) sector_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) device: u64,
    pub(super) device_uuid: [u8; 16],
    pub(super) device_bytes: u64,
    /// Keys and items of chunks, one behind the other.
    pub(super) system_chunks: Vec<u8>,
    root: Pointer,
    chunk_root: Pointer,
    log_root: Option<Pointer>,
    block_group_tree: bool,
}

impl Superblock {
    pub(super) fn read(volume: &dyn ReadAt, volume_bytes: u64) -> Result<Self, Refusal> {
        if volume_bytes < OFFSETS[0] + LEN as u64 {
            return Err(Refusal::Unknown);
        }
        Self::parse(&read(volume, OFFSETS[0], LEN)?, volume_bytes)
    }

    fn parse(bytes: &[u8], volume_bytes: u64) -> Result<Self, Refusal> {
        if bytes.get(0x40..0x48) != Some(MAGIC.as_slice()) {
            return Err(Refusal::Unknown);
        }
        let checksum = Checksum::of_number(le16(bytes, 0xc4))?;
        if !checksum.fits(bytes) {
            return Err(unusable("the checksum of its superblock does not fit"));
        }
        let features = Features::parse(bytes)?;
        let (sector_bytes, node_bytes) = (le32(bytes, 0x90), le32(bytes, 0x94));
        let system_len = le32(bytes, 0xa0) as usize;
        let chunks = SYSTEM_CHUNKS..SYSTEM_CHUNKS + system_len.min(SYSTEM_CHUNKS_LEN);
        let fits = le64(bytes, 0x30) == OFFSETS[0]
            && sector_bytes.is_power_of_two()
            && node_bytes.is_power_of_two()
            && (512..=64 << 10).contains(&sector_bytes)
            && (sector_bytes..=64 << 10).contains(&node_bytes)
            && system_len <= SYSTEM_CHUNKS_LEN;
        if !fits {
            return Err(unusable("the sizes in its superblock do not fit together"));
        }
        let device_bytes = le64(bytes, 0xc9 + 8);
        if device_bytes > volume_bytes {
            let why = format!("its device has {device_bytes} bytes, and the volume is smaller");
            return Err(unusable(why));
        }
        let generation = le64(bytes, 0x48);
        let tree = |at: usize, level: usize, generation: u64, owner: u64| Pointer {
            at: le64(bytes, at),
            generation,
            level: bytes[level],
            owner,
        };
        // logs are of the commit that is being made
        let log_root = tree(0x60, 0xc8, generation.wrapping_add(1), owner::LOGS);
        Ok(Self {
            checksum,
            metadata_uuid: uuid(bytes, if features.metadata_uuid { 0x23b } else { 0x20 }),
            node_bytes: node_bytes.into(),
            sector_bytes: sector_bytes.into(),
            used_bytes: le64(bytes, 0x78),
            device: le64(bytes, 0xc9),
            device_uuid: field(bytes, 0xc9 + 66),
            device_bytes,
            system_chunks: bytes[chunks].to_vec(),
            root: tree(0x50, 0xc6, generation, owner::ROOTS),
            chunk_root: tree(0x58, 0xc7, le64(bytes, 0xa4), owner::CHUNKS),
            log_root: (log_root.at != 0).then_some(log_root),
            block_group_tree: features.block_group_tree,
        })
    }

    pub(super) fn node_len(&self) -> usize {
        // at most 64 KiB
        usize::try_from(self.node_bytes).unwrap_or(0)
    }

    pub(super) fn has_block_group_tree(&self) -> bool {
        self.block_group_tree
    }

    /// Of the tree of roots.
    pub(super) fn root(&self) -> Pointer {
        self.root
    }

    pub(super) fn chunk_root(&self) -> Pointer {
        self.chunk_root
    }

    /// Of the tree of the roots of log trees, if the next mount will replay any.
    pub(super) fn log_root(&self) -> Option<Pointer> {
        self.log_root
    }
}

struct Features {
    metadata_uuid: bool,
    block_group_tree: bool,
}

impl Features {
    fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let (flags, devices) = (le64(bytes, 0x38), le64(bytes, 0x88));
        let [ro_compat, incompat] = [0xb4, 0xbc].map(|at| le64(bytes, at));
        if devices != 1 {
            return Err(unusable(format!("it is spread over {devices} devices")));
        }
        if flags & FLAG_SEEDING != 0 {
            return Err(unusable("it is a seed for others"));
        }
        if flags & FLAG_ERROR != 0 {
            return Err(unusable("it has recorded errors: check it with btrfs check"));
        }
        if flags & !FLAGS_HARMLESS != 0 {
            return Err(unusable(format!("its superblock has unknown flags: {flags:#x}")));
        }
        if incompat & incompat::ZONED != 0 {
            return Err(unusable("it is of a zoned device"));
        }
        let unknown = (incompat & !incompat::KNOWN, ro_compat & !ro_compat::KNOWN);
        if unknown != (0, 0) {
            let (incompat, ro_compat) = unknown;
            let why = format!("unknown features: incompat {incompat:#x}, ro_compat {ro_compat:#x}");
            return Err(unusable(why));
        }
        if incompat & incompat::MIXED_BACKREF == 0 {
            return Err(unusable("its extent tree is of a form that is no longer in use"));
        }
        let metadata_uuid = incompat & incompat::METADATA_UUID != 0;
        Ok(Self { metadata_uuid, block_group_tree: ro_compat & ro_compat::BLOCK_GROUP_TREE != 0 })
    }
}
