//! Known secrets, and texts without them.
//!
//! A server may say anything in an error, also what it was sent: the headers of the request, a
//! signed URL, a token. Who sends a secret tells it here first, and whatever leaves the program
//! as text goes through [`redact`] (errors, warnings, log lines) or [`redact_known`] (results,
//! summaries). What is quoted in part goes through it before it is cut, or half a secret would stay unknown.
//!
//! The list is one for the process: a panic, a log line of a library and a signal's thread have no
//! other to ask. It is bounded, holds secrets only in memory that is wiped, and knows each in the
//! spellings that texts have: as it is, and escaped for a URL, for JSON, for XML. Beside it, what
//! stands where only a secret does (`Signature=…`, `https://user:password@host`) is left out
//! unknown; the first of these only where a server may have its say, as a backup of a volume
//! `signature` looks like that.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};
use zeroize::Zeroizing;

/// What stands in the place of a secret.
const HIDDEN: &str = "[hidden]";
/// What is shorter protects nothing, and may be a word of any text.
const SECRET_BYTES_MIN: usize = 8;
/// Of a long one, so much of its beginning is enough to know it by: a server may cut it.
const BEGINNING_BYTES: usize = 16;
/// Secrets of a run, and of its last requests.
const LASTING_MAX: usize = 256;
const PASSING_MAX: usize = 256;
/// What looks like a value where a secret's value stands.
const VALUE_BYTES_MIN: usize = 16;

static KNOWN: RwLock<Known> =
    RwLock::new(Known { lasting: VecDeque::new(), passing: VecDeque::new() });

struct Known {
    lasting: VecDeque<Secret>,
    /// Signatures of requests, tokens of an hour: the newest last.
    passing: VecDeque<Secret>,
}

/// A secret in all its spellings, each once.
struct Secret(Vec<Zeroizing<String>>);

impl Secret {
    fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() < SECRET_BYTES_MIN {
            return None;
        }
        let mut spellings: Vec<Zeroizing<String>> = Vec::new();
        for spelling in [text.to_owned(), in_url(text), in_json(text), in_xml(text)] {
            if !spellings.iter().any(|s| **s == spelling) {
                spellings.push(Zeroizing::new(spelling));
            }
        }
        Some(Self(spellings))
    }

    fn is(&self, text: &str) -> bool {
        self.0.first().is_some_and(|first| **first == *text.trim())
    }
}

/// No text that goes through [`redact`] will have this in it. For passwords, keys and tokens that
/// are sent to somebody, before they are. Less than eight bytes are not remembered.
pub fn remember_secret(text: &str) {
    remember(text, |known| &mut known.lasting, LASTING_MAX);
}

/// As [`remember_secret`], for what is another one with each request.
pub(crate) fn remember_passing(text: &str) {
    remember(text, |known| &mut known.passing, PASSING_MAX);
}

fn remember(text: &str, list: impl Fn(&mut Known) -> &mut VecDeque<Secret>, max: usize) {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    let there = known.lasting.iter().chain(&known.passing).any(|secret| secret.is(text));
    drop(known);
    if there {
        return;
    }
    let Some(secret) = Secret::new(text) else { return };
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let list = list(&mut known);
    list.push_back(secret);
    if list.len() > max {
        list.pop_front();
    }
}

/// The text without what is secret in it. For messages, in which a server may have its say.
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut places = found_certainly(text);
    find_values(text, &mut places);
    without(text, places)
}

/// As [`redact`], for results: names and ids in a table may well stand as a secret does.
pub fn redact_known(text: &str) -> Cow<'_, str> {
    without(text, found_certainly(text))
}

/// What is known, and passwords in URLs.
fn found_certainly(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    for spelling in known.lasting.iter().chain(&known.passing).flat_map(|secret| &secret.0) {
        find_known(text, spelling, &mut places);
    }
    drop(known);
    find_passwords_of_urls(text, &mut places);
    places
}

fn without(text: &str, mut places: Vec<Range<usize>>) -> Cow<'_, str> {
    if places.is_empty() {
        return Cow::Borrowed(text);
    }
    places.sort_unstable_by_key(|place| (place.start, place.end));
    let mut clean = String::with_capacity(text.len());
    let mut done = 0;
    for place in places {
        if place.start >= done {
            clean.push_str(&text[done..place.start]);
            clean.push_str(HIDDEN);
        }
        done = done.max(place.end);
    }
    clean.push_str(&text[done..]);
    Cow::Owned(clean)
}

/// Wherever a secret begins, as far as the text goes on as it does.
fn find_known(text: &str, secret: &str, places: &mut Vec<Range<usize>>) {
    let long = secret.len() >= 2 * BEGINNING_BYTES;
    let known_by = secret.get(..BEGINNING_BYTES).filter(|_| long).unwrap_or(secret);
    for (at, _) in text.match_indices(known_by) {
        let same = text[at..].chars().zip(secret.chars()).take_while(|(a, b)| a == b);
        let bytes: usize = same.map(|(c, _)| c.len_utf8()).sum();
        places.push(at..at + bytes);
    }
}

/// Names after which a secret stands, in headers, URLs, forms, JSON and XML; in small letters.
const NAMES: [&str; 17] = [
    "signature",
    "sig",
    "bearer",
    "basic",
    "sharedkey",
    "x-amz-security-token",
    "x-amz-signature",
    "x-goog-signature",
    "securitytoken",
    "sessiontoken",
    "secretaccesskey",
    "webidentitytoken",
    "access_token",
    "refresh_token",
    "client_secret",
    "client_assertion",
    "assertion",
];

