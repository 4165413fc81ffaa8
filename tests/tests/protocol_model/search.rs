//! Running the checker over a world.

use super::world::World;
use stateright::{Checker, HasDiscoveries, Model};
use std::fmt;
use std::time::{Duration, Instant};

/// What a search came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Different states.
    pub(crate) states: usize,
    /// Steps of the longest path that was followed.
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    /// Whether all states were seen.
    pub(crate) exhausted: bool,
    /// The property that does not hold, and the steps to there.
    pub(crate) violation: Option<(&'static str, String)>,
}

/// Breadth first, so that a violation is found by as few steps as possible; ends at the first one.
pub(crate) fn search(world: &World, states_max: usize) -> Outcome {
    let start = Instant::now();
    let checker = world.clone().checker().threads(1).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.target_state_count(states_max).spawn_bfs().join();
    let violation = checker.discoveries().into_iter().next().map(|(name, path)| {
        let last = path.last_state().store;
        let steps: Vec<String> = path.into_actions().iter().map(|a| format!("{a:?}")).collect();
        (name, format!("{}\n  store: {last:?}", steps.join("\n  ")))
    });
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        time: start.elapsed(),
        exhausted: violation.is_none() && checker.state_count() < states_max,
        violation,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.exhausted { "all of " } else { "" };
        write!(f, "{how}{} states, depth {}, {:.1?}", self.states, self.depth, self.time)?;
        if let Some((name, steps)) = &self.violation {
            write!(f, "\n  not so: {name}\n  {steps}")?;
        }
        Ok(())
    }
}
