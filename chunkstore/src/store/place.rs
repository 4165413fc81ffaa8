//! What kind of place a repository's URL names.
//!
//! A path is one only if nothing else can be meant: what begins like a URL of another spelling, or
//! like a machine's name, would otherwise become a directory of that name, and a backup that nobody
//! finds.

use crate::error::{Error, ErrorKind, Result};
use object_store::path::Path;
use std::path::PathBuf;

pub(super) const URL_FORMS: &str =
    "use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path";

/// Where a repository is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    Directory(String),
    S3 { bucket: &'a str, prefix: Path },
    Google { bucket: &'a str, prefix: Path },
    Azure { container: &'a str, prefix: Path },
}

/// The directory that `url` names; `None` for object stores.
pub fn directory_of(url: &str) -> Result<Option<PathBuf>> {
    Ok(match Place::parse(url)? {
        Place::Directory(path) => Some(PathBuf::from(path)),
        Place::S3 { .. } | Place::Google { .. } | Place::Azure { .. } => None,
    })
}

impl<'a> Place<'a> {
    pub(super) fn parse(url: &'a str) -> Result<Self> {
        if url.is_empty() {
            return Err(refused(url, "no place is named").hint(URL_FORMS));
        }
        // a colon before the first slash: never the beginning of a path
        let Some((scheme, rest)) = url.split_once(':').filter(|(head, _)| !head.contains('/'))
        else {
            return Ok(Self::Directory(url.to_owned()));
        };
        let Some(rest) = rest.strip_prefix("//") else { return Err(meant(url, scheme, rest)) };
        match scheme {
            "file" => file_path(url, rest).map(Self::Directory),
            "s3" | "s3a" => {
                let (bucket, prefix) = bucket_and_prefix(url, rest)?;
                Ok(Self::S3 { bucket, prefix })
            }
            "gs" => {
                let (bucket, prefix) = bucket_and_prefix(url, rest)?;
                Ok(Self::Google { bucket, prefix })
            }
            "az" | "azure" => {
                let (container, prefix) = bucket_and_prefix(url, rest)?;
                Ok(Self::Azure { container, prefix })
            }
            _ => Err(meant(url, scheme, rest)),
        }
    }
}

fn refused(url: &str, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, format!("open repository {url}"), detail)
}

/// The error for what is no URL of ours, with the one that may be meant.
fn meant(url: &str, scheme: &str, rest: &str) -> Error {
    let lower = scheme.to_ascii_lowercase();
    let rest = rest.trim_start_matches('/');
    let ours = match lower.as_str() {
        "s3" | "s3a" | "s3n" => "s3",
        "gs" | "gcs" => "gs",
        "az" | "azure" | "abfs" | "abfss" | "wasb" | "wasbs" => "az",
        "file" => {
            return refused(url, "this is no URL of a directory").hint(format!(
                "if a directory is meant, name it as file:///{rest} or by its path"
            ));
        }
        "http" | "https" => return web_address(url, &lower, rest),
        _ if url.contains("://") => {
            return refused(url, format!("unknown scheme {scheme:?}")).hint(URL_FORMS);
        }
        _ => {
            let detail = format!("{scheme:?} is neither a scheme nor the beginning of a path");
            return refused(url, detail)
                .hint(format!("{URL_FORMS}; a directory of that very name is ./{url}"));
        }
    };
    refused(url, "this is no URL of an object store")
        .hint(format!("if a bucket or container is meant, name it as {ours}://{rest}"))
}

/// The address of a bucket, as browsers and consoles show it.
fn web_address(url: &str, scheme: &str, rest: &str) -> Error {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let or = |path: &str, word: &str| if path.is_empty() { word.to_owned() } else { path.into() };
    let hint = if host == "storage.googleapis.com" {
        format!("name the bucket as gs://{}", or(path, "BUCKET"))
    } else if let Some(bucket) = host.strip_suffix(".storage.googleapis.com") {
        format!("name the bucket as gs://{bucket}/{path}")
    } else if let Some((account, _)) = host.split_once(".blob.core.windows.net") {
        let container = or(path, "CONTAINER");
        format!("name it as az://{container}, with AZURE_STORAGE_ACCOUNT_NAME={account}")
    } else if host.ends_with(".amazonaws.com") {
        let bucket = host.split_once(".s3.").or_else(|| host.split_once(".s3-")).map(|(b, _)| b);
        let place = bucket.map_or_else(|| or(path, "BUCKET"), |bucket| format!("{bucket}/{path}"));
        format!("name the bucket as s3://{}, with its AWS_REGION", place.trim_end_matches('/'))
    } else {
        let server = format!("{scheme}://{host}");
        let bucket = or(path, "BUCKET/PREFIX");
        format!("name the bucket as s3://{bucket} and its server in AWS_ENDPOINT_URL={server}")
    };
    refused(url, "this is the address of a server, not of a repository").hint(hint)
}

fn bucket_and_prefix<'a>(url: &str, rest: &'a str) -> Result<(&'a str, Path)> {
    let usage = |detail: String| refused(url, detail).hint(URL_FORMS);
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if bucket.is_empty() || !bucket.chars().all(fits) {
        return Err(usage(format!("{bucket:?} is not the name of a bucket or container")));
    }
    let prefix = Path::parse(prefix).map_err(|e| usage(e.to_string()))?;
    Ok((bucket, prefix))
}

