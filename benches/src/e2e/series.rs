//! The runs: which operation comes when, and one sample of each.

use super::child::{self, Done};
use super::operation::{Delta, Operation, Request};
use super::place::{Fresh, Place, RestorePlace, bytes_below};
use super::sample::{Kind, Sample};
use super::{Args, Settings, Volumes};
use crate::machine::drop_caches;
use crate::stop::Stop;
use crate::{failed, note};
use chunkstore::{Error, ErrorKind, Result, random_bytes};
use mover_engine::volume::device::{DirectIo, Source, SourceOptions};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const BASE_SNAPSHOT: &str = "base";
const NEXT_SNAPSHOT: &str = "next";

/// All runs of one series.
#[derive(Debug)]
pub(crate) struct Series<'a> {
    volumes: Volumes,
    place: Place,
    target: RestorePlace,
    scratch: PathBuf,
    settings: Settings,
    key: String,
    stop: &'a Stop,
    samples: Vec<Sample>,
    /// Whether a restored volume was compared with its source.
    compared: bool,
}

impl<'a> Series<'a> {
    /// Looks at devices and target; nothing is written but into the work directory.
    pub(crate) fn prepare(
        args: &Args,
        work: &Path,
        volumes: Volumes,
        stop: &'a Stop,
    ) -> Result<Self> {
        let size = |path: &Path| {
            Source::open(path, SourceOptions { direct: DirectIo::Auto }).map(|s| s.size_bytes())
        };
        size(&volumes.base)?;
        let volume_bytes = size(&volumes.next)?;
        let mut sources = vec![volumes.base.clone(), volumes.next.clone()];
        sources.extend(volumes.list.clone());
        let target = args.target.clone().unwrap_or_else(|| work.join("restored.img"));
        let place = match &args.repo {
            Some(text) => Place::parse(text),
            None => Place::Directory(work.to_owned()),
        };
        let dropped = drop_caches();
        if !dropped {
            note(
                "the page cache cannot be dropped here (not root?): \
                 what is read may come from memory",
            );
        }
        let settings = Settings {
            device: volumes.base.display().to_string(),
            volume_bytes,
            repository: args.repo.clone().unwrap_or_else(|| "the work directory".into()),
            target: args.target.as_ref().map_or("a file".into(), |t| t.display().to_string()),
            memory_bytes: args.memory,
            compression: args.compression.clone(),
            engine: args.engine.to_string(),
            threads: args.threads,
            chunk_bytes: args.chunk_size,
            entry_chunks: args.entry_chunks,
            page_fanout: args.page_fanout,
            caches_dropped: dropped,
        };
        Ok(Self {
            target: RestorePlace::check(&target, args.force, volume_bytes, sources)?,
            volumes,
            place,
            scratch: work.join("scratch"),
            settings,
            key: hex::encode(random_bytes::<32>()),
            stop,
            samples: Vec::new(),
            compared: false,
        })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }

    /// All runs. What was measured before an error is kept.
    pub(crate) fn measure(&mut self, runs: u32) -> Result<()> {
        for run in 1..=runs {
            let mut increments = vec![Kind::Increment];
            if self.volumes.list.is_some() {
                increments.insert(0, Kind::IncrementByList);
            }
            if run % 2 == 0 {
                increments.reverse();
            }
            let last = increments.last().copied();
            for increment in increments {
                self.one_repository(run, increment, Some(increment) == last)?;
            }
        }
        Ok(())
    }

    fn one_repository(&mut self, run: u32, increment: Kind, restored: bool) -> Result<()> {
        let mut repository = self.place.fresh()?;
        let init = self.request(
            &repository,
            Operation::Init {
                chunk_bytes: u32::try_from(self.settings.chunk_bytes).unwrap_or(u32::MAX),
                entry_chunks: self.settings.entry_chunks,
                page_fanout: self.settings.page_fanout,
            },
        )?;
        repository.will_hold(&init);
        child::run(&init, self.stop).map_err(|e| e.within("make a repository"))?;
        let backup = |source: &Path, snapshot: &str, delta| Operation::Backup {
            source: source.to_owned(),
            snapshot: snapshot.into(),
            delta,
        };
        let full = backup(&self.volumes.base, BASE_SNAPSHOT, None);
        self.one(run, Kind::Full, &repository, full)?;
        let list = self.volumes.list.clone().filter(|_| increment == Kind::IncrementByList);
        let delta = list.map(|list| Delta { base: BASE_SNAPSHOT.into(), list });
        let next = backup(&self.volumes.next, NEXT_SNAPSHOT, delta);
        self.one(run, increment, &repository, next)?;
        if !restored {
            return Ok(());
        }
        self.one(run, Kind::Restore, &repository, self.target.operation())?;
        if !self.compared {
            same(&self.volumes.next, self.target.path(), self.settings.volume_bytes, self.stop)?;
            self.compared = true;
        }
        self.target.clear()
    }

