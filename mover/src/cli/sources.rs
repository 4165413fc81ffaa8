//! From the flags about changed blocks to the sources that are meant by them.

use super::args::{AllocatedFromArg, ChangesArgs, ChangesAskingArgs, KindArg};
use chunkstore::{Error, ErrorKind, Result, format::SnapshotInfo};
use mover_changes::{
    ChangeKind, ChangeRequest, ChangeSource, NbdSource, RestSource, RetryPolicy, SnapshotEndpoint,
    SnapshotSource,
};
use mover_nbd::is_nbd;
use std::path::{Path, PathBuf};

/// A flag that is set to nothing is not set.
pub(crate) fn non_empty(text: Option<&String>) -> Option<String> {
    text.filter(|t| !t.is_empty()).cloned()
}

pub(crate) fn kind_of(kind: KindArg) -> ChangeKind {
    match kind {
        KindArg::Delta => ChangeKind::Delta,
        KindArg::Allocated => ChangeKind::Allocated,
    }
}

fn path(path: Option<&PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty()).cloned()
}

/// The sources that are named, and what will do. `snapshot` and `device` are what is read, as far
/// as that is known.
pub(crate) fn request(
    args: &ChangesArgs,
    snapshot: &SnapshotInfo,
    device: Option<&Path>,
) -> Result<ChangeRequest> {
    let kind = args.changed_blocks_kind.map(kind_of);
    let list = args.changed_blocks.clone().filter(|path| !path.as_os_str().is_empty());
    let given = list.map(|path| match path.as_os_str() == "-" {
        true => ChangeSource::Stdin(kind),
        false => ChangeSource::File(path, kind),
    });
    let rest = rest(args, kind)?.map(ChangeSource::Rest);
    let service = service(args, kind, snapshot)?.map(ChangeSource::Snapshot);
    let bitmap = bitmap(args, device)?.map(ChangeSource::Nbd);
    let named = [given, service, rest, bitmap];
    let mut sources: Vec<ChangeSource> = named.into_iter().flatten().collect();
    if sources.len() > 1 {
        let names: Vec<String> = sources.iter().map(ChangeSource::name).collect();
        let what = format!("more than one source is named: {}", names.join(", "));
        return Err(Error::new(ErrorKind::Usage, "get a list of changed blocks", what).hint(
            "use one of --changed-blocks, --changes-url, --changes-server and --nbd-bitmap",
        ));
    }
    let given = sources.iter().any(ChangeSource::is_given);
    match args.allocated_from {
        Some(AllocatedFromArg::Filesystem) => sources.push(filesystem(device, given)?),
        Some(AllocatedFromArg::Nbd) => sources.extend(allocated_nbd(device, given, &sources)?),
        None if given || (sources.is_empty() && args.require.is_none()) => {}
        // where there is a ladder, it has the rung that comes with the source
        None => sources.extend(nbd(device).filter(|_| !has_nbd(&sources)).map(ChangeSource::Nbd)),
    }
    if sources.is_empty() {
        refuse_without_source(args)?;
    }
    Ok(ChangeRequest { sources, require: args.require.map(kind_of) })
}

/// The snapshot that a delta starts from, as far as the flags say.
pub(crate) fn base(args: &ChangesArgs) -> SnapshotInfo {
    SnapshotInfo { id: non_empty(args.base_snapshot.as_ref()), ..SnapshotInfo::default() }
}

/// The server that the volume is read from, if it is read from one.
fn nbd(device: Option<&Path>) -> Option<NbdSource> {
    let uri = device.filter(|device| is_nbd(device))?.to_owned();
    Some(NbdSource { uri, bitmap: None })
}

fn has_nbd(sources: &[ChangeSource]) -> bool {
    sources.iter().any(|source| matches!(source, ChangeSource::Nbd(_)))
}

fn bitmap(args: &ChangesArgs, device: Option<&Path>) -> Result<Option<NbdSource>> {
    let Some(bitmap) = non_empty(args.nbd_bitmap.as_ref()) else { return Ok(None) };
    match nbd(device) {
        Some(nbd) => Ok(Some(NbdSource { bitmap: Some(bitmap), ..nbd })),
        None => Err(no_nbd("--nbd-bitmap")),
    }
}

