//! Runs as a kubelet and a Job see them: started, met in the middle, signalled, and what is left of
//! them.

use super::termination;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use tests::MoverOutput;

/// What is left of a run's output.
pub(crate) type Output = Lines<BufReader<ChildStdout>>;

/// Starts it and reads its progress until so much has been uploaded. Its output is to be kept until
/// it has ended: who writes to nobody may fail by itself.
pub(crate) fn until_uploaded(command: &mut Command, bytes: u64) -> (Child, Output) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(text) = output.next() {
        let progress: Value = serde_json::from_str(&text.unwrap()).unwrap();
        if progress["uploaded_bytes"].as_u64().is_some_and(|n| n >= bytes) {
            return (child, output);
        }
    }
    let output = child.wait_with_output().unwrap();
    panic!("it ended before: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for its end.
pub(crate) fn finish(mut child: Child, output: Output) -> MoverOutput {
    let stdout: String = output.map(|line| line.unwrap() + "\n").collect();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    MoverOutput { command: "a run".into(), status, stdout: stdout.into_bytes(), stderr }
}

pub(crate) fn signal(child: &Child, name: &str) {
    tests::run_ok("kill", ["-s", name, &child.id().to_string()]);
}

/// Whether a Job fails at once for a pod that ends with this code; else there is another pod.
fn ends_the_job(code: i32) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let job = fs::read_to_string(root.join("deploy/kubernetes/settings/job.yaml")).unwrap();
    let rule = job.split("action: FailJob").nth(1).expect("a rule");
    let list = rule.split("values: [").nth(1).and_then(|rest| rest.split(']').next());
    let codes: Vec<i32> = list.unwrap().split(", ").map(|code| code.parse().unwrap()).collect();
    assert!(codes.contains(&2) && !codes.contains(&0), "{codes:?}");
    codes.contains(&code)
}

/// The one error that it ended with: in its log once, and the same in the termination message.
pub(crate) fn only_error(output: MoverOutput, said: &Value, code: i32) -> String {
    let output = output.expect_code(code);
    let lines = output.stderr.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let errors: Vec<Value> = lines.filter(|line| line["type"] == "error").collect();
    assert_eq!(errors.len(), 1, "{}", output.stderr);
    assert_eq!((&said["message"], &said["exit_code"]), (&errors[0]["message"], &code.into()));
    assert_eq!((&said["hint"], &said["kind"]), (&errors[0]["hint"], &errors[0]["kind"]));
    said["message"].as_str().unwrap().to_owned()
}

/// As [`only_error`], with the termination message in a file. It says itself whether it is worth
/// another try, as the Job's policy has it.
#[track_caller]
pub(crate) fn fails(output: MoverOutput, log: &Path, code: i32) -> String {
    let said = termination(log);
    assert_eq!(said["retryable"], !ends_the_job(code), "{said}");
    only_error(output, &said, code)
}
