//! What is to be done about a request: pure. It is held against the export and against what was
//! agreed on before anything is done for it.

use super::decode::{ClientRequest, PAYLOAD_BYTES_MAX};
use super::handshake::{Access, ExportTerms, Replies};
use super::volume::Holes;
use crate::wire::{
    COMMAND_TRIM, Command, EINVAL, ENOSPC, ENOTSUP, EPERM, REQUEST_DF, REQUEST_FAST_ZERO,
    REQUEST_FUA, REQUEST_NO_HOLE, REQUEST_ONE, REQUEST_PAYLOAD_LEN,
};
use std::ops::Range;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// All of it in one piece, if `whole`.
    Read { range: Range<u64>, whole: bool },
    /// The first stretch alone, if `one`.
    Status { range: Range<u64>, one: bool },
    /// Other content; durable before the answer, if `fua`.
    Change { range: Range<u64>, change: Change, fua: bool },
    /// What was answered before is made durable.
    Flush,
    /// The client leaves.
    Disconnect,
    /// An error, after so many bytes that the client sends behind the request.
    Refuse { errno: u32, why: &'static str, skip_bytes: u64 },
    /// What comes behind cannot be told from requests.
    Close(&'static str),
}

/// What becomes of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// As many bytes as the range has come behind the request.
    Write,
    /// With `fast` only if that is quicker than to write zeros.
    Zero {
        holes: Holes,
        fast: bool,
    },
    Trim,
}

/// What a request is held against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ground {
    pub(super) size_bytes: u64,
    pub(super) access: Access,
    /// Longest payload of a write that there is memory for.
    pub(super) payload_bytes_max: u32,
    pub(super) replies: Replies,
    /// Whether the state of blocks may be asked for.
    pub(super) has_contexts: bool,
}

impl Ground {
    pub(super) fn new(
        terms: &ExportTerms,
        payload_bytes_max: u32,
        replies: Replies,
        has_contexts: bool,
    ) -> Self {
        let ExportTerms { size_bytes, access, .. } = *terms;
        Self { size_bytes, access, payload_bytes_max, replies, has_contexts }
    }
}

/// Most bytes that are skipped to refuse a write.
const SKIP_BYTES_MAX: u64 = PAYLOAD_BYTES_MAX as u64;

const WRITE: u16 = Command::Write as u16;
const READ: u16 = Command::Read as u16;
const DISCONNECT: u16 = Command::Disconnect as u16;
const FLUSH: u16 = Command::Flush as u16;
const BLOCK_STATUS: u16 = Command::BlockStatus as u16;
const WRITE_ZEROES: u16 = Command::WriteZeroes as u16;

/// Decides.
pub(super) fn judge(request: &ClientRequest, ground: &Ground) -> Task {
    let ClientRequest { flags, command, offset, len, .. } = *request;
    let extended = ground.replies == Replies::Extended;
    let carries = command == WRITE || (extended && flags & REQUEST_PAYLOAD_LEN != 0);
    let skip_bytes = if carries { len } else { 0 };
    let writable = ground.access == Access::Writable;
    if command == DISCONNECT {
        return Task::Disconnect;
    }
    if skip_bytes > SKIP_BYTES_MAX {
        return Task::Close("a request carries more than 32 MiB");
    }
    if extended && command == WRITE && flags & REQUEST_PAYLOAD_LEN == 0 {
        // whether bytes or requests come behind is not known, and neither may be taken for the other
        return Task::Close("a write does not say that it has a payload");
    }
    let refuse = |errno, why| Task::Refuse { errno, why, skip_bytes };
    match command {
        WRITE | WRITE_ZEROES | COMMAND_TRIM if !writable => {
            return refuse(EPERM, "the export is read-only");
        }
        FLUSH if writable => {}
        READ | BLOCK_STATUS | WRITE | WRITE_ZEROES | COMMAND_TRIM => {}
        _ => return refuse(EINVAL, "this command is not known"),
    }
    if flags & !allowed_flags(command, ground) != 0 {
        return refuse(EINVAL, "a flag of this request is not known");
    }
    if command == FLUSH {
        let zero = offset == 0 && len == 0;
        return if zero { Task::Flush } else { refuse(EINVAL, "a flush has no range") };
    }
    let end = offset.checked_add(len).filter(|end| *end <= ground.size_bytes);
    let Some(end) = end else {
        let errno = if matches!(command, WRITE | WRITE_ZEROES) { ENOSPC } else { EINVAL };
        return refuse(errno, "this is behind the end of the export");
    };
    if len == 0 {
        return refuse(EINVAL, "this asks for no bytes");
    }
    let range = offset..end;
    let fua = flags & REQUEST_FUA != 0;
    match command {
        BLOCK_STATUS if !ground.has_contexts => refuse(EINVAL, "no context was agreed on"),
        BLOCK_STATUS => Task::Status { range, one: flags & REQUEST_ONE != 0 },
        WRITE if len > u64::from(ground.payload_bytes_max) => {
            refuse(EINVAL, "a write is longer than the largest payload that was announced")
        }
        WRITE => Task::Change { range, change: Change::Write, fua },
        WRITE_ZEROES => {
            let kept = flags & REQUEST_NO_HOLE != 0;
            let holes = if kept { Holes::Forbidden } else { Holes::Allowed };
            let change = Change::Zero { holes, fast: flags & REQUEST_FAST_ZERO != 0 };
            Task::Change { range, change, fua }
        }
        COMMAND_TRIM => Task::Change { range, change: Change::Trim, fua },
        _ if len > u64::from(PAYLOAD_BYTES_MAX) => refuse(ENOTSUP, "a read has 32 MiB at most"),
        _ => Task::Read { range, whole: flags & REQUEST_DF != 0 },
    }
}

