//! A store that repeats in its errors what it was sent, credentials and all: nothing that leaves
//! the program has them.

use super::{Stage, p};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tests::{Mover, MoverOutput};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "FwoGZXIvYXdzEBYaDEXAMPLEsessionTOKEN/with+signs==0123456789";
const BEARER: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.e30.0123456789abcdef";
const SAS: &str =
    "sv=2024-11-04&ss=b&srt=sco&sp=rwl&se=2030-01-01&sig=c2lnbmF0dXJlIG9mIGEgc2hhcmVkIGtleQ%3D%3D";

/// Answers every request with a refusal that has the whole of its head in it, and keeps the heads.
fn echo() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let endpoint = format!("http://{}", listener.local_addr().expect("its address"));
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut buffer = [0; 8192];
            while !request.windows(4).any(|w| w == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
                    _ => break,
                }
            }
            let head = String::from_utf8_lossy(&request).into_owned();
            // what matters comes first: messages are cut
            let mut lines: Vec<&str> = head.split("\r\n").collect();
            lines.sort_by_key(|line| !line.starts_with("authorization") && !line.contains("x-a"));
            let said = lines.join(", ").replace('&', "&amp;").replace('<', "&lt;");
            let secret = SECRET.replace('/', "%2F").replace('+', "%2B");
            let body = format!(
                "<Error><Code>InvalidRequest</Code><Message>{said}</Message><Key>{secret}</Key>\
                 <Path>{head}</Path></Error>"
            );
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes());
            seen.lock().expect("nobody panics").push(head);
        }
    });
    (endpoint, heads)
}

/// Whatever follows one of these names is made of a secret.
fn signatures(heads: &[String]) -> Vec<String> {
    let names = ["Signature=", "sig=", "SharedKey account:"];
    let after = |head: &str, name: &str| -> Vec<String> {
        let ends = |c: char| c.is_whitespace() || "&,".contains(c);
        let first = |rest: &str| rest.split(ends).next().unwrap_or_default().to_owned();
        head.split(name).skip(1).map(first).collect()
    };
    heads.iter().flat_map(|head| names.iter().flat_map(move |name| after(head, name))).collect()
}

#[track_caller]
fn expect_silent(output: &MoverOutput, log: &Path, secrets: &[String]) {
    let log = fs::read_to_string(log).unwrap_or_default();
    let all = format!("{}\n{}\n{log}", output.text(), output.stderr);
    for secret in secrets {
        assert!(secret.len() > 20, "{secret:?} is no secret");
        // the beginning of one is too much already
        let begins = &secret[..20];
        assert!(!all.contains(begins), "{}: {begins}… in\n{all}", output.command);
    }
}

fn says_nothing(mover: &Mover, heads: &Arc<Mutex<Vec<String>>>, known: &[&str], sent: &str) {
    let stage = Stage::new("echoes");
    let log = stage.path("termination");
    let lines: [&[&str]; 4] = [
        &["list"],
        &["list", "-vvv", "--json"],
        &["gc", "-vv"],
        &["backup", "--volume", "v", "--retain-for", "1d", "-vvv"],
    ];
    for line in lines {
        let image = line[0] == "backup";
        let line = line.iter().map(|text| p(text)).chain(image.then(|| stage.image()));
        let mut command = mover.command(line);
        command.env("MOVER_TERMINATION_LOG", &log);
        let output = MoverOutput::of(&mut command);
        assert!(matches!(output.code(), Some(1 | 2 | 4)), "{}", output.stderr);
        let heads = heads.lock().expect("nobody panics").clone();
        let mut secrets = signatures(&heads);
        secrets.extend(known.iter().map(|secret| (*secret).to_owned()));
        expect_silent(&output, &log, &secrets);
        assert!(output.stderr.contains("hidden") || image, "nothing was said: {}", output.stderr);
    }
    let heads = heads.lock().expect("nobody panics");
    assert!(heads.iter().any(|head| head.contains(sent)), "{sent} was not sent: {heads:?}");
}

#[test]
fn of_a_bucket() {
    let (endpoint, heads) = echo();
    let mover = Mover::new()
        .env("AWS_ENDPOINT", endpoint)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_SESSION_TOKEN", TOKEN)
        .env("MOVER_REPO", "s3://bucket/prefix");
    let escaped = SECRET.replace('/', "%2F").replace('+', "%2B");
    says_nothing(&mover, &heads, &[SECRET, &escaped, TOKEN], TOKEN);
}

fn azure(endpoint: &str) -> Mover {
    Mover::new()
        .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
        .env("AZURE_STORAGE_ENDPOINT", endpoint)
        .env("AZURE_ALLOW_HTTP", "true")
        .env("MOVER_REPO", "az://container/prefix")
}

#[test]
fn of_a_container_with_a_token() {
    let (endpoint, heads) = echo();
    let mover = azure(&endpoint).env("AZURE_STORAGE_TOKEN", BEARER);
    says_nothing(&mover, &heads, &[BEARER], BEARER);
}

#[test]
fn of_a_container_with_a_shared_signature() {
    let (endpoint, heads) = echo();
    let mover = azure(&endpoint).env("AZURE_STORAGE_SAS_KEY", SAS);
    says_nothing(&mover, &heads, &[], "sig=");
}
