//! Requests about resources that no operation knows: those of an installation.

use super::{Api, ApiError, Asked, PAGE};
use http::Method;
use serde_json::Value;
use std::sync::Arc;

/// What a request sends: its type, and its bytes.
pub(crate) type Sent = (&'static str, Vec<u8>);

/// Texts of a query may have what separates its parts.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    text.chars()
        .flat_map(|c| match plain(c) {
            true => vec![c],
            false => {
                let mut bytes = [0; 4];
                let bytes = c.encode_utf8(&mut bytes).bytes();
                bytes.flat_map(|byte| format!("%{byte:02X}").chars().collect::<Vec<_>>()).collect()
            }
        })
        .collect()
}

/// Hears of each answer: the method that was asked by, and the code.
pub type Counter = Arc<dyn Fn(&http::Method, u16) + Send + Sync>;

impl Api {
    /// The same, whose answers are counted.
    #[must_use]
    pub fn counted(self, counter: Counter) -> Self {
        Self { counter: Some(counter), ..self }
    }

    /// One request.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        sent: Option<Sent>,
        asked: Asked,
    ) -> Result<Value, ApiError> {
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let uri = match query.is_empty() {
            true => path.to_owned(),
            false => format!("{path}?{}", query.join("&")),
        };
        let mut request = http::Request::builder().method(method).uri(uri);
        let mut body = Vec::new();
        if let Some((kind, bytes)) = sent {
            request = request.header(http::header::CONTENT_TYPE, kind);
            body = bytes;
        }
        let request = request.body(body).map_err(kube::core::request::Error::BuildRequest);
        self.send(request, asked).await
    }

    /// All objects at a path, with these labels if any are given.
    ///
    /// # Errors
    ///
    /// See [`ApiError`].
    pub(crate) async fn list_at(
        &self,
        path: &str,
        labels: &str,
        asked: impl Fn() -> Asked,
    ) -> Result<Vec<Value>, ApiError> {
        let limit = PAGE.to_string();
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let mut query = vec![("limit", limit.as_str())];
            if !labels.is_empty() {
                query.push(("labelSelector", labels));
            }
            if !token.is_empty() {
                query.push(("continue", token.as_str()));
            }
            let mut page = self.request(Method::GET, path, &query, None, asked()).await?;
            if let Value::Array(items) = page["items"].take() {
                all.extend(items);
            }
            match page["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => token = next.to_owned(),
                _ => return Ok(all),
            }
        }
    }
}
