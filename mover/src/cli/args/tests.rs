use super::*;
use clap::FromArgMatches;

fn walk(command: &clap::Command, visit: &mut dyn FnMut(&clap::Command)) {
    visit(command);
    for sub in command.get_subcommands() {
        walk(sub, visit);
    }
}

#[test]
fn the_tree_is_sound() {
    command().debug_assert();
}

/// What a Job runs has metrics, a termination message and a last success; what looks into its pod
/// must not look like it.
#[test]
fn a_plan_is_no_job() {
    let is_job = |line: &[&str]| {
        let line = ["mover"].iter().chain(line);
        let matches = command().try_get_matches_from(line).unwrap();
        Args::from_arg_matches(&matches).unwrap().command.is_job()
    };
    assert!(is_job(&["backup", "/dev/x"]) && !is_job(&["backup", "--plan", "/dev/x"]));
    assert!(is_job(&["gc"]) && !is_job(&["list"]));
}

#[test]
fn every_flag_has_its_environment_twin() {
    let mut flags = 0;
    walk(&command(), &mut |c| {
        for arg in c.get_arguments().filter(|a| !a.is_positional()) {
            let long = arg.get_long().expect("a long name");
            if ["help", "version"].contains(&long) {
                continue;
            }
            let twin = format!("MOVER_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|e| e.to_str()), Some(twin.as_str()), "--{long}");
            flags += 1;
        }
    });
    assert!(flags > 40, "{flags}");
}

#[test]
fn every_command_has_examples() {
    walk(&command(), &mut |c| {
        let help = c.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:") && help.contains("mover"), "{}", c.get_name());
        assert!(c.get_about().is_some(), "{}", c.get_name());
    });
}

#[test]
fn the_manual_names_every_twin() {
    let manual = include_str!("../../../../docs/reference.md");
    walk(&command(), &mut |c| {
        for twin in c.get_arguments().filter_map(|a| a.get_env().and_then(|e| e.to_str())) {
            assert!(manual.contains(&format!("`{twin}`")), "{twin}");
        }
    });
}
