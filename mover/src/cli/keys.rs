//! Keys of a repository as users hold them: key files and passphrases, read, made and asked for.
//!
//! Key material comes from files, commands, `MOVER_PASSWORD` or the terminal, never from arguments;
//! it is wiped when dropped and appears in no message. A key file that this program makes is
//! complete, synced and of mode 0600 before it has its name.

use super::settings::KeySources;
use chunkstore::{Credential, Error, ErrorKind, Result, random_bytes};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, readlinkat};
use rustix::process::geteuid;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// A key file holds at most 66 bytes and a passphrase is no novel; whatever is longer is another
/// file.
const SECRET_BYTES_MAX: u64 = 4096;

/// All that was given, in the order in which it is tried: key files cost nothing, passphrases cost
/// Argon2id. The key file `but` is left out.
pub(crate) fn credentials(sources: &KeySources, but: Option<&Path>) -> Result<Vec<Credential>> {
    let mut found = Vec::new();
    let wanted = |path: &&PathBuf| !path.as_os_str().is_empty() && Some(path.as_path()) != but;
    for path in sources.key_files.iter().filter(wanted) {
        for file in key_files_at(path)? {
            found.push(read_key_file(&file)?);
        }
    }
    if let Some(path) = sources.password_file.as_deref().filter(|p| !p.as_os_str().is_empty()) {
        found.push(read_password_file(path)?);
    }
    if let Some(command) = sources.password_command.as_deref().filter(|c| !c.is_empty()) {
        found.push(run_password_command(command)?);
    }
    if let Some(password) = &sources.password {
        found.push(Credential::Passphrase(password.0.clone()));
    }
    Ok(found)
}

/// A directory stands for the key files in it, as a mounted Secret shows them: where a second one
/// lies beside the first while keys are changed, no Job has to be. What begins with a dot is the
/// mount's own.
fn key_files_at(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let what = || format!("read key files in {}", path.display());
    let list = || -> io::Result<Vec<PathBuf>> {
        let entries = path.read_dir()?.collect::<io::Result<Vec<_>>>()?;
        let names = entries.iter().map(std::fs::DirEntry::file_name);
        let shown = names.filter(|name| !name.as_encoded_bytes().starts_with(b"."));
        Ok(shown.map(|name| path.join(name)).collect())
    };
    let mut files = list().map_err(|e| read_failed(what(), e))?;
    if files.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, what(), "it is empty")
            .hint("put a key file of the repository there, or name one"));
    }
    files.sort();
    Ok(files)
}

/// The key in a key file.
pub(crate) fn read_key_file(path: &Path) -> Result<Credential> {
    let what = || format!("read key file {}", path.display());
    let bytes = read_secret(path).map_err(|e| read_failed(what(), e))?;
    Credential::from_key_file_bytes(&bytes).map_err(|e| e.within(what()))
}

/// The passphrase on the first line of a file.
pub(crate) fn read_password_file(path: &Path) -> Result<Credential> {
    let what = || format!("read password file {}", path.display());
    let bytes = read_secret(path).map_err(|e| read_failed(what(), e))?;
    first_line(&bytes).map_err(|why| Error::new(ErrorKind::Usage, what(), why))
}

fn read_secret(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    secret_from(File::open(path)?)
}

fn secret_from(source: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // one allocation, so that no copy stays behind in freed memory
    let mut bytes = Zeroizing::new(Vec::with_capacity(8192));
    source.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long for a secret"));
    }
    Ok(bytes)
}

fn read_failed(what: String, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Usage,
    };
    Error::caused(kind, what, e)
}

fn first_line(bytes: &[u8]) -> Result<Credential, &'static str> {
    let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| "its first line is not valid UTF-8")?;
    if text.is_empty() {
        return Err("its first line is empty");
    }
    Ok(Credential::Passphrase(Zeroizing::new(text.to_owned())))
}

fn run_password_command(command: &str) -> Result<Credential> {
    // the command is the user's and may hold a token: it is not repeated
    let what = "run the command of --password-command";
    let failed = |e: io::Error| Error::caused(ErrorKind::Usage, what, e);
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let bytes = child.stdout.take().map_or_else(|| Ok(Zeroizing::default()), secret_from);
    let status = child.wait().map_err(failed)?;
    let bytes = bytes.map_err(failed)?;
    if !status.success() {
        return Err(Error::new(ErrorKind::Usage, what, format!("it failed: {status}")));
    }
    first_line(&bytes).map_err(|why| Error::new(ErrorKind::Usage, what, why))
}

/// Asks for the passphrase of a repository on the terminal.
pub(crate) fn ask_password(place: &str) -> Result<Credential> {
    let text = prompt(&format!("passphrase of {place}: "))?;
    if text.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "read the passphrase", "it is empty"));
    }
    Ok(Credential::Passphrase(text))
}

/// Asks for a new passphrase, twice.
pub(crate) fn ask_new_password() -> Result<Credential> {
    let text = prompt("new passphrase: ")?;
    if text.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "read the new passphrase", "it is empty"));
    }
    if *prompt("new passphrase, again: ")? != *text {
        return Err(Error::new(ErrorKind::Usage, "read the new passphrase", "the two differ"));
    }
    Ok(Credential::Passphrase(text))
}

fn prompt(question: &str) -> Result<Zeroizing<String>> {
    ask_without_echo(question).map(Zeroizing::new).map_err(|e| match e.kind() {
        io::ErrorKind::Interrupted => {
            Error::new(ErrorKind::Cancelled, "read a passphrase", "stopped")
        }
        _ => Error::caused(ErrorKind::Usage, "read a passphrase from the terminal", e),
    })
}

