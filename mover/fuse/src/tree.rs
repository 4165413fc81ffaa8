//! What is shown: files and directories by their numbers.

use rustix::io::Errno;
use std::time::Duration;

/// Number of a file or directory. It means the same thing as long as the tree is mounted.
pub type Inode = u64;

/// Number of something that is open.
pub type Handle = u64;

/// What a request ends with.
pub type Answer<T> = Result<T, Errno>;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names of others.
    Directory,
    /// A path.
    Symlink,
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A device of characters: its major and minor number.
    Characters(u32, u32),
    /// A device of blocks: its major and minor number.
    Blocks(u32, u32),
}

/// A time since 1970 in UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds; before 1970 rounded down.
    pub seconds: i64,
    /// Of a second.
    pub nanoseconds: u32,
}

/// What `stat(2)` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub inode: Inode,
    /// What it is.
    pub kind: Kind,
    /// Permissions, with set-id and sticky bits.
    pub mode: u16,
    /// How many names it has.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Length of its content.
    pub size_bytes: u64,
    /// Room that it takes, in units of 512 bytes.
    pub sectors: u64,
    /// Reads of so many bytes cost least.
    pub preferred_bytes: u32,
    /// Its content was read.
    pub accessed: Time,
    /// Its content was changed.
    pub modified: Time,
    /// Anything of it was changed.
    pub changed: Time,
}

/// A name, followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What it is the name of.
    pub node: Node,
    /// How long the kernel may take it for true without asking.
    pub valid: Duration,
}

/// A directory that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenDirectory {
    /// Its number.
    pub handle: Handle,
    /// The kernel may keep the names, for good.
    pub kept: bool,
}

/// A name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Whose name it is.
    pub inode: Inode,
    /// What that is.
    pub kind: Kind,
    /// Not empty, without `/` and NUL.
    pub name: Vec<u8>,
}

/// A named value of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// With its class: `user.comment`.
    pub name: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
}

/// What `statfs(2)` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub bytes: u64,
}

/// What lies behind an offset of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Bytes that are stored.
    Data,
    /// Zeros that take no room.
    Hole,
}

/// A tree that nobody changes. All functions may be called side by side; a call that is dropped has
/// ended.
pub trait Tree: Send + Sync + 'static {
    /// Follows a name.
    fn lookup(&self, directory: Inode, name: &[u8]) -> impl Future<Output = Answer<Entry>> + Send;

    /// What is said of a file, and for how long.
    fn node(&self, inode: Inode) -> impl Future<Output = Answer<Entry>> + Send;

    /// Opens a file.
    fn open(&self, inode: Inode) -> impl Future<Output = Answer<Handle>> + Send;

    /// Fills the buffer from an offset on, as far as the file goes; gives how far that is.
    fn read(
        &self,
        file: Handle,
        offset: u64,
        buffer: &mut [u8],
    ) -> impl Future<Output = Answer<usize>> + Send;

    /// The next offset with data or of a hole, from one within the file on.
    fn seek(
        &self,
        file: Handle,
        offset: u64,
        content: Content,
    ) -> impl Future<Output = Answer<u64>> + Send;

    /// Closes a file.
    fn close(&self, file: Handle);

    /// Opens a directory.
    fn open_directory(&self, inode: Inode) -> impl Future<Output = Answer<OpenDirectory>> + Send;

    /// Names of it, without `.` and `..`, from the one with this place on: some, or none at the end.
    fn names(
        &self,
        directory: Handle,
        place: u64,
    ) -> impl Future<Output = Answer<Vec<DirectoryEntry>>> + Send;

    /// Closes a directory.
    fn close_directory(&self, directory: Handle);

    /// The path that a link says.
    fn target(&self, link: Inode) -> impl Future<Output = Answer<Vec<u8>>> + Send;

    /// Attributes of a file.
    fn attributes(&self, inode: Inode) -> impl Future<Output = Answer<Vec<Attribute>>> + Send;

    /// How large it all is.
    fn space(&self, inode: Inode) -> impl Future<Output = Answer<Space>> + Send;
}
