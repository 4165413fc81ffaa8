//! The mounts that there are: `/proc/self/mountinfo`, `proc(5)`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLine {
    /// Its number, which no other mount has while it is there.
    pub(crate) id: u64,
    /// The device as others see it: major and minor number.
    pub(crate) device: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// As `mount -t` has it.
    pub(crate) kind: OsString,
}

/// All mounts, in the order in which they were made.
pub(crate) fn mounts() -> io::Result<Vec<MountLine>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// What is mounted on a directory, if anything is; of several what is on top.
pub(crate) fn on(path: &Path) -> io::Result<Option<MountLine>> {
    Ok(mounts()?.into_iter().rfind(|line| line.path == path))
}

fn parse(table: &[u8]) -> Vec<MountLine> {
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<MountLine> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8(words.nth(1)?.to_vec()).ok()?;
    let path = unescaped(words.nth(1)?);
    let kind = unescaped(words.skip_while(|word| *word != b"-").nth(1)?);
    Some(MountLine { id, device, path: path.into(), kind })
}

/// Blanks, line ends and backslashes are `\` and three octal digits.
fn unescaped(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| first == b'\\');
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

/// Whether a path is this directory, or below it.
pub(crate) fn is_below(path: &Path, directory: &Path) -> bool {
    let (path, directory) = (path.as_os_str().as_bytes(), directory.as_os_str().as_bytes());
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_what_is_none_is_passed_over() {
        let table = b"22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            91 22 0:52 / /mnt/a\\040b\\134c ro,nosuid - fuse.mover mover ro,user_id=0\n\
            rubbish\n\
            92 22 0:53 / /mnt/a\\040b\\134c rw shared:3 master:4 - tmpfs none rw\n";
        let all = parse(table);
        let path = Path::new("/mnt/a b\\c");
        assert_eq!(all.iter().map(|line| line.id).collect::<Vec<_>>(), [22, 91, 92]);
        assert_eq!((all[1].path.as_path(), all[1].kind.to_str()), (path, Some("fuse.mover")));
        assert_eq!((all[1].device.as_str(), all[2].kind.to_str()), ("0:52", Some("tmpfs")));
    }

    #[test]
    fn paths_below_a_directory() {
        let below = |path: &str| is_below(Path::new(path), Path::new("/mnt/a"));
        assert!(below("/mnt/a") && below("/mnt/a/b") && !below("/mnt/ab") && !below("/mnt"));
    }
}
