//! What is meant by the flags that say how a run is watched, and what this pod's limits make of the
//! defaults.

use super::super::args::ReportArgs;
use super::Environment;
use crate::cgroup::CgroupLimits;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ingest::MEMORY_BYTES_MIN;
use mover_engine::run::{MemoryBudget, TooLittleMemory};
use mover_engine::sizes::{parse_size, parse_time, show_bytes};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where a kubelet reads how a container ended, unless the pod says otherwise.
const TERMINATION_LOG: &str = "/dev/termination-log";
const MEMORY_BYTES_DEFAULT: u64 = MemoryBudget::DEFAULT.total_bytes;
/// Of a limit, for what the kernel charges beside the process: page tables, sockets, the image's
/// pages.
const KERNEL_SHARE: u64 = 8;

/// How a run is watched from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReportSettings {
    /// Nothing moved for so long: the run ends.
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) metrics_addr: Option<SocketAddr>,
    pub(crate) metrics_linger: Duration,
    pub(crate) push_gateway: Option<reqwest::Url>,
}

impl ReportSettings {
    pub(crate) fn new(args: ReportArgs) -> Result<Self> {
        let stall_timeout = parse_time("--stall-timeout", &args.stall_timeout)?;
        let metrics_linger = parse_time("--metrics-linger", &args.metrics_linger)?;
        let metrics_addr = args.metrics_addr.filter(|text| !text.is_empty()).map(|text| {
            text.parse::<SocketAddr>().map_err(|e| {
                Error::caused(ErrorKind::Usage, format!("use --metrics-addr {text:?}"), e)
                    .hint("write an address and a port, such as 0.0.0.0:9090 or [::]:9090")
            })
        });
        Ok(Self {
            stall_timeout: Some(stall_timeout).filter(|t| !t.is_zero()),
            metrics_addr: metrics_addr.transpose()?,
            metrics_linger,
            push_gateway: args.push_gateway.filter(|t| !t.is_empty()).map(gateway).transpose()?,
        })
    }
}

fn gateway(text: String) -> Result<reqwest::Url> {
    let bad = || {
        Error::new(ErrorKind::Usage, format!("use --push-gateway {text:?}"), "")
            .hint("write it like http://pushgateway.monitoring:9091")
    };
    let url = reqwest::Url::parse(&text).map_err(|e| bad().caused_by(e))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() { Ok(url) } else { Err(bad()) }
}

/// Where to say how the run ended; known before anything can fail.
pub(crate) fn termination_log(given: Option<PathBuf>, env: &Environment) -> Option<PathBuf> {
    match given {
        Some(path) if path.as_os_str() == "none" => None,
        Some(path) if !path.as_os_str().is_empty() => Some(path),
        _ => env.has_termination_log.then(|| PathBuf::from(TERMINATION_LOG)),
    }
}

/// Whether a kubelet waits for how this container ends.
pub(super) fn has_termination_log() -> bool {
    std::path::Path::new(TERMINATION_LOG).is_file()
}

/// The budget: as given, or what the limit of the control group leaves.
pub(super) fn memory(text: &str, limits: &CgroupLimits) -> Result<MemoryBudget> {
    if !text.is_empty() && text != "auto" {
        let total_bytes = parse_size(text).map_err(|e| e.within("use --memory"))?;
        return Ok(MemoryBudget { total_bytes });
    }
    let within = |limit: u64| {
        let least = MEMORY_BYTES_MIN.min(limit);
        MEMORY_BYTES_DEFAULT.min((limit - limit / KERNEL_SHARE).max(least))
    };
    let total_bytes = limits.memory_bytes.map_or(MEMORY_BYTES_DEFAULT, within);
    Ok(MemoryBudget { total_bytes })
}

/// What this pod may use and what comes of it, in one line.
pub(crate) fn limits_line(limits: &CgroupLimits, memory: MemoryBudget, threads: usize) -> String {
    let limit =
        limits.memory_bytes.map_or("no limit".into(), |n| format!("limit {}", show_bytes(n)));
    let cpu = limits
        .cpu_millis
        .map_or("no limit".into(), |n| format!("limit {}.{:03} cores", n / 1000, n % 1000));
    let budget = show_bytes(memory.total_bytes);
    format!("memory: {limit}, {budget} are used; processor: {cpu}, {threads} threads")
}

/// Where a budget was too little because a limit leaves no more, the limit is what is to be changed.
pub(crate) fn explain_memory(done: Result<()>, limits: &CgroupLimits) -> Result<()> {
    done.map_err(|e| {
        let (Some(needed), Some(limit)) = (TooLittleMemory::cause_of(&e), limits.memory_bytes)
        else {
            return e;
        };
        let least = limit_for(needed.least_bytes);
        if limit >= least {
            return e;
        }
        let (limit, least) = (show_bytes(limit), show_bytes(least));
        let raise = format!(
            "raise the memory limit of this pod or control group, which is {limit}, to {least} or more"
        );
        // by itself the program takes no more than that
        if needed.least_bytes <= MEMORY_BYTES_DEFAULT {
            return e.hint(raise);
        }
        e.hint(format!("{raise}, and use --memory {}MiB", needed.least_mib()))
    })
}

