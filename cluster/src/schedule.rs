//! What is due when: backups, drills and the care of repositories, as pure functions.
//!
//! Nothing here calls an API, reads a clock or draws a number. A spec, the objects that exist and
//! a moment go in; the objects to be made or removed come out, and when to look again. So a week of
//! 500 claims, clocks that jump, and controllers that are away or two at once are tested in memory.
//!
//! **A run is made once** because its name follows from the schedule and from the time that it is
//! due: two controllers make the same one. The status decides nothing. The runs themselves tell
//! which times were handled, and a [`Mark`] does for those that their user deleted.
//!
//! After a time without a controller, the newest missed run is caught up on, if it may still begin;
//! older ones are missed for good, and counted. A run waits for the one before it of its claim.

mod cron;
mod drills;
mod due;
mod health;
mod history;
mod lateness;
mod mark;
mod names;
mod runs;

pub use cron::{BadCron, Cron};
pub use drills::{Candidate, DrillPlan, DrillRecord, DrillState, NewDrill};
pub use due::{Around, Due, STEP_MAX_HOURS, Stream, Timing, due};
pub use health::{Health, Verdict};
pub use history::{newest_good, surplus};
pub use lateness::{Beat, LEEWAY, Owed, leeway};
pub use mark::{Mark, Settled, Since, expected_since};
pub use names::{CLAIM, MARK, drill_name, maintenance_name, run_name};
pub use runs::{ClaimOf, NewRun, Plan, Run, Schedule, State};
