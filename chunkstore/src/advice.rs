//! Next steps that a program has its own words for.
//!
//! A library knows what helps, not what the program calls it: a flag, a field of an object, a
//! button. So an error carries an [`Advice`], and the program says once, with
//! [`set_advice_words`], how each reads. Without that the words here are used.

use std::fmt;
use std::sync::OnceLock;

/// A next step. Exhaustive on purpose: a program that has words for each must hear of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Read without a lease.
    ReadWithoutLease,
    /// Collect garbage while nothing else uses the repository, without asking the store for
    /// create-once.
    CollectAlone,
    /// Check and repair, which records damage.
    RecordDamage,
    /// Check and repair, which names the backups that lost something and lets the next backup store
    /// it again.
    FindLosses,
    /// Lock objects by other means, and leave retention out.
    RetainElsewhere,
    /// Use a bucket with object lock, or leave retention out.
    UseObjectLock,
    /// Choose another name of the volume.
    RenameVolume,
    /// Verify the other backups.
    VerifyOthers,
    /// Check what else is damaged.
    FindDamage,
    /// Check and repair, which puts right what can be.
    Repair,
    /// Check the data and repair, which makes backups whole of what is stored elsewhere.
    MakeWhole,
    /// Look for what is left of a backup whose manifest is lost, and make a backup of it.
    FindRoots,
    /// Check and repair once more.
    RepairAgain,
    /// Check the data, to find a backup that is whole.
    FindWhole,
    /// Check and repair, and restore what is left of a damaged backup.
    RepairAndSalvage,
    /// Forget the backups that use something, once there are newer ones, and collect garbage.
    ReplaceBackups,
    /// List the backups that there are.
    ListBackups,
    /// List the backups of a repository, and restore one: lines for a text that lies beside it.
    ListAndRestore,
    /// Add what a repository has not got yet.
    Upgrade,
    /// Add the feature that backups with attachments need.
    AddAttachments,
    /// End a live restore, or give it up, and so the hold that it has on its backup.
    EndHold,
}

impl Advice {
    /// As an error says it: in the program's words, if it has set any.
    pub fn words(self) -> &'static str {
        WORDS.get().map_or_else(|| self.plain(), |words| words(self))
    }

    fn plain(self) -> &'static str {
        match self {
            Self::ReadWithoutLease => {
                "read without a lease: safe as long as nobody forgets this backup meanwhile"
            }
            Self::CollectAlone => {
                "when nothing else uses the repository, and nothing will until this has ended, collect exclusively"
            }
            Self::RecordDamage => "a check with repair records what is damaged",
            Self::FindLosses => {
                "a check with repair names the backups that lost something, and has the next backup store it again"
            }
            Self::RetainElsewhere => {
                "set a retention on the bucket, container or file system as a whole by its own means, and ask for none here"
            }
            Self::UseObjectLock => {
                "use a bucket that was created with object lock (and so with versions), or ask for no retention"
            }
            Self::RenameVolume => "choose another name for the volume",
            Self::VerifyOthers => "verify the other backups",
            Self::FindDamage => "a check that reads the data says what else is damaged",
            Self::Repair => "a check with repair puts right what can be",
            Self::MakeWhole => {
                "a check that reads the data, with repair, makes the backup whole for good"
            }
            Self::FindRoots => {
                "a search for roots finds what is left of a backup whose manifest is damaged or gone"
            }
            Self::RepairAgain => "check and repair again",
            Self::FindWhole => "a check that reads the data says which",
            Self::RepairAndSalvage => {
                "a check with repair puts right what can be and records the rest, so that the next backups store it again; a \
                 restore that skips damage writes all that is left of a damaged backup"
            }
            Self::ReplaceBackups => "forget them when there are newer ones, then collect garbage",
            Self::ListBackups => "a list of the backups shows what there is",
            Self::ListAndRestore => "    list the backups, then restore one of them",
            Self::Upgrade => "an upgrade shows what can be added",
            Self::AddAttachments => {
                "an upgrade adds it, for good: programs that do not know it can then only read the repository"
            }
            Self::EndHold => "let that restore end, or give it up",
        }
    }
}

/// A setting of the program, by its name in the manual: `memory`, `changes-page`. A message shows it
/// as the program says it, as a flag for instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Setting(pub &'static str);

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SETTING_PREFIX.get() {
            Some(prefix) => write!(f, "{prefix}{}", self.0),
            None => write!(f, "`{}`", self.0),
        }
    }
}

static SETTING_PREFIX: OnceLock<&'static str> = OnceLock::new();

/// Sets the mark that the program's settings have before their names, once for the process; later
/// calls change nothing. Without it names stand in backquotes.
pub fn set_setting_prefix(prefix: &'static str) {
    let _ = SETTING_PREFIX.set(prefix);
}

static WORDS: OnceLock<fn(Advice) -> &'static str> = OnceLock::new();

/// Sets the program's words, once for the process; later calls change nothing.
pub fn set_advice_words(words: fn(Advice) -> &'static str) {
    let _ = WORDS.set(words);
}
