//! A rule with random inputs, state and upstream gradients, ready to run in any form.

use falcon_kernels::rule::{Decay, Gain};
use falcon_kernels::{Call, Compiled, Decoder, Form, Inputs, Real, Rule, Sizes, State, View};

use crate::close::Named;
use crate::random::Random;

/// What kind of random case to make.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The rule.
    pub rule: Rule,
    /// Tokens of each sequence.
    pub lengths: Vec<usize>,
    /// Value heads.
    pub heads: usize,
    /// Query and key heads; divides `heads`.
    pub key_heads: usize,
    /// Width of keys.
    pub dim_k: usize,
    /// Width of values.
    pub dim_v: usize,
    /// Whether the sequences continue earlier ones, with a last key, and with a tail if the rule has a window.
    pub continued: bool,
    /// Approximate norm of a key.
    pub key_norm: f64,
    /// Range of `β`, or of `η` times the energy.
    pub gain: (f64, f64),
    /// Range of ridges, in units of the energy.
    pub ridge: (f64, f64),
    /// Range of gates.
    pub gate: (f64, f64),
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Spec {
    /// One sequence of `tokens` tokens, with moderate gains and decays.
    pub fn new(rule: Rule, tokens: usize, seed: u64) -> Self {
        Self {
            rule,
            lengths: vec![tokens],
            heads: 2,
            key_heads: 2,
            dim_k: 5,
            dim_v: 4,
            continued: false,
            key_norm: 1.0,
            gain: (0.1, 1.8),
            ridge: (0.0, 0.8),
            gate: (0.5, 1.0),
            seed,
        }
    }
}

/// A rule with random inputs, state and upstream gradients. All numbers are exact in `f32`.
#[derive(Clone, Debug)]
pub struct Case<F> {
    /// The rule.
    pub rule: Rule,
    /// The sizes.
    pub sizes: Sizes,
    /// `[tokens, key_heads, dim_k]`.
    pub q: Vec<F>,
    /// `[tokens, key_heads, dim_k]`.
    pub k: Vec<F>,
    /// `[tokens, heads, dim_v]`.
    pub v: Vec<F>,
    /// In the shape that the rule needs; empty if it needs none.
    pub gain: Vec<F>,
    /// In the shape that the rule needs; empty if it needs none.
    pub decay: Vec<F>,
    /// The start of each sequence, and the end of the last.
    pub offsets: Vec<usize>,
    /// The incoming state.
    pub state: State<F>,
    /// Upstream gradient of the outputs.
    pub grad_out: Vec<F>,
    /// Upstream gradient of the outgoing state.
    pub grad_state: State<F>,
}

/// The results of running a case in one form.
#[derive(Clone, Debug)]
pub struct CaseOutput<F> {
    /// `[tokens, heads, dim_v]`.
    pub out: Vec<F>,
    /// The outgoing state.
    pub state: State<F>,
    /// Gradients by name: `q, k, v, gain, decay`, and the incoming `memory, last_key, tail_x, tail_v`.
    pub grads: Named,
}

impl<F: Real> CaseOutput<F> {
    /// Outputs and outgoing state.
    pub fn forward(&self) -> Named {
        let mut named = vec![("out", wide(&self.out))];
        named.extend(named_state(&self.state));
        named
    }

    /// Outputs, outgoing state and gradients.
    pub fn all(&self) -> Named {
        let mut named = self.forward();
        named.extend(self.grads.clone());
        named
    }
}

