//! Where objects are read from: a file of the user, or what came out of a backup; plain or compressed,
//! which its first bytes tell.

use crate::engine::{Failure, exit};
use std::fmt;
use std::fs::File;
use std::io::{Cursor, Read, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use zeroize::Zeroizing;

/// How a zstd frame begins (RFC 8878).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// What a frame may ask for: 128 MiB of memory.
const WINDOW_LOG_MAX: u32 = 27;
/// Bytes of a compressed file, once they are not: more than any list and its objects have.
const PLAIN_BYTES_MAX: u64 = 8 << 30;
/// A small file has so many at most, as few bytes can be made to say that they are many.
const PLAIN_BYTES_MIN: u64 = 64 << 20;
/// So many for each byte of a larger one: objects that are all alike come to some hundred.
pub(super) const PLAIN_RATIO: u64 = 1000;

/// Objects, as `save` wrote them.
#[derive(Clone)]
pub enum ObjectsFile {
    /// A file of the user.
    Path(PathBuf),
    /// The attachment of this backup, in memory: it may hold Secrets.
    Stored(String, Arc<Zeroizing<Vec<u8>>>),
}

impl fmt::Display for ObjectsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Stored(backup, _) => write!(f, "the objects of {backup}"),
        }
    }
}

impl fmt::Debug for ObjectsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectsFile({self})")
    }
}

struct Shared(Arc<Zeroizing<Vec<u8>>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl ObjectsFile {
    fn failed(&self, why: &std::io::Error) -> Failure {
        let hint = match why.kind() {
            // a pipe
            std::io::ErrorKind::NotSeekable => "it is read more than once: save it to a file first",
            std::io::ErrorKind::FileTooLarge => {
                "if it is yours, decompress it (zstd -d) and give that"
            }
            _ => "`kubectl mover objects save` writes such a file",
        };
        Failure::new(exit::USAGE, format!("read {self}: {why}")).hint(hint)
    }

    /// Its bytes as they are.
    fn bytes(&self) -> std::io::Result<Box<dyn Bytes>> {
        Ok(match self {
            Self::Path(path) => Box::new(File::open(path)?),
            Self::Stored(_, bytes) => Box::new(Cursor::new(Shared(Arc::clone(bytes)))),
        })
    }

    /// Its text. What is compressed has a checksum at its end, so one that is cut or changed is an
    /// error of the reader.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub(super) fn plain(&self) -> Result<Box<dyn Read + Send>, Failure> {
        let open = || {
            let mut bytes = self.bytes()?;
            let mut magic = Vec::new();
            (&mut bytes).take(ZSTD.len() as u64).read_to_end(&mut magic)?;
            if magic != ZSTD {
                bytes.rewind()?;
                return Ok(Box::new(bytes) as Box<dyn Read + Send>);
            }
            let most = plain_bytes_max(bytes.seek(SeekFrom::End(0))?);
            bytes.rewind()?;
            let mut plain = zstd::stream::read::Decoder::new(bytes)?;
            plain.window_log_max(WINDOW_LOG_MAX)?;
            Ok(Box::new(Bounded { from: plain, left: most, most }))
        };
        open().map_err(|why: std::io::Error| self.failed(&why))
    }

    /// BLAKE3 of its bytes as they are, in hexadecimal digits.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub fn digest(&self) -> Result<String, Failure> {
        let mut hasher = blake3::Hasher::new();
        let read = self.bytes().and_then(|mut bytes| std::io::copy(&mut bytes, &mut hasher));
        read.map_err(|why| self.failed(&why))?;
        Ok(hasher.finalize().to_hex().to_string())
    }
}

trait Bytes: Read + std::io::Seek + Send {}

impl<T: Read + std::io::Seek + Send> Bytes for T {}

/// Of a compressed file of this size.
pub(super) fn plain_bytes_max(bytes: u64) -> u64 {
    bytes.saturating_mul(PLAIN_RATIO).clamp(PLAIN_BYTES_MIN, PLAIN_BYTES_MAX)
}

/// A reader of so many bytes: more of them are an error, and no end.
struct Bounded<R> {
    from: R,
    left: u64,
    most: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => {
                let what = format!("it has more than {} bytes, uncompressed", self.most);
                return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few bytes that say that they are many.
    #[test]
    fn more_than_the_bound_is_an_error_and_no_end() {
        let bomb = zstd::bulk::compress(&vec![b' '; 1 << 20], 3).expect("compressed");
        for (most, good) in [(1 << 20, true), ((1 << 20) - 1, false), (0, false)] {
            let plain = zstd::stream::read::Decoder::new(&bomb[..]).expect("a decoder");
            let mut bounded = Bounded { from: plain, left: most, most };
            let read = std::io::copy(&mut bounded, &mut std::io::sink());
            assert_eq!(read.is_ok(), good, "{most}");
        }
        assert_eq!(plain_bytes_max(100_000), 100_000_000);
        assert_eq!((plain_bytes_max(1), plain_bytes_max(u64::MAX)), (64 << 20, 8 << 30));
    }

    /// As it comes out of a file: a list of a few thousand bytes that would fill the memory.
    #[test]
    fn a_bomb_is_refused_by_its_size() {
        let bomb = zstd::bulk::compress(&vec![b' '; 65 << 20], 3).expect("compressed");
        assert!(bomb.len() < 65_000, "{}", bomb.len());
        let file = ObjectsFile::Stored("b1".into(), Arc::new(Zeroizing::new(bomb)));
        let read = std::io::copy(&mut file.plain().expect("a frame"), &mut std::io::sink());
        assert!(read.is_err_and(|why| why.to_string().contains("more than 67108864 bytes")));
    }
}
