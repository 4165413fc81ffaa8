//! What is meant by what was typed: parsed once, checked, handed down as values.
//!
//! This file is the only one that reads the environment (clap does for the flags' twins). Nothing
//! here has an effect on disk, terminal or network.

mod reporting;
mod service;

pub(crate) use reporting::{
    ReportSettings, explain_memory, limits_line, limits_warning, termination_log,
};

pub(crate) use service::ServiceSettings;

use super::args::{
    ColorWhen, DirectArg, EngineArg, GlobalArgs, LogLevel, OutputArgs, ResourceArgs,
};
use crate::cgroup::CgroupLimits;
use chunkstore::{
    AttachmentName, Compression, Error, ErrorKind, Result, format::check_labels,
    store::TransferLimits,
};
use mover_engine::ingest::CompressionChoice;
use mover_engine::ops::backup::AttachmentSource;
use mover_engine::run::MemoryBudget;
use mover_engine::sizes::parse_rate;
use mover_engine::volume::device::DirectIo;
use mover_engine::volume::io::EngineChoice;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Most threads that seal; beyond it the device or the store has long been the limit.
const THREADS_MAX: usize = 256;
/// Levels of zstd that are offered: above 19 its window alone outgrows the default memory budget.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = -7..=19;

/// What the process finds around itself.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Environment {
    pub(crate) home: Option<PathBuf>,
    pub(crate) data_home: Option<PathBuf>,
    pub(crate) cache_home: Option<PathBuf>,
    pub(crate) password: Option<Result<Secret, NotText>>,
    pub(crate) to_password: Option<Result<Secret, NotText>>,
    /// What stands in the variables that configure the store of `copy --to`.
    pub(crate) to_store: Vec<(String, String)>,
    pub(crate) json: bool,
    pub(crate) no_color: bool,
    pub(crate) stdin_is_terminal: bool,
    pub(crate) stdout_is_terminal: bool,
    /// Of the terminal that stdout is.
    pub(crate) stdout_columns: Option<usize>,
    pub(crate) stderr_is_terminal: bool,
    pub(crate) has_termination_log: bool,
    /// The twin of the flag, for a command line that cannot be understood.
    pub(crate) termination_log: Option<PathBuf>,
    pub(crate) service: ServiceSettings,
    pub(crate) cgroup: CgroupLimits,
    /// Processors that this process may run on; 0 counts as 1.
    pub(crate) online: usize,
}

