//! Who has a file of a mount open: for a message, so what cannot be seen is left out.

use crate::table::{self, is_below};
use std::fs;
use std::path::Path;

/// That are named.
const NAMED_MAX: usize = 5;

/// Processes, loop devices and mounts that keep a mount busy.
pub(crate) fn of(point: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let number = process.file_name();
        let Some(number) = number.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            continue;
        };
        if number != std::process::id().to_string() && uses(&process.path(), point) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} ({number})", name.trim()));
        }
    }
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    for device in devices {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if is_below(Path::new(file.trim_end()), point) {
            found.push(format!("/dev/{}", device.file_name().to_string_lossy()));
        }
    }
    let below = |path: &Path| path != point && is_below(path, point);
    let mounts = table::mounts().unwrap_or_default().into_iter().filter(|line| below(&line.path));
    found.extend(mounts.map(|line| format!("the mount {}", line.path.display())));
    if found.len() > NAMED_MAX {
        let more = found.len() - NAMED_MAX;
        found.truncate(NAMED_MAX);
        found.push(format!("{more} more"));
    }
    found
}

/// Whether a process has something open there. Its links are read, never followed.
fn uses(process: &Path, point: &Path) -> bool {
    let leads = |link: &Path| fs::read_link(link).is_ok_and(|path| is_below(&path, point));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    leads(&process.join("cwd"))
        || leads(&process.join("root"))
        || files.into_iter().any(|file| leads(&file.path()))
}
