//! A description of the machine that this process runs on.

/// The name of the processor and the number of cores that this process may use, such as `AMD EPYC, 2 cores`.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let cores = if cores == 1 { "1 core".to_string() } else { format!("{cores} cores") };
    format!("{}, {cores}", name.unwrap_or(std::env::consts::ARCH))
}
