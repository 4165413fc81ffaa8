//! Completion in a shell: the script that clap makes knows commands and flags; what it cannot know,
//! volumes and backups, it asks this program for, by the hidden command `__complete`.
//!
//! Names of volumes and ids of backups stand in the keys of objects. So no key is needed, no
//! passphrase asked for and no command of the user's run; two listings tell them. A store that does
//! not answer at once has nothing to offer, and no error is shown to somebody who only typed a tab.

use super::args;
use super::context::Context;
use super::repository::listed_place;
use chunkstore::format::names::{
    AttemptName, BACKUPS_PREFIX, FORGOTTEN_PREFIX, forgotten_of, manifests_of, parse_forgotten_key,
    parse_manifest_key,
};
use chunkstore::{Error, ErrorKind, Result, Store, VolumeName};
use clap_complete::Shell;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

/// A shell waits for it, with somebody in front. Two seconds in all, with start and end.
const PATIENCE: Duration = Duration::from_millis(1300);
/// More than that nobody reads.
const OFFERED_MAX: usize = 200;

const BASH: &str = r#"
# Volumes and backups are asked for; where that has nothing to offer, it is as above.
_mover_names() {
    local line=${COMP_LINE:0:COMP_POINT} word break head cut=""
    local -a words found
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    mapfile -t found < <("${words[0]}" __complete -- "${words[@]:1}" 2>/dev/null)
    if ((${#found[@]} == 0)); then
        _mover "$@"
        return
    fi
    # readline puts in only what stands behind the last break within a word; an @ goes with what follows
    word=${words[${#words[@]} - 1]}
    for break in @ : =; do
        if [[ $COMP_WORDBREAKS == *"$break"* && $word == *"$break"* ]]; then
            head=${word%"$break"*}
            [[ $break == @ ]] || head+=$break
            ((${#head} > ${#cut})) && cut=$head
        fi
    done
    COMPREPLY=("${found[@]#"$cut"}")
    [[ ${#found[@]} -eq 1 && ${found[0]} == *@ ]] && compopt -o nospace
    return 0
}

"#;

const ZSH: &str = r#"# Volumes and backups are asked for; where that has nothing to offer, it is as above.
_mover() {
    local -a found open closed
    found=("${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( ! ${#found} )); then
        _mover_flags "$@"
        return
    fi
    open=(${(M)found:#*@})
    closed=(${found:#*@})
    (( ${#open} )) && compadd -Q -S '' -- $open
    (( ${#closed} )) && compadd -Q -V backups -- $closed
    return 0
}

"#;

const FISH: &str = r#"
# Volumes and backups are asked for.
function __mover_names
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete -- $words[2..-1] 2>/dev/null
end
complete -c mover -k -f -n 'test -n "$(__mover_names)"' -a '(__mover_names)'
complete -c mover -k -f -r -l volume -a '(__mover_names)'
complete -c mover -k -f -r -l parent -a '(__mover_names)'
"#;

/// The script of a shell.
pub(crate) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "mover", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => {
            let asks = script.replace("complete -F _mover ", "complete -F _mover_names ");
            let (functions, registered) = asks.split_at(last_block(&asks, "\nif [["));
            format!("{functions}{BASH}{registered}")
        }
        Shell::Zsh => {
            let named = script.replacen("\n_mover() {", "\n_mover_flags() {", 1);
            let (functions, registered) = named.split_at(last_block(&named, "if [ \"$funcstack"));
            format!("{functions}{ZSH}{registered}")
        }
        Shell::Fish => script + FISH,
        _ => script,
    }
}

/// Where the last block that begins so begins.
fn last_block(script: &str, begins: &str) -> usize {
    script.rfind(begins).unwrap_or(script.len())
}

/// What is asked for at the end of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked<'a> {
    what: Names,
    /// As far as it is typed.
    typed: &'a str,
    /// What the line says besides.
    volume: Option<&'a str>,
    repo: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Volume,
    Backup,
    /// By its id alone.
    Id,
    Parent,
}

/// Prints what may stand where the words end, one in a line.
pub(crate) fn complete(ctx: &Context, words: &[String]) -> Result<()> {
    let Some(asked) = asked(words) else { return Ok(()) };
    let Ok(Some(store)) = listed_place(ctx, asked.repo) else { return Ok(()) };
    let offered = async {
        let names = tokio::time::timeout(PATIENCE, offered(&store, &asked)).await;
        names.map_err(|_| Error::new(ErrorKind::Unavailable, "list names", "it takes too long"))?
    };
    let Ok(names) = ctx.block_on(offered) else { return Ok(()) };
    let plain = names.into_iter().filter(|name| is_plain(name)).take(OFFERED_MAX);
    ctx.output.result(&plain.map(|name| name + "\n").collect::<String>())
}

/// What a shell takes as it is. Whoever may write to the bucket may name a volume.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || "@._-/+:,=".contains(c))
}

/// What the last of the words behind `mover` is to become.
fn asked(words: &[String]) -> Option<Asked<'_>> {
    let mut tree = args::command();
    tree.build();
    let (typed, before) = words.split_last()?;
    let mut line = Line { command: &tree, path: Vec::new(), positionals: 0, expects: None };
    let (mut volume, mut repo, mut by_time) = (None, None, false);
    for word in before {
        match line.take(word) {
            Some(("volume", value)) => volume = Some(value),
            Some(("repo", value)) => repo = Some(value),
            Some(("before", _)) => by_time = true,
            _ => {}
        }
    }
    let inline = typed.strip_prefix("--").and_then(|flag| flag.split_once('='));
    let (name, typed) = match (line.expects.clone(), inline) {
        (Some(flag), _) => (flag, typed.as_str()),
        (None, Some((flag, value))) => (flag.to_owned(), value),
        (None, None) if typed.starts_with('-') => return None,
        (None, None) => (line.positional()?, typed.as_str()),
    };
    let what = match name.as_str() {
        "volume" => Names::Volume,
        "parent" => Names::Parent,
        "backup" if by_time => Names::Volume,
        "backup" if line.path == ["forget"] => Names::Id,
        "backup" | "backups" | "a" | "b" => Names::Backup,
        _ => return None,
    };
    Some(Asked { what, typed, volume, repo })
}

/// A command line as far as it has been read.
struct Line<'a> {
    command: &'a clap::Command,
    path: Vec<&'a str>,
    positionals: usize,
    /// A flag whose value comes next.
    expects: Option<String>,
}

impl Line<'_> {
    /// Reads a word; the flag and its value, where it ends one.
    fn take<'w>(&mut self, word: &'w str) -> Option<(&'static str, &'w str)> {
        const KEPT: [&str; 3] = ["volume", "repo", "before"];
        let kept = |flag: &str| KEPT.into_iter().find(|name| *name == flag);
        if let Some(flag) = self.expects.take() {
            return kept(&flag).map(|flag| (flag, word));
        }
        let Some(flag) = word.strip_prefix("--") else {
            if word.starts_with('-') && word.len() > 1 {
                return None;
            }
            match self.command.find_subcommand(word) {
                Some(below) if self.positionals == 0 => {
                    self.command = below;
                    self.path.push(below.get_name());
                }
                _ => self.positionals += 1,
            }
            return None;
        };
        if let Some((flag, value)) = flag.split_once('=') {
            return kept(flag).map(|flag| (flag, value));
        }
        let takes_value =
            |arg: &&clap::Arg| arg.get_long() == Some(flag) && arg.get_action().takes_values();
        let arg = self.command.get_arguments().find(takes_value);
        self.expects = arg.map(|_| flag.to_owned());
        None
    }

    /// The argument without a flag that comes next.
    fn positional(&self) -> Option<String> {
        let all: Vec<_> = self.command.get_positionals().collect();
        let several =
            all.last().filter(|last| matches!(last.get_action(), clap::ArgAction::Append));
        let next = all.get(self.positionals).or(several)?;
        Some(next.get_id().to_string())
    }
}

/// All that it may become, the newest backup first.
async fn offered(store: &Store, asked: &Asked<'_>) -> Result<Vec<String>> {
    let begins = |name: &String| name.starts_with(asked.typed);
    if asked.what == Names::Volume {
        let names = attempts(store, None).await?;
        return Ok(volumes(&names).into_iter().filter(begins).collect());
    }
    let mut found = Vec::new();
    if asked.what == Names::Parent {
        found.extend(["auto", "none"].map(str::to_owned));
    }
    if let Some((volume, _)) = asked.typed.rsplit_once('@') {
        let names = attempts(store, Some(&VolumeName::new(volume)?)).await?;
        let latest = asked.what != Names::Id && !names.is_empty();
        found.extend(latest.then(|| format!("{volume}@latest")));
        found.extend(names.iter().map(|name| format!("{volume}@{}", name.backup_id)));
    } else {
        let only = asked.volume.filter(|_| asked.what == Names::Parent).map(VolumeName::new);
        let names = attempts(store, only.transpose()?.as_ref()).await?;
        found.extend(volumes(&names).into_iter().map(|volume| volume + "@"));
        // all ids of all volumes are no help before something is typed
        let ids = names.iter().filter(|_| !asked.typed.is_empty());
        found.extend(ids.map(|name| name.backup_id.to_string()));
    }
    let mut seen = HashSet::new();
    Ok(found.into_iter().filter(begins).filter(|name| seen.insert(name.clone())).collect())
}

fn volumes(names: &[AttemptName]) -> BTreeSet<String> {
    names.iter().map(|name| name.volume.to_string()).collect()
}

/// Backups by the keys of their manifests, the one stored last first.
async fn attempts(store: &Store, volume: Option<&VolumeName>) -> Result<Vec<AttemptName>> {
    let (backups, forgotten) = match volume {
        Some(volume) => (manifests_of(volume), forgotten_of(volume)),
        None => (BACKUPS_PREFIX.to_owned(), FORGOTTEN_PREFIX.to_owned()),
    };
    let (mut backups, forgotten) =
        futures::try_join!(store.list(&backups), store.list(&forgotten))?;
    let forgotten: HashSet<AttemptName> =
        forgotten.iter().filter_map(|l| parse_forgotten_key(&l.key).ok()).collect();
    backups.sort_by_key(|listed| std::cmp::Reverse(listed.last_modified));
    let names = backups.iter().filter_map(|listed| parse_manifest_key(&listed.key).ok());
    Ok(names.filter(|name| !forgotten.contains(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_in_the_line_says_what_is_asked_for() {
        for (line, what, typed) in [
            ("restore |", Some(Names::Backup), ""),
            ("restore db@l", Some(Names::Backup), "db@l"),
            ("restore --force --memory 1GiB db", Some(Names::Backup), "db"),
            ("--repo s3://b/p restore db", Some(Names::Backup), "db"),
            ("restore db@latest tar", None, ""),
            ("restore --before 2026-11-22 d", Some(Names::Volume), "d"),
            ("show 3f", Some(Names::Backup), "3f"),
            ("diff db@a db@", Some(Names::Backup), "db@"),
            ("copy a b c", Some(Names::Backup), "c"),
            ("forget db@", Some(Names::Id), "db@"),
            ("list --volume d", Some(Names::Volume), "d"),
            ("list --volume=d", Some(Names::Volume), "d"),
            ("backup /dev/x --volume db --parent |", Some(Names::Parent), ""),
            ("backup |", None, ""),
            ("restore --fo", None, ""),
            ("rest", None, ""),
            ("key remove 3f", None, ""),
        ] {
            let words: Vec<String> =
                line.split(' ').map(|word| word.trim_matches('|').to_owned()).collect();
            let asked = asked(&words);
            assert_eq!(asked.as_ref().map(|a| a.what), what, "{line}");
            assert_eq!(asked.as_ref().map_or("", |a| a.typed), typed, "{line}");
        }
        let words = ["--repo=/r", "backup", "x", "--volume", "v", "--parent", ""].map(String::from);
        let asked = asked(&words).unwrap();
        assert_eq!((asked.volume, asked.repo), (Some("v"), Some("/r")));
    }

    #[test]
    fn the_scripts_ask_the_program() {
        for (shell, registered) in [
            (Shell::Bash, "complete -F _mover_names "),
            (Shell::Zsh, "\n_mover_flags() {"),
            (Shell::Fish, "-a '(__mover_names)'"),
        ] {
            let script = script(shell);
            assert!(script.contains(registered) && script.contains("__complete -- "), "{script}");
        }
    }

    #[test]
    fn nothing_is_offered_that_a_shell_would_run() {
        assert!(is_plain("shop/mysql-data@größe_1.2"));
        for name in ["a b", "$(x)", "a;b", "`x`", "a\nb", "a\u{1b}[2J", "'", "~", "*"] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
