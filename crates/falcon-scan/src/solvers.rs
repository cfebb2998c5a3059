//! Runs the variants that are reference solvers, one head at a time.

use falcon_kernels::Sizes;
use falcon_kernels::rule::Align;
use falcon_kernels::solvers::{rls, ssm};
use rayon::prelude::*;

use crate::error::ScanError;
use crate::file::ScanFile;
use crate::number::Number;
use crate::plan::ScanPlan;
use crate::rules::grad_name;
use crate::tensors::Tensors;

/// A tensor `[tokens, heads, width]`. The rows of one head and one sequence can be copied from it and added to it.
struct Rows<F> {
    data: Vec<F>,
    heads: usize,
    width: usize,
}

impl<F: Number> Rows<F> {
    fn read(file: &ScanFile<'_>, name: &str, heads: usize, width: usize) -> Result<Self, ScanError> {
        Ok(Self { data: file.read(name)?.unwrap_or_default(), heads, width })
    }

    fn zeros(tokens: usize, heads: usize, width: usize) -> Self {
        Self { data: vec![F::zero(); tokens * heads * width], heads, width }
    }

    fn range(&self, token: usize, head: usize) -> std::ops::Range<usize> {
        let start = (token * self.heads + head) * self.width;
        start..start + self.width
    }

    fn take(&self, tokens: std::ops::Range<usize>, head: usize) -> Vec<F> {
        tokens.flat_map(|t| &self.data[self.range(t, head)]).copied().collect()
    }

    fn add(&mut self, tokens: std::ops::Range<usize>, head: usize, values: &[F]) {
        for (t, values) in tokens.zip(values.chunks_exact(self.width)) {
            let range = self.range(t, head);
            for (to, from) in self.data[range].iter_mut().zip(values) {
                *to += *from;
            }
        }
    }
}

/// A state `[sequences, heads, …]`, which is 0 if the file does not have it.
fn state<F: Number>(file: &ScanFile<'_>, name: &str, len: usize) -> Result<Vec<F>, ScanError> {
    Ok(file.read(name)?.unwrap_or_else(|| vec![F::zero(); len]))
}

/// Every head of every sequence, in order: the sequence, the head, and the tokens of the sequence.
fn places(plan: &ScanPlan) -> Vec<(usize, usize, std::ops::Range<usize>)> {
    let heads = plan.sizes.heads;
    let sequences = plan.offsets.windows(2).map(|w| w[0]..w[1]).enumerate();
    sequences.flat_map(|(sequence, tokens)| (0..heads).map(move |head| (sequence, head, tokens.clone()))).collect()
}

/// Refuses numbers that do not satisfy `good`, by their name and index in the file.
fn check_range<F: Number>(
    name: &str,
    values: &[F],
    shape: &[usize],
    meaning: &str,
    allowed: &str,
    good: impl Fn(F) -> bool,
) -> Result<(), ScanError> {
    let Some(at) = values.iter().position(|x| !good(*x)) else { return Ok(()) };
    Err(ScanError::Range {
        tensor: name.into(),
        index: crate::tensors::index_of(at, shape),
        value: values[at].wide(),
        meaning: meaning.into(),
        allowed: allowed.into(),
    })
}