    fn request(&self, repository: &Fresh, operation: Operation) -> Result<Request> {
        Ok(Request {
            repository: repository.url()?,
            directory: repository.directory().map(Path::to_owned),
            key: self.key.clone(),
            memory_bytes: self.settings.memory_bytes,
            compression: self.settings.compression.clone(),
            engine: self.settings.engine.clone(),
            threads: self.settings.threads.map(usize::from),
            scratch: Some(self.scratch.clone()),
            operation,
        })
    }

    fn one(
        &mut self,
        run: u32,
        kind: Kind,
        repository: &Fresh,
        operation: Operation,
    ) -> Result<()> {
        let request = self.request(repository, operation)?;
        let size = || repository.directory().map(bytes_below).transpose();
        let before = size()?;
        drop_caches();
        let done =
            child::run(&request, self.stop).map_err(|e| e.within(format!("run {run}, {kind}")))?;
        let grown = before.zip(size()?).map(|(before, after)| after.saturating_sub(before));
        let sample = sample(run, kind, self.settings.volume_bytes, done, grown)?;
        note(&format!("run {run}: {kind}: {:.2} s", sample.seconds));
        self.samples.push(sample);
        Ok(())
    }
}

/// The figures that the operation's own summary has are taken from it; a member that is not there
/// is a mistake of ours.
pub(super) fn sample(
    run: u32,
    kind: Kind,
    volume_bytes: u64,
    done: Done,
    grown_bytes: Option<u64>,
) -> Result<Sample> {
    let Done { reply, seconds, cpu, machine_seconds } = done;
    let summary = reply.summary;
    let missing = |name: &str| {
        Error::new(ErrorKind::Bug, format!("read the summary of {kind}"), format!("no {name}"))
    };
    let number = |name: &str| summary[name].as_u64().ok_or_else(|| missing(name));
    let text = |name: &str| summary[name].as_str().map(str::to_owned).ok_or_else(|| missing(name));
    let (read, stored) = match kind {
        Kind::Restore => (number("fetched_bytes")?, 0),
        _ => (number("read_bytes")?, number("stored_bytes")?),
    };
    let requests = summary["requests"].as_object().ok_or_else(|| missing("requests"))?;
    Ok(Sample {
        kind,
        run,
        seconds,
        user_seconds: cpu.user_seconds,
        system_seconds: cpu.system_seconds,
        machine_seconds,
        peak_rss_bytes: reply.peak_rss_bytes,
        volume_bytes,
        read_bytes: read,
        grown_bytes,
        stored_bytes: stored,
        requests: requests.values().filter_map(serde_json::Value::as_u64).sum(),
        engine: text("engine")?,
        limit: text("bottleneck")?,
        summary,
    })
}

/// A restore that is fast and wrong is no result.
pub(crate) fn same(source: &Path, restored: &Path, bytes: u64, stop: &Stop) -> Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    let what = || format!("compare {} with {}", restored.display(), source.display());
    let open = |path: &Path| File::open(path).map_err(|e| failed(what(), e));
    let (mut a, mut b) = (open(source)?, open(restored)?);
    let mut buffers = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < bytes {
        stop.check()?;
        let len = usize::try_from(PIECE_BYTES.min(bytes - at)).unwrap_or(0);
        let (x, y) = (&mut buffers.0[..len], &mut buffers.1[..len]);
        a.read_exact(x).and_then(|()| b.read_exact(y)).map_err(|e| failed(what(), e))?;
        if x != y {
            let detail = format!("they differ within the MiB from byte {at} on");
            return Err(Error::new(ErrorKind::Corrupt, what(), detail)
                .hint("was the source written to meanwhile? Measure a snapshot"));
        }
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let size = (1 << 20) + 5000;
        std::fs::write(&a, vec![1; size]).unwrap();
        let mut other = vec![1; size + 10];
        std::fs::write(&b, &other).unwrap();
        let stop = Stop::default();
        // a target may be larger
        same(&a, &b, size as u64, &stop).unwrap();
        for at in [0, 1 << 20, size - 1] {
            other[at] = 2;
            std::fs::write(&b, &other).unwrap();
            assert_eq!(same(&a, &b, size as u64, &stop).unwrap_err().kind(), ErrorKind::Corrupt);
            other[at] = 1;
        }
    }
}
