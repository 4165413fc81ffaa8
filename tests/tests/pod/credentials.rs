//! Credentials that run out and clocks that are off. Each run says once what it is and what to do,
//! in its log and in its termination message, and ends with the code by which the Job is tried
//! again or not.

use super::runs::{fails, finish, until_uploaded};
use super::shop::Shop;
use super::{Stage, text};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tests::{
    Authority, Block, Blocks, GrpcQuirks, GrpcServer, Mood, Mover, MoverOutput, Recorded,
    RecordedServer, RestQuirks, RestServer, require_s3,
};

#[test]
fn credentials_that_run_out_in_the_middle() {
    let shop = Shop::new("credentials-expire", require_s3!(moto), 24);
    let temporary = [("AWS_SESSION_TOKEN", "FwoGZXIvYXdzEBYaDPoS".to_owned())];
    let mover = shop.mover(shop.server.environment().into_iter().chain(temporary));
    let log = shop.stage.path("termination-log");
    let slow = ["--limit-upload", "4MiB", "--json", "--termination-log", text(&log)];
    let mut command = mover.command(shop.backup().iter().chain(&slow));
    let (child, lines) = until_uploaded(&mut command, 4 << 20);
    let message = "The provided token has expired.";
    shop.relay.becomes(Mood::Answers(Recorded::s3("400 Bad Request", "ExpiredToken", message)));
    let said = fails(finish(child, lines), &log, 4);
    for words in ["ExpiredToken: The provided token", "have run out", "AWS_SESSION_TOKEN"] {
        assert!(said.contains(words), "{words} in {said}");
    }
    // with good ones again the same command goes well
    shop.relay.becomes(Mood::Seeded);
    mover.ok(shop.backup());
    mover.ok(["verify", "db@latest", "--device", text(&shop.stage.image)]);
}

#[test]
fn refused_credentials_say_what_is_wrong_with_them() {
    let shop = Shop::new("credentials-refused", require_s3!(moto), 1);
    let mover = shop.mover(shop.server.environment());
    let log = shop.stage.path("termination-log");
    let line = [&shop.backup()[..], &["--json", "--termination-log", text(&log)]].concat();
    for (answer, words) in [
        (
            Recorded::s3("403 Forbidden", "InvalidToken", "The provided token is malformed."),
            &["InvalidToken", "new temporary credentials"][..],
        ),
        (
            Recorded::s3("400 Bad Request", "TokenRefreshRequired", "It must be refreshed."),
            &["TokenRefreshRequired", "have run out"],
        ),
        // a token may have run out by the store's clock and not by ours
        (
            Recorded::s3("400 Bad Request", "ExpiredToken", "The provided token has expired.")
                .dated(20_000),
            &["ExpiredToken", "clock is 5 h 33 min behind the store's"],
        ),
        // nobody's clock is to blame for a missing right
        (
            Recorded::s3("403 Forbidden", "AccessDenied", "Access Denied").dated(20_000),
            &["AccessDenied", "allow these credentials"],
        ),
    ] {
        shop.relay.becomes(Mood::Answers(answer));
        let said = fails(mover.run(&line), &log, 4);
        for words in words {
            assert!(said.contains(words), "{words} in {said}");
        }
    }
}

/// What a pod of EKS has: a projected token, and a service that gives credentials for it.
struct Identity {
    token: PathBuf,
    authority: Authority,
    ca: PathBuf,
}

impl Identity {
    fn new(stage: &Stage) -> Self {
        let (token, authority) = (stage.path("token"), Authority::new());
        fs::write(&token, "eyJhbGciOiJSUzI1NiJ9.e30.c2ln").unwrap();
        let ca = authority.write(&stage.path("ca.pem"));
        Self { token, authority, ca }
    }

