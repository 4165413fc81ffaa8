//! What is made of the answers of a server over HTTP.

use super::*;

#[tokio::test]
async fn a_server_that_knows_no_locks_has_none() {
    let unknown = "501 Not Implemented\n<Error><Code>NotImplemented</Code></Error>";
    let store = s3(&canned::server(unknown), &[]).unwrap();
    assert_eq!(store.object_lock().await.unwrap(), ObjectLock::Disabled);
    assert_eq!(store.counts().gets, 1, "asked again it says the same");
    let e = store.require_object_lock().await.unwrap_err();
    assert!(e.to_string().contains("the bucket has no object lock"), "{e}");
}

#[tokio::test]
async fn only_who_knows_that_there_are_no_locks_says_so() {
    for (answer, expected) in [
        ("404 Not Found\n<Error><Code>ObjectLockConfigurationNotFoundError</Code></Error>", None),
        ("405 Method Not Allowed\n<Error><Code>MethodNotAllowed</Code></Error>", None),
        ("400 Bad Request\n<Error><Code>InvalidRequest</Code></Error>", None),
        ("200 OK\n<ListBucketResult></ListBucketResult>", None),
        ("403 Forbidden\n<Error><Code>AccessDenied</Code></Error>", Some(ErrorKind::Denied)),
        ("400 Bad Request\n<Error><Code>ExpiredToken</Code></Error>", Some(ErrorKind::Denied)),
        ("404 Not Found\n<Error><Code>NoSuchBucket</Code></Error>", Some(ErrorKind::NotFound)),
    ] {
        let store = s3(&canned::server(answer), &[]).unwrap();
        match (store.object_lock().await, expected) {
            (Ok(lock), None) => assert_eq!(lock, ObjectLock::Disabled, "{answer}"),
            (Err(e), Some(kind)) => assert_eq!(e.kind(), kind, "{answer}: {e}"),
            (found, _) => panic!("{answer}: {found:?}"),
        }
    }
    let answer = "403 Forbidden\n<Error><Code>AccessDenied</Code></Error>";
    let e = s3(&canned::server(answer), &[]).unwrap().object_lock().await.unwrap_err();
    assert!(e.to_string().contains("s3:GetBucketObjectLockConfiguration"), "{e}");
}

const UNLOCKED: canned::Answer = ("200 OK", "", "");
const REFUSED: canned::Answer = ("403 Forbidden", "", "<Error><Code>AccessDenied</Code></Error>");

fn wanted() -> Retention {
    let until = DateTime::parse_from_rfc3339("2030-01-01T00:00:00Z").unwrap().to_utc();
    Retention::new(RetainMode::Governance, until)
}

#[tokio::test]
async fn who_was_locked_longer_meanwhile_is_looked_at_again() {
    const LONGER: canned::Answer = (
        "200 OK",
        "x-amz-object-lock-mode: GOVERNANCE\r\nx-amz-object-lock-retain-until-date: 2031-01-01T00:00:00Z\r\n",
        "",
    );
    // a lock may not become shorter, so the store refuses ours
    let store = s3(&canned::in_turn(&[UNLOCKED, REFUSED, LONGER]), &[]).unwrap();
    assert_eq!(store.retain("packs/x", wanted()).await.unwrap(), Retained::Before);
    assert_eq!((store.counts().heads, store.counts().puts), (2, 1));
}

#[tokio::test]
async fn a_lock_that_is_refused_and_not_there_is_an_error() {
    let server = canned::in_turn(&[UNLOCKED, REFUSED, UNLOCKED, REFUSED]);
    let store = s3(&server, &[]).unwrap();
    let e = store.retain("packs/x", wanted()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(e.hint_text().is_some_and(|hint| hint.contains("s3:PutObjectRetention")), "{e}");
    assert_eq!((store.counts().heads, store.counts().puts), (2, 2));
}

/// A server that gives every request the same answer, or with none closes or keeps the connection.
mod canned {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A status, header lines that each end with a line end, and a body.
    pub(super) type Answer = (&'static str, &'static str, &'static str);

    fn serve(mut stream: TcpStream, (status, headers, body): Answer) {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !request.windows(4).any(|w| w == b"\r\n\r\n") {
            match stream.read(&mut buffer) {
                Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
                _ => return,
            }
        }
        let head = request.starts_with(b"HEAD");
        let length = body.len();
        let body = if head { "" } else { body };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
        );
        let _ = stream.write_all(answer.as_bytes());
    }

    /// The endpoint of one that gives these answers, one after another, and closes all connections
    /// after that.
    pub(super) fn in_turn(answers: &'static [Answer]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                serve(listener.accept().unwrap().0, *answer);
            }
        });
        endpoint
    }

    /// Its endpoint; the answer has no headers.
    pub(super) fn server(answer: &'static str) -> String {
        let (status, body) = answer.split_once('\n').unwrap_or((answer, ""));
        always((status, "", body))
    }

    /// Its endpoint.
    pub(super) fn always(answer: Answer) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                std::thread::spawn(move || serve(stream, answer));
            }
        });
        endpoint
    }
}

