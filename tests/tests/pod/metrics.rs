//! Metrics where they end up: a real Prometheus scrapes a run, a real Pushgateway gets its end, and
//! both say what the summary does.

use super::{Stage, eventually, text};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tests::run;

/// A server of this test; ended when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// `None` where it is not installed, with a line that says so.
    fn start(program: &str, args: &[String], port: u16, ready: &str) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                tests::skip(&format!("pod::metrics needs {program}: {e}; tests/setup gets it"));
                return None;
            }
        };
        let server = Self { child, url: format!("http://127.0.0.1:{port}") };
        eventually(program, || server.get(ready));
        Some(server)
    }

    fn get(&self, path: &str) -> Option<String> {
        let url = format!("{}{path}", self.url);
        let output = run("curl", ["-s", "--fail", "--globoff", "--max-time", "10", &url]);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// That nobody listened on a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

const PAIRS: [(&str, &str); 6] = [
    ("mover_read_bytes_total", "read_bytes"),
    ("mover_zero_bytes_total", "zero_bytes"),
    ("mover_unchanged_bytes_total", "unchanged_bytes"),
    ("mover_reused_bytes_total", "reused_bytes"),
    ("mover_new_bytes_total", "new_bytes"),
    ("mover_stored_bytes_total", "stored_bytes"),
];

fn same(what: &str, value: &str, member: &Value) {
    let (value, member): (f64, f64) = (value.parse().unwrap(), member.as_f64().unwrap());
    assert!((value - member).abs() < 1e-6, "{what}: {value}, the summary says {member}");
}

fn prometheus(directory: &Path, target: u16) -> Option<Server> {
    let config = directory.join("prometheus.yml");
    let scrape =
        "global: { scrape_interval: 1s, scrape_timeout: 1s }\nscrape_configs:\n- job_name: pods\n";
    fs::write(
        &config,
        format!("{scrape}  static_configs: [{{ targets: ['127.0.0.1:{target}'] }}]\n"),
    )
    .unwrap();
    let port = free_port();
    let args = [
        format!("--config.file={}", text(&config)),
        format!("--storage.tsdb.path={}", text(&directory.join("tsdb"))),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    Server::start("prometheus", &args, port, "/-/ready")
}

#[test]
fn prometheus_scrapes_what_the_summary_says() {
    let stage = Stage::new("scraped", 6);
    let port = free_port();
    let Some(prometheus) = prometheus(stage.directory.path(), port) else { return };
    let address = format!("127.0.0.1:{port}");
    let run = |id: &str| {
        let line = ["backup", text(&stage.image), "--volume", "pvc/one", "--json"];
        let watched = ["--metrics-addr", &address, "--metrics-linger", "60s", "--backup-id", id];
        stage.mover.ok(line.iter().chain(&watched)).summary()
    };
    run("first");
    let summary = run("second");
    // a target that is gone has no value now, but had one
    let value = |selector: &str| {
        let query = format!("/api/v1/query?query=last_over_time({selector}[5m])");
        let query = query.replace('"', "%22").replace(' ', "%20");
        let answer: Value = serde_json::from_str(&prometheus.get(&query)?).unwrap();
        assert_eq!(answer["status"], "success", "{answer}");
        Some(answer["data"]["result"][0]["value"][1].as_str()?.to_owned())
    };
    // the run ended once it was scraped; the sample is stored a moment later
    let stamp = summary["elapsed_seconds"].as_f64().unwrap();
    eventually("the last sample", || {
        let elapsed: f64 = value("mover_elapsed_seconds")?.parse().unwrap();
        ((elapsed - stamp).abs() < 1e-6).then_some(())
    });
    for (metric, member) in PAIRS {
        let selector = format!(r#"{metric}{{command="backup",volume="pvc/one"}}"#);
        same(metric, &value(&selector).unwrap(), &summary[member]);
    }
    for kind in ["get", "put", "create", "head", "list", "delete"] {
        let selector = format!(r#"mover_store_requests_total{{kind="{kind}"}}"#);
        same(kind, &value(&selector).unwrap(), &summary["requests"][format!("{kind}s")]);
    }
    assert!(summary["unchanged_bytes"].as_u64().unwrap() > 0, "{summary}");
    same("exit code", &value("mover_exit_code").unwrap(), &0.into());
}

/// The value of a metric of one group in the text that a Pushgateway gives out.
fn pushed(text: &str, metric: &str, labels: &[&str]) -> Option<String> {
    let of_metric = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    let mut found = of_metric.filter(|line| labels.iter().all(|label| line.contains(label)));
    let line = found.next()?;
    assert_eq!(found.next(), None, "{metric} {labels:?}");
    Some(line.rsplit_once(' ').unwrap().1.to_owned())
}

#[test]
fn a_pushgateway_keeps_what_the_summary_says() {
    let port = free_port();
    let listen = [format!("--web.listen-address=127.0.0.1:{port}")];
    let Some(gateway) = Server::start("prometheus-pushgateway", &listen, port, "/-/ready") else {
        return;
    };
    let stage = Stage::new("pushed", 4);
    let push = ["--json", "--push-gateway", &gateway.url];
    let line = ["backup", text(&stage.image), "--volume", "pvc/one"];
    let summary = stage.mover.ok(line.iter().chain(&push)).summary();
    let labels = [r#"command="backup""#, r#"volume="pvc/one""#, r#"job="mover""#];
    let page = gateway.get("/metrics").unwrap();
    for (metric, member) in PAIRS {
        same(metric, &pushed(&page, metric, &labels).unwrap(), &summary[member]);
    }
    let success = "mover_success_timestamp_seconds";
    let succeeded = pushed(&page, success, &labels).unwrap();

    let target = stage.path("restored");
    let restore = ["restore", "pvc/one@latest", text(&target)];
    let restored = stage.mover.ok(restore.iter().chain(&push)).summary();
    // fails, and leaves the time of the success
    let failing = ["backup", text(&stage.image), "--volume", "pvc/one", "--parent", "nobody"];
    let failed = stage.mover.run(failing.iter().chain(&push)).expect_code(2);
    assert!(!failed.stderr.contains("push"), "{}", failed.stderr);

    let page = gateway.get("/metrics").unwrap();
    same("exit code", &pushed(&page, "mover_exit_code", &labels).unwrap(), &2.into());
    assert_eq!(pushed(&page, success, &labels).unwrap(), succeeded);
    let labels = [r#"command="restore""#, r#"volume="pvc/one""#];
    for (metric, member) in [
        ("mover_written_bytes_total", "data_bytes"),
        ("mover_fetched_bytes_total", "fetched_bytes"),
        ("mover_zero_bytes_total", "zero_bytes"),
    ] {
        same(metric, &pushed(&page, metric, &labels).unwrap(), &restored[member]);
    }

    // one that nobody hears is a warning
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let done = stage.mover.ok(["verify", "pvc/one@latest", "-q", "--push-gateway", &nobody]);
    assert!(
        done.stderr.starts_with("warning: push metrics to http://127.0.0.1"),
        "{}",
        done.stderr
    );
}