/// Runs recursive least squares.
pub(crate) fn run_rls<F: Number>(
    file: &ScanFile<'_>,
    plan: &ScanPlan,
    align: Align,
    grad: bool,
) -> Result<Tensors, ScanError> {
    let Sizes { tokens, heads, key_heads, dim_k, dim_v, sequences } = plan.sizes;
    let q = Rows::<F>::read(file, "in.q", key_heads, dim_k)?;
    let k = Rows::<F>::read(file, "in.k", key_heads, dim_k)?;
    let v = Rows::<F>::read(file, "in.v", heads, dim_v)?;
    let lambda = file.read::<F>("in.lam")?.unwrap_or_default();
    check_range("in.lam", &lambda, &[heads], "lambda", "greater than 0", |x| x > F::zero())?;
    let (memory_len, covariance_len) = (dim_k * dim_v, dim_k * dim_k);
    let memory = state::<F>(file, "in.S0", sequences * heads * memory_len)?;
    let (up_memory, up_covariance, up_out) = if grad {
        (
            state(file, "up.S", sequences * heads * memory_len)?,
            state(file, "up.P", sequences * heads * covariance_len)?,
            Rows::<F>::read(file, "up.o", heads, dim_v)?,
        )
    } else {
        (Vec::new(), Vec::new(), Rows::zeros(0, heads, dim_v))
    };

    let results: Vec<_> = places(plan)
        .into_par_iter()
        .map(|(sequence, head, tokens)| {
            let key_head = head / (heads / key_heads);
            let place = sequence * heads + head;
            let (q, v) = (q.take(tokens.clone(), key_head), v.take(tokens.clone(), head));
            let mut x = k.take(tokens.clone(), key_head);
            if align == Align::Next && !x.is_empty() {
                // x_t = k_{t−1}. The first token has no previous key, and a zero key writes nothing.
                x.rotate_right(dim_k);
                x[..dim_k].fill(F::zero());
            }
            let memory = &memory[place * memory_len..][..memory_len];
            let inputs = rls::Inputs { q: &q, x: &x, v: &v, lambda: lambda[head], memory, dim_k, dim_v };
            let outputs = rls::forward(&inputs)?;
            let grads = if grad {
                let upstream = rls::Outputs {
                    out: up_out.take(tokens, head),
                    memory: up_memory[place * memory_len..][..memory_len].to_vec(),
                    covariance: up_covariance[place * covariance_len..][..covariance_len].to_vec(),
                };
                Some(rls::backward(&inputs, &upstream)?)
            } else {
                None
            };
            Ok((outputs, grads))
        })
        .collect::<Result<_, ScanError>>()?;

    let mut out = Rows::zeros(tokens, heads, dim_v);
    let (mut memories, mut covariances) = (Vec::new(), Vec::new());
    let (mut grad_q, mut grad_k) = (Rows::zeros(tokens, key_heads, dim_k), Rows::zeros(tokens, key_heads, dim_k));
    let mut grad_v = Rows::zeros(tokens, heads, dim_v);
    let (mut grad_lambda, mut grad_memory) = (vec![F::zero(); heads], Vec::new());
    for ((_, head, tokens), (outputs, grads)) in places(plan).into_iter().zip(results) {
        let key_head = head / (heads / key_heads);
        out.add(tokens.clone(), head, &outputs.out);
        memories.extend(outputs.memory);
        covariances.extend(outputs.covariance);
        let Some(grads) = grads else { continue };
        grad_q.add(tokens.clone(), key_head, &grads.q);
        match align {
            Align::Same => grad_k.add(tokens.clone(), key_head, &grads.x),
            // The gradient of x_t is that of k_{t−1}.
            Align::Next => grad_k.add(tokens.clone(), key_head, grads.x.get(dim_k..).unwrap_or_default()),
        }
        grad_v.add(tokens, head, &grads.v);
        grad_lambda[head] += grads.lambda;
        grad_memory.extend(grads.memory);
    }
    let mut results = Tensors::default();
    results.put("out.o".into(), vec![tokens, heads, dim_v], out.data)?;
    results.put("out.S".into(), plan.state_shape(&[heads, dim_k, dim_v]), memories)?;
    results.put("out.P".into(), plan.state_shape(&[heads, dim_k, dim_k]), covariances)?;
    if grad {
        put_grads(
            file,
            &mut results,
            [
                ("in.q", grad_q.data),
                ("in.k", grad_k.data),
                ("in.v", grad_v.data),
                ("in.lam", grad_lambda),
                ("in.S0", grad_memory),
            ],
        )?;
    }
    Ok(results)
}