/// rpassword shows the question first and switches echo off then; whoever (or whatever) types at
/// once would be shown.
fn ask_without_echo(question: &str) -> io::Result<String> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&terminal, OptionalActions::Now, &silent)?;
    let answer = rpassword::prompt_password(question);
    tcsetattr(&terminal, OptionalActions::Now, &before)?;
    answer
}

/// A key file that this process has made. It is locked as long as this is there, and whoever finds
/// the file waits for that: so it can be taken back as long as nothing uses it.
#[derive(Debug)]
pub(crate) struct MadeKeyFile {
    path: PathBuf,
    file: File,
}

impl MadeKeyFile {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it: what it was made for has failed, and left nothing that it opens.
    pub(crate) fn take_back(self) -> io::Result<()> {
        // where locks are unknown, another may have found it and use it
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        if !is_still_at(&self.file, &self.path)? {
            return Err(io::Error::other("another file has taken its place"));
        }
        std::fs::remove_file(&self.path)?;
        File::open(directory_of(&self.path))?.sync_all()
    }
}

/// The key in `path`; where there is no such file, one with a random key is made. Two processes
/// that do this at once get the same. `Denied` if there is one of another user: he knows it.
pub(crate) fn read_or_make_key_file(path: &Path) -> Result<(Credential, Option<MadeKeyFile>)> {
    loop {
        match read_settled_key_file(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            found => return Ok((found?, None)),
        }
        let made = make_key_file(path).map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    ErrorKind::Denied
                }
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
                _ => ErrorKind::Device,
            };
            Error::caused(kind, format!("make key file {}", path.display()), e)
        })?;
        let Some((file, key)) = made else { continue };
        let made = MadeKeyFile { path: path.to_owned(), file };
        return Ok((Credential::KeyFile(key), Some(made)));
    }
}

/// As [`read_key_file`], once nobody can take the file back any more.
fn read_settled_key_file(path: &Path) -> Result<Credential> {
    let what = || format!("read key file {}", path.display());
    let bytes = loop {
        let file = open_unplanted(path).map_err(|e| read_failed(what(), e))?;
        // a file system without locks has none that is held
        let _ = flock(&file, FlockOperation::LockShared);
        if is_still_at(&file, path).map_err(|e| read_failed(what(), e))? {
            refuse_key_of_another(path, &file)?;
            break secret_from(file).map_err(|e| read_failed(what(), e))?;
        }
    };
    Credential::from_key_file_bytes(&bytes).map_err(|e| e.within(what()))
}

/// As `File::open`; a link is followed where it is this user's or root's.
fn open_unplanted(path: &Path) -> io::Result<File> {
    const LINKS_MAX: u32 = 8;
    let mut place = path.to_owned();
    for links in 0..LINKS_MAX {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&place);
        match opened {
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {}
            // as if it were not there, one would be made: its name is taken
            Err(e) if e.kind() == io::ErrorKind::NotFound && links > 0 => {
                return Err(io::Error::other("it is a symbolic link to a file that is not there"));
            }
            opened => return opened,
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = openat(CWD, &place, flags, Mode::empty())?;
        let owner = fstat(&link)?.st_uid;
        if !is_own(owner) {
            let why = format!("it is a symbolic link of user number {owner}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let target = readlinkat(&link, "", Vec::new())?;
        place = directory_of(&place).join(OsStr::from_bytes(target.to_bytes()));
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Of root, or of this user.
fn is_own(owner: u32) -> bool {
    [0, geteuid().as_raw()].contains(&owner)
}

/// Where a new key is asked for, one that is there already may have been planted.
fn refuse_key_of_another(path: &Path, file: &File) -> Result<()> {
    let what = || format!("use key file {}", path.display());
    let meta = file.metadata().map_err(|e| Error::caused(ErrorKind::Denied, what(), e))?;
    if is_own(meta.uid()) {
        return Ok(());
    }
    let detail = format!("it is there already and belongs to user number {}", meta.uid());
    Err(Error::new(ErrorKind::Denied, what(), detail)
        .hint("name another file for the new key; or name this one with --key-file, if that user may know it"))
}

fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (opened.dev(), opened.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Writes the key under another name, then links it to its own: nobody ever sees half of it,
/// nothing is overwritten. `None` where another was quicker.
fn make_key_file(path: &Path) -> io::Result<Option<(File, Zeroizing<[u8; 32]>)>> {
    let directory = directory_of(path);
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let mut draft_name = OsString::from(".");
    draft_name.push(name);
    draft_name.push(format!(".{}", hex::encode(random_bytes::<8>())));
    let draft = directory.join(draft_name);
    let key = Zeroizing::new(random_bytes::<32>());
    let linked = write_key(&draft, &key).and_then(|file| {
        std::fs::hard_link(&draft, path)?;
        Ok(file)
    });
    // whether it was linked or not, the draft has done its work
    let _ = std::fs::remove_file(&draft);
    let made = match linked {
        Ok(file) => Some((file, key)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => None,
        Err(e) => return Err(e),
    };
    File::open(directory)?.sync_all()?;
    Ok(made)
}

fn write_key(path: &Path, key: &[u8; 32]) -> io::Result<File> {
    let mut line = Zeroizing::new([0_u8; 65]);
    hex::encode_to_slice(key, &mut line[..64]).map_err(io::Error::other)?;
    line[64] = b'\n';
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&*line)?;
    file.sync_all()?;
    // a file system without locks: then it is never taken back
    let _ = flock(&file, FlockOperation::LockExclusive);
    Ok(file)
}

#[cfg(test)]
mod tests;
