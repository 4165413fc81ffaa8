//! From the settings to an open repository: which place, which keys, and the embedded default that
//! is made on first use.

mod found;

pub(crate) use found::{listed_place, open_existing};

use super::context::{Context, host, tool};
use super::keys::{self, MadeKeyFile};
use super::settings::{KeySources, RepositoryPlace};
use chunkstore::{
    ChunkSize, Credential, Encryption, Error, ErrorKind, InitOptions, KdfCost, Repository, Result,
    Store, StoreOptions,
    format::{check_parameters, names::TOP_KEYS},
    open_url, random_bytes,
    store::{RetainPolicy, directory_of, open_url_with},
};
use mover_engine::volume::device::leads_into;
use object_store::memory::InMemory;
use object_store::path::Path as StorePath;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// `docs/decisions/` says why.
const CHUNK_BYTES: u32 = 64 << 10;
const ENTRY_CHUNKS: u16 = 16;
/// What the default fills at most, where chunks are large.
const ENTRY_BYTES: u32 = 16 << 20;
const PAGE_FANOUT: u16 = 128;

/// What a new repository is like, as far as the user says.
#[derive(Debug)]
pub(crate) struct NewRepository {
    pub(crate) chunk: ChunkSize,
    pub(crate) entry_chunks: u16,
    pub(crate) page_fanout: u16,
    pub(crate) encryption: Encryption,
    pub(crate) label: Option<String>,
}

impl NewRepository {
    /// As the embedded one is made on first use.
    pub(crate) fn with_defaults() -> Result<Self> {
        Ok(Self {
            chunk: ChunkSize::new(CHUNK_BYTES)?,
            entry_chunks: ENTRY_CHUNKS,
            page_fanout: PAGE_FANOUT,
            encryption: Encryption::Aes256Gcm,
            label: None,
        })
    }

    /// So many chunks are sealed together, where the user does not say.
    pub(crate) fn usual_entry_chunks(chunk: ChunkSize) -> u16 {
        u16::try_from(ENTRY_BYTES / chunk.bytes()).unwrap_or(u16::MAX).min(ENTRY_CHUNKS)
    }

    fn options(self, credential: Option<Credential>) -> InitOptions {
        InitOptions {
            chunk: self.chunk,
            entry_chunks: self.entry_chunks,
            page_fanout: self.page_fanout,
            encryption: self.encryption,
            credential,
            label: self.label.unwrap_or_else(host),
            kdf: KdfCost::default(),
            created_by: tool(),
        }
    }
}

/// Opens the repository that the settings name.
pub(crate) fn open(ctx: &Context) -> Result<Arc<Repository>> {
    match &ctx.settings.place {
        RepositoryPlace::Url(url) => open_place(ctx, url, None),
        RepositoryPlace::Embedded { directory, key_file } if is_repository(directory) => {
            open_embedded(ctx, directory, key_file)
        }
        RepositoryPlace::Embedded { directory, .. } => Err(Error::new(
            ErrorKind::NotFound,
            format!("open the embedded repository {}", directory.display()),
            "there is none yet",
        )
        .hint("make it with `mover init` or `mover backup`, or name another one with --repo")),
        RepositoryPlace::Nowhere => Err(nowhere()),
    }
}

/// Opens the repository that `copy` copies to, with what was given for it and nothing else.
pub(crate) fn open_target(
    ctx: &Context,
    url: &str,
    keys: &KeySources,
    retain: Option<RetainPolicy>,
) -> Result<Arc<Repository>> {
    if url.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "use --to", "no place is named"));
    }
    let given = keys::credentials(keys, None).map_err(|e| ctx.cancel.check().err().unwrap_or(e))?;
    let store = &ctx.settings.target.store;
    let store: Vec<_> = store.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let options = StoreOptions { create_dir: false, settings_only: !store.is_empty(), retain };
    let store = open_url_with(url, &options, &store)?.limited(ctx.settings.resources.limits);
    require_locks(ctx, &store)?;
    unlock(ctx, store, &given).map_err(|e| {
        let none = e.kind() == ErrorKind::WrongKey && given.is_empty();
        if none { e.hint("name its key with --to-key-file or --to-password-file") } else { e }
    })
}

