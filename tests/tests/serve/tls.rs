//! TLS: who may connect, and who sees what. QEMU's own TLS, and ours from both ends.

use super::{Stage, text};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use tests::{Authority, run, run_ok};

/// A directory as libnbd and QEMU want it.
fn certificates(stage: &Stage, name: &str, trusted: &Authority, signer: &Authority) -> PathBuf {
    let directory = stage.path(name);
    fs::create_dir(&directory).unwrap();
    trusted.write(&directory.join("ca-cert.pem"));
    let (certificate, key) = signer.sign(&[name]);
    fs::write(directory.join("client-cert.pem"), certificate).unwrap();
    fs::write(directory.join("client-key.pem"), key).unwrap();
    directory
}

fn qemu_info(directory: &Path, port: u16, export: &str) -> std::process::Output {
    let credentials = format!("tls-creds-x509,id=t,endpoint=client,dir={}", directory.display());
    let image = format!(
        "driver=nbd,server.type=inet,server.host=localhost,server.port={port},export={export},tls-creds=t"
    );
    run("qemu-img", ["info", "--object", &credentials, "--image-opts", &image])
}

#[test]
fn a_certificate_says_which_exports_a_client_sees() {
    let Some(stage) = Stage::new("serve-tls", &["qemu-img"]) else { return };
    let (ours, other) = (Authority::new(), Authority::new());
    let authority = ours.write(&stage.path("clients.pem"));
    let (certificate, key) = ours.sign(&["localhost", "127.0.0.1"]);
    let (chain, secret) = (stage.path("server.pem"), stage.path("server.key"));
    fs::write(&chain, certificate).unwrap();
    fs::write(&secret, key).unwrap();
    let [alice, bob] =
        ["alice.test", "bob.test"].map(|name| certificates(&stage, name, &ours, &ours));
    let stranger = certificates(&stage, "stranger.test", &ours, &other);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let server = stage.serve(&[
        "db@b1",
        "db@b2",
        "--listen",
        &listen,
        "--tls-cert",
        text(&chain),
        "--tls-key",
        text(&secret),
        "--tls-client-ca",
        text(&authority),
        "--tls-client",
        "alice.test=db@b2",
    ]);
    for (who, export, sees) in [
        (&alice, "db@b2", true),
        (&alice, "db@b1", false),
        (&bob, "db@b2", false),
        (&stranger, "db@b2", false),
    ] {
        let info = qemu_info(who, port, export);
        assert_eq!(info.status.success(), sees, "{} {export}: {info:?}", who.display());
    }
    // without TLS nothing is told; by the socket, which is the owner's alone, all is
    let plain = run("qemu-img", ["info", &format!("nbd://localhost:{port}/db@b2")]);
    assert!(!plain.status.success(), "{plain:?}");
    run_ok("qemu-img", ["info", &server.uri("db@b1")]);
    // our own client
    let far = stage.path("far");
    let uri =
        |who: &Path| format!("nbds://localhost:{port}/db@b2?tls-certificates={}", who.display());
    let mover = tests::Mover::new().env("MOVER_REPO", format!("file://{}", far.display()));
    mover.ok(["init", "--quiet", "--encryption", "none"]);
    let made = mover.ok(["backup", &uri(&alice), "--volume", "copy", "--json"]).summary();
    assert_eq!(made["engine"], "nbd", "{made}");
    let restored = stage.path("restored");
    mover.ok(["restore", "copy@latest", text(&restored), "--quiet"]);
    assert!(fs::read(&restored).unwrap() == stage.images[1]);
    for (who, code, words) in [
        (uri(&bob), 2, "there is no export"),
        (uri(&stranger), 4, "TLS"),
        (uri(&stage.path("nowhere")), 2, "ca-cert.pem"),
        (format!("nbd://localhost:{port}/db@b2"), 2, "the server wants TLS"),
        (format!("nbds://localhost:{port}/db@b2"), 2, "tls-certificates"),
    ] {
        let refused = mover.run(["backup", &who, "--volume", "x"]).expect_code(code);
        assert!(refused.stderr.contains(words), "{who}: {}", refused.stderr);
    }
    // a server that is not who it should be
    let elsewhere = format!("{}&tls-hostname=elsewhere.test", uri(&alice));
    let refused = mover.run(["backup", &elsewhere, "--volume", "x"]).expect_code(4);
    assert!(refused.stderr.contains("TLS"), "{}", refused.stderr);
    // somebody who begins, and says nothing, keeps nobody out
    let silent = TcpStream::connect(&listen).unwrap();
    assert!(qemu_info(&alice, port, "db@b2").status.success());
    drop(silent);
}

#[test]
fn half_of_the_flags_are_none() {
    let Some(stage) = Stage::new("serve-tls-flags", &[]) else { return };
    let key = stage.path("key");
    for (line, words) in [
        (&["--tls-cert", text(&key)][..], "some of its flags are missing"),
        (&["--tls-client", "a=db"], "some of its flags are missing"),
        (
            &["--tls-cert", text(&key), "--tls-key", text(&key), "--tls-client-ca", text(&key)],
            "the server's certificate",
        ),
    ] {
        let socket = stage.sockets.path().join("s");
        let line = [&["serve", "db@latest", "--socket", text(&socket)], line].concat();
        let refused = stage.mover.run(line).expect_code(2);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
}
