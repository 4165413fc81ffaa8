//! The command line: from what was typed to an exit code.
//!
//! | file | |
//! |---|---|
//! | `args` | what can be typed |
//! | `sources` | what is meant by the flags about changed blocks |
//! | `settings` | what is meant by it, and by the environment: the only file that reads it |
//! | `context`, `repository`, `keys` | runtime, place and keys, made ready for a command |
//! | `commands` | one function for each command |
//! | `output`, `progress`, `log`, `table`, `listing`, `summary` | what is shown |
//! | `completion`, `manual` | what a shell and `man` are told |
//! | `metrics`, `termination` | what Prometheus and a kubelet are told |
//! | `watch` | what looks at an operation while it runs |
//! | `supervision`, `exit` | how it ends: signals, deadline, stall; exit codes |
//!
//! Nothing else of the crate prints, reads the environment, installs handlers or ends the process.
//! An error is one line on stderr, and one function (`cli/exit.rs`) says what its exit code is.

mod advice;
mod args;
mod commands;
mod completion;
mod context;
mod exit;
mod keys;
mod listing;
mod log;
mod manual;
mod metrics;
mod output;
mod progress;
mod repository;
mod retain;
mod settings;
mod sources;
mod summary;
mod supervision;
mod table;
mod termination;
mod watch;

pub use settings::parse_compression;

use args::{Args, Command};
use chunkstore::{Error, ErrorKind, Result, secrets::redact};
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use context::Context;
use mover_engine::run::Cancel;
use output::{Output, one_line, reader_left};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use settings::{
    Environment, Resources, Settings, explain_memory, limits_line, limits_warning, output_settings,
    termination_log,
};
use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use supervision::Supervisor;

/// Of the thread that reads the command line: the flags of all commands are described on it. Only
/// what is used of it is memory.
const STACK_BYTES: usize = 512 << 10;

/// Runs the program; what the process ends with.
pub fn main() -> ExitCode {
    mover_engine::volume::io::bound_allocator();
    chunkstore::advice::set_advice_words(advice::words);
    chunkstore::advice::set_setting_prefix("--");
    // keys are in memory: no core dump, no debugger, no other process of this user may read them
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable).err();
    install_panic_hook();
    // `ulimit -s` may leave this one less than flags take
    let command = std::thread::Builder::new().name("command".into()).stack_size(STACK_BYTES);
    match command.spawn(move || on_own_stack(hidden)) {
        Ok(command) => command.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        // where there is no thread to be had, what there is of a stack has to do
        Err(_) => on_own_stack(hidden),
    }
}

fn on_own_stack(hidden: Option<rustix::io::Errno>) -> ExitCode {
    let args = match parse() {
        Ok(Ok(args)) => args,
        Ok(Err(e)) => return ExitCode::from(refuse(&e)),
        Err(e) => return ExitCode::from(usage(&e)),
    };
    let env = Environment::capture();
    let report = &args.global.report;
    let output = Output::new(output_settings(&args.global.output, report.log_level, &env));
    log::install(&output);
    // What looks into a pod is not its first process, and says nothing of how that ends.
    if args.command.is_job() || std::process::id() == 1 {
        let place = termination_log(report.termination_log.clone(), &env);
        termination::begin(place, args.command.name(), &env.cgroup);
    }
    if let Some(e) = hidden {
        tracing::debug!("the process could not be made non-dumpable: {e}");
    }
    ExitCode::from(run(args, env, &output))
}

fn run(args: Args, env: Environment, output: &Arc<Output>) -> u8 {
    let cancel = Cancel::new();
    let Args { global, command } = args;
    let ready = Settings::new(global, env).and_then(|settings| {
        // first, since a log that nobody reads may stop whatever writes to it
        let supervisor = Supervisor::start(&cancel, output)?;
        say_limits(&settings, command.is_job(), output);
        let mut ctx =
            Context::new(settings, Arc::clone(output), cancel, supervisor, command.name());
        if !matches!(command, Command::Completions(_) | Command::Manual(_)) {
            ctx.start_runtime()?;
        }
        let server = ctx.serve_metrics()?;
        Ok((ctx, server))
    });
    let (ctx, server) = match ready {
        Ok(ready) => ready,
        Err(e) => return ended(output, Err(e)),
    };
    let is_job = command.is_job();
    let done = commands::run(&ctx, command);
    let done = supervision::explain(done, &ctx.cancel);
    let done = explain_memory(done, &ctx.settings.resources.cgroup);
    let code = ended(output, done);
    if is_job {
        ctx.report_end(code, server.as_ref());
    }
    code
}

/// What this pod or control group allows, and what comes of it.
fn say_limits(settings: &Settings, is_job: bool, output: &Output) {
    let Resources { cgroup, memory, cores, threads, .. } = &settings.resources;
    tracing::info!("{}", limits_line(cgroup, *memory, threads.unwrap_or(*cores)));
    if let Some(warning) = limits_warning(cgroup, *memory).filter(|_| is_job) {
        output.warn(&warning);
    }
}

