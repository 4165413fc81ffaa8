//! `key add`, `key remove`, `key list`.

use super::super::args::{KeyAddArgs, KeyRemoveArgs};
use super::super::context::{Context, host};
use super::super::keys;
use super::super::repository;
use super::super::table::{KeyView, key_table};
use chunkstore::{
    Encryption, Error, ErrorKind, KdfCost, Repository, Result, format::KeyInfo, ids::KeyId,
};
use serde_json::json;

pub(crate) fn add(ctx: &Context, args: &KeyAddArgs) -> Result<()> {
    let given =
        |path: &Option<std::path::PathBuf>| path.clone().filter(|p| !p.as_os_str().is_empty());
    let (key_file, password_file) = (given(&args.new_key_file), given(&args.new_password_file));
    if key_file.is_some() && password_file.is_some() {
        return Err(Error::new(
            ErrorKind::Usage,
            "add a key",
            "both a key file and a passphrase were given",
        )
        .hint("add them one after the other"));
    }
    if key_file.is_none() && password_file.is_none() && !ctx.settings.keys.can_ask {
        return Err(Error::new(ErrorKind::Usage, "add a key", "no new key was given")
            .hint("use --new-key-file FILE or --new-password-file FILE"));
    }
    if let Some(path) = &key_file {
        repository::refuse_key_in_repository(ctx, path)?;
    }
    // opened first: no key file is made for a repository that cannot take it
    let repository = repository::open(ctx)?;
    if repository.params().encryption == Encryption::None {
        let what = format!("add a key to {}", repository.store().url());
        return Err(Error::new(ErrorKind::Usage, what, "this repository is not encrypted"));
    }
    let (credential, made) = match (&key_file, &password_file) {
        (Some(path), _) => keys::read_or_make_key_file(path)?,
        (None, Some(path)) => (keys::read_password_file(path)?, None),
        (None, None) => (keys::ask_new_password()?, None),
    };
    let label = args.key_label.clone().unwrap_or_else(host);
    let added = ctx.block_on(repository.add_key(&credential, &label, KdfCost::default()));
    let id = repository::settle_key_file(ctx, made, added, || {
        let opened =
            Repository::open(repository.store().clone(), std::slice::from_ref(&credential));
        ctx.block_on(opened).is_err_and(|e| e.kind() == ErrorKind::WrongKey)
    })?;
    let view = json!({ "key_id": id.to_hex(), "kind": credential.kind(), "label": label });
    ctx.output.summary(&format!("added {} {id}\n", credential.kind()), &view)
}

pub(crate) fn remove(ctx: &Context, args: &KeyRemoveArgs) -> Result<()> {
    let repository = repository::open(ctx)?;
    let id = find(&ctx.block_on(repository.list_keys())?, &args.key)?;
    ctx.block_on(repository.remove_key(&id))?;
    let text = format!(
        "removed key {id}; whoever has read the repository with it may still know its master key\n"
    );
    ctx.output.summary(&text, &json!({ "key_id": id.to_hex() }))
}

pub(crate) fn list(ctx: &Context) -> Result<()> {
    let repository = repository::open(ctx)?;
    let keys = ctx.block_on(repository.list_keys())?;
    let current =
        |key: &KeyInfo, repository: &Repository| repository.opened_with() == Some(&key.id);
    if ctx.settings.output.json {
        for key in &keys {
            ctx.output.result_json(&KeyView::of(key, current(key, &repository)))?;
        }
        return Ok(());
    }
    let rows: Vec<_> = keys.iter().map(|key| (key, current(key, &repository))).collect();
    ctx.output.result(&key_table(&rows, ctx.settings.output.color_stdout))
}

/// The key whose id begins with `text`.
fn find(keys: &[KeyInfo], text: &str) -> Result<KeyId> {
    let what = || format!("find key {text:?}");
    let mut fits = keys.iter().filter(|key| !text.is_empty() && key.id.to_hex().starts_with(text));
    match (fits.next(), fits.next()) {
        (Some(key), None) => Ok(key.id),
        (Some(_), Some(_)) => Err(Error::new(ErrorKind::Usage, what(), "more than one begins so")
            .hint("give more digits of its id")),
        _ => {
            Err(Error::new(ErrorKind::NotFound, what(), "there is none")
                .hint("see `mover key list`"))
        }
    }
}
