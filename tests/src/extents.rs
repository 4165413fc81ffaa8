//! Real changed-block lists, made by comparing two images; and comparing and copying images.

use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

const WINDOW_BYTES: usize = 1 << 20;

/// The extents in which `new` differs from `old`, in blocks of `block_bytes`; what lies behind the
/// end of `old` counts as changed. Ascending and merged, the last one ends at the end of `new`.
pub fn changed_extents(old: &Path, new: &Path, block_bytes: usize) -> Vec<Range<u64>> {
    assert!(block_bytes > 0 && WINDOW_BYTES.is_multiple_of(block_bytes), "blocks divide 1 MiB");
    let (old, old_bytes) = open(old);
    let (new, new_bytes) = open(new);
    let mut extents: Vec<Range<u64>> = Vec::new();
    let (mut a, mut b) = (vec![0; WINDOW_BYTES], vec![0; WINDOW_BYTES]);
    let mut offset = 0;
    while offset < new_bytes {
        let len = window_len(new_bytes - offset);
        new.read_exact_at(&mut b[..len], offset).expect("read the new image");
        let old_len = window_len(old_bytes.saturating_sub(offset)).min(len);
        old.read_exact_at(&mut a[..old_len], offset).expect("read the old image");
        if old_len != len || a[..len] != b[..len] {
            for start in (0..len).step_by(block_bytes) {
                let end = (start + block_bytes).min(len);
                if end > old_len || a[start..end] != b[start..end] {
                    push_merged(&mut extents, offset + start as u64..offset + end as u64);
                }
            }
        }
        offset += len as u64;
    }
    extents
}

/// The first offset at which the images differ, their sizes included; `None` when they are bit for
/// bit the same.
pub fn first_difference(a: &Path, b: &Path) -> Option<u64> {
    let (file_a, a_bytes) = open(a);
    let (file_b, b_bytes) = open(b);
    let both = a_bytes.min(b_bytes);
    let (mut x, mut y) = (vec![0; WINDOW_BYTES], vec![0; WINDOW_BYTES]);
    let mut offset = 0;
    while offset < both {
        let len = window_len(both - offset);
        file_a.read_exact_at(&mut x[..len], offset).expect("read the first image");
        file_b.read_exact_at(&mut y[..len], offset).expect("read the second image");
        if x[..len] != y[..len] {
            let at = x.iter().zip(&y).position(|(x, y)| x != y).expect("they differ");
            return Some(offset + at as u64);
        }
        offset += len as u64;
    }
    (a_bytes != b_bytes).then_some(both)
}

/// The list in the program's own form, `kind` being `delta` or `allocated`.
pub fn extents_json(volume_bytes: u64, kind: &str, extents: &[Range<u64>]) -> Value {
    let extents: Vec<Value> = extents
        .iter()
        .map(|extent| json!({"offset": extent.start, "len": extent.end - extent.start}))
        .collect();
    json!({"volume_size": volume_bytes, "kind": kind, "extents": extents})
}

/// Compares the images in blocks of 4 KiB and writes the delta list to `list`; gives the listed
/// bytes.
pub fn write_extents(old: &Path, new: &Path, list: &Path) -> u64 {
    let extents = changed_extents(old, new, 4096);
    let volume_bytes = std::fs::metadata(new).expect("the new image's size").len();
    let mut file = File::create(list).expect("create the list");
    file.write_all(extents_json(volume_bytes, "delta", &extents).to_string().as_bytes())
        .expect("write the list");
    extents.iter().map(|extent| extent.end - extent.start).sum()
}

/// Copies an image, holes as holes.
pub fn copy_image(from: &Path, to: &Path) {
    crate::run_ok(
        "cp",
        ["--sparse=always".as_ref(), "--".as_ref(), from.as_os_str(), to.as_os_str()],
    );
}

fn open(path: &Path) -> (File, u64) {
    use std::io::{Seek, SeekFrom};
    let mut file =
        File::open(path).unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
    // Block devices have a length of 0 in their metadata, but an end.
    let len = file.seek(SeekFrom::End(0)).expect("find the end");
    (file, len)
}

fn window_len(left: u64) -> usize {
    usize::try_from(left.min(WINDOW_BYTES as u64)).expect("a window fits")
}

fn push_merged(extents: &mut Vec<Range<u64>>, next: Range<u64>) {
    match extents.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => extents.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_exactly_the_changed_blocks() {
        let dir = crate::work_dir("extents");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let mut image = vec![7u8; 3 * WINDOW_BYTES + 1000];
        std::fs::write(&a, &image).expect("write");
        assert!(changed_extents(&a, &a, 4096).is_empty());
        assert_eq!(first_difference(&a, &a), None);
        image[4095] = 1;
        image[4096] = 1;
        image[WINDOW_BYTES - 1] = 1;
        image[WINDOW_BYTES] = 1;
        image.extend([7; 5000]);
        std::fs::write(&b, &image).expect("write");
        let end = 3 * (1 << 20) + 6000;
        assert_eq!(
            changed_extents(&a, &b, 4096),
            [0..8192, (1 << 20) - 4096..(1 << 20) + 4096, 3 * (1 << 20)..end]
        );
        assert_eq!(
            changed_extents(&b, &a, 4096).last(),
            Some(&((1 << 20) - 4096..(1 << 20) + 4096))
        );
        assert_eq!(first_difference(&a, &b), Some(4095));
        let json = extents_json(end, "delta", &changed_extents(&a, &b, 4096));
        assert_eq!(json["extents"][0]["len"], 8192);
    }
}
