//! A changed-block list takes 16 bytes of memory for each range that is left after merging,
//! whatever its file's size is.
//!
//! In a process of its own, because the peak of the whole process is what is measured.

use mover_changes::{ParseOptions, parse_changed_blocks};
use std::io::Read;

/// A list as a stream: never in memory as a whole.
struct Generated {
    count: u64,
    next: u64,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Generated {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.piece.len() && self.next < self.count {
            let bracket = if self.next == 0 { "[" } else { "," };
            // an order in which no neighbours come together (the factor has no divisor in common
            // with the count)
            let block = self.next * 7_919_317 % self.count;
            self.next += 1;
            let end = if self.next == self.count { "]" } else { "" };
            self.at = 0;
            self.piece = format!(
                r#"{bracket}{{"offset":{},"length":4096,"exists":"{}"}}{end}"#,
                block * 8192,
                block.is_multiple_of(2)
            )
            .into_bytes();
        }
        let n = buf.len().min(self.piece.len() - self.at);
        buf[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))?;
    Some(kib.trim().parse::<u64>().ok()? * 1024)
}

#[test]
fn ten_million_unsorted_ranges_take_16_bytes_each() {
    const RANGES: u64 = 10_000_000;
    let before = peak_memory_bytes().unwrap();
    let start = std::time::Instant::now();
    let stream = Generated { count: RANGES, next: 0, piece: Vec::new(), at: 0 };
    let list = parse_changed_blocks(stream, &ParseOptions::new("generated", 1 << 40)).unwrap();
    let taken = peak_memory_bytes().unwrap() - before;
    println!("{} MB more at the peak, {:?}", taken / 1_000_000, start.elapsed());
    assert_eq!(list.listed_extents(), RANGES);
    assert_eq!((list.data.total(), list.zero.total()), (RANGES / 2 * 4096, RANGES / 2 * 4096));
    assert!(taken < RANGES * 16 + (8 << 20), "{taken} bytes");
}
