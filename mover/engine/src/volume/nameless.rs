//! Files without a name: gone when nobody has them open any more.

use chunkstore::random_bytes;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

/// Makes one in a directory, for this user alone.
pub(crate) fn nameless_file(directory: &Path) -> io::Result<File> {
    let private = Mode::RUSR | Mode::WUSR;
    match open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, private) {
        Ok(file) => Ok(File::from(file)),
        // not every file system has files without names
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
            let path = directory.join(format!(".mover-{}", hex::encode(random_bytes::<16>())));
            let fresh = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = open(&path, fresh | OFlags::RDWR | OFlags::CLOEXEC, private)?;
            std::fs::remove_file(&path)?;
            Ok(File::from(file))
        }
        Err(e) => Err(e.into()),
    }
}