/// Says how a command ended, to everybody who may read it; what the process ends with.
fn ended(output: &Output, done: Result<()>) -> u8 {
    let (code, error) = match done {
        Ok(()) => (exit::OK, None),
        // `mover restore X - | head`: the reader has what it wanted, and knows best that it left
        Err(e) if output.stdout_is_data() && reader_left(&e) => (exit::RETRYABLE, None),
        Err(e) => (exit::exit_code(e.kind()), Some(e)),
    };
    if output.begin_exit(code).is_err() {
        // its time was over: another thread is saying so, and ends the process
        loop {
            std::thread::park();
        }
    }
    // a kubelet first: a log that nobody reads would keep it from being told
    error.iter().for_each(|e| output.remember(e));
    let told = termination::end(code, &output.ended());
    error.iter().for_each(|e| output.show_error(e));
    if let Err(why) = told {
        tracing::warn!("{why}");
    }
    code
}

fn parse() -> Result<Result<Args>, clap::Error> {
    let short = std::env::args_os().any(|arg| arg == "-h");
    let tree = if short { args::command_without_twins() } else { args::command() };
    let mut command = without_empty_twins(tree);
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    match empty(&command, &matches) {
        None => Args::from_arg_matches(&matches).map(Ok),
        Some(arg) => {
            let what = format!("use {arg}");
            Ok(Err(Error::new(ErrorKind::Usage, what, "it was given without a value")
                .hint("give it one, or leave it out")))
        }
    }
}

/// A script whose variable is not set must not be taken at its word: `--repo ""` would name the
/// default. Gives what has an empty value on the command line.
fn empty(command: &clap::Command, matches: &ArgMatches) -> Option<String> {
    let is_empty = |arg: &&clap::Arg| {
        let id = arg.get_id().as_str();
        // what is completed may be empty as yet
        let given = matches.value_source(id) == Some(ValueSource::CommandLine) && id != "words";
        given && matches.get_raw(id).into_iter().flatten().any(OsStr::is_empty)
    };
    let here = command.get_arguments().find(is_empty).map(ToString::to_string);
    here.or_else(|| {
        let (name, matches) = matches.subcommand()?;
        empty(command.find_subcommand(name)?, matches)
    })
}

/// A variable that is set to nothing counts as not set: a manifest's `value: ""` must not break a
/// number.
fn without_empty_twins(command: clap::Command) -> clap::Command {
    let empty = |arg: &clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| if empty(&arg) { arg.env(None::<&str>) } else { arg })
        .mut_subcommands(without_empty_twins)
}

/// What clap has to say, in one line: the error with what it lists, and its tip as what to do next.
fn usage_error(text: &str) -> Error {
    let said = text.split("\nUsage:").next().unwrap_or_default();
    let one_line = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let (tips, rest): (Vec<_>, Vec<_>) =
        said.split("\n\n").partition(|part| part.trim_start().starts_with("tip:"));
    let rest = one_line(&rest.join("\n"));
    let error = Error::new(ErrorKind::Usage, rest.trim_start_matches("error: "), "");
    match tips.first() {
        Some(tip) => error.hint(one_line(tip).trim_start_matches("tip: ")),
        None => error.hint("--help says what there is"),
    }
}

/// Help and version go to stdout. A mistake is shown as clap does: the error, a tip, the usage;
/// with `--json` as one object.
fn usage(e: &clap::Error) -> u8 {
    if !e.use_stderr() {
        // nobody may be there to read it
        let _ = e.print();
        return exit::OK;
    }
    let error = usage_error(&e.render().to_string());
    let shown = !wants_json();
    if shown {
        let _ = e.print();
    }
    end_unparsed(&error, shown)
}

fn wants_json() -> bool {
    std::env::args_os().any(|arg| arg == "--json") || Environment::capture().json
}

/// The same for what clap takes and we do not.
fn refuse(error: &Error) -> u8 {
    let json = wants_json();
    if !json {
        // nobody may be there to read it
        let text = error.to_string();
        let _ = writeln!(std::io::stderr(), "error: {}", redact(&one_line(&text)));
    }
    end_unparsed(error, !json)
}

fn end_unparsed(error: &Error, shown: bool) -> u8 {
    let env = Environment::capture();
    if !shown {
        Output::new(settings::json_only(&env)).error(error);
    }
    // which command was meant is not known, but a Job's manifest may be wrong
    let place = termination_log(env.termination_log.clone(), &env);
    termination::begin(place, "unknown", &env.cgroup);
    termination::refused(exit::USAGE, "usage", &error.to_string());
    exit::USAGE
}

/// A panic is our mistake: one line that says where, exit code 70, whichever thread it was.
fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let what = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let message = redact(&format!(
            "mover {} has a bug: {} at {place}; please report it. What was committed is safe, run the command again",
            env!("CARGO_PKG_VERSION"),
            one_line(&what),
        ))
        .into_owned();
        let mut stderr = std::io::stderr().lock();
        let _ = writeln!(stderr, "error: {message}");
        termination::refused(exit::BUG, "bug", &message);
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            let _ = writeln!(stderr, "{trace}");
        }
        std::process::exit(i32::from(exit::BUG));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const PANIC: &str = "MOVER_TEST_PANICS";

    /// Runs itself again, in a process that may end.
    #[test]
    fn a_panic_of_any_thread_is_one_line_and_exit_code_70() {
        if std::env::var_os(PANIC).is_some() {
            install_panic_hook();
            let thread = std::thread::spawn(|| panic!("what\nnobody expects"));
            thread.join().unwrap();
        }
        let name = "cli::tests::a_panic_of_any_thread_is_one_line_and_exit_code_70";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(PANIC, "1")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(70), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{stderr}");
        assert!(lines[0].starts_with("error: mover ") && lines[0].contains("what nobody expects"));
    }
}
