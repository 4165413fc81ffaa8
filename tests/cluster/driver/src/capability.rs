//! Volume capabilities: what the protocol says, checked against what this driver can do. Pure.

use crate::mounts::FILESYSTEMS;
use crate::proto::csi::VolumeCapability;
use crate::proto::csi::volume_capability::AccessType;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::store::{Access, Capability};
use tonic::Status;

/// The one capability of a request.
pub(crate) fn one(capability: Option<&VolumeCapability>) -> Result<Capability, Status> {
    let missing = || Status::invalid_argument("volume_capability is missing");
    let capability = capability.ok_or_else(missing)?;
    let mode = capability.access_mode.ok_or_else(|| {
        Status::invalid_argument("volume_capability has no access_mode: name one")
    })?;
    let access = match &capability.access_type {
        None => {
            let text = "volume_capability has no access_type: name block or mount";
            return Err(Status::invalid_argument(text));
        }
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => {
            let asked = mount.fs_type.as_str();
            let filesystem = if asked.is_empty() { FILESYSTEMS[0] } else { asked };
            if !FILESYSTEMS.contains(&filesystem) {
                return Err(Status::invalid_argument(format!(
                    "fs_type {filesystem} is not one of {}",
                    FILESYSTEMS.join(", ")
                )));
            }
            let flags = mount.mount_flags.clone();
            Access::Mount { filesystem: filesystem.to_owned(), flags }
        }
    };
    let (reader, single) = match mode.mode() {
        Mode::SingleNodeWriter | Mode::MultiNodeSingleWriter | Mode::SingleNodeMultiWriter => {
            (false, false)
        }
        Mode::SingleNodeSingleWriter => (false, true),
        Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly => (true, false),
        // There is one node only, so all of its writers see one device.
        Mode::MultiNodeMultiWriter if access == Access::Block => (false, false),
        Mode::MultiNodeMultiWriter => {
            let text = "many writers are for block volumes only: name another access_mode";
            return Err(Status::invalid_argument(text));
        }
        Mode::Unknown => {
            let text = "volume_capability has an unknown access_mode: name a known one";
            return Err(Status::invalid_argument(text));
        }
    };
    Ok(Capability { access, reader, single })
}

/// All of a request, of which there must be one at least.
pub(crate) fn all(capabilities: &[VolumeCapability]) -> Result<Vec<Capability>, Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    capabilities.iter().map(|capability| one(Some(capability))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn capability(mode: Mode, fs_type: Option<&str>) -> VolumeCapability {
        let mount = fs_type
            .map(|fs_type| MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() });
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(mount.map_or(AccessType::Block(BlockVolume {}), AccessType::Mount)),
        }
    }

    #[test]
    fn what_can_be_done_is_taken() {
        let mounted = one(Some(&capability(Mode::SingleNodeSingleWriter, Some("")))).unwrap();
        let ext4 = Access::Mount { filesystem: "ext4".to_owned(), flags: Vec::new() };
        assert_eq!(mounted, Capability { access: ext4, reader: false, single: true });
        let block = one(Some(&capability(Mode::MultiNodeMultiWriter, None))).unwrap();
        assert_eq!(block, Capability { access: Access::Block, reader: false, single: false });
        assert!(one(Some(&capability(Mode::MultiNodeReaderOnly, Some("xfs")))).unwrap().reader);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let refused = |mode, fs_type| one(Some(&capability(mode, fs_type))).is_err();
        assert!(refused(Mode::MultiNodeMultiWriter, Some("ext4")));
        assert!(refused(Mode::SingleNodeWriter, Some("btrfs")));
        assert!(refused(Mode::Unknown, None));
        assert!(one(None).is_err() && one(Some(&VolumeCapability::default())).is_err());
        assert!(all(&[]).is_err());
    }
}