impl Environment {
    /// Reads it.
    pub(crate) fn capture() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        // the base directory specification: a path that is not absolute is to be ignored
        let dir = |name: &str| set(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let secret = |text: OsString| text.into_string().map(|t| Secret(Zeroizing::new(t)));
        let data_home = dir("XDG_DATA_HOME");
        // a place that is not there is not made: the next one who looks would look elsewhere
        let usable = data_home.as_deref().is_none_or(may_be_made);
        Self {
            home: dir("HOME").filter(|home| usable && home.is_dir()),
            data_home: data_home.filter(|_| usable),
            cache_home: dir("XDG_CACHE_HOME").filter(|cache| may_be_made(cache)),
            password: set("MOVER_PASSWORD").map(|text| secret(text).map_err(|_| NotText)),
            to_password: set("MOVER_TO_PASSWORD").map(|text| secret(text).map_err(|_| NotText)),
            to_store: target_store(std::env::vars_os()),
            json: set("MOVER_JSON").is_some(),
            no_color: set("NO_COLOR").is_some() || dumb,
            stdin_is_terminal: std::io::stdin().is_terminal(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            stdout_columns: columns(),
            stderr_is_terminal: std::io::stderr().is_terminal() && !dumb,
            has_termination_log: reporting::has_termination_log(),
            termination_log: set("MOVER_TERMINATION_LOG").map(PathBuf::from),
            service: ServiceSettings::capture(&set),
            cgroup: CgroupLimits::of_this_process(),
            online: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// A terminal that does not say how wide it is (0) is taken for endless.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Whether a directory is there, or is all that is missing of its path.
fn may_be_made(directory: &Path) -> bool {
    directory.is_dir() || directory.parent().is_some_and(Path::is_dir)
}

/// The variables of object stores with `MOVER_TO_` before their names, as `object_store` calls
/// them.
fn target_store(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let text = all.filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    let named = text.filter_map(|(name, value)| {
        let name = name.strip_prefix("MOVER_TO_")?.to_ascii_lowercase();
        let known = ["aws_", "google_", "azure_"].iter().any(|kind| name.starts_with(kind));
        (known && !value.is_empty()).then_some((name, value))
    });
    named.collect()
}

/// `MOVER_PASSWORD` is not UTF-8; what it is instead is not repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotText;

/// A passphrase: wiped when dropped, not shown by `Debug`.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) Zeroizing<String>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// What holds for every command.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) place: RepositoryPlace,
    pub(crate) keys: KeySources,
    pub(crate) output: OutputSettings,
    pub(crate) resources: Resources,
    pub(crate) target: TargetSettings,
    pub(crate) report: ReportSettings,
    pub(crate) service: ServiceSettings,
}

/// What the environment says of the repository that `copy` copies to.
pub(crate) struct TargetSettings {
    pub(crate) password: Option<Secret>,
    /// Settings of its store. Where there are any, the usual variables are those of the other store
    /// alone.
    pub(crate) store: Vec<(String, String)>,
}

impl std::fmt::Debug for TargetSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TargetSettings")
    }
}

/// Where the repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RepositoryPlace {
    /// As the user said.
    Url(String),
    /// The embedded default: a directory, and a key file beside it.
    Embedded { directory: PathBuf, key_file: PathBuf },
    /// Nothing was said, and there is no user data directory.
    Nowhere,
}

/// What may open it; all that is given is tried.
#[derive(Debug)]
pub(crate) struct KeySources {
    pub(crate) key_files: Vec<PathBuf>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) password_command: Option<String>,
    pub(crate) password: Option<Secret>,
    /// Whether a person can be asked.
    pub(crate) can_ask: bool,
}

/// What is shown, and how.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct OutputSettings {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) progress: ProgressStyle,
    pub(crate) color_stdout: bool,
    pub(crate) color_stderr: bool,
    pub(crate) verbosity: u8,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) stdout_is_terminal: bool,
    pub(crate) stdout_columns: Option<usize>,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressStyle {
    /// Not at all.
    None,
    /// A bar on the terminal that stderr is.
    Bar,
    /// JSON lines.
    Json,
}

/// How much of the machine an operation uses.
#[derive(Debug, Clone)]
pub(crate) struct Resources {
    pub(crate) memory: MemoryBudget,
    pub(crate) engine: EngineChoice,
    pub(crate) direct: DirectIo,
    pub(crate) scratch: Option<PathBuf>,
    /// Nobody asked for that place: where it cannot be written to, none will do.
    pub(crate) scratch_is_default: bool,
    pub(crate) threads: Option<usize>,
    /// Threads that are of use here: what `threads` is by default.
    pub(crate) cores: usize,
    /// What the control group allows.
    pub(crate) cgroup: CgroupLimits,
    pub(crate) limits: TransferLimits,
}

