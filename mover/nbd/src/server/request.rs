//! What is to be done about a request: pure. It is held against the export and against what was
//! agreed on before anything is done for it.

use super::decode::{ClientRequest, PAYLOAD_BYTES_MAX};
use super::handshake::Replies;
use crate::wire::{
    COMMAND_TRIM, Command, EINVAL, ENOTSUP, EPERM, REQUEST_DF, REQUEST_ONE, REQUEST_PAYLOAD_LEN,
};
use std::ops::Range;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// All of it in one piece, if `whole`.
    Read { range: Range<u64>, whole: bool },
    /// The first stretch alone, if `one`.
    Status { range: Range<u64>, one: bool },
    /// The client leaves.
    Disconnect,
    /// An error, after so many bytes that the client sends behind the request.
    Refuse { errno: u32, why: &'static str, skip_bytes: u64 },
    /// What comes behind cannot be told from requests.
    Close(&'static str),
}

/// Most bytes that are skipped to refuse a write.
const SKIP_BYTES_MAX: u64 = PAYLOAD_BYTES_MAX as u64;

const WRITE: u16 = Command::Write as u16;
const READ: u16 = Command::Read as u16;
const DISCONNECT: u16 = Command::Disconnect as u16;
const BLOCK_STATUS: u16 = Command::BlockStatus as u16;
const WRITE_ZEROES: u16 = Command::WriteZeroes as u16;

/// Decides. `has_contexts`: whether the state of blocks may be asked for.
pub(super) fn judge(
    request: &ClientRequest,
    size_bytes: u64,
    replies: Replies,
    has_contexts: bool,
) -> Task {
    let ClientRequest { flags, command, offset, len, .. } = *request;
    let extended = replies == Replies::Extended;
    let carries = command == WRITE || (extended && flags & REQUEST_PAYLOAD_LEN != 0);
    let skip_bytes = if carries { len } else { 0 };
    if command == DISCONNECT {
        return Task::Disconnect;
    }
    if skip_bytes > SKIP_BYTES_MAX {
        return Task::Close("a request carries more than 32 MiB");
    }
    let refuse = |errno, why| Task::Refuse { errno, why, skip_bytes };
    let allowed = match command {
        READ if replies != Replies::Simple => REQUEST_DF,
        BLOCK_STATUS => REQUEST_ONE,
        _ => 0,
    };
    match command {
        WRITE | WRITE_ZEROES | COMMAND_TRIM => {
            return refuse(EPERM, "the export is read-only");
        }
        READ | BLOCK_STATUS => {}
        _ => return refuse(EINVAL, "this command is not known"),
    }
    if flags & !allowed != 0 {
        return refuse(EINVAL, "a flag of this request is not known");
    }
    let end = offset.checked_add(len).filter(|end| *end <= size_bytes);
    let Some(end) = end else { return refuse(EINVAL, "this is behind the end of the export") };
    if len == 0 {
        return refuse(EINVAL, "this asks for no bytes");
    }
    let range = offset..end;
    if command == BLOCK_STATUS {
        if !has_contexts {
            return refuse(EINVAL, "no context was agreed on");
        }
        return Task::Status { range, one: flags & REQUEST_ONE != 0 };
    }
    if len > u64::from(PAYLOAD_BYTES_MAX) {
        return refuse(ENOTSUP, "a read has 32 MiB at most");
    }
    Task::Read { range, whole: flags & REQUEST_DF != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    fn ask(command: u16, flags: u16, offset: u64, len: u64) -> Task {
        let request = ClientRequest { flags, command, cookie: 1, offset, len };
        judge(&request, SIZE, Replies::Extended, true)
    }

    fn errno(task: &Task) -> u32 {
        match task {
            Task::Refuse { errno, .. } => *errno,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn whatever_a_client_asks_for_is_within_the_export() {
        for command in [READ, BLOCK_STATUS] {
            for (offset, len) in [
                (SIZE, 1),
                (0, SIZE + 1),
                (1, SIZE),
                (u64::MAX, 1),
                (1, u64::MAX),
                (u64::MAX, u64::MAX),
                (5, 0),
            ] {
                assert_eq!(errno(&ask(command, 0, offset, len)), EINVAL, "{offset} {len}");
            }
        }
        assert_eq!(ask(READ, 0, SIZE - 5, 5), Task::Read { range: SIZE - 5..SIZE, whole: false });
        assert_eq!(ask(BLOCK_STATUS, 0, 0, SIZE), Task::Status { range: 0..SIZE, one: false });
        assert_eq!(errno(&ask(READ, 0, 0, (32 << 20) + 1)), ENOTSUP);
    }

    #[test]
    fn nothing_is_written_and_the_payload_is_skipped() {
        for command in [WRITE_ZEROES, COMMAND_TRIM] {
            let refused =
                Task::Refuse { errno: EPERM, why: "the export is read-only", skip_bytes: 0 };
            assert_eq!(ask(command, 0, 0, u64::MAX), refused);
        }
        let write = ask(WRITE, REQUEST_PAYLOAD_LEN, 0, 4096);
        assert!(matches!(write, Task::Refuse { errno: EPERM, skip_bytes: 4096, .. }), "{write:?}");
        assert!(matches!(ask(WRITE, 0, 0, u64::MAX), Task::Close(_)));
        assert!(matches!(ask(77, REQUEST_PAYLOAD_LEN, 0, u64::MAX), Task::Close(_)));
        let other = ask(77, REQUEST_PAYLOAD_LEN, 0, 9);
        assert!(matches!(other, Task::Refuse { errno: EINVAL, skip_bytes: 9, .. }), "{other:?}");
    }

    #[test]
    fn flags_that_were_not_agreed_on_are_refused() {
        assert_eq!(errno(&ask(READ, 1 << 9, 0, 5)), EINVAL);
        assert_eq!(errno(&ask(READ, REQUEST_ONE, 0, 5)), EINVAL);
        assert_eq!(ask(READ, REQUEST_DF, 0, 5), Task::Read { range: 0..5, whole: true });
        let request =
            ClientRequest { flags: REQUEST_DF, command: READ, cookie: 1, offset: 0, len: 5 };
        assert_eq!(errno(&judge(&request, SIZE, Replies::Simple, false)), EINVAL);
        let status = ClientRequest { flags: 0, command: BLOCK_STATUS, ..request };
        assert_eq!(errno(&judge(&status, SIZE, Replies::Structured, false)), EINVAL);
    }
}
