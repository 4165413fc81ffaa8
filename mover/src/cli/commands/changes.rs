//! `changes`: a changed-block list, looked at.

use super::super::args::{FormArg, InspectArgs};
use super::super::context::Context;
use super::super::sources;
use super::super::table::Page;
use crate::inspect::{Figures, Form, sample};
use chunkstore::{Error, ErrorKind, Result, format::SnapshotInfo};
use mover_changes::{
    ChangeKind, ChangeRequest, ChangeSource, ChangedBlocks, ListRequest, check_floor, descend,
};
use mover_engine::ingest::ranges_max;
use mover_engine::ops::backup::read_given;
use mover_engine::sizes::{parse_size, show_bytes};
use mover_engine::volume::device::{Source, SourceOptions};
use std::io::Write;

/// Ranges that fall into one piece of this size may become one when there are too many: no chunk is
/// smaller.
const GRANULE_BYTES: u64 = 4096;

pub(crate) fn changes(ctx: &Context, args: &InspectArgs) -> Result<()> {
    let device = args.device.as_ref().filter(|path| !path.as_os_str().is_empty());
    let direct = ctx.settings.resources.direct;
    let device = device.map(|path| Source::open(path, SourceOptions { direct })).transpose()?;
    device.iter().for_each(|source| source.io_file().set_cancel_flag(ctx.cancel.flag()));
    if let Some((device, why)) = device.as_ref().and_then(|d| Some((d, d.stale()?))) {
        let device = device.path().display();
        ctx.output.warn(&format!("what is read of {device} may be older than the device: {why}"));
    }
    let size_bytes = size_bytes(args, device.as_ref())?;
    let base = sources::base(&args.changes);
    let request =
        sources::request(&args.changes, &SnapshotInfo::default(), args.device.as_deref())?;
    let device = device.as_ref();
    let asking = Asking { ctx, request: &request, size_bytes, base: &base, device };
    // a list may not say how large its volume is; now that is known
    let list = ChangedBlocks { volume_bytes: Some(size_bytes), ..asking.get()? };
    list.notes.iter().for_each(|note| ctx.output.warn(note));
    let form = args.form.unwrap_or(match ctx.settings.output.json {
        true => FormArg::Mover,
        false => FormArg::Table,
    });
    if args.stats {
        let sample = match device {
            Some(device) => sample(&list, device)?,
            None => None,
        };
        let figures = Figures::of(&list, size_bytes, sample)?;
        if ctx.settings.output.json {
            return ctx.output.result_json(&figures);
        }
        return ctx.output.result(&figures_text(&figures));
    }
    let form = match form {
        FormArg::Table => {
            return ctx.output.result_stream(|out| table(&list, size_bytes, out));
        }
        FormArg::Mover => Form::Mover,
        FormArg::Extents => Form::Extents,
        FormArg::Csi => Form::Csi,
        FormArg::Rbd => Form::Rbd,
        FormArg::Qemu => Form::Qemu,
        FormArg::Rest => Form::Rest,
    };
    form.check(&list)?;
    ctx.output.result_stream(|out| form.write(&list, size_bytes, out))
}

fn size_bytes(args: &InspectArgs, device: Option<&Source>) -> Result<u64> {
    let given = args.volume_size.as_ref().filter(|text| !text.is_empty());
    let given = given.map(|text| parse_size(text)).transpose()?;
    let wrong = |what: String, hint: &str| {
        Err(Error::new(ErrorKind::Usage, "look at a changed-block list", what).hint(hint))
    };
    match (given, device) {
        (None, None) => wrong(
            "the size of its volume is not known".to_owned(),
            "name the device, or give --volume-size",
        ),
        (Some(given), Some(device)) if given != device.size_bytes() => wrong(
            format!("--volume-size is {given}, but the device has {} bytes", device.size_bytes()),
            "leave --volume-size out",
        ),
        (Some(0), _) => wrong("--volume-size is 0".to_owned(), "give the size of the volume"),
        (Some(bytes), _) => Ok(bytes),
        (None, Some(device)) => Ok(device.size_bytes()),
    }
}

/// Where the list comes from.
struct Asking<'a> {
    ctx: &'a Context,
    request: &'a ChangeRequest,
    size_bytes: u64,
    base: &'a SnapshotInfo,
    device: Option<&'a Source>,
}

