//! Runs the variants that are rules of the kernels.

use falcon_kernels::{Call, Constant, Error, Grads, Inputs, Rule, RuleError, Sizes, State, View};
use serde_json::Value;

use crate::error::ScanError;
use crate::file::ScanFile;
use crate::number::Number;
use crate::options::Options;
use crate::plan::ScanPlan;
use crate::tensors::Tensors;

/// The numbers of the input tensors, which [`Inputs`] borrows.
struct Tokens<F> {
    q: Vec<F>,
    k: Vec<F>,
    v: Vec<F>,
    gain: Option<Vec<F>>,
    decay: Option<Vec<F>>,
}

/// Runs `rule` over the tokens of the file.
pub(crate) fn run<F: Number>(
    file: &ScanFile<'_>,
    plan: &ScanPlan,
    rule: &Rule,
    options: &Options,
) -> Result<Tensors, ScanError> {
    let tokens = Tokens::<F>::read(file, plan)?;
    let refused = |error| translate(error, file, plan);
    let call = Call::new(rule, options.form, tokens.inputs(plan, rule)?).map_err(refused)?;
    let sizes = call.sizes();
    let before = read_state(file, plan, rule, &sizes)?;
    let mut after = before.clone();
    let mut out = vec![F::zero(); tokens.v.len()];
    let grads = if options.grad {
        let (grad_out, s, z) = (file.read("up.o")?.unwrap_or_default(), file.read("up.S")?, file.read("up.z")?);
        let tape = call.record(&mut after, &mut out).map_err(refused)?;
        let mut upstream = after.zeros_like();
        fill_memory(&mut upstream.memory, rule, sizes.dim_v, s, z);
        Some(tape.backward(&call, &grad_out, Some(&upstream)).map_err(refused)?)
    } else {
        call.forward(&mut after, &mut out).map_err(refused)?;
        None
    };

    let mut results = Tensors::default();
    results.put("out.o".into(), vec![sizes.tokens, sizes.heads, sizes.dim_v], out)?;
    put_memory(&mut results, plan, rule, &after.memory)?;
    if plan.variant.falcon {
        put_continuation(&mut results, plan, &after)?;
        let realised = call.coefficients(&before).map_err(refused)?;
        let (gain_shape, head_shape) = (plan.gain_shape(rule), vec![sizes.tokens, sizes.heads]);
        results.put("aux.eta".into(), gain_shape.clone(), realised.eta)?;
        results.put("aux.gamma".into(), gain_shape, realised.gamma)?;
        results.put("aux.lam".into(), head_shape.clone(), realised.lambda)?;
        results.put("aux.E".into(), head_shape, realised.energy)?;
    }
    if let Some(grads) = grads {
        put_grads(&mut results, file, plan, rule, grads)?;
    }
    Ok(results)
}

/// The gradients of the tensors that the file has, in their shapes.
fn put_grads<F: Number>(
    results: &mut Tensors,
    file: &ScanFile<'_>,
    plan: &ScanPlan,
    rule: &Rule,
    grads: Grads<F>,
) -> Result<(), ScanError> {
    let Sizes { heads, dim_v, sequences, .. } = plan.sizes;
    let decay = if plan.decay_is_per_head() { sum_over_tokens(&grads.decay, heads) } else { grads.decay };
    let (s, z) = split_memory(rule, dim_v, &grads.state.memory);
    for (name, values) in [
        (Some("in.q"), grads.q),
        (Some("in.k"), grads.k),
        (Some("in.v"), grads.v),
        (plan.variant.gain, grads.gain),
        (plan.variant.decay, decay),
        (Some("in.k_last"), grads.state.last_key),
        (Some("in.tail_x"), first_pairs(&grads.state.tail_x, rule, plan.tail, sequences)),
        (Some("in.tail_v"), first_pairs(&grads.state.tail_v, rule, plan.tail, sequences)),
        (Some("in.S0"), s),
        (Some("in.z0"), z),
    ] {
        if let Some((name, shape)) = name.and_then(|name| Some((name, file.shape(name)?))) {
            results.put(grad_name(name), shape.to_vec(), values)?;
        }
    }
    Ok(())
}