fn allowed_flags(command: u16, ground: &Ground) -> u16 {
    // where it was announced it is right for every command
    let fua = if ground.access == Access::Writable { REQUEST_FUA } else { 0 };
    fua | match command {
        READ if ground.replies != Replies::Simple => REQUEST_DF,
        BLOCK_STATUS => REQUEST_ONE,
        WRITE if ground.replies == Replies::Extended => REQUEST_PAYLOAD_LEN,
        WRITE_ZEROES => REQUEST_NO_HOLE | REQUEST_FAST_ZERO,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;
    const GROUND: Ground = Ground {
        size_bytes: SIZE,
        access: Access::ReadOnly,
        payload_bytes_max: 4 << 20,
        replies: Replies::Extended,
        has_contexts: true,
    };
    const WRITABLE: Ground = Ground { access: Access::Writable, ..GROUND };

    fn on(ground: &Ground, command: u16, flags: u16, offset: u64, len: u64) -> Task {
        judge(&ClientRequest { flags, command, cookie: 1, offset, len }, ground)
    }

    fn ask(command: u16, flags: u16, offset: u64, len: u64) -> Task {
        on(&GROUND, command, flags, offset, len)
    }

    fn errno(task: &Task) -> u32 {
        match task {
            Task::Refuse { errno, .. } => *errno,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn whatever_a_client_asks_for_is_within_the_export() {
        for (offset, len) in [
            (SIZE, 1),
            (0, SIZE + 1),
            (1, SIZE),
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
            (5, 0),
        ] {
            for command in [READ, BLOCK_STATUS, COMMAND_TRIM] {
                let task = on(&WRITABLE, command, 0, offset, len);
                assert_eq!(errno(&task), EINVAL, "{offset} {len}");
            }
            let full = if len == 0 { EINVAL } else { ENOSPC };
            assert_eq!(errno(&on(&WRITABLE, WRITE_ZEROES, 0, offset, len)), full, "{offset} {len}");
        }
        let write = on(&WRITABLE, WRITE, REQUEST_PAYLOAD_LEN, SIZE, 1);
        assert!(matches!(write, Task::Refuse { errno: ENOSPC, skip_bytes: 1, .. }), "{write:?}");
        assert_eq!(ask(READ, 0, SIZE - 5, 5), Task::Read { range: SIZE - 5..SIZE, whole: false });
        assert_eq!(ask(BLOCK_STATUS, 0, 0, SIZE), Task::Status { range: 0..SIZE, one: false });
        assert_eq!(errno(&ask(READ, 0, 0, (32 << 20) + 1)), ENOTSUP);
    }

    #[test]
    fn nothing_of_a_read_only_export_is_written_and_the_payload_is_skipped() {
        for command in [WRITE_ZEROES, COMMAND_TRIM] {
            let refused =
                Task::Refuse { errno: EPERM, why: "the export is read-only", skip_bytes: 0 };
            assert_eq!(ask(command, 0, 0, u64::MAX), refused);
        }
        let write = ask(WRITE, REQUEST_PAYLOAD_LEN, 0, 4096);
        assert!(matches!(write, Task::Refuse { errno: EPERM, skip_bytes: 4096, .. }), "{write:?}");
        assert_eq!(errno(&ask(FLUSH, 0, 0, 0)), EINVAL);
        assert_eq!(errno(&ask(READ, REQUEST_FUA, 0, 1)), EINVAL);
    }

    #[test]
    fn where_a_payload_ends_is_known_or_the_talk_ends() {
        for ground in [&GROUND, &WRITABLE] {
            assert!(matches!(on(ground, WRITE, 0, 0, u64::MAX), Task::Close(_)));
            assert!(matches!(on(ground, WRITE, 0, 0, 1), Task::Close(_)));
            let long = on(ground, WRITE, REQUEST_PAYLOAD_LEN, 0, (32 << 20) + 1);
            assert!(matches!(long, Task::Close(_)), "{long:?}");
            let flagged = on(ground, 77, REQUEST_PAYLOAD_LEN, 0, u64::MAX);
            assert!(matches!(flagged, Task::Close(_)), "{flagged:?}");
            for command in [77, READ, BLOCK_STATUS] {
                let other = on(ground, command, REQUEST_PAYLOAD_LEN, 0, 9);
                let skipped = matches!(other, Task::Refuse { errno: EINVAL, skip_bytes: 9, .. });
                assert!(skipped, "{other:?}");
            }
        }
        let simple = Ground { replies: Replies::Simple, ..WRITABLE };
        let change = |range| Task::Change { range, change: Change::Write, fua: false };
        assert_eq!(on(&simple, WRITE, 0, 7, 5), change(7..12));
        assert_eq!(on(&WRITABLE, WRITE, REQUEST_PAYLOAD_LEN, 7, 5), change(7..12));
        assert_eq!(errno(&on(&simple, WRITE, REQUEST_PAYLOAD_LEN, 7, 5)), EINVAL);
        // more than was announced, and no more than has to be understood
        let long = on(&simple, WRITE, 0, 0, (4 << 20) + 1);
        let all = (4 << 20) + 1;
        assert!(
            matches!(long, Task::Refuse { errno: EINVAL, skip_bytes, .. } if skip_bytes == all)
        );
    }

    #[test]
    fn changes_have_the_flags_that_the_protocol_gives_them() {
        let all = REQUEST_FUA | REQUEST_NO_HOLE | REQUEST_FAST_ZERO;
        let zero = |holes, fast| Change::Zero { holes, fast };
        for (flags, change, fua) in [
            (0, zero(Holes::Allowed, false), false),
            (REQUEST_FUA, zero(Holes::Allowed, false), true),
            (all, zero(Holes::Forbidden, true), true),
        ] {
            // lengths of 64 bits, which no payload has
            let wanted = Task::Change { range: 0..SIZE, change, fua };
            assert_eq!(on(&WRITABLE, WRITE_ZEROES, flags, 0, SIZE), wanted);
        }
        let trim = Task::Change { range: 1..SIZE, change: Change::Trim, fua: true };
        assert_eq!(on(&WRITABLE, COMMAND_TRIM, REQUEST_FUA, 1, SIZE - 1), trim);
        assert_eq!(errno(&on(&WRITABLE, COMMAND_TRIM, REQUEST_NO_HOLE, 0, 1)), EINVAL);
        assert_eq!(on(&WRITABLE, FLUSH, REQUEST_FUA, 0, 0), Task::Flush);
        assert_eq!(errno(&on(&WRITABLE, FLUSH, 0, 0, 1)), EINVAL);
        assert_eq!(on(&WRITABLE, READ, REQUEST_FUA, 0, 1), ask(READ, 0, 0, 1));
    }

    #[test]
    fn flags_that_were_not_agreed_on_are_refused() {
        assert_eq!(errno(&ask(READ, 1 << 9, 0, 5)), EINVAL);
        assert_eq!(errno(&ask(READ, REQUEST_ONE, 0, 5)), EINVAL);
        assert_eq!(ask(READ, REQUEST_DF, 0, 5), Task::Read { range: 0..5, whole: true });
        let simple = Ground { replies: Replies::Simple, has_contexts: false, ..GROUND };
        assert_eq!(errno(&on(&simple, READ, REQUEST_DF, 0, 5)), EINVAL);
        let structured = Ground { replies: Replies::Structured, ..simple };
        assert_eq!(errno(&on(&structured, BLOCK_STATUS, 0, 0, 5)), EINVAL);
    }
}