impl Case<f64> {
    /// A random case of the kind that `spec` describes.
    pub fn new(spec: &Spec) -> Self {
        let &Spec { rule, heads, key_heads, dim_k, dim_v, .. } = spec;
        let mut random = Random::new(spec.seed);
        let mut offsets = vec![0];
        offsets.extend(spec.lengths.iter().scan(0, |sum, length| {
            *sum += length;
            Some(*sum)
        }));
        let tokens = *offsets.last().expect("there is an offset");
        let sizes = Sizes { tokens, sequences: spec.lengths.len(), heads, key_heads, dim_k, dim_v };
        // Keys have a norm near `key_norm` and queries one near 1. Normalised rules need positive features.
        let mut features = |rows: usize, norm: f64| match rule.normaliser {
            None => random.normals(rows * dim_k, norm / (dim_k as f64).sqrt()),
            Some(_) => random.uniforms(rows * dim_k, 0.1 * norm, norm),
        };
        let (q, k) = (features(tokens * key_heads, 1.0), features(tokens * key_heads, spec.key_norm));
        let v = random.normals(tokens * heads * dim_v, 1.0);
        let energy = spec.key_norm.powi(2);
        let gains = tokens * heads * sizes.gain_width(&rule);
        let gain = match rule.gain {
            Gain::Unit => Vec::new(),
            Gain::Beta => random.uniforms(gains, spec.gain.0, spec.gain.1),
            Gain::Eta => random.uniforms(gains, spec.gain.0 / energy, spec.gain.1 / energy),
        };
        let decays = tokens * heads * sizes.decay_width(&rule);
        let decay = match rule.decay {
            Decay::None => Vec::new(),
            Decay::Ridge => random.uniforms(decays, spec.ridge.0 * energy, spec.ridge.1 * energy),
            Decay::ScaledRidge { .. } => random.uniforms(decays, spec.ridge.0, spec.ridge.1),
            Decay::Gate => random.uniforms(decays, spec.gate.0, spec.gate.1),
        };
        let mut state = State::fresh(&rule, &sizes);
        let mut grad_state = state.clone();
        for state in [&mut state, &mut grad_state] {
            state.memory = random.normals(state.memory.len(), 0.5).into();
            state.tail_v = random.normals(state.tail_v.len(), 1.0);
            let norm = spec.key_norm / (dim_k as f64).sqrt();
            state.tail_x = random.normals(state.tail_x.len(), norm);
            state.last_key = random.normals(state.last_key.len(), norm);
            if rule.normaliser.is_some() {
                // A total weight near zero would make the division, and so the comparison, ill-conditioned.
                state.memory.iter_mut().skip(dim_v).step_by(dim_v + 1).for_each(|z| *z = z.abs().max(0.5));
                state.tail_x.iter_mut().chain(&mut state.last_key).for_each(|x| *x = x.abs());
            }
        }
        if spec.continued {
            // Some sequences of a batch stay fresh, but never all of them.
            let fresh = |sequence: usize| sequence + 1 < sizes.sequences && sequence % 3 == 1;
            state.started = (0..sizes.sequences).map(|sequence| !fresh(sequence)).collect();
            let tail = |started: &bool| if *started { random.below(rule.window) } else { 0 };
            state.tail_len = state.started.iter().map(tail).collect();
        }
        clear_unused(&rule, &mut state);
        let grad_out = random.normals(tokens * heads * dim_v, 1.0);
        let mut case = Self { rule, sizes, q, k, v, gain, decay, offsets, state, grad_out, grad_state };
        // Only the parts that the outgoing state really has can have an upstream gradient.
        let mut last = case.state.clone();
        let mut out = vec![0.0; tokens * heads * dim_v];
        case.call(Form::Recurrent).forward(&mut last, &mut out).expect("a valid case");
        case.grad_state.tail_len = last.tail_len;
        case.grad_state.started = last.started;
        clear_unused(&rule, &mut case.grad_state);
        case
    }

    /// The same case in `f32`, without rounding.
    pub fn to_f32(&self) -> Case<f32> {
        let narrow = |values: &[f64]| -> Vec<f32> { values.iter().map(|x| *x as f32).collect() };
        let state = |from: &State<f64>| {
            let mut to = State::fresh(&self.rule, &self.sizes);
            to.memory = narrow(&from.memory).into();
            to.last_key = narrow(&from.last_key);
            to.tail_x = narrow(&from.tail_x);
            to.tail_v = narrow(&from.tail_v);
            to.tail_len.clone_from(&from.tail_len);
            to.started.clone_from(&from.started);
            to
        };
        Case {
            rule: self.rule,
            sizes: self.sizes,
            q: narrow(&self.q),
            k: narrow(&self.k),
            v: narrow(&self.v),
            gain: narrow(&self.gain),
            decay: narrow(&self.decay),
            offsets: self.offsets.clone(),
            state: state(&self.state),
            grad_out: narrow(&self.grad_out),
            grad_state: state(&self.grad_state),
        }
    }
}