/// Nothing where the bitmap's server is asked already.
fn allocated_nbd(
    device: Option<&Path>,
    list_given: bool,
    sources: &[ChangeSource],
) -> Result<Option<ChangeSource>> {
    const FLAG: &str = "--allocated-from nbd";
    if list_given {
        let what = "a list is given";
        return Err(Error::new(ErrorKind::Usage, format!("use {FLAG}"), what)
            .hint("leave one of the two out"));
    }
    let nbd = nbd(device).ok_or_else(|| no_nbd(FLAG))?;
    Ok(Some(ChangeSource::Nbd(nbd)).filter(|_| !has_nbd(sources)))
}

fn no_nbd(flag: &str) -> Error {
    let what = "the volume is not read from an NBD server";
    Error::new(ErrorKind::Usage, format!("use {flag}"), what).hint(
        "name the source by its NBD address: nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH",
    )
}

/// Asked last: a server may know more.
fn filesystem(device: Option<&Path>, list_given: bool) -> Result<ChangeSource> {
    let wrong = |what: &str, hint: &str| {
        Err(Error::new(ErrorKind::Usage, "use --allocated-from filesystem", what).hint(hint))
    };
    match device {
        _ if list_given => wrong("a list is given", "leave one of the two out"),
        None => wrong("no device is named", "name the device or image"),
        Some(device) => Ok(ChangeSource::FileSystem(device.to_owned())),
    }
}

fn refuse_without_source(args: &ChangesArgs) -> Result<()> {
    let pointless = [
        ("--changed-blocks-kind", args.changed_blocks_kind.is_some()),
        ("--base-snapshot", non_empty(args.base_snapshot.as_ref()).is_some()),
        ("--require", args.require.is_some()),
    ];
    match pointless.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => Err(Error::new(
            ErrorKind::Usage,
            format!("use {flag}"),
            "there is no list of changed blocks",
        )
        .hint(
            "give one with --changed-blocks, or ask for one with --changes-url, --changes-server or --nbd-bitmap",
        )),
    }
}

/// The address is of a delta if a base is named: the draft leaves the base out of what it calls a
/// list of all blocks.
fn rest(args: &ChangesArgs, kind: Option<ChangeKind>) -> Result<Option<RestSource>> {
    let ChangesArgs { server, asking, .. } = args;
    let url = non_empty(server.changes_url.as_ref());
    let allocated = non_empty(server.allocated_url.as_ref());
    if url.is_none() && allocated.is_none() {
        return Ok(None);
    }
    let based = non_empty(args.base_snapshot.as_ref()).is_some();
    let delta = kind.map_or(based, |kind| kind == ChangeKind::Delta);
    let (delta_url, allocated_url) = match (delta, url, allocated) {
        (true, url, allocated) => (url, allocated),
        (false, Some(_), Some(_)) => {
            return Err(Error::new(
                ErrorKind::Usage,
                "use --allocated-url",
                "--changes-url is not of a delta here, so both are of allocated blocks",
            )
            .hint("name the snapshot that the delta starts from with --base-snapshot, or leave one out"));
        }
        (false, url, allocated) => (None, url.or(allocated)),
    };
    Ok(Some(RestSource {
        delta_url,
        allocated_url,
        plain_http: asking.changes_http,
        page_entries: asking.changes_page,
        offset_parameter: non_empty(asking.changes_offset_parameter.as_ref()),
        entries_parameter: non_empty(asking.changes_entries_parameter.as_ref()),
        token_file: path(asking.changes_token_file.as_ref()),
        ca_file: path(asking.changes_ca_file.as_ref()),
        retry: retry(asking)?,
    }))
}

