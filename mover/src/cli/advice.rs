//! The flags by which this program does what the libraries advise.

use chunkstore::Advice;

pub(super) fn words(advice: Advice) -> &'static str {
    match advice {
        Advice::ReadWithoutLease => {
            "use --no-lease: safe as long as nobody forgets this backup meanwhile"
        }
        Advice::CollectAlone => {
            "when nothing else uses the repository, and nothing will until this has ended, use --exclusive"
        }
        Advice::RecordDamage => "`mover check --repair` records what is damaged",
        Advice::FindLosses => {
            "`mover check --repair` names the backups that lost something, and has the next backup store it again"
        }
        Advice::RetainElsewhere => {
            "set a retention on the bucket, container or file system as a whole by its own means, and leave --retain-for and \
             --retain-until out"
        }
        Advice::UseObjectLock => {
            "use a bucket that was created with object lock (and so with versions), or leave --retain-for and --retain-until out"
        }
        Advice::VerifyOthers => "run `mover verify` on the other backups",
        Advice::FindDamage => "`mover check --read-data` says what else is damaged",
        Advice::Repair => "`mover check --repair` puts right what can be",
        Advice::MakeWhole => {
            "run `mover check --read-data --repair`, which makes the backup whole for good"
        }
        Advice::FindRoots => {
            "`mover check --find-roots` finds what is left of a backup whose manifest is damaged or gone"
        }
        Advice::RepairAgain => "run `mover check --repair` again",
        Advice::FindWhole => "`mover check --read-data` says which",
        Advice::RepairAndSalvage => {
            "`mover check --repair` puts right what can be and records the rest, so that the next backups store it again; \
             `mover restore --skip-damaged` writes all that is left of a damaged backup"
        }
        Advice::ReplaceBackups => "`mover forget` them when there are newer ones, then `mover gc`",
        Advice::ListBackups => "`mover list` shows what there is",
        Advice::ListAndRestore => {
            "    mover list --repo URL                           the volumes and their backups\n    \
             mover restore --repo URL VOLUME@latest FILE     writes the newest one of a volume into a new file"
        }
        Advice::Upgrade => "`mover upgrade` shows what can be added",
        Advice::AddAttachments => {
            "`mover upgrade --add attachments` adds it, for good: programs that do not know it can then only read the repository"
        }
        Advice::EndHold => {
            "let that restore end; if it never will, `mover restore --abandon BACKUP` gives it up"
        }
        Advice::RenameVolume => "choose another one with --volume",
    }
}
