//! Work on blocks of rows, each of which stays in the cache of one thread. Sums over all rows do not depend on the
//! number of threads.

use std::borrow::Cow;
use std::ops::Range;

use falcon_kernels::mat::{Mat, MatMut, matmul, matmul_parallel};
use rayon::prelude::*;

use super::bridge::Slice;

/// Rows of a block: enough that weight matrices are read from memory rarely, few enough that the block stays in the
/// cache.
const BLOCK: usize = 128;

/// With fewer blocks than this, all rows are one block, and threads share each of its matrix products.
const FEW: usize = 4;

/// The most parts that rows are divided into, and so the most threads that can work on them.
const PARTS: usize = 8;

/// The most numbers in the sums of all parts together, unless two parts have more already.
const SUMS: usize = 1 << 22;

/// A block of rows and what a task needs for it.
pub(super) struct RowBlock<'a, const S: usize> {
    /// Index of the block.
    pub index: usize,
    /// The rows of the block.
    pub rows: Range<usize>,
    /// The rows of the output arrays.
    pub out: Vec<&'a mut [f32]>,
    /// Working memory for as many rows. It still holds what an earlier block has written.
    pub scratch: [&'a mut [f32]; S],
    /// Sums over the blocks of a part, to which this block adds.
    pub sums: &'a mut [f32],
    /// The matrix product `dst = dst · keep + a b`.
    pub product: Product,
}

type Product = fn(MatMut<'_, f32>, f32, Mat<'_, f32>, Mat<'_, f32>);

/// The given rows of an array of rows of `width`.
pub(super) fn rows<'a>(array: &'a [f32], width: usize, rows: &Range<usize>) -> &'a [f32] {
    &array[rows.start * width..rows.end * width]
}

/// The memory that blocks write to.
pub(super) struct Buffers<'a, const S: usize> {
    /// The output arrays, with all rows.
    pub out: Vec<&'a mut [f32]>,
    /// Widths of the rows of working memory.
    pub scratch: [usize; S],
    /// Number of sums.
    pub sums: usize,
}

/// Calls `f` with every block of `count` rows. Returns its results in order, and the sums. Each part of the rows has
/// its own sums, which are then added in order; the parts depend on the sizes only.
pub(super) fn by_blocks<T: Send, const S: usize>(
    count: usize,
    buffers: Buffers<'_, S>,
    f: impl Fn(RowBlock<'_, S>) -> T + Sync,
) -> (Vec<T>, Vec<f32>) {
    let Buffers { mut out, scratch: scratch_widths, sums } = buffers;
    let widths: Vec<_> = out.iter().map(|out| out.len() / count.max(1)).collect();
    let run = |part: Range<usize>, mut out: Vec<&mut [f32]>, size: usize, product: Product| {
        let mut scratch = scratch_widths.map(|width| vec![0.0; size * width]);
        let mut sum = vec![0.0; sums];
        let blocks = part.clone().step_by(size).map(|start| {
            let rows = start..(start + size).min(part.end);
            let out = cut(&mut out, &widths, rows.len());
            let mut widths = scratch_widths.into_iter();
            let scratch = scratch.each_mut().map(|x| &mut x[..rows.len() * widths.next().expect("one each")]);
            f(RowBlock { index: start / size, rows, out, scratch, sums: &mut sum, product })
        });
        (blocks.collect::<Vec<_>>(), sum)
    };
    if !is_cut(count) {
        return run(0..count, out, count.max(1), matmul_parallel);
    }
    let blocks = count.div_ceil(BLOCK);
    let parts = blocks.min(PARTS).min((SUMS / sums.max(1)).max(2));
    let bound = |part: usize| (part * blocks / parts * BLOCK).min(count);
    let tasks: Vec<_> = (0..parts)
        .map(|part| (bound(part)..bound(part + 1), cut(&mut out, &widths, bound(part + 1) - bound(part))))
        .collect();
    let done: Vec<_> = tasks.into_par_iter().map(|(part, out)| run(part, out, BLOCK, matmul)).collect();
    let (results, sums): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    (results.into_iter().flatten().collect(), add_up(sums))
}

/// Adds arrays in their order.
fn add_up(arrays: Vec<Vec<f32>>) -> Vec<f32> {
    const CHUNK: usize = 1 << 13;
    let mut arrays = arrays.into_iter();
    let mut sum = arrays.next().expect("one at least");
    let rest: Vec<_> = arrays.collect();
    sum.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, sum)| {
        for array in &rest {
            sum.iter_mut().zip(&array[chunk * CHUNK..]).for_each(|(sum, x)| *sum += x);
        }
    });
    sum
}

