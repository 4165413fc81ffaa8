//! The command line of `kubectl mover`: what was typed, what is printed, and the exit code.

mod args;
mod commands;
mod connect;
mod output;

use crate::engine::{Failure, exit};
use args::Args;
use clap::{CommandFactory as _, Parser as _};
use output::Output;
use std::process::ExitCode;

/// What can be typed.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the command that was typed.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    let level = match args.verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    let filter = tracing_subscriber::filter::Targets::new()
        .with_target("mover_cluster", level)
        .with_default(tracing::Level::ERROR);
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
    // Two libraries bring one each: this is the one that we ship.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let output = Output::new(args.output, args.quiet);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => {
            let why = Failure::new(exit::RETRYABLE, format!("start: {why}"));
            return ExitCode::from(output.failure(&why));
        }
    };
    // It is stopped whenever its pod is: the next one goes on.
    let serves = matches!(args.command, args::Command::Controller(_));
    let done = runtime.block_on(async {
        tokio::select! {
            done = commands::run(args, &output) => done,
            () = interrupted() => match serves {
                true => Ok(0),
                false => Err(Failure::new(exit::CANCELLED, "stopped").hint(
                    "what was begun goes on when the same command runs again; `kubectl mover cancel` ends it",
                )),
            },
        }
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(why) => ExitCode::from(output.failure(&why)),
    }
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
