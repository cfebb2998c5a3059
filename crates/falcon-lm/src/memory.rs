//! Memory of this process and of the system, in bytes, where the system reports it.

use std::fs;

/// The largest resident memory that this process has had.
pub fn peak() -> Option<u64> {
    bytes("/proc/self/status", "VmHWM:")
}

/// The resident memory of this process.
pub fn resident() -> Option<u64> {
    bytes("/proc/self/status", "VmRSS:")
}

/// The memory that the system has available without swapping.
pub fn available() -> Option<u64> {
    bytes("/proc/meminfo", "MemAvailable:")
}

/// The memory that this process may still allocate: what the system has available, or less where the address space
/// (`ulimit -v`) or the control group is limited. None where the system does not report it.
pub fn obtainable() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let address_space = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
    let address_space = address_space.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let address_space =
        address_space.map(|most| most.saturating_sub(bytes("/proc/self/status", "VmSize:").unwrap_or(0)));
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .map(|most| most.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    [available(), address_space, group].into_iter().flatten().min()
}

/// Formats an amount of memory, such as `1.2 GiB`.
pub fn human(bytes: u64) -> String {
    match bytes as f64 {
        small if small < 1e6 => format!("{:.0} KiB", small / 1024.0),
        medium if medium < 1e9 => format!("{:.0} MiB", medium / 1048576.0),
        large => format!("{:.1} GiB", large / 1073741824.0),
    }
}

fn bytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