/// As [`open`]; the embedded repository is made where there is none. Refused before anything is
/// written where what is written is to be locked and cannot be.
pub(crate) fn open_or_make(ctx: &Context, retain: Option<RetainPolicy>) -> Result<Arc<Repository>> {
    match &ctx.settings.place {
        RepositoryPlace::Url(url) => open_place_with(ctx, url, None, retain),
        RepositoryPlace::Embedded { directory, .. } if retain.is_some() => {
            let context = format!("lock what is written to {}", directory.display());
            let detail = "only S3 buckets with object lock can lock single objects";
            Err(Error::new(ErrorKind::Unsupported, context, detail).hint(
                "name such a bucket with --repo, or leave --retain-for and --retain-until out",
            ))
        }
        RepositoryPlace::Embedded { directory, key_file } if !is_repository(directory) => {
            match init_embedded(ctx, directory, key_file, NewRepository::with_defaults()?) {
                // another first backup was quicker
                Err(e) if e.kind() == ErrorKind::AlreadyExists && is_repository(directory) => {
                    open_embedded(ctx, directory, key_file)
                }
                made => made,
            }
        }
        _ => open(ctx),
    }
}

/// As [`open_or_make`], but where it would make the embedded repository, one in memory stands for
/// it: nothing is written.
pub(crate) fn open_or_imagine(ctx: &Context) -> Result<Arc<Repository>> {
    match &ctx.settings.place {
        RepositoryPlace::Embedded { directory, .. } if !is_repository(directory) => {
            let url = embedded_url(directory)?;
            ctx.output.notice(&format!("the embedded repository {url} would be made first"));
            let store = Store::new(Arc::new(InMemory::new()), StorePath::default(), url);
            let key = Credential::KeyFile(Zeroizing::new(random_bytes()));
            let options = NewRepository::with_defaults()?.options(Some(key));
            ctx.block_on(Repository::init(store, options))
        }
        _ => open(ctx),
    }
}

/// Makes a repository where the settings say; `new_key_file` is made too where it does not exist.
pub(crate) fn init(
    ctx: &Context,
    new: NewRepository,
    new_key_file: Option<&Path>,
) -> Result<Arc<Repository>> {
    // before a key file or a directory is made
    check_parameters(new.chunk, new.entry_chunks, new.page_fanout)?;
    if let Some(path) = new_key_file {
        refuse_key_in_repository(ctx, path)?;
    }
    match &ctx.settings.place {
        RepositoryPlace::Nowhere => Err(nowhere()),
        RepositoryPlace::Embedded { directory, key_file } => {
            let key_file = new_key_file.unwrap_or(key_file);
            init_embedded(ctx, directory, key_file, new)
        }
        RepositoryPlace::Url(url) => {
            let store =
                place(ctx, url, &StoreOptions { create_dir: true, ..StoreOptions::default() })?;
            let encrypted = new.encryption != Encryption::None;
            // where MOVER_KEY_FILE names the file that is about to be made, it is not there yet
            let mut credentials = given(ctx, new_key_file)?;
            if !encrypted {
                refuse_keys_without_encryption(new_key_file, &credentials)?;
                return make(ctx, store, new.options(None));
            }
            let mut made = None;
            if let Some(path) = new_key_file {
                // before a key file is made in vain
                ctx.block_on(Repository::refuse_used_place(&store))?;
                let (credential, file) = keys::read_or_make_key_file(path)?;
                credentials.insert(0, credential);
                made = file;
            }
            if credentials.is_empty() && ctx.settings.keys.can_ask {
                credentials.push(keys::ask_new_password()?);
            }
            let done = make_with_keys(ctx, &store, new, credentials);
            settle_key_file(ctx, made, done, || is_unused_place(ctx, &store))
        }
    }
}

/// Makes a repository that the first of the keys opens, and adds the others.
fn make_with_keys(
    ctx: &Context,
    store: &Store,
    new: NewRepository,
    credentials: Vec<Credential>,
) -> Result<Arc<Repository>> {
    let mut credentials = credentials.into_iter();
    let first = credentials.next().ok_or_else(|| {
        let what = format!("make a repository at {}", store.url());
        Error::new(ErrorKind::Usage, what, "no key was given")
            .hint("use --new-key-file FILE, --password-file FILE, or --encryption none")
    })?;
    let options = new.options(Some(first));
    let label = options.label.clone();
    let repository = make(ctx, store.clone(), options)?;
    for credential in credentials {
        let id = ctx.block_on(repository.add_key(&credential, &label, KdfCost::default()))?;
        // it may come from a variable that nobody has in mind
        ctx.output.announce(&format!(
            "a second key, {} {id}, opens it too: a flag or a variable (such as MOVER_KEY_FILE) gave it; `mover key \
             remove` takes it away",
            credential.kind()
        ));
    }
    Ok(repository)
}

