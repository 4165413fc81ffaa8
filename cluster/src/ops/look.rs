//! Questions about the cluster that need reads alone.

use crate::api::Api;
use crate::engine::{Failure, Next, Observed, Planned, Stop, exit};
use serde_json::Value;

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

/// Who issues the API server's own tokens, where it says so.
pub async fn issuer(api: &Api) -> Option<String> {
    let request = http::Request::get("/.well-known/openid-configuration").body(Vec::new()).ok()?;
    let said: Value = api.client().request(request).await.ok()?;
    said["issuer"].as_str().map(str::to_owned)
}