impl<F: Compiled> Case<F> {
    /// The inputs of a call.
    pub fn inputs(&self) -> Inputs<'_, F> {
        let Sizes { tokens, heads, key_heads, dim_k, dim_v, .. } = self.sizes;
        let view = |data, shape| View::new(data, shape).expect("a tensor of the case");
        let gain_width = self.sizes.gain_width(&self.rule);
        let decay_width = self.sizes.decay_width(&self.rule);
        Inputs {
            q: view(&self.q, [tokens, key_heads, dim_k]),
            k: view(&self.k, [tokens, key_heads, dim_k]),
            v: view(&self.v, [tokens, heads, dim_v]),
            gain: (self.rule.gain != Gain::Unit).then(|| view(&self.gain, [tokens, heads, gain_width])),
            decay: (self.rule.decay != Decay::None).then(|| view(&self.decay, [tokens, heads, decay_width])),
            offsets: &self.offsets,
        }
    }

    /// The call that runs the rule of the case in a form.
    pub fn call(&self, form: Form) -> Call<'_, F> {
        Call::new(&self.rule, form, self.inputs()).expect("a valid case")
    }

    /// The arrays of the incoming state, with their names.
    pub fn state_named(&self) -> Named {
        named_state(&self.state)
    }

    /// Outputs and outgoing state.
    pub fn forward(&self, form: Form) -> CaseOutput<F> {
        let mut state = self.state.clone();
        let mut out = vec![F::nan(); self.sizes.tokens * self.sizes.heads * self.sizes.dim_v];
        self.call(form).forward(&mut state, &mut out).expect("a valid case");
        CaseOutput { out, state, grads: Vec::new() }
    }

    /// Outputs, outgoing state and gradients.
    pub fn run(&self, form: Form) -> CaseOutput<F> {
        let grads =
            self.call(form).backward(&self.state, &self.grad_out, Some(&self.grad_state)).expect("a valid case");
        let mut named = vec![
            ("grad q", wide(&grads.q)),
            ("grad k", wide(&grads.k)),
            ("grad v", wide(&grads.v)),
            ("grad gain", wide(&grads.gain)),
            ("grad decay", wide(&grads.decay)),
        ];
        let names = ["grad memory", "grad last_key", "grad tail_x", "grad tail_v"];
        named.extend(names.into_iter().zip(named_state(&grads.state).into_iter().map(|(_, values)| values)));
        CaseOutput { grads: named, ..self.forward(form) }
    }

    /// Outputs and outgoing state of the decoder, one token at a time. All sequences must have the same length.
    pub fn decode(&self) -> CaseOutput<F> {
        let mut decoder = Decoder::new(&self.rule, self.state.clone()).expect("a valid rule");
        let mut all = vec![F::nan(); self.grad_out.len()];
        for time in 0..self.offsets.get(1).copied().unwrap_or(0) {
            let tokens: Vec<usize> =
                self.offsets[..self.sizes.sequences].iter().map(|start| start + time).collect();
            let step = self.take(&tokens, (0..=tokens.len()).collect());
            let mut out = vec![F::nan(); tokens.len() * self.sizes.heads * self.sizes.dim_v];
            decoder.step(&step.inputs(), &mut out).expect("a valid case");
            let width = self.sizes.heads * self.sizes.dim_v;
            for (out, token) in out.chunks_exact(width).zip(tokens) {
                all[token * width..][..width].copy_from_slice(out);
            }
        }
        CaseOutput { out: all, state: decoder.into_state(), grads: Vec::new() }
    }

    /// The given tokens, divided into sequences at `offsets`. The states are those of the whole case, so the number of
    /// sequences must be the same.
    pub fn take(&self, tokens: &[usize], offsets: Vec<usize>) -> Self {
        let rows = |data: &[F]| {
            let width = data.len().checked_div(self.sizes.tokens).unwrap_or(0);
            tokens.iter().flat_map(|t| &data[t * width..(t + 1) * width]).copied().collect()
        };
        Self {
            sizes: Sizes { tokens: tokens.len(), sequences: offsets.len() - 1, ..self.sizes },
            q: rows(&self.q),
            k: rows(&self.k),
            v: rows(&self.v),
            gain: rows(&self.gain),
            decay: rows(&self.decay),
            grad_out: rows(&self.grad_out),
            offsets,
            state: self.state.clone(),
            grad_state: self.grad_state.clone(),
            rule: self.rule,
        }
    }
}

/// Sets the unused parts of a state to zero: slots beyond the tail, and the keys of fresh sequences.
fn clear_unused(rule: &Rule, state: &mut State<f64>) {
    let sequences = state.started.len().max(1);
    let (slots, key) = (rule.tail_capacity().max(1), state.last_key.len() / sequences);
    // Numbers of a key and of a value in a slot.
    let (x, v) = (state.tail_x.len() / sequences / slots, state.tail_v.len() / sequences / slots);
    for sequence in 0..state.started.len() {
        if !state.started[sequence] {
            state.last_key[sequence * key..(sequence + 1) * key].fill(0.0);
        }
        for slot in state.tail_len[sequence]..rule.tail_capacity() {
            let index = sequence * rule.tail_capacity() + slot;
            state.tail_x[index * x..(index + 1) * x].fill(0.0);
            state.tail_v[index * v..(index + 1) * v].fill(0.0);
        }
    }
}

fn named_state<F: Real>(state: &State<F>) -> Named {
    vec![
        ("memory", wide(&state.memory)),
        ("last_key", wide(&state.last_key)),
        ("tail_x", wide(&state.tail_x)),
        ("tail_v", wide(&state.tail_v)),
    ]
}

fn wide<F: Real>(values: &[F]) -> Vec<f64> {
    values.iter().map(|x| x.wide()).collect()
}