/// `Signature=3f…`, `"access_token": "ey…"`, `<SessionToken>Fw…`: a long value that is no word.
fn find_values(text: &str, places: &mut Vec<Range<usize>>) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let is_value = |c: char| c.is_ascii_alphanumeric() || "_-+/=.~%:".contains(c);
    let mut from = 0;
    while let Some(offset) = text[from..].find(is_name) {
        let start = from + offset;
        let end = text[start..].find(|c| !is_name(c)).map_or(text.len(), |n| start + n);
        from = end;
        if !NAMES.iter().any(|name| text[start..end].eq_ignore_ascii_case(name)) {
            continue;
        }
        let gap = text[end..].find(|c| !"=:\"' \t>\\".contains(c)).unwrap_or(0);
        let value = end + gap;
        let length = text[value..].find(|c| !is_value(c)).unwrap_or(text.len() - value);
        let found = &text[value..value + length];
        if (1..=6).contains(&gap)
            && length >= VALUE_BYTES_MIN
            && found.bytes().any(|b| b.is_ascii_digit())
        {
            places.push(value..value + length);
            from = value + length;
        }
    }
}

/// `//user:password@host`: the password; the user may be one that is looked for.
fn find_passwords_of_urls(text: &str, places: &mut Vec<Range<usize>>) {
    for (at, _) in text.match_indices("://") {
        let start = at + 3;
        let ends = |c: char| c.is_whitespace() || "/?#\"'<>\\".contains(c);
        let authority = text[start..].split(ends).next().unwrap_or_default();
        let Some((user_info, _)) = authority.rsplit_once('@') else { continue };
        if let Some((user, password)) = user_info.split_once(':')
            && !password.is_empty()
        {
            let begin = start + user.len() + 1;
            places.push(begin..begin + password.len());
        }
    }
}

fn in_url(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn in_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn in_xml(text: &str) -> String {
    let amp = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    amp.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_secret_is_hidden_in_every_spelling() {
        let secret = "wJalr/XUtn+FEMI=K7\"MD&ENG<x>";
        assert_eq!(redact(secret), secret);
        remember_secret(secret);
        remember_secret(secret);
        for text in [secret.to_owned(), in_url(secret), in_json(secret), in_xml(secret)] {
            assert_eq!(redact(&format!("a {text} b {text}")), "a [hidden] b [hidden]");
        }
        assert_eq!(redact("nothing of it"), "nothing of it");
    }

    #[test]
    fn a_long_secret_that_was_cut_is_hidden_too() {
        let token: String = (0..40).map(|n| format!("{n:03}")).collect();
        remember_secret(&token);
        assert_eq!(redact(&format!("<{}…>", &token[..50])), "<[hidden]…>");
        assert_eq!(redact(&format!("<{}>", &token[..10])), format!("<{}>", &token[..10]));
        assert_eq!(redact(&format!("{token}x")), "[hidden]x");
    }

    #[test]
    fn words_are_not_secrets() {
        remember_secret("short");
        remember_secret("");
        for text in [
            "a short text",
            "the signature: it is not right",
            "bearer authentication_required_by_server",
            "a basic misunderstanding",
            "sig=1",
            "s3://bucket/prefix and http://host:80/path",
            "mail@host",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn where_only_a_secret_stands_it_is_hidden_unknown() {
        let value = "0123456789abcdef0123/+=";
        for (before, after) in [
            ("Authorization: AWS4-HMAC-SHA256 Credential=AKID/x, Signature=", ", x"),
            ("authorization: Bearer ", "\r\n"),
            ("GET /?X-Amz-Expires=300&X-Amz-Signature=", "&x"),
            ("https://a.blob/c?sv=1&sig=", " in 3s"),
            ("{\"access_token\":\"", "\"}"),
            ("{\\\"x-amz-security-token\\\": \\\"", "\\\"}"),
            ("<SessionToken>", "</SessionToken>"),
            ("SharedKey account:", " x"),
        ] {
            let clean = redact(&format!("{before}{value}{after}")).into_owned();
            assert!(!clean.contains(value) && clean.ends_with(after), "{clean}");
        }
        let clean = redact("open https://me:pass@word@host:8/p?x and s3://a:b@c");
        assert_eq!(clean, "open https://me:[hidden]@host:8/p?x and s3://a:[hidden]@c");
    }

    #[test]
    fn a_result_is_no_secret_because_of_its_neighbour() {
        let secret = "known to stand in a result";
        remember_secret(secret);
        for name in NAMES {
            let row = format!("{name}  20261122T231500Z-0123456789  1 GiB");
            assert!(matches!(redact_known(&row), Cow::Borrowed(_)), "{row}");
            assert_ne!(redact(&row), row);
            assert_eq!(redact_known(&format!("{name}  {secret}")), format!("{name}  [hidden]"));
        }
        assert_eq!(redact_known("s3://a:b@c"), "s3://a:[hidden]@c");
    }

    #[test]
    fn the_newest_of_many_are_known() {
        for n in 0..2 * PASSING_MAX {
            remember_passing(&format!("passing {n:05} of many secrets"));
        }
        let text = format!("passing {:05} of many secrets", 2 * PASSING_MAX - 1);
        assert_eq!(redact(&text), HIDDEN);
        let known = KNOWN.read().unwrap();
        assert_eq!(known.passing.len(), PASSING_MAX);
    }
}