/// Runs a diagonal state-space model.
pub(crate) fn run_ssm<F: Number>(
    file: &ScanFile<'_>,
    plan: &ScanPlan,
    order: ssm::Order,
    grad: bool,
) -> Result<Tensors, ScanError> {
    let Sizes { tokens, heads, dim_k: channels, dim_v: dim_out, sequences, .. } = plan.sizes;
    let dim_in = plan.dim_in;
    let x = Rows::<F>::read(file, "in.x", heads, dim_in)?;
    let b = Rows::<F>::read(file, "in.Bm", heads, channels * dim_in)?;
    let c = Rows::<F>::read(file, "in.Cm", heads, channels * dim_out)?;
    let dt = Rows::<F>::read(file, "in.dt", heads, 1)?;
    check_range("in.dt", &dt.data, &[tokens, heads], "a step", "at least 0", |x| x >= F::zero())?;
    let a = file.read::<F>("in.A")?.unwrap_or_default();
    let start = state::<F>(file, "in.h0", sequences * heads * channels)?;
    let (up_state, up_out) = if grad {
        (state(file, "up.h", sequences * heads * channels)?, Rows::<F>::read(file, "up.o", heads, dim_out)?)
    } else {
        (Vec::new(), Rows::zeros(0, heads, dim_out))
    };

    let results: Vec<_> = places(plan)
        .into_par_iter()
        .map(|(sequence, head, tokens)| {
            let place = (sequence * heads + head) * channels;
            let take = |rows: &Rows<F>| rows.take(tokens.clone(), head);
            let (x, b, c, dt) = (take(&x), take(&b), take(&c), take(&dt));
            let (a, state) = (&a[head * channels..][..channels], &start[place..][..channels]);
            let inputs = ssm::Inputs { x: &x, a, b: &b, c: &c, dt: &dt, state, dim_in, dim_out, order };
            let outputs = ssm::forward(&inputs)?;
            let grads = if grad {
                let upstream = ssm::Outputs { out: take(&up_out), state: up_state[place..][..channels].to_vec() };
                Some(ssm::backward(&inputs, &upstream)?)
            } else {
                None
            };
            Ok((outputs, grads))
        })
        .collect::<Result<_, ScanError>>()?;

    let mut out = Rows::zeros(tokens, heads, dim_out);
    let zeros = |rows: &Rows<F>| Rows::<F>::zeros(tokens, heads, rows.width);
    let (mut grad_x, mut grad_b, mut grad_c, mut grad_dt) = (zeros(&x), zeros(&b), zeros(&c), zeros(&dt));
    let (mut states, mut grad_a, mut grad_start) = (Vec::new(), vec![F::zero(); a.len()], Vec::new());
    for ((_, head, tokens), (outputs, grads)) in places(plan).into_iter().zip(results) {
        out.add(tokens.clone(), head, &outputs.out);
        states.extend(outputs.state);
        let Some(grads) = grads else { continue };
        for (to, from) in
            [(&mut grad_x, grads.x), (&mut grad_b, grads.b), (&mut grad_c, grads.c), (&mut grad_dt, grads.dt)]
        {
            to.add(tokens.clone(), head, &from);
        }
        for (to, from) in grad_a[head * channels..].iter_mut().zip(grads.a) {
            *to += from;
        }
        grad_start.extend(grads.state);
    }
    let mut results = Tensors::default();
    results.put("out.o".into(), vec![tokens, heads, dim_out], out.data)?;
    results.put("out.h".into(), plan.state_shape(&[heads, channels]), states)?;
    if grad {
        put_grads(
            file,
            &mut results,
            [
                ("in.x", grad_x.data),
                ("in.A", grad_a),
                ("in.Bm", grad_b.data),
                ("in.Cm", grad_c.data),
                ("in.dt", grad_dt.data),
                ("in.h0", grad_start),
            ],
        )?;
    }
    Ok(results)
}

/// Adds `grad.X` for every `in.X` that the file has.
fn put_grads<F: Number, const N: usize>(
    file: &ScanFile<'_>,
    results: &mut Tensors,
    grads: [(&str, Vec<F>); N],
) -> Result<(), ScanError> {
    for (name, values) in grads {
        if let Some(shape) = file.shape(name) {
            results.put(grad_name(name), shape.to_vec(), values)?;
        }
    }
    Ok(())
}
