//! Questions about the cluster that need reads alone.

use crate::api::{Api, Asked};
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

/// Who issues the API server's own tokens, where it says so.
pub async fn issuer(api: &Api) -> Option<String> {
    let path = "/.well-known/openid-configuration";
    let asked = Asked::other("ask who issues its tokens", "get /.well-known/openid-configuration");
    let said = api.request(http::Method::GET, path, &[], None, asked).await.ok()?;
    said["issuer"].as_str().map(str::to_owned)
}