impl Settings {
    /// What `args` mean in `env`.
    pub(crate) fn new(args: GlobalArgs, env: Environment) -> Result<Self> {
        let place = match args.repository.repo.filter(|url| !url.is_empty()) {
            Some(url) => RepositoryPlace::Url(url),
            None => embedded(&env),
        };
        let output = output_settings(&args.output, args.report.log_level, &env);
        let service = env.service.clone();
        let report = ReportSettings::new(args.report)?;
        let resources = resources(args.resources, &env)?;
        let keys = KeySources {
            key_files: args.repository.key_file,
            password_file: args.repository.password_file,
            password_command: args.repository.password_command,
            can_ask: env.stdin_is_terminal && env.stderr_is_terminal,
            password: env.password.transpose().map_err(|NotText| {
                Error::new(ErrorKind::Usage, "read MOVER_PASSWORD", "it is not valid UTF-8")
            })?,
        };
        let password = env.to_password.transpose().map_err(|NotText| {
            Error::new(ErrorKind::Usage, "read MOVER_TO_PASSWORD", "it is not valid UTF-8")
        })?;
        let target = TargetSettings { password, store: env.to_store };
        Ok(Self { place, keys, output, resources, report, target, service })
    }
}

fn embedded(env: &Environment) -> RepositoryPlace {
    let data = env.data_home.clone().or_else(|| env.home.as_ref().map(|h| h.join(".local/share")));
    data.map_or(RepositoryPlace::Nowhere, |data| RepositoryPlace::Embedded {
        directory: data.join("mover/repository"),
        key_file: data.join("mover/repository.key"),
    })
}

/// How output looks; known before anything can fail.
pub(crate) fn output_settings(
    args: &OutputArgs,
    log_level: Option<LogLevel>,
    env: &Environment,
) -> OutputSettings {
    let progress = if args.quiet || args.no_progress {
        ProgressStyle::None
    } else if args.json {
        ProgressStyle::Json
    } else if env.stderr_is_terminal {
        ProgressStyle::Bar
    } else {
        ProgressStyle::None
    };
    let color = |terminal: bool| match args.color {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => terminal && !env.no_color,
    };
    OutputSettings {
        json: args.json,
        quiet: args.quiet,
        progress,
        color_stdout: color(env.stdout_is_terminal) && !args.json,
        color_stderr: color(env.stderr_is_terminal) && !args.json,
        verbosity: args.verbose,
        log_level,
        stdout_is_terminal: env.stdout_is_terminal,
        stdout_columns: env.stdout_columns,
    }
}

/// For a command line that could not be understood, but asks for JSON.
pub(crate) fn json_only(env: &Environment) -> OutputSettings {
    OutputSettings {
        json: true,
        quiet: false,
        progress: ProgressStyle::None,
        color_stdout: false,
        color_stderr: false,
        verbosity: 0,
        log_level: None,
        stdout_is_terminal: env.stdout_is_terminal,
        stdout_columns: env.stdout_columns,
    }
}

fn resources(args: ResourceArgs, env: &Environment) -> Result<Resources> {
    let cores = env.cgroup.threads(env.online);
    if args.threads.is_some_and(|n| n == 0 || n > THREADS_MAX) {
        return Err(Error::new(
            ErrorKind::Usage,
            "use --threads",
            format!("not within 1 to {THREADS_MAX}"),
        ));
    }
    let cache = env.cache_home.clone().or_else(|| env.home.as_ref().map(|h| h.join(".cache")));
    let given = args.scratch.filter(|dir| !dir.as_os_str().is_empty());
    let scratch_is_default = given.is_none();
    let scratch = match given {
        Some(dir) if dir.as_os_str() == "none" => None,
        Some(dir) => Some(dir),
        None => cache.map(|c| c.join("mover")),
    };
    Ok(Resources {
        memory: reporting::memory(&args.memory, &env.cgroup)?,
        engine: match args.engine {
            EngineArg::Auto => EngineChoice::Auto,
            EngineArg::IoUring => EngineChoice::Uring,
            EngineArg::IoUringPlain => EngineChoice::UringPlain,
            EngineArg::Blocking => EngineChoice::Blocking,
        },
        direct: match args.direct_io {
            DirectArg::Auto => DirectIo::Auto,
            DirectArg::Always => DirectIo::Always,
            DirectArg::Never => DirectIo::Never,
        },
        scratch,
        scratch_is_default,
        threads: Some(args.threads.unwrap_or(cores)),
        cores,
        cgroup: env.cgroup,
        limits: TransferLimits {
            upload: parse_rate("--limit-upload", args.limits.limit_upload.as_deref())?,
            download: parse_rate("--limit-download", args.limits.limit_download.as_deref())?,
        },
    })
}