/// Whether this many rows are divided into blocks.
fn is_cut(rows: usize) -> bool {
    rows.div_ceil(BLOCK) >= FEW
}

/// Splits the first `rows` rows off every array.
fn cut<'a>(out: &mut [&'a mut [f32]], widths: &[usize], rows: usize) -> Vec<&'a mut [f32]> {
    let fronts = out.iter_mut().zip(widths).map(|(out, width)| {
        let (front, rest) = std::mem::take(out).split_at_mut(rows * width);
        *out = rest;
        front
    });
    fronts.collect()
}

/// A matrix `[out, in]` for products `y = x Wᵀ` with blocks of rows.
pub(super) struct Weight<'a> {
    data: Cow<'a, [f32]>,
    inputs: usize,
    transposed: bool,
}

impl<'a> Weight<'a> {
    /// Prepares products with `rows` rows in all. Products of blocks are fastest with a transposed copy, which all
    /// blocks share.
    pub fn new(weight: &Slice<'a>, rows: usize) -> Self {
        let inputs = weight.shape[1];
        let transposed = is_cut(rows);
        let data = if transposed { transpose(weight.data, inputs).into() } else { weight.data.into() };
        Self { data, inputs, transposed }
    }

    /// Number of rows of `W`.
    pub fn outputs(&self) -> usize {
        self.data.len() / self.inputs
    }

    /// `Wᵀ`, `[in, out]`.
    pub fn t(&self) -> Mat<'_, f32> {
        if self.transposed { Mat::new(&self.data, self.outputs()) } else { Mat::new(&self.data, self.inputs).t() }
    }
}

/// Transposes `[rows, cols]` to `[cols, rows]`.
pub(super) fn transpose(from: &[f32], cols: usize) -> Vec<f32> {
    const TILE: usize = 16;
    let rows = from.len() / cols;
    let mut to = vec![0.0; from.len()];
    for row in (0..rows).step_by(TILE) {
        for (col, to) in to.chunks_exact_mut(rows).enumerate() {
            for (to, from) in to[row..].iter_mut().take(TILE).zip(from[row * cols..].chunks_exact(cols)) {
                *to = from[col];
            }
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies rows and sums them, with one part and several.
    #[test]
    fn every_row_is_visited_once_by_any_number_of_threads() {
        for count in [0, 1, BLOCK, FEW * BLOCK - BLOCK + 1, 37 * BLOCK + 5] {
            let x: Vec<f32> = (0..3 * count).map(|i| (i as f32).sin()).collect();
            let run = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut y = vec![0.0; 3 * count];
                let buffers = Buffers { out: vec![&mut y], scratch: [3], sums: 3 };
                let (_, sum) = pool.install(|| {
                    by_blocks(count, buffers, |mut block| {
                        let ([y], [scratch]) = (&mut block.out[..], block.scratch) else {
                            unreachable!("one array")
                        };
                        y.copy_from_slice(rows(&x, 3, &block.rows));
                        scratch.copy_from_slice(y);
                        for x in scratch.chunks_exact(3) {
                            block.sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                        }
                    })
                });
                (y, sum)
            };
            let (y, sum) = run(1);
            assert_eq!(y, x, "{count} rows");
            assert_eq!(run(3), (y, sum.clone()), "{count} rows with three threads");
            for (i, sum) in sum.iter().enumerate() {
                let expected: f64 = x.iter().skip(i).step_by(3).map(|x| f64::from(*x)).sum();
                assert!((f64::from(*sum) - expected).abs() < 1e-3, "{count} rows");
            }
        }
    }

    #[test]
    fn transposed_weights_give_the_same_products() {
        let (inputs, outputs) = (19, 37);
        let data: Vec<f32> = (0..inputs * outputs).map(|i| i as f32).collect();
        let slice = Slice { data: &data, shape: &[outputs, inputs] };
        let x: Vec<f32> = (0..2 * inputs).map(|i| (i % 5) as f32).collect();
        let product = |weight: Weight<'_>| {
            let mut y = vec![0.0; 2 * outputs];
            matmul(MatMut::new(&mut y, outputs), 0.0, Mat::new(&x, inputs), weight.t());
            y
        };
        assert_eq!(product(Weight::new(&slice, 1)), product(Weight::new(&slice, 10_000)));
    }
}