fn refuse_keys_without_encryption(new_key_file: Option<&Path>, given: &[Credential]) -> Result<()> {
    if new_key_file.is_none() && given.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Usage,
        "use --encryption none",
        "a key or passphrase was given as well",
    )
    .hint("leave one of the two out"))
}

/// Says that a key file was made. Where what it was made for has failed, it is taken back instead, if
/// it is certain that nothing uses it: a key too many is better than one too few.
pub(crate) fn settle_key_file<T>(
    ctx: &Context,
    made: Option<MadeKeyFile>,
    done: Result<T>,
    is_unused: impl FnOnce() -> bool,
) -> Result<T> {
    let Some(made) = made else { return done };
    let path = made.path().to_owned();
    let said = match &done {
        Ok(_) => "copy it to a safe place, without it nothing can be restored".to_owned(),
        Err(_) if !is_unused() => "it stays, as it may be in use already".to_owned(),
        Err(_) => match made.take_back() {
            Ok(()) => return done,
            Err(e) => format!("it stays, as it cannot be removed: {e}"),
        },
    };
    ctx.output.announce(&format!("made key file {}: {said}", path.display()));
    done
}

/// Whether there is certainly no repository.
fn is_unused_place(ctx: &Context, store: &Store) -> bool {
    let opened = ctx.block_on(Repository::open(store.clone(), &[]));
    opened.is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// For `-v`: which repository, and what opened it.
fn log_opened(repository: &Repository) {
    let key = repository.opened_with().map_or("none".into(), ToString::to_string);
    let (url, id) = (repository.store().url(), repository.id());
    tracing::info!("opened repository {url}, id {id}, with key {key}");
}

fn make(ctx: &Context, store: Store, options: InitOptions) -> Result<Arc<Repository>> {
    let repository = ctx.block_on(Repository::init(store, options))?;
    let create_once = ctx.block_on(repository.probe_create_once())?;
    if let Some(warning) = create_once.warning(repository.store()) {
        ctx.output.warn(&warning);
    }
    Ok(repository)
}

/// Where the repository, which is open, is on this machine, if it is. Not to find that out is an
/// error: it keeps targets out of the repository.
pub(crate) fn directory(ctx: &Context) -> Result<Option<PathBuf>> {
    let resolve = |path: PathBuf| {
        path.canonicalize().map_err(|e| {
            let context = format!("find out where {} is", path.display());
            Error::caused(ErrorKind::Device, context, e)
        })
    };
    named_directory(ctx)?.map(resolve).transpose()
}

fn named_directory(ctx: &Context) -> Result<Option<PathBuf>> {
    Ok(match &ctx.settings.place {
        RepositoryPlace::Embedded { directory, .. } => Some(directory.clone()),
        RepositoryPlace::Url(url) => directory_of(url)?,
        RepositoryPlace::Nowhere => None,
    })
}

/// Refuses a new key file in the repository's directory, which need not be there yet.
pub(crate) fn refuse_key_in_repository(ctx: &Context, key_file: &Path) -> Result<()> {
    let Some(directory) = named_directory(ctx)? else { return Ok(()) };
    let context = format!("make key file {}", key_file.display());
    let parent = key_file.parent().filter(|parent| !parent.as_os_str().is_empty());
    // its name, also if that is a link
    for path in [parent.unwrap_or(Path::new(".")), key_file] {
        let inside = leads_into(path, &directory).map_err(|e| {
            let detail = format!("whether it is in the repository {}", directory.display());
            Error::new(ErrorKind::Device, context.clone(), detail).caused_by(e)
        });
        if inside? {
            let detail = format!("it would lie in the repository {}", directory.display());
            return Err(Error::new(ErrorKind::Usage, context, detail)
                .hint("put it elsewhere: a key that lies beside what it protects protects nothing, and is lost with it"));
        }
    }
    Ok(())
}

fn is_repository(directory: &Path) -> bool {
    TOP_KEYS.iter().any(|key| directory.join(key).exists())
}

fn init_embedded(
    ctx: &Context,
    directory: &Path,
    key_file: &Path,
    new: NewRepository,
) -> Result<Arc<Repository>> {
    let url = embedded_url(directory)?;
    if is_repository(directory) {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("make the embedded repository {url}"),
            "it exists",
        )
        .hint("use it as it is, or name another place with --repo"));
    }
    let parent = directory.parent().unwrap_or(directory);
    let denied = |e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::Denied
            }
            _ => ErrorKind::Device,
        };
        Error::caused(kind, format!("make directory {}", parent.display()), e)
    };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(denied)?;
    let encrypted = new.encryption != Encryption::None;
    let store = place(ctx, &url, &StoreOptions { create_dir: true, ..StoreOptions::default() })?;
    ctx.block_on(Repository::refuse_used_place(&store))?;
    // the key before the repository: a crash in between leaves a key too many, never a repository
    // without its key
    let (credential, made) = if encrypted {
        let (credential, made) = keys::read_or_make_key_file(key_file)?;
        (Some(credential), made)
    } else {
        (None, None)
    };
    let done = make(ctx, store, new.options(credential));
    // said below, in one line with the repository
    let made = made.filter(|_| done.is_err());
    let repository = settle_key_file(ctx, made, done, || !is_repository(directory))?;
    ctx.output.announce(&if encrypted {
        format!(
            "made the embedded repository {url} and its key {}: copy the key elsewhere, without it nothing can be restored",
            key_file.display()
        )
    } else {
        format!("made the embedded repository {url}, not encrypted")
    });
    Ok(repository)
}

