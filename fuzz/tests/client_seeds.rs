//! Writes what NBD clients say, for the corpus of `nbd_client` to start from:
//! `cargo test -p fuzz --test client_seeds -- --ignored`.

use std::path::Path;

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap_or_default();
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

fn text(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap_or_default();
    [&len.to_be_bytes(), text.as_bytes()].concat()
}

fn request(command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let head = [&0x2560_9513_u32.to_be_bytes()[..], &flags.to_be_bytes(), &command.to_be_bytes()];
    [&head.concat()[..], &7_u64.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

fn long_request(command: u16, flags: u16, offset: u64, len: u64) -> Vec<u8> {
    let head = [&0x21e4_1c71_u32.to_be_bytes()[..], &flags.to_be_bytes(), &command.to_be_bytes()];
    [&head.concat()[..], &7_u64.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

fn put(name: &str, parts: &[Vec<u8>]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/nbd_client");
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join(name), parts.concat()));
    written.unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
#[ignore = "writes files"]
fn what_clients_say() {
    let flags = 3_u32.to_be_bytes().to_vec();
    let go = option(7, &[text("db"), vec![0, 1, 0, 3]].concat());
    let queries = [text("base:allocation"), text("qemu:dirty-bitmap:b")].concat();
    let set = option(10, &[text("db"), vec![0, 0, 0, 2], queries].concat());
    let list = option(9, &[text("db"), vec![0, 0, 0, 1], text("qemu:")].concat());
    let read = request(0, 0, 4096, 65536);
    let goodbye = request(2, 0, 0, 0);
    let structured = [flags.clone(), option(3, &[]), option(8, &[]), list, set.clone(), go.clone()];
    let states = request(7, 8, 0, u32::MAX);
    put("structured", &[&structured[..], &[read.clone(), states, goodbye.clone()]].concat());
    let write = [request(1, 0, 0, 9), b"nine byte".to_vec(), request(6, 0, 0, u32::MAX)].concat();
    put("simple", &[flags.clone(), go.clone(), read.clone(), write, goodbye.clone()]);
    put("export-name", &[vec![0; 4], option(1, b"web@1"), read, goodbye]);
    let long = [
        long_request(0, 4, (5 << 30) - 1, 1),
        long_request(7, 0, 0, 5 << 30),
        long_request(7, 0, 1, u64::MAX),
        long_request(1, 32, 0, 3),
        b"abc".to_vec(),
        long_request(2, 0, 0, 0),
    ];
    put("extended", &[&[flags.clone(), option(11, &[]), set, go][..], &long].concat());
    let writable = option(7, &[text("web@1"), vec![0, 0]].concat());
    let changes = [
        [request(1, 0, 4096, 9), b"nine byte".to_vec()].concat(),
        [request(1, 1, 5 << 30, 4), b"four".to_vec()].concat(),
        request(6, 0x13, 0, u32::MAX),
        request(4, 1, 512, 1 << 20),
        request(3, 0, 0, 0),
        request(1, 0, 0, (32 << 20) + 1),
    ];
    put("changes", &[&[flags.clone(), option(8, &[]), writable.clone()][..], &changes].concat());
    let long_changes = [
        long_request(1, 33, 1, 3),
        b"abc".to_vec(),
        long_request(6, 2, 0, 5 << 30),
        long_request(4, 0, 1, (5 << 30) - 1),
        long_request(3, 1, 0, 0),
        long_request(0, 32, 0, 2),
        b"no".to_vec(),
        long_request(1, 0, 0, 3),
    ];
    let begin = [flags.clone(), option(11, &[]), writable];
    put("long-changes", &[&begin[..], &long_changes].concat());
    put("too-long", &[flags.clone(), [&option(7, &[])[..12], &[0xff; 4]].concat()]);
    put("abort", &[flags, option(99, b"what"), option(5, &[]), option(2, &[])]);
    put("http", &[b"GET / HTTP/1.1\r\n\r\n".to_vec()]);
}