fn s3(endpoint: &str, more: &[(&str, &str)]) -> Result<Store> {
    let mut settings = vec![
        ("aws_endpoint", endpoint),
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "us-east-1"),
        ("aws_allow_http", "true"),
    ];
    settings.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
    settings.extend(more.iter().filter(|(_, value)| !value.is_empty()));
    open_url_with("s3://bucket/some/prefix", &StoreOptions::default(), &settings)
}

#[tokio::test]
async fn refusals_of_a_server_say_what_to_do() {
    let no_bucket =
        "404 Not Found\n<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>";
    let signature = "403 Forbidden\n<Error><Code>SignatureDoesNotMatch</Code></Error>";
    let region = "301 Moved Permanently\n<Error><Code>PermanentRedirect</Code></Error>";
    for (answer, kind, hint) in [
        (no_bucket, ErrorKind::NotFound, "URL"),
        (signature, ErrorKind::Denied, "AWS_SECRET_ACCESS_KEY"),
        (region, ErrorKind::Usage, "AWS_REGION"),
    ] {
        let store = s3(&canned::server(answer), &[]).unwrap();
        for (what, e) in [
            ("get", store.get_opt("format").await.unwrap_err()),
            ("list", store.list("keys").await.unwrap_err()),
            ("any", store.any("packs").await.unwrap_err()),
            ("put", store.put("x", "x").await.unwrap_err()),
            ("create", store.create("format", body(1)).await.unwrap_err()),
            ("delete", store.delete("x").await.unwrap_err()),
            ("range", store.get_range("x", 0..1).await.unwrap_err()),
        ] {
            assert_eq!(e.kind(), kind, "{what}: {e}");
            assert!(e.hint_text().is_some_and(|h| h.contains(hint)), "{what}: {e}");
            println!("{what}: {e}");
        }
    }
    // an answer to HEAD has no body: all that is known is that the object is not there
    let store = s3(&canned::server(no_bucket), &[]).unwrap();
    assert_eq!(store.head("x").await.unwrap(), None);
    let store = s3(&canned::server(signature), &[]).unwrap();
    assert_eq!(store.head("x").await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_refusal_that_a_clock_may_explain_says_how_far_it_is_off() {
    const THEN: &str = "Date: Sat, 01 Jan 2000 00:00:00 GMT\r\n";
    const FORBIDDEN: &str = "403 Forbidden";
    let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>words</Message></Error>";
    let in_body = "<Error><Code>RequestTimeTooSkewed</Code><Message>words</Message>\
                   <ServerTime>2999-01-01T00:00:00Z</ServerTime></Error>";
    let denied = "<Error><Code>AccessDenied</Code><Message>words</Message></Error>";
    for (answer, hint) in [
        (skewed, "days ahead of the store's"),
        (in_body, "days behind the store's"),
        (denied, "allow these credentials"),
    ] {
        let store = s3(&canned::always((FORBIDDEN, THEN, answer)), &[]).unwrap();
        for (what, e) in [
            ("get", store.get_opt("format").await.unwrap_err()),
            ("list", store.list("keys").await.unwrap_err()),
            ("put", store.put("x", "x").await.unwrap_err()),
            ("create", store.create("format", body(1)).await.unwrap_err()),
        ] {
            assert_eq!(e.kind(), ErrorKind::Denied, "{what}: {e}");
            assert!(e.hint_text().is_some_and(|h| h.contains(hint)), "{what}: {e}");
        }
    }
    // an answer to HEAD has no body, but a date
    let store = s3(&canned::always((FORBIDDEN, THEN, skewed)), &[]).unwrap();
    let e = store.head("x").await.unwrap_err();
    assert!(e.to_string().contains("days ahead of the store's"), "{e}");
}

#[tokio::test]
async fn what_is_wrong_before_any_answer_is_said_too() {
    let store = s3("http://127.0.0.1:9", &[("aws_allow_http", "")]).unwrap();
    let e = store.get_opt("format").await.unwrap_err();
    println!("{e}");
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");

    let no_credentials = [
        ("aws_access_key_id", ""),
        ("aws_secret_access_key", ""),
        ("metadata_endpoint", &*canned::server("404 Not Found")),
    ];
    let e = s3("http://127.0.0.1:9", &no_credentials).unwrap().get_opt("format").await.unwrap_err();
    println!("{e}");
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");

    let closed =
        [no_credentials[0], no_credentials[1], ("metadata_endpoint", "http://127.0.0.1:9")];
    let start = std::time::Instant::now();
    let e = s3("http://127.0.0.1:9", &closed).unwrap().get_opt("format").await.unwrap_err();
    println!("{e} (after {:?})", start.elapsed());
    assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());

    let half = [("aws_secret_access_key", "")];
    let e = s3("http://127.0.0.1:9", &half).unwrap_err();
    println!("{e}");
    assert_eq!(e.kind(), ErrorKind::Usage, "{e}");

    s3("http://127.0.0.1:9", &[]).unwrap();
    for (url, settings) in [
        ("gs://bucket/x", vec![("google_service_account_key", "not json")]),
        ("az://container/x", vec![]),
        ("s3://bucket/x", vec![("no_such_setting", "x")]),
    ] {
        let e = open_url_with(url, &StoreOptions::default(), &settings).unwrap_err();
        println!("{e}");
        assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
    }
}
