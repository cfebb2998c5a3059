//! What this process holds, and what is left, where the system says.

use std::fs;

/// The most memory that was ever resident, in bytes.
pub fn peak() -> Option<u64> {
    bytes("/proc/self/status", "VmHWM:")
}

/// The memory that is resident now, in bytes.
pub fn resident() -> Option<u64> {
    bytes("/proc/self/status", "VmRSS:")
}

/// The memory that could be taken without others losing theirs, in bytes.
pub fn available() -> Option<u64> {
    bytes("/proc/meminfo", "MemAvailable:")
}

fn bytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
