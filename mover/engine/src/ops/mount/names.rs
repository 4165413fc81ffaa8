//! Names of volumes and backups as names of directories, one part of a path each. Pure.
//!
//! A volume may have any name, and `a` and `a/b` may stand beside each other. So a name is never
//! several directories: what no file can be named, and what would move a cursor, is `%` and two
//! digits, and so is `%`.

use chunkstore::{BackupId, VolumeName};

/// Of the link to the newest backup of a volume.
pub(super) const LATEST: &str = "latest";
/// Of the volume's bytes, the directory of its files, and the note of why there is none.
pub(super) const IMAGE: &str = "volume.img";
pub(super) const FILES: &str = "files";
pub(super) const NOTE: &str = "no-files.txt";

pub(super) fn of_volume(volume: &VolumeName) -> String {
    match volume.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        name => escaped(name),
    }
}

/// Ids have no characters that need it, but one may be the link's own name.
pub(super) fn of_backup(id: &BackupId) -> String {
    match id.as_str() {
        LATEST => "%6Catest".to_owned(),
        id => id.to_owned(),
    }
}

fn escaped(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for c in name.chars() {
        if c == '/' || c == '%' || c.is_control() {
            let mut room = [0; 4];
            shown.extend(c.encode_utf8(&mut room).bytes().map(|byte| format!("%{byte:02X}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_volumes_share_a_name_and_each_is_one_part_of_a_path() {
        let names = [
            "db",
            "a/b",
            "a%2Fb",
            "a%b",
            ".",
            "..",
            "...",
            "%2E",
            ".hidden",
            "pvc:ns/claim",
            "ä",
            "line\nbreak",
            "\u{9b}31m",
            "/",
            "latest",
            " ",
        ];
        let shown: Vec<String> =
            names.iter().map(|name| of_volume(&VolumeName::new(*name).unwrap())).collect();
        assert_eq!(shown.iter().collect::<HashSet<_>>().len(), names.len());
        for name in &shown {
            let plain = mover_fsmap::files::is_plain(name.as_bytes());
            assert!(plain && !name.chars().any(char::is_control), "{name:?}");
        }
        assert_eq!(shown[1], "a%2Fb");
        assert_eq!(shown[2], "a%252Fb");
        assert_eq!(shown[9], "pvc:ns%2Fclaim");
        assert_eq!(shown[12], "%C2%9B31m");
    }

    #[test]
    fn a_backup_may_be_named_like_the_link() {
        let shown = |id: &str| of_backup(&BackupId::new(id).unwrap());
        assert_eq!((shown("3f2a").as_str(), shown("latest").as_str()), ("3f2a", "%6Catest"));
    }
}
