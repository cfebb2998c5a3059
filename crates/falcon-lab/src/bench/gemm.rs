//! The yardstick of the kernels: the speed at which this machine multiplies square matrices.

use std::sync::Barrier;
use std::time::Instant;

use gemm::Parallelism;

use super::schedule::{JobId, Schedule, Times};

/// Sizes of the matrices: one that fits into a cache close to the core, and one that needs blocking. The faster of
/// the two counts.
const SIDES: [usize; 2] = [256, 1024];

/// The products that are timed for one number of threads.
pub(super) struct Gemm {
    pub threads: usize,
    jobs: [(usize, JobId); 2],
}

/// The speed of the products.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmRate {
    pub gflops: f64,
    /// The size of the matrices.
    pub side: usize,
}

impl Gemm {
    /// Adds the jobs that time products in `f32`, one on each of `threads` threads at the same time.
    pub fn add_to(schedule: &mut Schedule<'_>, threads: usize) -> Self {
        let jobs = SIDES.map(|side| {
            let mut products: Vec<Product> = (0..threads).map(|_| Product::new(side)).collect();
            (side, schedule.add(move || Ok(run_together(&mut products))))
        });
        Self { threads, jobs }
    }

    /// The speed of all threads together.
    pub fn rate(&self, medians: &Times) -> GemmRate {
        let rates = self.jobs.map(|(side, job)| {
            let flops = 2.0 * (side as f64).powi(3) * (repeats(side) * self.threads) as f64;
            GemmRate { gflops: flops / medians.seconds(job) / 1e9, side }
        });
        if rates[0].gflops > rates[1].gflops { rates[0] } else { rates[1] }
    }
}

/// The number of products per timing, such that all sizes have about the same number of operations.
fn repeats(side: usize) -> usize {
    (SIDES[1] / side).pow(3) / 2 + 1
}

/// Seconds from the common start to the end of the last product.
fn run_together(products: &mut [Product]) -> f64 {
    if let [product] = products {
        let start = Instant::now();
        product.run();
        return start.elapsed().as_secs_f64();
    }
    let barrier = Barrier::new(products.len() + 1);
    let start = std::thread::scope(|scope| {
        for product in products {
            scope.spawn(|| {
                barrier.wait();
                product.run();
            });
        }
        let start = Instant::now();
        barrier.wait();
        start
    });
    start.elapsed().as_secs_f64()
}

struct Product {
    side: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Product {
    fn new(side: usize) -> Self {
        let matrix = |scale: f32| (0..side * side).map(|i| scale * (i % 17) as f32).collect();
        Self { side, a: matrix(0.1), b: matrix(0.01), c: matrix(0.0) }
    }

    fn run(&mut self) {
        let (n, stride) = (self.side, self.side as isize);
        for _ in 0..repeats(n) {
            // SAFETY: all three matrices have n rows of n contiguous numbers, and c is borrowed mutably.
            unsafe {
                gemm::gemm(
                    n,
                    n,
                    n,
                    self.c.as_mut_ptr(),
                    1,
                    stride,
                    false,
                    self.a.as_ptr(),
                    1,
                    stride,
                    self.b.as_ptr(),
                    1,
                    stride,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
        std::hint::black_box(&self.c);
    }
}