/// The name `grad.X` for `in.X`.
pub(crate) fn grad_name(input: &str) -> String {
    format!("grad.{}", input.trim_start_matches("in."))
}

/// Sums a gradient `[tokens, heads]` over tokens.
fn sum_over_tokens<F: Number>(grad: &[F], heads: usize) -> Vec<F> {
    let mut sums = vec![F::zero(); heads];
    for row in grad.chunks_exact(heads) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += *x;
        }
    }
    sums
}

impl<F: Number> Tokens<F> {
    fn read(file: &ScanFile<'_>, plan: &ScanPlan) -> Result<Self, ScanError> {
        let read = |name: &str| file.read::<F>(name);
        Ok(Self {
            q: read("in.q")?.unwrap_or_default(),
            k: read("in.k")?.unwrap_or_default(),
            v: read("in.v")?.unwrap_or_default(),
            gain: plan.variant.gain.map_or(Ok(None), read)?,
            decay: plan.variant.decay.map_or(Ok(None), read)?,
        })
    }

    fn inputs<'a>(&'a self, plan: &'a ScanPlan, rule: &Rule) -> Result<Inputs<'a, F>, ScanError> {
        let Sizes { tokens, heads, key_heads, dim_k, dim_v, .. } = plan.sizes;
        let per_token = |data: &'a Option<Vec<F>>, width: usize| {
            data.as_ref().map(|data| View::new(data, [tokens, heads, width])).transpose()
        };
        let decay = match &self.decay {
            Some(decay) if plan.decay_is_per_head() => Some(View::per_head(decay, tokens)),
            decay => per_token(decay, plan.sizes.decay_width(rule))?,
        };
        Ok(Inputs {
            q: View::new(&self.q, [tokens, key_heads, dim_k])?,
            k: View::new(&self.k, [tokens, key_heads, dim_k])?,
            v: View::new(&self.v, [tokens, heads, dim_v])?,
            gain: per_token(&self.gain, plan.sizes.gain_width(rule))?,
            decay,
            offsets: &plan.offsets,
        })
    }
}

/// The incoming state. Parts that the file does not have are 0.
fn read_state<F: Number>(
    file: &ScanFile<'_>,
    plan: &ScanPlan,
    rule: &Rule,
    sizes: &Sizes,
) -> Result<State<F>, ScanError> {
    let mut state = State::fresh(rule, sizes);
    let (s, z) = (file.read("in.S0")?, file.read("in.z0")?);
    fill_memory(&mut state.memory, rule, sizes.dim_v, s, z);
    if let Some(last_key) = file.read("in.k_last")? {
        state.last_key = last_key;
        state.started.fill(true);
    }
    if plan.tail > 0 {
        for (to, name) in [(&mut state.tail_x, "in.tail_x"), (&mut state.tail_v, "in.tail_v")] {
            let from = file.read(name)?.unwrap_or_default();
            let sequences = sizes.sequences.max(1);
            let (capacity, given) = (to.len() / sequences, from.len() / sequences);
            for (to, from) in to.chunks_exact_mut(capacity.max(1)).zip(from.chunks_exact(given.max(1))) {
                to[..given].copy_from_slice(from);
            }
        }
        state.tail_len.copy_from_slice(&plan.tail_lens);
    }
    Ok(state)
}

/// The first `pairs` pairs of the tail of each sequence, `[sequences, pairs, …]`, of tails that have room for more.
fn first_pairs<F: Number>(tails: &[F], rule: &Rule, pairs: usize, sequences: usize) -> Vec<F> {
    if pairs == 0 || sequences == 0 {
        return Vec::new();
    }
    let per_sequence = tails.len() / sequences;
    let per_pair = per_sequence / rule.tail_capacity();
    tails.chunks_exact(per_sequence).flat_map(|tail| &tail[..pairs * per_pair]).copied().collect()
}

