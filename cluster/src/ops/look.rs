//! Questions about the cluster that need reads alone.

use crate::api::Api;
use crate::engine::{Failure, Next, Observed, Planned, Stop, exit};

/// The answer to a question, with every read that it asks for. An API server that is away is a
/// failure at once: nothing was begun that could go on.
///
/// # Errors
///
/// The question's own, or that of a read.
pub async fn look<T>(api: &Api, question: impl Fn(&Observed) -> Planned<T>) -> Result<T, Failure> {
    let mut seen = Observed::default();
    loop {
        match question(&seen) {
            Ok(answer) => return Ok(answer),
            Err(Stop::Failure(why)) => return Err(why),
            Err(Stop::Next(Next::Read(query))) => api.read(&query, &mut seen).await?,
            Err(Stop::Next(next)) => {
                let what = format!("a question asks for more than reads: {next:?}");
                return Err(Failure::new(exit::BUG, what));
            }
        }
    }
}