/// The service is asked for a delta if a base is named.
fn service(
    args: &ChangesArgs,
    kind: Option<ChangeKind>,
    snapshot: &SnapshotInfo,
) -> Result<Option<SnapshotSource>> {
    let ChangesArgs { server, asking, .. } = args;
    let Some(address) = non_empty(server.changes_server.as_ref()) else { return Ok(None) };
    let missing = |flag: &str| {
        let what = format!("{flag} is needed as well");
        Error::new(ErrorKind::Usage, format!("ask {address} for a list"), what)
    };
    let named = non_empty(server.changes_target.as_ref());
    let (endpoint, target) = match address.strip_prefix("unix:") {
        Some(socket) => {
            let socket = PathBuf::from(socket.strip_prefix("//").unwrap_or(socket));
            let secrets_file = path(server.changes_secrets_file.as_ref());
            let target = named.or_else(|| snapshot.snapshot_handle.clone());
            let target = target.ok_or_else(|| missing("--snapshot-handle or --changes-target"))?;
            (SnapshotEndpoint::Csi { socket, secrets_file }, target)
        }
        None => {
            let target = named.or_else(|| snapshot.id.clone());
            let target = target.ok_or_else(|| missing("--snapshot or --changes-target"))?;
            let endpoint = SnapshotEndpoint::Kubernetes {
                address: address.clone(),
                server_name: non_empty(server.changes_server_name.as_ref()),
                ca_file: path(asking.changes_ca_file.as_ref())
                    .ok_or_else(|| missing("--changes-ca-file"))?,
                token_file: path(asking.changes_token_file.as_ref())
                    .ok_or_else(|| missing("--changes-token-file"))?,
                namespace: non_empty(server.changes_namespace.as_ref())
                    .ok_or_else(|| missing("--changes-namespace"))?,
            };
            (endpoint, target)
        }
    };
    let base_id = non_empty(server.changes_base_id.as_ref());
    let based = base_id.is_some() || non_empty(args.base_snapshot.as_ref()).is_some();
    Ok(Some(SnapshotSource {
        endpoint,
        target,
        delta: kind.map_or(based, |kind| kind == ChangeKind::Delta),
        base_id,
        page_entries: asking.changes_page,
        tail_check: !server.changes_no_tail_check,
        retry: retry(asking)?,
    }))
}

