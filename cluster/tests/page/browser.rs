//! Chromium without a window, by its own protocol over two pipes, and a server of fixed pages.

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For one answer, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(600);
/// One at a time: each takes all the processors that it can have.
static ONE: Mutex<()> = Mutex::new(());

/// Prints `SKIP: reason`, past the capture of the harness.
fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr().lock(), "\nSKIP: {reason}");
}

/// Serves one page under any path, with these headers. It ends with the process.
pub(crate) fn serve(page: String, policy: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         Content-Security-Policy: {policy}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(page.as_bytes());
        }
    });
    format!("http://{address}/")
}

/// One window.
pub(crate) struct Browser {
    child: Child,
    pipe: ChildStdin,
    messages: Receiver<Value>,
    session: Value,
    number: u64,
    /// What it told unasked since the page was opened.
    events: Vec<Value>,
    profile: PathBuf,
    /// Let go of last, when the process has ended.
    _alone: MutexGuard<'static, ()>,
}

impl Browser {
    /// `None`, with a line that says so, where there is no Chromium.
    pub(crate) fn start(name: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|folder| folder.join("chromium"));
        let Some(program) = found.find(|file| file.is_file()) else {
            skip("page::browser needs chromium; tests/setup installs it");
            return None;
        };
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chromium-{name}"));
        let _ = std::fs::remove_dir_all(&profile);
        // Its protocol wants to be on descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"])
            .args(["--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let pipe = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                let text = message.strip_suffix(&[0]).unwrap_or(&message);
                if sender.send(serde_json::from_slice(text).expect("JSON")).is_err() {
                    return;
                }
                message.clear();
            }
            let _ = output.read_to_end(&mut message);
        });
        let (session, number, events) = (Value::Null, 0, Vec::new());
        let mut browser =
            Self { child, pipe, messages, session, number, events, profile, _alone: alone };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let how = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", how)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.pipe.write_all(format!("{message}\0").as_bytes()).expect("it takes requests");
        loop {
            let mut told = self.next(method);
            if told["id"] == self.number {
                assert!(told["error"].is_null(), "{method}: {}", told["error"]);
                return told["result"].take();
            }
            self.events.push(told);
        }
    }

    fn next(&self, waited_for: &str) -> Value {
        let told = self.messages.recv_timeout(PATIENCE);
        told.unwrap_or_else(|e| panic!("Chromium, {waited_for}: {e}"))
    }

    /// Opens an address in a window of this size and scheme, and waits until all is there.
    pub(crate) fn open(&mut self, url: &str, (width, height): (u32, u32), scheme: &str) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "media": "", "features": features }));
        self.events.clear();
        self.call("Page.navigate", json!({ "url": url }));
        while self.events.iter().all(|told| told["method"] != "Page.loadEventFired") {
            let told = self.next("the page");
            self.events.push(told);
        }
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let what = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", what);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call(
                "Input.dispatchKeyEvent",
                json!({
                    "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                    "text": if kind == "keyDown" { text } else { "" },
                }),
            );
        }
    }

    /// Complaints, and addresses that were asked for, since the page was opened.
    pub(crate) fn told(&self) -> (Vec<String>, Vec<String>) {
        let mut complaints = Vec::new();
        let mut requests = Vec::new();
        for told in &self.events {
            let params = &told["params"];
            match told["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => {
                    requests.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
                }
                "Log.entryAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" => {
                    complaints.push(params.to_string());
                }
                _ => {}
            }
        }
        (complaints, requests)
    }

    /// Keeps a picture of the whole page among the files of tests, where somebody wants them.
    pub(crate) fn picture(&mut self, name: &str) {
        if std::env::var_os("MOVER_TEST_PICTURES").is_none() {
            return;
        }
        use base64::Engine as _;
        let how = json!({ "format": "png", "captureBeyondViewport": true });
        let size = self
            .value("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]");
        let (width, height) = (size[0].as_f64().unwrap_or(1.0), size[1].as_f64().unwrap_or(1.0));
        let mut how = how;
        how["clip"] =
            json!({ "x": 0, "y": 0, "width": width, "height": height.min(7_000.0), "scale": 1 });
        let data = self.call("Page.captureScreenshot", how);
        let data = data["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(format!("{name}.png")), bytes).expect("a file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
