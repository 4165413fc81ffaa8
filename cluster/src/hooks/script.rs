//! The shell command that holds a lock in a container.
//!
//! ```text
//! our input ─▶ reader ─▶ the hook ─▶ judge ─▶ our output
//!                ▲ ends with, or after its time, by either of two watchdogs
//! ```
//!
//! Its output is these lines, and nothing of the hook's own:
//!
//! | line | meaning |
//! |---|---|
//! | `mover: locked` | the hook has written its first line |
//! | `mover: asked` | we have asked for the end, and only now the hook's input ends |
//! | `mover: timeout` | its time is over, and its input ends |
//! | `mover: unlocked` | the hook ended well |
//! | `mover: failed N` | it ended with this status |
//!
//! So the order proves that the lock lived: a hook that ends before it is asked says so before
//! `asked`. Whichever one process is killed or stopped, the hook's input ends in time or one of
//! these lines is missing. The hook's output is thrown away but for the end of its errors, so a
//! reader that has stopped holds up nothing.
//!
//! A POSIX `sh` is enough, with `cat`, `head` and `sleep`.

/// What we write to have the lock ended: not every runtime passes the end of the input on.
pub(super) const END: &[u8] = b"end\n";

/// What [`SESSION`] needs besides a shell, and the answer where it is there.
pub(super) const PROBE: &str =
    "for it in cat head sleep; do command -v $it >/dev/null || exit 1; done; echo mover: here";

/// Runs `$1` for `$2` seconds at most; `$3` is `pair` for one of [`pair`].
///
/// - The reader alone holds the hook's input. When it is gone, however, the input is at its end.
/// - A watchdog kills the reader, as a stopped one takes no other signal. It looks again and again
///   whether the reader is there, so it never kills another process that has got its number. There
///   are two, as one may be killed. It counts long pauses rather than short ones, each of which
///   takes longer than it says.
/// - A hook that does not end with its input, because it does not read it, is ended five seconds
///   after its time, with all processes below it. The second half of a pair takes no `TERM`.
/// - The judge gets the hook's status as the last line of its output, behind an empty one: the
///   hook's own last line may lack its end.
pub(super) const SESSION: &str = r#"
exec 3<&0 4>&1 5>&2 2>/dev/null
below() {
  all=$hook more=1
  while [ "$more" ]; do
    more=
    for at in /proc/[0-9]*; do
      case " $all " in *" ${at#/proc/} "*) continue ;; esac
      read -r line <"$at/stat" || continue
      line=${line##*) } line=${line#* }
      case " $all " in *" ${line%% *} "*) all="$all ${at#/proc/}" more=1 ;; esac
    done
  done 2>/dev/null
  kill -$1 $all
}
sh -c '
  step=$(($1 / 60 + 1))
  watch() {
    n=0
    while [ $n -lt $1 ]; do
      sleep $step 4>&- || break
      kill -0 $$ 2>&- || exit
      n=$((n + step))
    done
    echo "mover: timeout" >&4
    kill -9 $$
  }
  (watch $1) <&- >&- 2>&- 3<&- 5>&- & first=$!
  (watch $(($1 + 2))) <&- >&- 2>&- 3<&- 5>&- & second=$!
  while read -r line; do
    if [ "$line" = end ]; then
      echo "mover: asked" >&4
      break
    fi
  done <&3
  kill -9 $first $second 2>&-
' reader "$2" 3<&3 | {
  {
    sh -c "$1" <&8 8<&- 2>&1 >&6 6>&- & hook=$!
    (
      n=0
      while [ $n -lt $(($2 + 5)) ]; do
        sleep 1 || break
        kill -0 $hook || exit
        n=$((n + 1))
      done
      below TERM
      [ "$3" = pair ] || { sleep 5; below KILL; }
    ) >/dev/null 2>&1 6>&- 8<&- &
    wait $hook
    printf '\nmover-ended %s\n' $? >&6
  } 3<&- 4>&- 5>&- 8<&0 |
    { head -c 2000 >&5; cat; } >/dev/null 3<&- 4>&- 6>&-
} 3<&- 4>&- 6>&1 | {
  held= ended=
  while IFS= read -r line; do
    case $line in
      'mover-ended 0') ended=unlocked ;;
      'mover-ended '*) ended="failed ${line#mover-ended }" ;;
      ?*) [ "$held" ] || echo 'mover: locked'; held=1 ;;
    esac
    [ -z "$ended" ] || break
  done
  [ -z "$ended" ] || echo "mover: $ended"
  exec cat >/dev/null
} 3<&- 5>&-
"#;

/// Whether the second command of a pair follows a first one that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// Half a lock may have been taken.
    LetGo,
    /// There is no half of it, and a whole one would be somebody else's.
    IsNone,
}

/// A hook out of two commands: what takes the lock, and what lets go of it. The second one runs in a
/// process of its own, which begins it when the first one's is gone, however.
pub(super) fn pair(before: &str, after: &str, half: Half) -> String {
    let (before, after) = (quoted(before), quoted(after));
    let failed = match half {
        Half::LetGo => "",
        // The other process hears of that by a line.
        Half::IsNone => "echo none; ",
    };
    format!(
        "exec 7>&1; {{ sh -c {before} </dev/null >&2 7>&- || {{ {failed}exit 1; }}; echo locked >&7; \
         exec cat 7>&-; }} | {{ trap '' TERM; read -r half; cat >/dev/null; \
         [ \"$half\" = none ] && exit 1; sh -c {after} >&2 7>&-; }}"
    )
}

/// What thaws a filesystem. It fails where that is not frozen any more: then it was not until now.
pub(super) fn thaw(path: &str) -> String {
    format!("fsfreeze --unfreeze {}", quoted(path))
}

/// The same, content with one that is not frozen.
pub(super) fn thawed(path: &str) -> String {
    format!(
        "said=$(LC_ALL=C {} 2>&1) && exit; \
         case $said in *'Invalid argument'*) exit 0 ;; esac; echo \"$said\" >&2; exit 1",
        thaw(path)
    )
}

/// What freezes a filesystem.
pub(super) fn freeze(path: &str) -> String {
    format!("fsfreeze --freeze {}", quoted(path))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
