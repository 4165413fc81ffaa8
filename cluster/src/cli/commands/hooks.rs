//! What the flags of a backup say of an application that is to hold still.

use super::super::args;
use crate::engine::OnTimeout;
use crate::hooks;
use crate::ops::hook;

/// The hook of these flags, if there is one.
pub(super) fn options(given: &args::Hook) -> Option<hook::HookOptions> {
    let pair = given.hook_before.as_ref().zip(given.hook_after.as_ref());
    let commands = match (&given.hook_session, pair, &given.fsfreeze) {
        (Some(command), ..) => hooks::session(command),
        (None, Some((before, after)), _) => hooks::pair(before, after),
        (None, None, Some(path)) => hooks::fsfreeze(path),
        (None, None, None) => return None,
    };
    Some(hook::HookOptions {
        pod: given.hook_pod.clone(),
        container: given.hook_container.clone(),
        commands,
        timeout_seconds: given.hook_timeout,
        on_timeout: match given.hook_on_timeout {
            args::OnTimeout::Fail => OnTimeout::Fail,
            args::OnTimeout::Continue => OnTimeout::Continue,
        },
    })
}
