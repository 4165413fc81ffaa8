//! QEMU's monitor protocol: a JSON object a line.

use super::PATIENCE;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Those that nobody has waited for yet.
    events: Vec<Value>,
}

impl Qmp {
    pub(super) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut this = Self { stream: BufReader::new(stream), events: Vec::new() };
        this.read();
        this.execute(&json!({"execute": "qmp_capabilities"}));
        this
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|why| panic!("{why}: {line:?}"))
    }

    /// What a command returns, which goes well.
    pub(crate) fn execute(&mut self, command: &Value) -> Value {
        let line = format!("{command}\n");
        self.stream.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut answer = self.read();
            if answer.get("event").is_some() {
                self.events.push(answer);
                continue;
            }
            assert!(answer.get("return").is_some(), "{command}: {answer}");
            return answer["return"].take();
        }
    }

    /// Until something has happened.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        loop {
            if let Some(at) = self.events.iter().position(|event| event["event"] == name) {
                return self.events.remove(at);
            }
            let read = self.read();
            self.events.push(read);
        }
    }
}
