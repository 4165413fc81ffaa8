//! One function for each command.

mod applications;
mod brought;
mod doctor;
mod groups;
mod hooks;
mod install;
mod objects;
mod operations;
mod repositories;
mod restores;
mod schedules;
mod snapshots;
mod volumes;

use super::args::{Args, Command, Repository, ScheduleCommand};
use super::connect::connect;
use super::output::Output;
use crate::api::Api;
use crate::controller;
use crate::differential::DifferentialSettings;
use crate::engine::{Failure, Limits, exit};
use crate::ops::repository::velero::DEFAULT_NAMESPACE;
use clap::CommandFactory as _;
use std::time::Duration;

/// Runs the command; its exit code.
pub(super) async fn run(args: Args, output: &Output) -> Result<u8, Failure> {
    if let Command::Completions { shell } = &args.command {
        let mut command = Args::command();
        // The shell knows it as the program that kubectl finds.
        clap_complete::generate(*shell, &mut command, "kubectl-mover", &mut std::io::stdout());
        return Ok(0);
    }
    match &args.command {
        Command::Deploy { folder } => return install::write(folder),
        Command::Install(given) if !given.apply => {
            return Ok(install::print(given, args.cluster.namespace.as_deref(), output));
        }
        _ => {}
    }
    let typed = args.cluster.namespace.clone();
    let (api, namespace) = connect(&args.cluster).await?;
    let (api, namespace) = (&api, namespace.as_str());
    match args.command {
        // Boxed: their frames would be part of this one.
        Command::Backup(given) => Box::pin(volumes::backup(api, namespace, &given, output)).await,
        Command::Restore(given) => {
            Box::pin(restores::restore(api, namespace, &given, output)).await
        }
        Command::List(given) => Box::pin(volumes::list(api, namespace, &given, output)).await,
        Command::Operations(given) => {
            let of = (!given.all_namespaces).then_some(namespace);
            Box::pin(operations::list(api, of, output)).await
        }
        Command::Describe(named) => {
            Box::pin(operations::describe(api, namespace, &named.operation, output)).await
        }
        Command::Logs(named) => Box::pin(operations::logs(api, namespace, &named.operation)).await,
        Command::Cancel(named) => {
            Box::pin(operations::cancel(api, namespace, &named.operation, output)).await
        }
        Command::Sweep(given) => {
            let of = (!given.all_namespaces).then_some(namespace);
            Box::pin(operations::sweep(api, of, &given, output)).await
        }
        Command::Repository { command } => {
            Box::pin(repository(api, (namespace, typed), command, output)).await
        }
        Command::Schedule { command } => Box::pin(schedule(api, namespace, command, output)).await,
        Command::Snapshots { command } => {
            Box::pin(snapshots::run(api, namespace, command, output)).await
        }
        Command::Objects { command } => {
            Box::pin(applications::run(api, namespace, command, output)).await
        }
        Command::Doctor(given) => Box::pin(doctor::run(api, namespace, &given, output)).await,
        Command::Controller(given) => {
            Box::pin(controller::run(api, settings(given, namespace))).await?;
            Ok(0)
        }
        // A context's namespace is not meant: an installation has its own.
        Command::Install(given) => {
            Box::pin(install::apply(api, &given, typed.as_deref(), output)).await
        }
        Command::Uninstall(given) => Box::pin(install::remove(api, &given, output)).await,
        Command::Deploy { .. } | Command::Completions { .. } => Ok(0),
    }
}

