//! Memory and files for O_DIRECT, and what this process used.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

const PAGE_BYTES: usize = 4096;

/// Page-aligned bytes.
pub struct Aligned {
    start: *mut u8,
    layout: Layout,
}

impl Aligned {
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), PAGE_BYTES).expect("layout");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: this owns so many initialised bytes from `start` on, and lends them out by
        // `&mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not lent out any more.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// Past the page cache where the file system allows it.
pub fn open_direct(path: &str, write: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
    direct.or_else(|_| options.open(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// User and system time of this process so far.
pub fn cpu_seconds() -> f64 {
    // SAFETY: all bits zero are a valid rusage, and getrusage writes one through a valid pointer.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