impl Asking<'_> {
    fn get(&self) -> Result<ChangedBlocks> {
        let ChangeRequest { sources, require } = self.request;
        let memory = self.ctx.settings.resources.memory;
        if let Some(given) = sources.iter().find(|source| source.is_given()) {
            let list = read_given(given, self.size_bytes, memory, &self.ctx.cancel)?;
            check_floor(list.kind, *require)?;
            return Ok(list);
        }
        let down = descend(sources, *require, |kind, source| self.ask(kind, source))?;
        let Some(list) = down.found else {
            // the error is the last reason; those before it are as good
            let before = down.steps.split_last().map_or(&[][..], |(_, before)| before);
            before.iter().for_each(|step| self.ctx.output.warn(step));
            return Err(down.last.unwrap_or_else(|| {
                Error::new(ErrorKind::Usage, "look at a changed-block list", "none is named")
                    .hint("give one with --changed-blocks, or ask for one with --changes-url, --changes-server, --nbd-bitmap or --allocated-from")
            }));
        };
        check_floor(list.kind, *require)?;
        down.steps.iter().for_each(|step| self.ctx.output.warn(step));
        Ok(list)
    }

    fn ask(&self, kind: ChangeKind, source: &ChangeSource) -> Result<ChangedBlocks> {
        let request = ListRequest {
            kind,
            volume_bytes: self.size_bytes,
            ranges_max: ranges_max(self.ctx.settings.resources.memory),
            granule_bytes: GRANULE_BYTES,
            base: Some(self.base),
            device: self.device.map(|device| device as _),
            movement: None,
        };
        self.ctx.block_on(source.fetch(&request))
    }
}

fn table(list: &ChangedBlocks, size_bytes: u64, out: &mut dyn Write) -> std::io::Result<()> {
    let mut page = Page::default();
    page.line("list", &format!("{} from {}", list.kind.as_str(), list.origin.as_str()));
    page.line("volume", &format!("{} ({size_bytes} bytes)", show_bytes(size_bytes)));
    let zero = show_bytes(list.zero.total());
    let listed = show_bytes(list.listed_bytes());
    let ranges = list.listed_extents();
    page.line("listed", &format!("{listed} in {ranges} ranges, {zero} of it known to be zero"));
    out.write_all(page.0.as_bytes())?;
    writeln!(out, "{:>20} {:>20}  {:>10}", "START", "END", "SIZE")?;
    let mut zeros = list.zero.iter().peekable();
    let mut row = |range: std::ops::Range<u64>, mark: &str| {
        let size = show_bytes(range.end - range.start);
        writeln!(out, "{:>20} {:>20}  {size:>10}{mark}", range.start, range.end)
    };
    for range in list.data.iter() {
        while let Some(zero) = zeros.next_if(|zero| zero.start < range.start) {
            row(zero, "  zero")?;
        }
        row(range, "")?;
    }
    zeros.try_for_each(|zero| row(zero, "  zero"))
}

fn figures_text(f: &Figures) -> String {
    let mut page = Page::default();
    page.line("list", &format!("{} from {}", f.kind.as_str(), f.origin));
    page.line("volume", &show_bytes(f.size_bytes));
    let (listed, zero) = (show_bytes(f.listed_bytes), show_bytes(f.zero_bytes));
    let ranges = f.listed_extents;
    page.line("listed", &format!("{listed} in {ranges} ranges, {zero} of it known to be zero"));
    if let Some(sample) = &f.sample {
        let (plain, stored) = (show_bytes(sample.plain_bytes), show_bytes(sample.stored_bytes));
        page.line("sample", &format!("{plain} become {stored}"));
    }
    let mut text = page.0;
    text.push_str(&format!(
        "{:>10}  {:>12}  {:>10}  {:>10}  {:>10}  {:>10}\n",
        "CHUNK", "READ CHUNKS", "READ", "ZERO", "INHERITED", "STORED"
    ));
    for c in &f.chunks {
        text.push_str(&format!(
            "{:>10}  {:>12}  {:>10}  {:>10}  {:>10}  {:>10}\n",
            show_bytes(u64::from(c.chunk_bytes)),
            c.read_chunks,
            show_bytes(c.read_bytes),
            show_bytes(c.zero_bytes),
            show_bytes(c.inherited_bytes),
            c.stored_bytes
                .map_or_else(|| "?".to_owned(), |bytes| format!("~{}", show_bytes(bytes))),
        ));
    }
    text
}
