//! Writes that others come before, again and again: at what pace they are tried, and for how long.

use super::{RETRY_FIRST, RETRY_MOST};
use crate::engine::{Failure, Key, exit};
use std::collections::BTreeMap;
use std::time::Duration;

/// Two drivers come before each other once or twice. More often it is somebody who changes the
/// object all the time: about a minute of pauses.
const TRIES_MAX: u32 = 12;

/// Objects whose last write came too late, and how often in a row.
#[derive(Debug, Default)]
pub(super) struct Contention {
    tries: BTreeMap<Key, u32>,
}

impl Contention {
    /// A write of the object was made, or was refused.
    pub(super) fn settled(&mut self, key: &Key) {
        self.tries.remove(key);
    }

    /// One came too late: how long to wait before the next.
    ///
    /// # Errors
    ///
    /// There were too many.
    pub(super) fn again(&mut self, key: &Key) -> Result<Duration, Failure> {
        let tries = self.tries.entry(key.clone()).or_default();
        *tries += 1;
        // The first one is nobody's fault, and the object is read again at once.
        match *tries {
            1 => Ok(Duration::ZERO),
            2..=TRIES_MAX => Ok((RETRY_FIRST * (1 << (*tries - 2))).min(RETRY_MOST)),
            _ => Err(Failure::new(
                exit::RETRYABLE,
                format!(
                    "{key} is changed by somebody else each time that it is about to be written"
                ),
            )
            .hint(format!("{}, and its managedFields, say who writes it", key.shown_by()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    #[test]
    fn somebody_who_always_comes_before_is_named_in_the_end() {
        let key = Key::new(Kind::Lease, "shop", "mover-x");
        let mut contention = Contention::default();
        let pauses: Vec<Duration> = (0..).map_while(|_| contention.again(&key).ok()).collect();
        assert_eq!(pauses[0], Duration::ZERO);
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&RETRY_MOST));
        let all: Duration = pauses.iter().sum();
        assert!(all < Duration::from_secs(120), "{all:?}");
        // It stays so, whatever is looked at again.
        let why = contention.again(&key).expect_err("too often");
        assert!(why.message.contains("lease/mover-x in namespace shop"), "{why}");
        contention.settled(&key);
        assert_eq!(contention.again(&key).expect("it is the first"), Duration::ZERO);
    }
}