/// The path of a `file:` URL; `%` escapes are taken as in any URL.
fn file_path(url: &str, rest: &str) -> Result<String> {
    let usage = |detail: &str| refused(url, detail).hint(URL_FORMS);
    if !rest.starts_with('/') {
        return Err(usage("a file URL has three slashes and an absolute path"));
    }
    let mut bytes = Vec::with_capacity(rest.len());
    let mut left = rest.as_bytes();
    while let Some((&byte, tail)) = left.split_first() {
        left = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = tail.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let escaped = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(escaped.ok_or_else(|| usage("a % is not followed by two hex digits"))?);
        left = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| usage("the path is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_paths() {
        for path in ["/a", "a", "./s3:/bucket", "/s3:/bucket", "a/b:c", "../x", "a/s3://b", "%41"] {
            assert_eq!(Place::parse(path).unwrap(), Place::Directory(path.into()), "{path}");
        }
        let parsed = Place::parse("file:///a%20b:c").unwrap();
        assert_eq!(parsed, Place::Directory("/a b:c".into()));
        let parsed = Place::parse("s3a://b/p/q").unwrap();
        assert_eq!(parsed, Place::S3 { bucket: "b", prefix: Path::from("p/q") });
        assert_eq!(directory_of("gs://b").unwrap(), None);
    }

    #[test]
    fn what_looks_like_a_url_is_none_and_what_is_meant_is_said() {
        let cases = [
            ("s3:/bucket/p", "as s3://bucket/p"),
            ("s3:bucket", "as s3://bucket"),
            ("s3:///", "\"\" is not the name"),
            ("S3://bucket/p", "as s3://bucket/p"),
            ("s3n://bucket", "as s3://bucket"),
            ("gs:/bucket", "as gs://bucket"),
            ("gcs://bucket", "as gs://bucket"),
            ("AZ://c/p", "as az://c/p"),
            ("File:///a", "as file:///a or by its path"),
            ("file:/a/b", "as file:///a/b or by its path"),
            (
                "https://s3.example.com/b/p",
                "s3://b/p and its server in AWS_ENDPOINT_URL=https://s3.",
            ),
            (
                "http://10.0.0.1:9000",
                "s3://BUCKET/PREFIX and its server in AWS_ENDPOINT_URL=http://10.0.0.1:9000",
            ),
            ("https://b.s3.eu-west-1.amazonaws.com/p/", "as s3://b/p, with its AWS_REGION"),
            ("https://s3.amazonaws.com/b/p", "as s3://b/p, with its AWS_REGION"),
            ("https://storage.googleapis.com/b/p?x=1", "as gs://b/p"),
            (
                "https://me.blob.core.windows.net/c/p",
                "as az://c/p, with AZURE_STORAGE_ACCOUNT_NAME=me",
            ),
            ("https:/x", "the address of a server"),
            ("nas:/export/backup", "./nas:/export/backup"),
            ("host:path", "\"host\" is neither"),
            ("[::1]:/x", "neither a scheme"),
            (":x", "neither a scheme"),
            ("ftp://a/b", "unknown scheme \"ftp\""),
            ("", "no place is named"),
        ];
        for (url, says) in cases {
            let e = Place::parse(url).expect_err(url);
            assert_eq!(e.kind(), ErrorKind::Usage, "{url}");
            assert!(e.to_string().contains(says), "{url}: {e}");
            assert!(directory_of(url).is_err(), "{url}");
        }
    }
}
