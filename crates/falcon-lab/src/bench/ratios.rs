//! Speeds relative to what the machine can do, measured in the same rounds: figures that stay nearly the same while the
//! speed of a shared machine changes.

use std::collections::BTreeMap;

use burn::tensor::Device;
use falcon_lm::monitor::Monitor;
use falcon_nn::{ModelConfig, WeightFormat};
use rayon::ThreadPool;

use super::cases::{BenchRule, CaseSize, CaseTensors, named_rule};
use super::decode::{BYTES_PER_TIMING, DecodeStream, MemoryProbe};
use super::error::BenchError;
use super::flops::useful;
use super::gemm::Gemm;
use super::generate::GenerateStream;
use super::schedule::{JobId, Schedule, Times};
use super::train::{self, TrainStep};
use crate::threads;

/// Numbers of one timing of a kernel: tokens, times heads, times the size of a head. Every timing takes some
/// milliseconds at most, because what takes longer is interrupted by other programs in every round.
const NUMBERS: usize = 1 << 16;
/// Heads of a kernel.
const HEADS: usize = 2;
/// Heads in decoding.
const DECODED_HEADS: usize = 8;
/// Tokens per chunk.
const CHUNK: usize = 64;
/// The training step: sequences, and tokens of each.
const BATCH: [usize; 2] = [2, 64];
/// Generation: the size of the vocabulary, and the number of tokens per timing.
const GENERATION: [usize; 2] = [4096, 4];

/// What one ratio measures. All of it runs on one thread, which other programs disturb least.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RatioRow {
    /// Identifies the row in files.
    pub name: String,
    work: Work,
}