/// `auto`, `none`, `zstd` or `zstd:LEVEL`.
pub fn parse_compression(text: &str) -> Result<CompressionChoice> {
    let bad = || {
        Error::new(
            ErrorKind::Usage,
            format!("use --compression {text:?}"),
            "there is no such thing",
        )
        .hint("use auto, none, zstd or zstd:LEVEL with a level from -7 to 19")
    };
    match text.split_once(':') {
        None if text == "auto" => Ok(CompressionChoice::Auto),
        None if text == "none" => Ok(Compression::None.into()),
        None if text == "zstd" => Ok(Compression::Zstd(1).into()),
        Some(("zstd", level)) => {
            let level: i32 = level.parse().map_err(|_| bad())?;
            // zstd itself takes 0 for its default of 3, which would surprise
            if level == 0 || !ZSTD_LEVELS.contains(&level) {
                return Err(bad());
            }
            Ok(Compression::Zstd(level).into())
        }
        _ => Err(bad()),
    }
}

/// `NAME=VALUE` each, within the limits of the format.
pub(crate) fn parse_labels(texts: &[String]) -> Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for text in texts.iter().filter(|t| !t.is_empty()) {
        let bad = |why: &str| {
            Error::new(ErrorKind::Usage, format!("use --label {text:?}"), why)
                .hint("write it like team=storage")
        };
        let (name, value) = text.split_once('=').ok_or_else(|| bad("it has no ="))?;
        if name.is_empty() {
            return Err(bad("its name is empty"));
        }
        if labels.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(bad("its name was given twice"));
        }
    }
    check_labels(&labels)?;
    Ok(labels)
}

/// `NAME=FILE` each, and `NAME=blake3:HEX` for those of given bytes.
pub(crate) fn parse_attachments(
    texts: &[String],
    digests: &[String],
) -> Result<Vec<AttachmentSource>> {
    let parse = |text: &String| {
        let (name, path) =
            text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or_else(|| {
                let context = format!("use --attach {text:?}");
                Error::new(ErrorKind::Usage, context, "it is no name and file with = between them")
                    .hint("write it like manifest.json=/tmp/manifest.json")
            })?;
        let name = AttachmentName::new(name).map_err(|e| e.within("use --attach"))?;
        Ok(AttachmentSource { name, path: path.into(), digest: None })
    };
    let texts = texts.iter().filter(|t| !t.is_empty());
    let mut all = texts.map(parse).collect::<Result<Vec<_>>>()?;
    for text in digests.iter().filter(|t| !t.is_empty()) {
        add_digest(&mut all, text)?;
    }
    Ok(all)
}

fn add_digest(all: &mut [AttachmentSource], text: &str) -> Result<()> {
    let wrong = |what: &str| {
        Error::new(ErrorKind::Usage, format!("use --attach-digest {text:?}"), what)
            .hint("write it like manifest.json=blake3: and 64 hexadecimal digits")
    };
    let (name, digest) = text.split_once('=').ok_or_else(|| wrong("it has no ="))?;
    let digest = digest.strip_prefix("blake3:").ok_or_else(|| wrong("it has no blake3:"))?;
    let mut bytes = [0; 32];
    hex::decode_to_slice(digest, &mut bytes).map_err(|_| wrong("it is no digest of BLAKE3"))?;
    let found = all.iter_mut().find(|source| source.name.as_str() == name);
    let source = found.ok_or_else(|| wrong("--attach names no such attachment"))?;
    match source.digest.replace(bytes) {
        None => Ok(()),
        Some(_) => Err(wrong("its name was given twice")),
    }
}

#[cfg(test)]
mod tests;