/// Fills a memory from `S` and `z`; a normalised memory has `z` as its last column.
fn fill_memory<F: Number>(memory: &mut [F], rule: &Rule, dim_v: usize, s: Option<Vec<F>>, z: Option<Vec<F>>) {
    let columns = rule.state_columns(dim_v);
    if let Some(s) = s {
        for (row, s) in memory.chunks_exact_mut(columns).zip(s.chunks_exact(dim_v)) {
            row[..dim_v].copy_from_slice(s);
        }
    }
    if let (Some(z), true) = (z, columns > dim_v) {
        for (row, z) in memory.chunks_exact_mut(columns).zip(z) {
            row[dim_v] = z;
        }
    }
}

/// Splits a memory into `S` and `z`; `z` is empty without a normaliser.
fn split_memory<F: Number>(rule: &Rule, dim_v: usize, memory: &[F]) -> (Vec<F>, Vec<F>) {
    let rows = memory.chunks_exact(rule.state_columns(dim_v));
    let s = rows.clone().flat_map(|row| &row[..dim_v]).copied().collect();
    let z = rows.filter_map(|row| row.get(dim_v)).copied().collect();
    (s, z)
}

fn put_memory<F: Number>(
    results: &mut Tensors,
    plan: &ScanPlan,
    rule: &Rule,
    memory: &[F],
) -> Result<(), ScanError> {
    let Sizes { heads, dim_k, dim_v, .. } = plan.sizes;
    let (s, z) = split_memory(rule, dim_v, memory);
    results.put("out.S".into(), plan.state_shape(&[heads, dim_k, dim_v]), s)?;
    if rule.normaliser.is_some() {
        results.put("out.z".into(), plan.state_shape(&[heads, dim_k]), z)?;
    }
    Ok(())
}

/// Adds what the next segment continues from: the last keys, if any sequence has one, and the tails.
fn put_continuation<F: Number>(results: &mut Tensors, plan: &ScanPlan, after: &State<F>) -> Result<(), ScanError> {
    let Sizes { heads, key_heads, dim_k, dim_v, sequences, .. } = plan.sizes;
    if after.started.contains(&true) {
        results.put("out.k_last".into(), plan.state_shape(&[key_heads, dim_k]), after.last_key.clone())?;
    }
    let longest = after.tail_len.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return Ok(());
    }
    for (name, tails, heads, width) in
        [("out.tail_x", &after.tail_x, key_heads, dim_k), ("out.tail_v", &after.tail_v, heads, dim_v)]
    {
        let mut values = Vec::new();
        for (tail, &len) in tails.chunks_exact(tails.len() / sequences).zip(&after.tail_len) {
            values.extend_from_slice(&tail[..len * heads * width]);
            values.resize(values.len() + (longest - len) * heads * width, F::zero());
        }
        results.put(name.into(), plan.state_shape(&[longest, heads, width]), values)?;
    }
    if plan.packed {
        results.put_counts("out.tail_len", after.tail_len.iter().map(|len| *len as i64).collect());
    }
    Ok(())
}

/// Restates an error of the kernels with the names of the file: its tensors, their axes, and the keys of `meta`.
fn translate(error: Error, file: &ScanFile<'_>, plan: &ScanPlan) -> ScanError {
    match error {
        Error::Range { tensor, index, value, meaning, high, .. } => {
            let name = if tensor == "gain" { plan.variant.gain } else { plan.variant.decay };
            let name = name.unwrap_or(tensor);
            // The kernels index tokens, heads and columns. The tensor of the file may have no columns, or only heads.
            let index = match file.shape(name).map_or(0, <[usize]>::len) {
                1 => vec![index[1]],
                axes => index[..axes.min(index.len())].to_vec(),
            };
            let allowed = if high < f64::MAX { format!("in [0, {high}]") } else { "at least 0".into() };
            ScanError::Range { tensor: name.into(), index, value, meaning: meaning.into(), allowed }
        }
        Error::Rule(RuleError::Constant { constant, value, below }) => {
            let key = match constant {
                Constant::Eps => "eps",
                Constant::Clamp => "eps_gamma",
                Constant::Normaliser => "eps_attn",
            };
            let expected = if below.is_finite() {
                format!("a number in [0, {below})")
            } else {
                "a number, at least 0".into()
            };
            ScanError::MetaValue { key, value: Value::from(value).to_string(), expected }
        }
        other => other.into(),
    }
}