#[derive(Clone, Debug, PartialEq)]
enum Work {
    /// Share of the speed of a matrix product.
    Kernel { rule: &'static str, dim: usize, backward: bool },
    /// Share of the rate at which the machine multiplies an array of the same size in place.
    Decode { rule: &'static str, dim: usize },
    /// Share of the speed of a matrix product.
    Train { model: &'static str },
    /// Share of the rate at which the machine multiplies an array of the size of the weights in place.
    Generate { weights: WeightFormat },
}

/// All ratios: every kind of scan at every width that models have, and what is built on them.
pub(super) fn all_rows() -> Vec<RatioRow> {
    let kernels: [(usize, &[&str]); 3] = [
        (32, &["falcon-1", "falcon-1a", "falcon-2a", "falcon-3"]),
        (64, &["falcon-1", "falcon-1a", "falcon-2", "falcon-2a", "falcon-3", "falcon-3a"]),
        (128, &["falcon-1", "falcon-1a", "falcon-2", "falcon-2a", "falcon-3"]),
    ];
    let mut rows = Vec::new();
    let mut add = |name: String, work| rows.push(RatioRow { name, work });
    for (dim, rules) in kernels {
        for &rule in rules {
            for (backward, what) in [(false, "forward"), (true, "forward and backward")] {
                add(format!("{rule}, d {dim}, {what}"), Work::Kernel { rule, dim, backward });
            }
        }
    }
    for (rule, dim) in [("falcon-1", 64), ("falcon-1", 128), ("falcon-1a", 64), ("falcon-1a", 128)] {
        add(format!("{rule}, d {dim}, decode"), Work::Decode { rule, dim });
    }
    for model in ["transformer", "falcon-1a.3", "falcon-1.3"] {
        add(format!("{model}, training step"), Work::Train { model });
    }
    for weights in WeightFormat::ALL {
        add(format!("falcon-1a.3, generate, {weights}"), Work::Generate { weights });
    }
    rows
}

/// The vector instructions that the kernels use on this machine. Ratios differ between them, because a matrix product
/// gains more from wide vectors than other work does.
pub(super) fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    match pulp::Arch::new() {
        pulp::Arch::V4(_) => return "avx512",
        pulp::Arch::V3(_) => return "avx2",
        _ => {}
    }
    // Elsewhere there is one kind, or none.
    std::env::consts::ARCH
}

/// A ratio: some work per second, relative to the same kind of work per second of a yardstick.
struct Ratio {
    name: String,
    /// Operations of one timing, or numbers in memory.
    amount: f64,
    job: JobId,
    yardstick: Yardstick,
}

enum Yardstick {
    Gemm,
    Memory { amount: f64, job: JobId },
}

/// Measures ratios; each is that of the fastest of `rounds` rounds, of the work and of its yardstick.
pub(super) fn measure(
    rows: &[RatioRow],
    rounds: usize,
    monitor: &mut dyn Monitor,
) -> Result<BTreeMap<String, f64>, BenchError> {
    let pool = threads::pool(1)?;
    let tensors = Tensors::of(rows);
    let mut schedule = Schedule::default();
    let (mut ratios, mut gemms) = (Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        // The yardstick comes more than once in a round, because the speed of the machine changes within one.
        if index.is_multiple_of(16) {
            gemms.push(Gemm::add_to(&mut schedule, 1));
        }
        ratios.push(add(row, &tensors, &pool, &mut schedule)?);
    }
    let times = schedule.fastest(rounds, monitor)?;
    let gemm = gemms.iter().map(|gemm| gemm.rate(&times).gflops * 1e9).fold(0.0, f64::max);
    Ok(ratios.into_iter().map(|ratio| ratio.value(&times, gemm)).collect())
}

impl Ratio {
    fn value(self, times: &Times, gemm: f64) -> (String, f64) {
        let yardstick = match self.yardstick {
            Yardstick::Gemm => gemm,
            Yardstick::Memory { amount, job } => amount / times.seconds(job),
        };
        (self.name, self.amount / times.seconds(self.job) / yardstick)
    }
}

/// The tensors that rows share, by size.
struct Tensors(Vec<CaseTensors>);

impl Tensors {
    fn of(rows: &[RatioRow]) -> Self {
        let mut sizes: Vec<CaseSize> = rows.iter().filter_map(|row| row.work.size()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        Self(sizes.into_iter().map(|size| CaseTensors::new(size, true)).collect())
    }

    fn get(&self, size: CaseSize) -> &CaseTensors {
        self.0.iter().find(|tensors| tensors.size == size).expect("there are tensors for every row")
    }
}

impl Work {
    /// The sizes of the tensors that it reads, if it reads any.
    fn size(&self) -> Option<CaseSize> {
        let (tokens, dim, heads) = match *self {
            Self::Kernel { dim, .. } => (NUMBERS / HEADS / dim, dim, HEADS),
            Self::Decode { dim, .. } => {
                let memory = DECODED_HEADS * dim * dim * size_of::<f32>();
                (BYTES_PER_TIMING / memory, dim, DECODED_HEADS)
            }
            Self::Train { .. } | Self::Generate { .. } => return None,
        };
        Some(CaseSize { tokens, dim, heads, batch: 1 })
    }
}

/// Adds the jobs of a row to the schedule.
fn add<'a>(
    row: &RatioRow,
    tensors: &'a Tensors,
    pool: &'a ThreadPool,
    schedule: &mut Schedule<'a>,
) -> Result<Ratio, BenchError> {
    let name = row.name.clone();
    let tensors = row.work.size().map(|size| tensors.get(size));
    let tensors = || tensors.expect("kernels and decoding have tensors");
    Ok(match row.work {
        Work::Kernel { rule, dim, backward } => {
            let (BenchRule { rule, .. }, tensors) = (named_rule(rule)?, tensors());
            let flops = useful(&rule, dim, CHUNK);
            let per_token = flops.forward + if backward { flops.backward } else { 0.0 };
            let amount = per_token * (tensors.size.all_tokens() * HEADS) as f64;
            let job = schedule.add(move || match backward {
                false => tensors.forward(&rule, CHUNK, pool),
                true => tensors.both(&rule, CHUNK, pool),
            });
            Ratio { name, amount, job, yardstick: Yardstick::Gemm }
        }
        Work::Decode { rule, dim } => {
            let tensors = tensors();
            let mut stream = DecodeStream::new(tensors, named_rule(rule)?)?;
            let (numbers, tokens) = (DECODED_HEADS * dim * dim, tensors.size.tokens);
            let amount = (numbers * tokens) as f64;
            let job = schedule.add(move || stream.run());
            Ratio { name, amount, job, yardstick: memory(numbers, tokens, schedule) }
        }
        Work::Train { model } => {
            let [batch, time] = BATCH;
            // One layer is a fraction of the work, and has all its parts.
            let config = ModelConfig { num_hidden_layers: 1, ..train::config(model)? };
            let mut step = TrainStep::new(&config, batch, time)?;
            let amount = step.flops() * (batch * time) as f64;
            let job = schedule.add(move || Ok(pool.install(|| step.run())));
            Ratio { name, amount, job, yardstick: Yardstick::Gemm }
        }
        Work::Generate { weights } => {
            let [vocabulary, tokens] = GENERATION;
            let config = ModelConfig::preset("falcon-1a.3", "tiny", vocabulary)?;
            let model = config.init(0, &Device::flex())?.packed(weights);
            let mut stream = GenerateStream::of(model);
            // As many numbers of 4 bytes as the weights have bytes.
            let numbers = (config.parameter_count() as f64 * bytes_of(weights) / 4.0) as usize;
            let amount = (numbers * tokens) as f64;
            let job = schedule.add(move || Ok(pool.install(|| stream.seconds(tokens))));
            Ratio { name, amount, job, yardstick: memory(numbers, tokens, schedule) }
        }
    })
}

/// The bytes of a number in a matrix.
fn bytes_of(weights: WeightFormat) -> f64 {
    match weights {
        WeightFormat::F32 => 4.0,
        WeightFormat::Bf16 => 2.0,
        WeightFormat::Int8 => 1.0 + 4.0 / 32.0,
    }
}

/// The rate at which the machine multiplies `numbers` in place, `passes` times per timing.
fn memory(numbers: usize, passes: usize, schedule: &mut Schedule<'_>) -> Yardstick {
    let mut array = MemoryProbe::new(numbers);
    let amount = (numbers * passes) as f64;
    Yardstick::Memory { amount, job: schedule.add(move || Ok(array.run(passes))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = all_rows();
        let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert!(names.contains(&"falcon-1, d 64, forward and backward"), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows.len());
    }

    /// The tests of the program measure rows of every other kind.
    #[test]
    fn ratios_are_relative_to_their_yardsticks() {
        let rows: Vec<RatioRow> =
            all_rows().into_iter().filter(|row| row.name.contains("falcon-1a, d 64")).collect();
        let ratios = measure(&rows, 1, &mut ()).unwrap();
        assert_eq!(ratios.len(), 3);
        for (name, ratio) in ratios {
            // Neither a thousandth of the machine's speed nor thrice as fast as the machine.
            assert!(ratio > 1e-3 && ratio < 3.0, "{name}: {ratio}");
        }
    }
}