/// The least limit that leaves so much for a budget, in whole MiB.
fn limit_for(budget_bytes: u64) -> u64 {
    if budget_bytes <= MEMORY_BYTES_MIN {
        return MEMORY_BYTES_MIN;
    }
    let with_share = budget_bytes.div_ceil(KERNEL_SHARE - 1).saturating_mul(KERNEL_SHARE);
    with_share.checked_next_multiple_of(1 << 20).unwrap_or(with_share)
}

/// That the limit and what the process was told to use do not go together.
pub(crate) fn limits_warning(limits: &CgroupLimits, memory: MemoryBudget) -> Option<String> {
    let limit = limits.memory_bytes?;
    let (shown, budget) = (show_bytes(limit), show_bytes(memory.total_bytes));
    let what = format!("the memory limit of this pod or control group is {shown}");
    if limit < MEMORY_BYTES_MIN {
        let least = show_bytes(MEMORY_BYTES_MIN);
        return Some(format!("{what}, and a backup or restore needs {least}: raise the limit"));
    }
    (limit < memory.total_bytes).then(|| {
        format!(
            "{what}, but --memory is {budget}: the kernel may kill the process; leave --memory out, or raise the limit"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limits(memory_mib: Option<u64>) -> CgroupLimits {
        CgroupLimits { memory_bytes: memory_mib.map(|n| n * MIB), cpu_millis: None }
    }

    #[test]
    fn too_little_names_the_limit_where_that_is_why() {
        let hint = |needed_mib: u64, limit_mib| {
            let budget = memory("auto", &limits(limit_mib)).unwrap();
            let e = budget.too_little("do it", "it", needed_mib * MIB);
            let e = explain_memory(Err(e), &limits(limit_mib)).unwrap_err();
            e.hint_text().unwrap().to_owned()
        };
        assert_eq!(hint(300, None), "use `memory` 300MiB or more");
        assert_eq!(hint(300, Some(4096)), "use `memory` 300MiB or more");
        let raised = hint(64, Some(48));
        assert!(raised.contains("which is 48.0 MiB, to 64.0 MiB or more"), "{raised}");
        let raised = hint(300, Some(128));
        assert!(raised.ends_with("to 343 MiB or more, and use --memory 300MiB"), "{raised}");
        for mib in [64, 65, 100, 224, 256] {
            let enough = limit_for(mib * MIB);
            let budget = memory("auto", &limits(Some(enough / MIB))).unwrap();
            assert!(budget.total_bytes >= mib * MIB, "{mib}");
        }
        let other = Error::new(ErrorKind::Usage, "a", "b").hint("c");
        let other = explain_memory(Err(other), &limits(Some(48))).unwrap_err();
        assert_eq!(other.hint_text(), Some("c"));
    }

    #[test]
    fn the_budget_follows_the_limit() {
        let auto = |mib| memory("auto", &limits(mib)).unwrap().total_bytes / MIB;
        assert_eq!([None, Some(4096), Some(256)].map(auto), [256, 256, 224]);
        assert_eq!([Some(128), Some(72), Some(64), Some(32)].map(auto), [112, 64, 64, 32]);
        let given = memory("200MiB", &limits(Some(128))).unwrap();
        assert_eq!(given.total_bytes, 200 * MIB);
        assert!(limits_warning(&limits(Some(128)), given).is_some());
        assert!(limits_warning(&limits(Some(200)), given).is_none());
        assert!(limits_warning(&limits(None), given).is_none());
        let small = memory("auto", &limits(Some(48))).unwrap();
        assert!(limits_warning(&limits(Some(48)), small).unwrap().ends_with("raise the limit"));
    }

    #[test]
    fn limits_are_one_line() {
        let limits = CgroupLimits { memory_bytes: Some(128 * MIB), cpu_millis: Some(500) };
        assert_eq!(
            limits_line(&limits, memory("auto", &limits).unwrap(), 1),
            "memory: limit 128 MiB, 112 MiB are used; processor: limit 0.500 cores, 1 threads"
        );
    }

    #[test]
    fn a_termination_log_is_where_the_kubelet_looks() {
        let pod = || Environment { has_termination_log: true, ..Environment::default() };
        let log = |text: Option<&str>, env| termination_log(text.map(PathBuf::from), &env);
        assert_eq!(log(None, pod()), Some(TERMINATION_LOG.into()));
        assert_eq!(log(None, Environment::default()), None);
        assert_eq!(log(Some("none"), pod()), None);
        assert_eq!(log(Some("/t"), Environment::default()), Some("/t".into()));
    }

    #[test]
    fn a_gateway_is_a_url() {
        assert!(gateway("http://pushgateway:9091".into()).is_ok());
        for text in ["pushgateway:9091", "ftp://x", "http://", "/x"] {
            assert_eq!(gateway(text.into()).expect_err(text).kind(), ErrorKind::Usage);
        }
    }
}
