//! The tables of kernels and of decoding, which share one schedule, so that their rows are timed in turns.

use falcon_lm::monitor::Monitor;

use super::cases::check_memory;
use super::decode::DecodePlan;
use super::error::BenchError;
use super::kernels::KernelsPlan;
use super::options::KernelsOptions;
use super::schedule::Schedule;
use super::table::BenchTable;

/// Times kernels, decoding or both, beside the rates of the machine.
pub fn kernels(options: &KernelsOptions, monitor: &mut dyn Monitor) -> Result<Vec<BenchTable>, BenchError> {
    let kernels = options.kernels.then(|| KernelsPlan::new(options)).transpose()?;
    let decode = options.decode.then(|| DecodePlan::new(options));
    let bytes = kernels.iter().flat_map(KernelsPlan::bytes).chain(decode.iter().flat_map(DecodePlan::bytes));
    check_memory(bytes, "--tokens, --dims, --heads or --batch")?;
    let kernel_cases = kernels.as_ref().map(KernelsPlan::cases);
    let decode_cases = decode.as_ref().map(DecodePlan::cases);
    let mut schedule = Schedule::default();
    let kernel_rows = kernel_cases.as_ref().map(|cases| cases.add_to(&mut schedule)).transpose()?;
    let decode_rows = decode_cases.as_ref().map(|cases| cases.add_to(&mut schedule)).transpose()?;
    let medians = schedule.run(options.repeats.into(), monitor)?;
    let mut tables = Vec::new();
    tables.extend(kernel_rows.map(|rows| rows.tables(&medians)).into_iter().flatten());
    tables.extend(decode_rows.map(|rows| rows.table(&medians)));
    Ok(tables)
}