fn open_embedded(ctx: &Context, directory: &Path, key_file: &Path) -> Result<Arc<Repository>> {
    let url = embedded_url(directory)?;
    let own_key = key_file.exists().then(|| keys::read_key_file(key_file)).transpose()?;
    open_place(ctx, &url, own_key).map_err(|e| {
        let lost = e.kind() == ErrorKind::WrongKey && !key_file.exists();
        if lost {
            e.hint(format!(
                "its key file {} is gone: bring it back from your copy",
                key_file.display()
            ))
        } else {
            e
        }
    })
}

/// A store, at the rates that are allowed.
fn place(ctx: &Context, url: &str, options: &StoreOptions) -> Result<Store> {
    Ok(open_url(url, options)?.limited(ctx.settings.resources.limits))
}

/// Another place, which is only read, with the repository's credentials.
pub(crate) fn elsewhere(ctx: &Context, url: &str) -> Result<Store> {
    place(ctx, url, &StoreOptions::default())
}

fn open_place(ctx: &Context, url: &str, own_key: Option<Credential>) -> Result<Arc<Repository>> {
    open_place_with(ctx, url, own_key, None)
}

fn open_place_with(
    ctx: &Context,
    url: &str,
    own_key: Option<Credential>,
    retain: Option<RetainPolicy>,
) -> Result<Arc<Repository>> {
    let mut credentials = given(ctx, None)?;
    credentials.extend(own_key);
    let store = place(ctx, url, &StoreOptions { retain, ..StoreOptions::default() })?;
    require_locks(ctx, &store)?;
    unlock(ctx, store, &credentials)
}

/// Where what is written is to be locked, the bucket must be able to.
fn require_locks(ctx: &Context, store: &Store) -> Result<()> {
    match store.retain_policy() {
        Some(_) => ctx.block_on(store.require_object_lock()),
        None => Ok(()),
    }
}

/// Opens with what was given; where that is nothing, a person is asked.
fn unlock(ctx: &Context, store: Store, given: &[Credential]) -> Result<Arc<Repository>> {
    let opened = match ctx.block_on(Repository::open(store.clone(), given)) {
        Err(e)
            if e.kind() == ErrorKind::WrongKey && given.is_empty() && ctx.settings.keys.can_ask =>
        {
            let asked = keys::ask_password(store.url())?;
            ctx.block_on(Repository::open(store, &[asked]))
        }
        opened => opened,
    };
    opened.inspect(|repository| log_opened(repository))
}

/// What was given to open it, `but` for one key file. A signal ends a passphrase command too; then
/// that is not the command's fault.
fn given(ctx: &Context, but: Option<&Path>) -> Result<Vec<Credential>> {
    keys::credentials(&ctx.settings.keys, but).map_err(|e| ctx.cancel.check().err().unwrap_or(e))
}

fn embedded_url(directory: &Path) -> Result<String> {
    directory.to_str().map(str::to_owned).ok_or_else(|| {
        let what = format!("use the embedded repository {}", directory.display());
        Error::new(ErrorKind::Usage, what, "its path is not valid UTF-8")
            .hint("name a place with --repo")
    })
}

fn nowhere() -> Error {
    Error::new(
        ErrorKind::Usage,
        "find the repository",
        "no place was named, and HOME or XDG_DATA_HOME names no directory that is there",
    )
    .hint("name it with --repo or MOVER_REPO, or set HOME (or XDG_DATA_HOME) to a directory that is there")
}