fn retry(asking: &ChangesAskingArgs) -> Result<RetryPolicy> {
    for (flag, n) in
        [("--changes-tries", asking.changes_tries), ("--changes-idle", asking.changes_idle)]
    {
        if n == 0 {
            return Err(Error::new(ErrorKind::Usage, format!("use {flag}"), "0 is too few"));
        }
    }
    let default = RetryPolicy::default();
    let idle_ms = u64::from(asking.changes_idle) * 1000;
    Ok(RetryPolicy {
        tries_max: asking.changes_tries,
        internal_tries_max: default.internal_tries_max.min(asking.changes_tries),
        idle_ms,
        nothing_new_ms: idle_ms * RetryPolicy::NOTHING_NEW_FOR,
        ..default
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Args, Command, command};
    use clap::FromArgMatches;

    fn asked(line: &[&str]) -> Result<ChangeRequest> {
        let matches = command().get_matches_from([&["mover", "backup", "x"], line].concat());
        let Command::Backup(args) = Args::from_arg_matches(&matches).unwrap().command else {
            panic!("that is a backup");
        };
        let id = args.snapshot.snapshot.clone();
        let snapshot = SnapshotInfo { id, ..SnapshotInfo::default() };
        request(&args.changes, &snapshot, Some(&args.source))
    }

    fn urls(line: &[&str]) -> (Option<String>, Option<String>) {
        match asked(line).unwrap().sources.as_slice() {
            [ChangeSource::Rest(rest)] => (rest.delta_url.clone(), rest.allocated_url.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_address_is_of_a_delta_if_a_base_is_named() {
        let (a, b) = (|| Some("a".to_owned()), || Some("b".to_owned()));
        assert_eq!(urls(&["--changes-url", "a"]), (None, a()));
        assert_eq!(urls(&["--allocated-url", "b"]), (None, b()));
        assert_eq!(urls(&["--changes-url", "a", "--base-snapshot", "s"]), (a(), None));
        let both = ["--changes-url", "a", "--allocated-url", "b"];
        assert_eq!(urls(&[&both[..], &["--base-snapshot", "s"]].concat()), (a(), b()));
        assert_eq!(urls(&[&both[..], &["--changed-blocks-kind", "delta"]].concat()), (a(), b()));
        assert!(asked(&both).unwrap_err().to_string().contains("--base-snapshot"));
    }

    #[test]
    fn a_service_is_named_by_its_address() {
        let service = |line: &[&str]| match asked(line).unwrap().sources.as_slice() {
            [ChangeSource::Snapshot(service)] => service.clone(),
            other => panic!("{other:?}"),
        };
        let csi = service(&["--changes-server", "unix:///run/csi.sock", "--changes-target", "h2"]);
        assert!(!csi.delta && csi.tail_check && csi.target == "h2");
        let SnapshotEndpoint::Csi { socket, .. } = csi.endpoint else { panic!("a socket") };
        assert_eq!(socket, PathBuf::from("/run/csi.sock"));
        let files = ["--changes-ca-file", "c", "--changes-token-file", "t"];
        let named = ["--changes-server", "h:1", "--changes-namespace", "n", "--snapshot", "s2"];
        let more = ["--base-snapshot", "s1", "--changes-no-tail-check"];
        let kubernetes = service(&[&files[..], &named, &more].concat());
        assert!(kubernetes.delta && !kubernetes.tail_check && kubernetes.base_id.is_none());
        assert_eq!(kubernetes.name(), "h:1 for snapshot n/s2");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            &["--base-snapshot", "s"][..],
            &["--require", "delta"],
            &["--changed-blocks-kind", "delta"],
            &["--changed-blocks", "f", "--changes-url", "a"],
            &["--changes-url", "a", "--changes-tries", "0"],
            &["--changes-url", "a", "--changes-server", "unix:///s", "--changes-target", "t"],
            &["--changes-server", "unix:///s"],
            &["--nbd-bitmap", "b"],
            &["--allocated-from", "nbd"],
            &["--changes-server", "h:1", "--snapshot", "t", "--changes-namespace", "n"],
        ] {
            assert_eq!(asked(line).expect_err("no sense").kind(), ErrorKind::Usage, "{line:?}");
        }
        assert!(asked(&[]).unwrap().sources.is_empty());
        let filesystem = ["--allocated-from", "filesystem", "--require", "allocated"];
        let found = asked(&[&filesystem[..], &["--changes-url", "a"]].concat()).unwrap();
        assert!(matches!(found.sources[..], [ChangeSource::Rest(_), ChangeSource::FileSystem(_)]));
        assert!(asked(&[&filesystem[..], &["--changed-blocks", "-"]].concat()).is_err());
        let given = asked(&["--changed-blocks", "-", "--require", "allocated"]).unwrap();
        assert!(matches!(given.sources[..], [ChangeSource::Stdin(None)]));
        assert_eq!(given.require, Some(ChangeKind::Allocated));
    }

    #[test]
    fn an_nbd_server_is_a_rung_where_there_is_a_ladder() {
        let asked = |line: &[&str]| {
            let uri = "nbd+unix:///x?socket=/s";
            let matches = command().get_matches_from([&["mover", "backup", uri], line].concat());
            let Command::Backup(args) = Args::from_arg_matches(&matches).unwrap().command else {
                panic!("that is a backup");
            };
            request(&args.changes, &SnapshotInfo::default(), Some(&args.source))
        };
        let bitmaps = |line: &[&str]| -> Vec<Option<String>> {
            let sources = asked(line).unwrap().sources;
            let nbd = sources.into_iter().filter_map(|source| match source {
                ChangeSource::Nbd(nbd) => Some(nbd.bitmap),
                _ => None,
            });
            nbd.collect()
        };
        assert!(bitmaps(&[]).is_empty());
        assert_eq!(bitmaps(&["--allocated-from", "nbd"]), [None]);
        assert_eq!(bitmaps(&["--require", "allocated"]), [None]);
        assert_eq!(bitmaps(&["--changes-url", "a", "--base-snapshot", "s"]), [None]);
        let b = ["--nbd-bitmap", "b", "--base-snapshot", "s"];
        assert_eq!(bitmaps(&b), [Some("b".to_owned())]);
        let both = [&b[..], &["--allocated-from", "nbd"]].concat();
        assert_eq!(bitmaps(&both), [Some("b".to_owned())]);
        assert!(bitmaps(&["--changed-blocks", "f"]).is_empty());
        for line in [
            &["--nbd-bitmap", "b", "--changes-url", "a"][..],
            &["--nbd-bitmap", "b", "--changed-blocks", "f"],
            &["--allocated-from", "nbd", "--changed-blocks", "f"],
        ] {
            assert_eq!(asked(line).expect_err("no sense").kind(), ErrorKind::Usage, "{line:?}");
        }
    }
}