/// `typed` is the namespace that was named: Velero has its own, whatever the context says.
async fn repository(
    api: &Api,
    (namespace, typed): (&str, Option<String>),
    command: Repository,
    output: &Output,
) -> Result<u8, Failure> {
    match command {
        Repository::Add { name, velero, settings } => {
            let name = name.as_deref();
            let Some(location) = velero.velero_location else {
                return Box::pin(repositories::add(api, namespace, name, &settings, output)).await;
            };
            let of = velero.velero_namespace.or(typed);
            let of = of.as_deref().unwrap_or(DEFAULT_NAMESPACE);
            let of = (of, location.as_str());
            Box::pin(repositories::add_beside(api, of, name, &settings, output)).await
        }
        Repository::List { all_namespaces } => {
            let of = (!all_namespaces).then_some(namespace);
            Box::pin(repositories::list(api, of, output)).await
        }
        Repository::Upgrade { name, add } => {
            let (name, add) = (name.as_deref(), add.as_deref());
            Box::pin(repositories::upgrade(api, namespace, (name, add), output)).await
        }
        Repository::Remove { name } => {
            Box::pin(repositories::remove(api, namespace, &name, output)).await
        }
    }
}

async fn schedule(
    api: &Api,
    namespace: &str,
    command: ScheduleCommand,
    output: &Output,
) -> Result<u8, Failure> {
    match command {
        ScheduleCommand::Add(given) => {
            Box::pin(schedules::add(api, namespace, &given, output)).await
        }
        ScheduleCommand::List { all_namespaces } => {
            schedules::list(api, (!all_namespaces).then_some(namespace), output).await
        }
        ScheduleCommand::Run { name, wait } => {
            Box::pin(schedules::run(api, namespace, &name, wait, output)).await
        }
        ScheduleCommand::Suspend { name } => {
            schedules::suspend(api, namespace, &name, true, output).await
        }
        ScheduleCommand::Resume { name } => {
            schedules::suspend(api, namespace, &name, false, output).await
        }
        ScheduleCommand::Remove { name } => schedules::remove(api, namespace, &name, output).await,
    }
}

fn settings(given: super::args::Controller, namespace: &str) -> controller::ControllerSettings {
    let differential = given.differential_snapshots.map(|listen| DifferentialSettings {
        listen,
        tls: given.differential_tls,
        url: given.differential_url,
        account: given.differential_account,
    });
    controller::ControllerSettings {
        namespace: namespace.to_owned(),
        watched: given.watch_namespace,
        image: given.image,
        restricted: given.job_security == super::args::PodSecurity::Restricted,
        seal_secret: given.seal_secret,
        doors: controller::serve::Doors {
            page: Some(given.listen_page),
            metrics: Some(given.listen_metrics),
            page_hosts: given.page_host,
        },
        differential,
        velero: given.velero_namespace,
    }
}

/// An operation without a controller lives as long as its command.
fn waits(wait: bool) -> Result<(), Failure> {
    match wait {
        true => Ok(()),
        false => Err(Failure::new(
            exit::USAGE,
            "--wait=false: nothing in the cluster would go on with it when this command has ended",
        )
        .hint("leave it away, and run the command in the background or in a Job of its own")),
    }
}

fn limits(given: super::args::Limits) -> Limits {
    Limits {
        snapshot_seconds: given.snapshot_timeout,
        volume_seconds: given.volume_timeout,
        start_seconds: given.start_timeout,
        removal_seconds: given.removal_timeout,
    }
}

/// How long another operation of the same claim is waited for.
fn turn(given: super::args::Limits) -> Duration {
    Duration::from_secs(given.turn_timeout)
}

/// The name in `pvc/NAME`, or a plain name.
fn claim(text: &str) -> Result<&str, Failure> {
    let name = match text.split_once('/') {
        None => text,
        Some(("pvc" | "persistentvolumeclaim" | "persistentvolumeclaims", name)) => name,
        Some((kind, _)) => {
            let what = format!("{text}: {kind} is not a kind that can be meant here");
            return Err(Failure::new(exit::USAGE, what).hint("write pvc/NAME"));
        }
    };
    if name.is_empty() || name.contains('/') {
        return Err(
            Failure::new(exit::USAGE, format!("{text} names no claim")).hint("write pvc/NAME")
        );
    }
    Ok(name)
}

/// `NAME=VALUE`.
fn pair(text: &str, of: &str) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::new(exit::USAGE, format!("{of} {text}: write NAME=VALUE"))),
    }
}
