//! Hands the final numbers to a Pushgateway, which keeps them for Prometheus when the pod is gone.
//!
//! They are added (POST) to a group of the job `mover`, the command and the volume, so that the
//! next run of the same kind replaces them, and a failed run leaves the time of the last success as
//! it is. A gateway that does not answer costs some seconds and a warning; it never changes how a
//! run ends.

use super::Telemetry;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use chunkstore::{Error, ErrorKind, Result};
use reqwest::Url;
use std::fmt::Write;
use std::time::Duration;

/// A Job that was stopped has little time left.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Pushes what `telemetry` says now.
pub(crate) async fn push(gateway: &Url, telemetry: &Telemetry) -> Result<()> {
    let url = group_url(gateway, &telemetry.labels());
    let context = || format!("push metrics to {}", shown(&url));
    let failed =
        |e: reqwest::Error| Error::caused(ErrorKind::Unavailable, context(), e.without_url());
    let client = reqwest::Client::builder().timeout(ANSWER_WITHIN).build().map_err(failed)?;
    let request = client.post(url.clone()).body(telemetry.text()?);
    let answer = request.send().await.map_err(failed)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let text = answer.text().await.unwrap_or_default();
    let line: String = text.chars().take(200).collect();
    Err(Error::new(ErrorKind::Unavailable, context(), format!("{status}: {}", line.trim())))
}

/// `…/metrics/job/mover/command/backup/volume@base64/…`: any text can be a volume's name, and a
/// path cannot hold any text.
fn group_url(gateway: &Url, labels: &[(&'static str, String)]) -> Url {
    let mut path = format!("{}/metrics/job/mover", gateway.path().trim_end_matches('/'));
    for (name, value) in labels {
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        let dots = matches!(value.as_str(), "." | "..");
        let value = if value.bytes().all(plain) && !value.is_empty() && !dots {
            format!("/{name}/{value}")
        } else {
            // an empty text is one `=` there
            let coded = if value.is_empty() { "=".into() } else { URL_SAFE.encode(value) };
            format!("/{name}@base64/{coded}")
        };
        path.push_str(&value);
    }
    let mut url = gateway.clone();
    url.set_path(&path);
    url
}

/// Without the password that a URL may hold.
fn shown(url: &Url) -> String {
    let mut text = format!("{}://", url.scheme());
    let _ = write!(text, "{}", url.host_str().unwrap_or_default());
    if let Some(port) = url.port() {
        let _ = write!(text, ":{port}");
    }
    text + url.path()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_in_the_path() {
        let url = |gateway: &str, volume: &str| {
            let labels = [("command", "backup".to_owned()), ("volume", volume.to_owned())];
            group_url(&Url::parse(gateway).unwrap(), &labels).to_string()
        };
        assert_eq!(
            url("http://p:9091", "pvc-1"),
            "http://p:9091/metrics/job/mover/command/backup/volume/pvc-1"
        );
        assert_eq!(
            url("https://u:s@p/gate/", "a/b"),
            "https://u:s@p/gate/metrics/job/mover/command/backup/volume@base64/YS9i"
        );
        assert!(url("http://p", "..").ends_with("/volume@base64/Li4="));
        assert_eq!(shown(&Url::parse("https://u:s@p:1/x").unwrap()), "https://p:1/x");
    }
}
