use super::*;
use clap::FromArgMatches;

fn settings(line: &[&str], env: Environment) -> Result<Settings> {
    let matches =
        super::super::args::command().get_matches_from([&["mover"], line, &["list"]].concat());
    Settings::new(super::super::args::Args::from_arg_matches(&matches).unwrap().global, env)
}

fn at_home() -> Environment {
    Environment { home: Some("/home/u".into()), ..Environment::default() }
}

#[test]
fn the_embedded_place_follows_the_data_home() {
    let place = |env| settings(&[], env).unwrap().place;
    let embedded = |data: &str| RepositoryPlace::Embedded {
        directory: format!("{data}/mover/repository").into(),
        key_file: format!("{data}/mover/repository.key").into(),
    };
    assert_eq!(place(Environment::default()), RepositoryPlace::Nowhere);
    assert_eq!(place(at_home()), embedded("/home/u/.local/share"));
    let data_home = Some("/data".into());
    assert_eq!(place(Environment { data_home, ..at_home() }), embedded("/data"));
    let url = settings(&["--repo", "s3://b/p"], at_home()).unwrap().place;
    assert_eq!(url, RepositoryPlace::Url("s3://b/p".into()));
}

#[test]
fn the_scratch_directory_can_be_moved_and_switched_off() {
    let scratch = |line: &[&str], env| settings(line, env).unwrap().resources.scratch;
    assert_eq!(scratch(&[], Environment::default()), None);
    assert_eq!(scratch(&[], at_home()), Some("/home/u/.cache/mover".into()));
    assert_eq!(scratch(&["--scratch", "none"], at_home()), None);
    assert_eq!(scratch(&["--scratch", "/s"], at_home()), Some("/s".into()));
}

#[test]
fn memory_and_threads_are_checked() {
    let memory = |text: &str| {
        settings(&["--memory", text], at_home()).map(|s| s.resources.memory.total_bytes)
    };
    assert_eq!(memory("1GiB").unwrap(), 1 << 30);
    assert_eq!(memory("lots").unwrap_err().kind(), ErrorKind::Usage);
    let limits = |line: &[&str]| settings(line, at_home()).map(|s| s.resources.limits);
    let rates = limits(&["--limit-upload", "10MiB", "--limit-download", ""]).unwrap();
    assert_eq!((rates.upload.map(u64::from), rates.download), (Some(10 << 20), None));
    assert_eq!(limits(&["--limit-upload", "0"]).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(settings(&["--threads", "0"], at_home()).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn progress_goes_where_it_can_be_read() {
    let terminal = || Environment { stderr_is_terminal: true, ..at_home() };
    let style = |line: &[&str], env| settings(line, env).unwrap().output.progress;
    assert_eq!(style(&[], at_home()), ProgressStyle::None);
    assert_eq!(style(&[], terminal()), ProgressStyle::Bar);
    assert_eq!(style(&["--json"], terminal()), ProgressStyle::Json);
    assert_eq!(style(&["--quiet"], terminal()), ProgressStyle::None);
    assert_eq!(style(&["--no-progress", "--json"], terminal()), ProgressStyle::None);
}

#[test]
fn colours_respect_terminal_wish_and_no_color() {
    let on = |line: &[&str], no_color| {
        let env = Environment { stderr_is_terminal: true, no_color, ..at_home() };
        settings(line, env).unwrap().output.color_stderr
    };
    assert!(on(&[], false) && !on(&[], true));
    assert!(on(&["--color", "always"], true) && !on(&["--color", "never"], false));
}

#[test]
fn compression_by_name_and_level() {
    assert_eq!(parse_compression("auto").unwrap(), CompressionChoice::Auto);
    assert_eq!(parse_compression("none").unwrap(), Compression::None.into());
    assert_eq!(parse_compression("zstd").unwrap(), Compression::Zstd(1).into());
    assert_eq!(parse_compression("zstd:-5").unwrap(), Compression::Zstd(-5).into());
    for text in ["", "lz4", "zstd:", "zstd:0", "zstd:20", "zstd:x", "none:1", "auto:1"] {
        assert_eq!(parse_compression(text).expect_err(text).kind(), ErrorKind::Usage);
    }
}

#[test]
fn labels_are_pairs_with_distinct_names() {
    let parse =
        |texts: &[&str]| parse_labels(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
    let labels = parse(&["team=storage", "note=a=b", "empty="]).unwrap();
    assert_eq!(labels["note"], "a=b");
    assert_eq!(labels["empty"], "");
    for texts in [&["team"][..], &["=x"], &["a=1", "a=2"]] {
        assert_eq!(parse(texts).unwrap_err().kind(), ErrorKind::Usage);
    }
}

#[test]
fn settings_of_the_target_store_are_those_with_the_prefix() {
    let all = [
        ("MOVER_TO_AWS_ACCESS_KEY_ID", "k"),
        ("MOVER_TO_AZURE_STORAGE_ACCOUNT_NAME", ""),
        ("MOVER_TO_KEY_FILE", "f"),
        ("AWS_REGION", "r"),
    ];
    let found = target_store(all.iter().map(|(n, v)| (n.into(), v.into())));
    assert_eq!(found, [("aws_access_key_id".to_owned(), "k".to_owned())]);
    let env = Environment { to_store: found, ..at_home() };
    let shown = format!("{:?}", settings(&[], env).unwrap());
    assert!(!shown.contains("aws_access"), "{shown}");
}

#[test]
fn a_secret_is_not_shown() {
    let env =
        Environment { password: Some(Ok(Secret(Zeroizing::new("hunter2".into())))), ..at_home() };
    assert!(!format!("{:?}", settings(&[], env).unwrap()).contains("hunter2"));
}