    fn environment(&self, service: &RecordedServer) -> Vec<(&'static str, String)> {
        let role = "arn:aws:iam::111122223333:role/mover";
        vec![
            ("AWS_WEB_IDENTITY_TOKEN_FILE", text(&self.token).to_owned()),
            ("AWS_ROLE_ARN", role.to_owned()),
            ("AWS_ENDPOINT_URL_STS", service.url()),
            ("SSL_CERT_FILE", text(&self.ca).to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }
}

fn credentials() -> Recorded {
    let body = "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                <AssumeRoleWithWebIdentityResult><Credentials>\
                <AccessKeyId>ASIAIOSFODNN7EXAMPLE</AccessKeyId>\
                <SecretAccessKey>wJalrXUtnFEMI</SecretAccessKey>\
                <SessionToken>AQoDYXdzEE0a8ANXXXXXXXXNO1ewxE5TijQyp</SessionToken>\
                <Expiration>2099-01-01T00:00:00Z</Expiration>\
                </Credentials></AssumeRoleWithWebIdentityResult>\
                </AssumeRoleWithWebIdentityResponse>";
    Recorded { status: "200 OK", headers: Vec::new(), body: body.to_owned() }
}

#[test]
fn a_token_that_gives_no_credentials_says_why() {
    let shop = Shop::new("web-identity", require_s3!(moto), 1);
    let identity = Identity::new(&shop.stage);
    let log = shop.stage.path("termination-log");
    let line = [&shop.backup()[..], &["--json", "--termination-log", text(&log)]].concat();
    let run = |answer| {
        let service = RecordedServer::tls(&identity.authority, answer);
        shop.mover(identity.environment(&service)).run(&line)
    };
    let _ = run(credentials()).expect_code(0);

    // what renews the file may do so by the next try, and a new pod has a new token: the Job goes
    // on
    let expired = "Token expired: current date/time 1763802000 must be before the expiration \
                   date/time 1763798400";
    let expired = Recorded::sts("400 Bad Request", "ExpiredTokenException", expired);
    let said = fails(run(expired.clone()), &log, 1);
    for words in ["ExpiredTokenException: Token expired", "token file", "a new pod gets a new"] {
        assert!(said.contains(words), "{words} in {said}");
    }
    let said = fails(run(expired.dated(-200_000)), &log, 1);
    assert!(said.contains("clock is 2 days ahead of the store's"), "{said}");

    // what the role trusts is for its owner to say
    let provider = "No OpenIDConnect provider found in your account for https://oidc.example";
    let right = "Not authorized to perform sts:AssumeRoleWithWebIdentity";
    for (status, code, message) in [
        ("400 Bad Request", "InvalidIdentityToken", provider),
        ("403 Forbidden", "AccessDenied", right),
    ] {
        let said = fails(run(Recorded::sts(status, code, message)), &log, 4);
        for words in [code, message, "AWS_ROLE_ARN", "trust policy"] {
            assert!(said.contains(words), "{words} in {said}");
        }
    }

    fs::remove_file(&identity.token).unwrap();
    let said = fails(run(credentials()), &log, 4);
    let token = text(&identity.token);
    for words in [token, "AWS_WEB_IDENTITY_TOKEN_FILE", "the volume that projects it"] {
        assert!(said.contains(words), "{words} in {said}");
    }
}

#[test]
fn a_clock_that_is_off_is_named_with_how_far() {
    let shop = Shop::new("clock-recorded", require_s3!(moto), 1);
    let mover = shop.mover(shop.server.environment());
    let log = shop.stage.path("termination-log");
    let line = [&shop.backup()[..], &["--json", "--termination-log", text(&log)]].concat();
    let message = "The difference between the request time and the current time is too large.";
    let skewed = Recorded::s3("403 Forbidden", "RequestTimeTooSkewed", message);
    // where a proxy has taken the header away, the body may still tell
    let ahead = chrono::Utc::now() + chrono::TimeDelta::days(3) + chrono::TimeDelta::hours(1);
    let time = format!("<ServerTime>{}</ServerTime></Error>", ahead.format("%Y-%m-%dT%H:%M:%SZ"));
    let in_body = Recorded { body: skewed.body.replace("</Error>", &time), ..skewed.clone() };
    for (answer, words) in [
        (skewed.clone().dated(-10_000), "clock is 2 h 46 min ahead of the store's"),
        (skewed.clone().dated(100 * 86_400 + 60), "clock is 100 days behind the store's"),
        (in_body, "clock is 3 days behind the store's"),
        (skewed, "compare this machine's clock"),
    ] {
        shop.relay.becomes(Mood::Answers(answer));
        let said = fails(mover.run(&line), &log, 4);
        assert!(said.contains("RequestTimeTooSkewed") && said.contains(words), "{words} in {said}");
    }
}

/// The program under another clock, against a server that looks at it.
#[test]
fn a_real_server_refuses_a_clock_that_is_off() {
    let server = require_s3!(ceph);
    if !tests::run("faketime", ["--version"]).status.success() {
        tests::skip("pod::credentials needs faketime (tests/setup gets it)");
        return;
    }
    let stage = Stage::new("clock", 1);
    let (bucket, key, log) = (server.bucket(), stage.path("key"), stage.path("termination-log"));
    let mover = Mover::new()
        .envs(server.environment())
        .env("MOVER_REPO", bucket.url("clock"))
        .env("MOVER_KEY_FILE", &key);
    mover.ok(["init", "--quiet", "--new-key-file", text(&key)]);
    let line = ["backup", text(&stage.image), "--volume", "db"];
    let at = |offset: &str| {
        let mut command = Command::new("faketime");
        // only what tells the time of day: waiting takes as long as ever
        command.args(["-m", "--exclude-monotonic", "-f", offset]).arg(tests::mover_bin());
        command.args(line).args(["--json", "--termination-log", text(&log)]);
        mover.dress(&mut command);
        MoverOutput::of(&mut command)
    };
    for (offset, side) in [("+330m", "ahead of"), ("-330m", "behind")] {
        let said = fails(at(offset), &log, 4);
        assert!(said.contains("RequestTimeTooSkewed"), "{said}");
        // a header has whole seconds
        let off = ["5 h 29 min", "5 h 30 min"].map(|off| format!("{off} {side} the store's"));
        assert!(off.iter().any(|off| said.contains(off)), "{said}");
    }
    let _ = at("+1m").expect_code(0);
}

/// Some blocks of a volume of that size.
fn some_blocks() -> Blocks {
    Blocks::from(vec![Block { offset: 0, len: 4096, zero: false }])
}

#[test]
fn a_tracker_that_does_not_take_the_token_ends_what_needs_its_list() {
    let stage = Stage::new("tracker-token", 1);
    let (token, log) = (stage.path("token"), stage.path("termination-log"));
    fs::write(&token, "run-out").unwrap();
    let bytes = fs::metadata(&stage.image).unwrap().len();
    let line = ["backup", text(&stage.image), "--volume", "v", "--snapshot", "s1", "--json"];
    let asked = ["--changes-token-file", text(&token), "--termination-log", text(&log)];
    let line = [&line[..], &asked].concat();

    let rest = RestServer::http();
    let quirks = RestQuirks { token: Some("good".into()), ..RestQuirks::default() };
    let url = rest.put("/s1", bytes, some_blocks(), quirks);
    let by_url = [&line[..], &["--changes-url", &url, "--changes-http"]].concat();
    let strict = [&by_url[..], &["--require", "allocated"]].concat();
    let said = fails(stage.mover.run(&strict), &log, 4);
    for words in ["keep to --require allocated", "403 Forbidden", "check the token file"] {
        assert!(said.contains(words), "{words} in {said}");
    }
    // without it the list is done without, and the backup says so
    let done = stage.mover.ok(&by_url).summary();
    assert!(done["degraded"][0].as_str().unwrap().contains("check the token file"), "{done}");

    let authority = Authority::new();
    let service = GrpcServer::kubernetes(&authority, &["localhost"]);
    service.put(None, "ns/s1", bytes, some_blocks());
    service.set(GrpcQuirks { token: Some("good".into()), ..GrpcQuirks::default() });
    let ca = authority.write(&stage.path("ca.pem"));
    let by_service = ["--changes-server", service.address(), "--changes-ca-file", text(&ca)];
    let named = ["--changes-namespace", "ns", "--require", "allocated"];
    let said = fails(stage.mover.run([&line[..], &by_service, &named].concat()), &log, 4);
    for words in ["UNAUTHENTICATED", "not expired", "the volume that projects it"] {
        assert!(said.contains(words), "{words} in {said}");
    }
}
