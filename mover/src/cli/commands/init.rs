//! `init`.

use super::super::args::{EncryptionArg, InitArgs};
use super::super::context::Context;
use super::super::repository::{self, NewRepository};
use super::super::table::{Page, RepositoryView};
use chunkstore::{ChunkSize, Encryption, Error, ErrorKind, Repository, Result};
use mover_engine::sizes::{parse_size, show_bytes};

pub(crate) fn init(ctx: &Context, args: &InitArgs) -> Result<()> {
    let defaults = NewRepository::with_defaults()?;
    let asked = Asked::of(args)?;
    let chunk = asked.chunk.unwrap_or(defaults.chunk);
    let new = NewRepository {
        chunk,
        entry_chunks: args.entry_chunks.unwrap_or_else(|| NewRepository::usual_entry_chunks(chunk)),
        page_fanout: args.page_fanout.unwrap_or(defaults.page_fanout),
        encryption: asked.encryption.unwrap_or(defaults.encryption),
        label: args.key_label.clone(),
    };
    let new_key_file = args.new_key_file.as_deref().filter(|p| !p.as_os_str().is_empty());
    let there = || repository::open_existing(ctx, new_key_file);
    let found = if args.if_absent { there()? } else { None };
    let made = found.is_none();
    let (repository, made) = match found {
        Some(repository) => (repository, made),
        None => match repository::init(ctx, new, new_key_file) {
            // another one was quicker
            Err(e) if args.if_absent && e.kind() == ErrorKind::AlreadyExists => {
                (there()?.ok_or(e)?, false)
            }
            done => (done?, true),
        },
    };
    if !made {
        asked.agrees(&repository)?;
        ctx.output.notice(&format!(
            "there is a repository at {} already, and the key opens it: nothing was made",
            repository.store().url()
        ));
    }
    let params = repository.params();
    let view = RepositoryView {
        repository: repository.store().url(),
        repository_id: repository.id().to_hex(),
        encryption: params.encryption,
        chunk_bytes: params.chunk.bytes(),
        entry_chunks: params.entry_chunks,
        page_fanout: params.page_fanout,
        made,
    };
    let mut page = Page::default();
    page.line("repository", view.repository);
    page.line("id", &view.repository_id);
    page.line("encryption", &view.encryption.to_string());
    page.line(
        "chunks",
        &format!(
            "{}, up to {} sealed together",
            show_bytes(u64::from(view.chunk_bytes)),
            view.entry_chunks
        ),
    );
    ctx.output.summary(&page.0, &view)
}

/// The parameters that were given, and not left to the program.
struct Asked {
    chunk: Option<ChunkSize>,
    entry_chunks: Option<u16>,
    page_fanout: Option<u16>,
    encryption: Option<Encryption>,
}

impl Asked {
    fn of(args: &InitArgs) -> Result<Self> {
        let chunk = |text: &String| {
            let bytes = parse_size(text).map_err(|e| e.within("use --chunk-size"))?;
            // what does not fit is too large for a chunk all the more
            ChunkSize::new(u32::try_from(bytes).unwrap_or(u32::MAX))
        };
        Ok(Self {
            chunk: args.chunk_size.as_ref().map(chunk).transpose()?,
            entry_chunks: args.entry_chunks,
            page_fanout: args.page_fanout,
            encryption: args.encryption.map(|encryption| match encryption {
                EncryptionArg::Aes256Gcm => Encryption::Aes256Gcm,
                EncryptionArg::None => Encryption::None,
            }),
        })
    }

    /// Whether a repository is as was asked; a parameter is for good.
    fn agrees(&self, repository: &Repository) -> Result<()> {
        let params = repository.params();
        let differs = |flag: &str, asked: Option<String>, is: String| {
            asked.filter(|asked| *asked != is).map(|asked| format!("{flag} is {is}, not {asked}"))
        };
        let size = |chunk: ChunkSize| show_bytes(u64::from(chunk.bytes()));
        let all = [
            differs("--chunk-size", self.chunk.map(size), size(params.chunk)),
            differs(
                "--entry-chunks",
                self.entry_chunks.map(|n| n.to_string()),
                params.entry_chunks.to_string(),
            ),
            differs(
                "--page-fanout",
                self.page_fanout.map(|n| n.to_string()),
                params.page_fanout.to_string(),
            ),
            differs(
                "--encryption",
                self.encryption.map(|e| e.to_string()),
                params.encryption.to_string(),
            ),
        ];
        let different: Vec<_> = all.into_iter().flatten().collect();
        if different.is_empty() {
            return Ok(());
        }
        let context = format!("make a repository at {}", repository.store().url());
        let detail = format!("there is one already, and its {}", different.join(", its "));
        Err(Error::new(ErrorKind::AlreadyExists, context, detail)
            .hint("leave that out to use it as it is, or choose another place"))
    }
}
