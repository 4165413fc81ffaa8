//! `init`.

use super::super::args::{EncryptionArg, InitArgs};
use super::super::context::Context;
use super::super::repository::{self, NewRepository};
use super::super::table::{Page, RepositoryView};
use chunkstore::{ChunkSize, Encryption, Result};
use mover_engine::sizes::{parse_size, show_bytes};

pub(crate) fn init(ctx: &Context, args: &InitArgs) -> Result<()> {
    let defaults = NewRepository::with_defaults()?;
    let chunk = match &args.chunk_size {
        Some(text) => {
            let bytes = parse_size(text).map_err(|e| e.within("use --chunk-size"))?;
            // what does not fit is too large for a chunk all the more
            ChunkSize::new(u32::try_from(bytes).unwrap_or(u32::MAX))?
        }
        None => defaults.chunk,
    };
    let new = NewRepository {
        chunk,
        entry_chunks: args.entry_chunks.unwrap_or_else(|| NewRepository::usual_entry_chunks(chunk)),
        page_fanout: args.page_fanout.unwrap_or(defaults.page_fanout),
        encryption: match args.encryption {
            EncryptionArg::Aes256Gcm => Encryption::Aes256Gcm,
            EncryptionArg::None => Encryption::None,
        },
        label: args.key_label.clone(),
    };
    let new_key_file = args.new_key_file.as_deref().filter(|p| !p.as_os_str().is_empty());
    let repository = repository::init(ctx, new, new_key_file)?;
    let params = repository.params();
    let view = RepositoryView {
        repository: repository.store().url(),
        repository_id: repository.id().to_hex(),
        encryption: params.encryption,
        chunk_bytes: params.chunk.bytes(),
        entry_chunks: params.entry_chunks,
        page_fanout: params.page_fanout,
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
