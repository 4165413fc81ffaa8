//! One function for each command: settings and arguments in, what was asked for out.

mod backup;
mod browse;
mod changes;
mod check;
mod copy;
mod disk_cache;
mod files;
mod forget;
mod gc;
mod init;
mod keyring;
mod mount;
mod plan;
mod restore;
mod roots;
mod serve;
mod stats;
mod trace;
mod upgrade;

use super::args::{Command, KeyCommand};
use super::context::Context;
use super::{completion, manual};
use chunkstore::Result;

/// Runs a command.
pub(crate) fn run(ctx: &Context, command: Command) -> Result<()> {
    match command {
        Command::Backup(args) => backup::backup(ctx, *args),
        Command::Init(args) => init::init(ctx, &args),
        Command::Restore(args) => restore::restore(ctx, args),
        Command::Serve(args) => serve::serve(ctx, *args),
        Command::Mount(args) => mount::mount(ctx, &args),
        Command::Ls(args) => files::ls(ctx, &args),
        Command::Cat(args) => files::cat(ctx, &args),
        Command::Cp(args) => files::cp(ctx, &args),
        Command::Verify(args) => restore::verify(ctx, args),
        Command::Check(args) if args.find_roots => roots::roots(ctx, &args),
        Command::Check(args) => check::check(ctx, &args),
        Command::List(args) => browse::list(ctx, &args),
        Command::Show(args) => browse::show(ctx, &args),
        Command::Stats(args) => stats::stats(ctx, &args),
        Command::Changes(args) => changes::changes(ctx, &args),
        Command::Diff(args) => browse::diff(ctx, &args),
        Command::Forget(args) => forget::forget(ctx, &args),
        Command::Gc(args) => gc::gc(ctx, &args),
        Command::Copy(args) => copy::copy(ctx, &args),
        Command::Key(args) => match args.command {
            KeyCommand::Add(args) => keyring::add(ctx, &args),
            KeyCommand::Remove(args) => keyring::remove(ctx, &args),
            KeyCommand::List(_) => keyring::list(ctx),
        },
        Command::Upgrade(args) => upgrade::upgrade(ctx, &args),
        Command::Completions(args) => ctx.output.result(&completion::script(args.shell)),
        Command::Complete(args) => completion::complete(ctx, &args.words),
        Command::Manual(args) => manual::write(&args.directory),
    }
}
