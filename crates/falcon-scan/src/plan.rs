//! What is computed for a file: which rule, and which sizes. Making a plan checks that `meta` and the shapes of all
//! tensors agree.

use falcon_kernels::rule::{Align, Columns, Decay, Gain};
use falcon_kernels::{Error, Form, Rule, Sizes, check_offsets};
use serde_json::Value;

use crate::error::ScanError;
use crate::file::ScanFile;
use crate::meta::wrong;
use crate::options::Options;
use crate::variant::{Method, Variant};

/// A scan whose shapes and options have been checked. The numbers of tensors are checked when they are read.
pub(crate) struct ScanPlan {
    pub variant: Variant,
    pub method: Method,
    /// For a state-space model, `dim_k` is the number of channels and `dim_v` the width of an output.
    pub sizes: Sizes,
    /// Width of an input of a state-space model, otherwise 0.
    pub dim_in: usize,
    pub offsets: Vec<usize>,
    /// Whether the file has `in.cu_seqlens`. The states then have a leading axis of sequences.
    pub packed: bool,
    /// Length of the tail axis, 0 without a tail.
    pub tail: usize,
    /// How many pairs of the tail each sequence uses.
    pub tail_lens: Vec<usize>,
    /// Whether the sequences continue from `in.k_last`.
    pub continued: bool,
}

/// A tensor that the variant reads, and the shape that it must have.
struct Slot {
    name: &'static str,
    shape: Vec<usize>,
    axes: &'static str,
    required: bool,
}

impl ScanPlan {
    pub fn new(file: &ScanFile<'_>, options: &Options) -> Result<Self, ScanError> {
        let variant = Variant::find(file)?;
        let method = variant.method(file)?;
        let mut plan = match method {
            Method::Ssm { .. } => Self::for_ssm(file, variant, method)?,
            _ => Self::for_keys(file, variant, method)?,
        };
        plan.read_offsets(file)?;
        plan.read_tail(file)?;
        plan.set_window(file)?;
        plan.check_flags(file)?;
        plan.check_slots(file, options.grad)?;
        plan.check_memory(options)?;
        Ok(plan)
    }

    /// The plan of a rule or of recursive least squares, with the sizes of `in.q` and `in.v`.
    fn for_keys(file: &ScanFile<'_>, variant: Variant, method: Method) -> Result<Self, ScanError> {
        let [tokens, key_heads, dim_k] = shape(file, variant, "in.q", "time, query heads, dx")?;
        let [_, heads, dim_v] = shape(file, variant, "in.v", "time, heads, dv")?;
        if heads % key_heads != 0 {
            return Err(ScanError::Groups { heads, key_heads });
        }
        let meta = &file.meta;
        meta.agree("T", tokens, "the time axis of in.q has size")?;
        meta.agree("H", heads, "the head axis of in.v has size")?;
        meta.agree("dx", dim_k, "the last axis of in.q has size")?;
        meta.agree("dv", dim_v, "the last axis of in.v has size")?;
        let sizes = Sizes { tokens, sequences: 1, heads, key_heads, dim_k, dim_v };
        Ok(Self::one_sequence(file, variant, method, sizes, 0))
    }

    /// The plan of a state-space model, with the sizes of `in.Bm` and `in.Cm`.
    fn for_ssm(file: &ScanFile<'_>, variant: Variant, method: Method) -> Result<Self, ScanError> {
        let [tokens, heads, channels, dim_in] = shape(file, variant, "in.Bm", "time, heads, n, din")?;
        let [.., dim_out] = shape::<4>(file, variant, "in.Cm", "time, heads, n, dout")?;
        let meta = &file.meta;
        meta.agree("T", tokens, "the time axis of in.Bm has size")?;
        meta.agree("H", heads, "the head axis of in.Bm has size")?;
        meta.agree("n", channels, "the channel axis of in.Bm has size")?;
        meta.agree("din", dim_in, "the last axis of in.Bm has size")?;
        meta.agree("dout", dim_out, "the last axis of in.Cm has size")?;
        let sizes = Sizes { tokens, sequences: 1, heads, key_heads: heads, dim_k: channels, dim_v: dim_out };
        Ok(Self::one_sequence(file, variant, method, sizes, dim_in))
    }

    /// The plan of one sequence without a tail. Offsets, tail and window are read later.
    fn one_sequence(file: &ScanFile<'_>, variant: Variant, method: Method, sizes: Sizes, dim_in: usize) -> Self {
        let (offsets, packed) = (vec![0, sizes.tokens], file.has("in.cu_seqlens"));
        let continued = file.has("in.k_last");
        Self { variant, method, sizes, dim_in, offsets, packed, tail: 0, tail_lens: vec![0], continued }
    }

    fn read_offsets(&mut self, file: &ScanFile<'_>) -> Result<(), ScanError> {
        let Some(offsets) = file.integers("in.cu_seqlens")? else { return Ok(()) };
        let got = file.shape("in.cu_seqlens").unwrap_or_default();
        if got.len() != 1 || offsets.is_empty() {
            return Err(ScanError::Shape {
                tensor: "in.cu_seqlens".into(),
                got: got.to_vec(),
                expected: "[N + 1]".into(),
                axes: "where each of N sequences starts, and the end of the last",
            });
        }
        let tokens = self.sizes.tokens;
        let refused = |position: usize| ScanError::Offsets { position, got: offsets[position], tokens };
        let converted = offsets.iter().enumerate().map(|(i, &got)| usize::try_from(got).map_err(|_| refused(i)));
        self.offsets = converted.collect::<Result<_, _>>()?;
        check_offsets(&self.offsets, tokens).map_err(|error| match error {
            Error::Offsets { position, .. } => refused(position),
            // A single offset, although there are tokens.
            _ => refused(0),
        })?;
        self.sizes.sequences = offsets.len() - 1;
        Ok(())
    }

    fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.offsets.windows(2).map(|w| w[1] - w[0])
    }

    fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    fn read_tail(&mut self, file: &ScanFile<'_>) -> Result<(), ScanError> {
        // Variants without a window have no tail; `check_slots` refuses one.
        if !self.variant.slides() {
            return file.meta.agree("n_tail", 0, "a rule without a window has a tail of size");
        }
        let axis = usize::from(self.packed);
        self.tail = file.shape("in.tail_x").and_then(|shape| shape.get(axis)).copied().unwrap_or(0);
        self.tail_lens = match file.integers("in.tail_len")? {
            Some(lens) if self.packed => {
                let allowed = |len: &i64| usize::try_from(*len).ok().filter(|len| *len <= self.tail);
                if let Some(at) = lens.iter().position(|len| allowed(len).is_none()) {
                    return Err(ScanError::Range {
                        tensor: "in.tail_len".into(),
                        index: vec![at],
                        value: lens[at] as f64,
                        meaning: "the length of a tail".into(),
                        allowed: format!("in [0, {}], the tail axis of in.tail_x", self.tail),
                    });
                }
                lens.iter().filter_map(allowed).collect()
            }
            _ => vec![self.tail; self.sizes.sequences],
        };
        for (one, other) in [("in.tail_x", "in.tail_v"), ("in.tail_v", "in.tail_x")] {
            if file.has(one) && !file.has(other) {
                return Err(ScanError::Missing { tensor: other.into(), why: format!("{one} needs it") });
            }
        }
        file.meta.agree("n_tail", self.tail, "the tail axis of in.tail_x has size")
    }

    /// Sets the window to `B`, but makes it no longer than is needed for all pairs of the file: no tensor limits `B`,
    /// and the size of the state grows with the window.
    fn set_window(&mut self, file: &ScanFile<'_>) -> Result<(), ScanError> {
        let (variant, tail, longest) = (self.variant.name, self.tail, self.longest());
        let given = file.meta.count("B")?;
        let bad = |value: u64, expected: String| wrong("B", &Value::from(value), expected);
        if given == Some(0) {
            return Err(bad(0, "a window of at least 1 pair".into()));
        }
        if !self.variant.slides() {
            return match given {
                None | Some(1) => Ok(()),
                Some(given) => {
                    Err(bad(given, format!("1: {variant} writes one pair per step, falcon3 and falcon3a more")))
                }
            };
        }
        let window = given.ok_or_else(|| ScanError::MetaMissing {
            key: "B",
            needed_by: variant.into(),
            expected: "the window, a whole number, at least 1".into(),
        })?;
        if tail as u64 >= window {
            let fact = format!("in.tail_x has {tail} pairs, and a window of {window} sees at most {}", window - 1);
            return Err(ScanError::MetaConflict { key: "B", value: window.to_string(), fact });
        }
        let pairs = tail.saturating_add(longest).saturating_add(1);
        if let Method::Rule(rule) = &mut self.method {
            rule.window = usize::try_from(window).unwrap_or(usize::MAX).min(pairs);
        }
        Ok(())
    }

    /// Refuses flags that contradict the tensors, and an incoming or outgoing state without a last key that it needs.
    fn check_flags(&self, file: &ScanFile<'_>) -> Result<(), ScanError> {
        if !self.variant.falcon {
            return Ok(());
        }
        let Method::Rule(Rule { align, .. }) = self.method else { return Ok(()) };
        if align == Align::Same {
            return file.meta.agree_flag("sentinel", false, "align \"same\" has no boundary step");
        }
        let fact = if self.continued { "in.k_last is there" } else { "there is no in.k_last" };
        file.meta.agree_flag("continued", self.continued, fact)?;
        file.meta.agree_flag("sentinel", !self.continued, fact)?;
        if self.tail > 0 && !self.continued {
            let why = "in.tail_x continues a segment, and align \"next\" needs its last key".into();
            return Err(ScanError::Missing { tensor: "in.k_last".into(), why });
        }
        // A packed out.k_last has a row for every sequence, and a sequence that is fresh and empty has no key for it.
        let (empty, tokens) = (self.lengths().position(|length| length == 0), self.sizes.tokens);
        match empty {
            Some(sequence) if !self.continued && tokens > 0 => Err(ScanError::EmptySequence { sequence }),
            _ => Ok(()),
        }
    }

    /// The shape of a part of the state. Packed files have one state for every sequence.
    pub fn state_shape(&self, shape: &[usize]) -> Vec<usize> {
        let lead = self.packed.then_some(self.sizes.sequences);
        lead.into_iter().chain(shape.iter().copied()).collect()
    }

    /// The shape of the gains.
    pub fn gain_shape(&self, rule: &Rule) -> Vec<usize> {
        let Sizes { tokens, heads, dim_v, .. } = self.sizes;
        match rule.columns {
            Columns::Shared => vec![tokens, heads],
            Columns::Each => vec![tokens, heads, dim_v],
        }
    }

    /// Whether there is one decay per head, as for RetNet, and not one per token and head.
    pub fn decay_is_per_head(&self) -> bool {
        self.variant.decay == Some("in.decay")
    }

    /// All tensors that the variant reads with the options of the file.
    fn slots(&self) -> Vec<Slot> {
        let Sizes { tokens, heads, key_heads, dim_k, dim_v, sequences } = self.sizes;
        let slot = |name, shape: &[usize], axes, required| Slot { name, shape: shape.to_vec(), axes, required };
        let state = |name, shape: &[usize], axes| slot(name, &self.state_shape(shape), axes, false);
        let mut slots = Vec::new();
        if self.packed {
            slots.push(slot("in.cu_seqlens", &[sequences + 1], "offsets", true));
        }
        if let Method::Ssm { .. } = self.method {
            slots.extend([
                slot("in.x", &[tokens, heads, self.dim_in], "time, heads, din", true),
                slot("in.A", &[heads, dim_k], "heads, n", true),
                slot("in.Bm", &[tokens, heads, dim_k, self.dim_in], "time, heads, n, din", true),
                slot("in.Cm", &[tokens, heads, dim_k, dim_v], "time, heads, n, dout", true),
                slot("in.dt", &[tokens, heads], "time, heads", true),
                state("in.h0", &[heads, dim_k], "heads, n"),
                slot("up.o", &[tokens, heads, dim_v], "time, heads, dout", true),
                state("up.h", &[heads, dim_k], "heads, n"),
            ]);
            return slots;
        }
        slots.extend([
            slot("in.q", &[tokens, key_heads, dim_k], "time, query heads, dx", true),
            slot("in.k", &[tokens, key_heads, dim_k], "time, query heads, dx, as in.q", true),
            slot("in.v", &[tokens, heads, dim_v], "time of in.q, heads, dv", true),
            state("in.S0", &[heads, dim_k, dim_v], "heads of in.v, dx, dv; packed: sequences first"),
            slot("up.o", &[tokens, heads, dim_v], "time, heads, dv", true),
            state("up.S", &[heads, dim_k, dim_v], "heads of in.v, dx, dv; packed: sequences first"),
        ]);
        let Method::Rule(rule) = self.method else {
            slots.push(slot("in.lam", &[heads], "heads", true));
            slots.push(state("up.P", &[heads, dim_k, dim_k], "heads, dx, dx; packed: sequences first"));
            return slots;
        };
        if let (Some(name), true) = (self.variant.gain, rule.gain != Gain::Unit) {
            slots.push(slot(name, &self.gain_shape(&rule), "time, heads, and dv if per-column", true));
        }
        if let (Some(name), true) = (self.variant.decay, rule.decay != Decay::None) {
            slots.push(match self.decay_is_per_head() {
                true => slot(name, &[heads], "heads", true),
                false => slot(name, &[tokens, heads], "time, heads", true),
            });
        }
        if rule.normaliser.is_some() {
            slots.push(state("in.z0", &[heads, dim_k], "heads, dx; packed: sequences first"));
            slots.push(state("up.z", &[heads, dim_k], "heads, dx; packed: sequences first"));
        }
        if self.variant.falcon && rule.align == Align::Next {
            slots.push(state("in.k_last", &[key_heads, dim_k], "query heads, dx; packed: sequences first"));
        }
        if self.variant.slides() {
            let axes = "pairs, heads, width; packed: sequences first";
            slots.push(state("in.tail_x", &[self.tail, key_heads, dim_k], axes));
            slots.push(state("in.tail_v", &[self.tail, heads, dim_v], axes));
            if self.packed {
                slots.push(slot("in.tail_len", &[sequences], "sequences", false));
            }
        }
        slots
    }

    /// Refuses tensors named `in.` or `up.` that are not used or have the wrong shape, and missing ones. The file may
    /// also contain results of an earlier run, which are ignored.
    fn check_slots(&self, file: &ScanFile<'_>, grad: bool) -> Result<(), ScanError> {
        let slots = self.slots();
        for (name, raw) in &file.tensors {
            let upstream = name.starts_with("up.");
            if !upstream && !name.starts_with("in.") {
                continue;
            }
            match slots.iter().find(|slot| slot.name == name) {
                None => {
                    return Err(ScanError::Unused { tensor: name.clone(), variant: self.variant.name });
                }
                Some(slot) if slot.shape != raw.shape && (grad || !upstream) => {
                    return Err(ScanError::Shape {
                        tensor: name.clone(),
                        got: raw.shape.clone(),
                        expected: format!("{:?}", slot.shape),
                        axes: slot.axes,
                    });
                }
                Some(_) => {}
            }
        }
        for slot in slots.iter().filter(|slot| slot.required && !file.has(slot.name)) {
            if slot.name == "up.o" {
                if grad {
                    let why = "--grad needs the gradient of out.o; it has the shape of out.o".into();
                    return Err(ScanError::Missing { tensor: slot.name.into(), why });
                }
                continue;
            }
            return Err(missing(slot.name, self.variant, slot.axes));
        }
        Ok(())
    }

    /// Refuses sizes that need too much memory. Widths multiply, so a file of a megabyte can ask for terabytes, and an
    /// allocation that fails would abort the process without an error message.
    fn check_memory(&self, options: &Options) -> Result<(), ScanError> {
        let Sizes { tokens, sequences, heads, key_heads, dim_k, dim_v } = self.sizes;
        // Estimated numbers of elements, in floating point because integers could overflow.
        let f = |n: usize| n as f64;
        let (dim_k, dim_v, time) = (f(dim_k), f(dim_v), f(self.longest()));
        let (tail, capacity, work, memory) = match self.method {
            Method::Ssm { .. } => (0.0, 0.0, time * dim_k, dim_k),
            Method::Rls { .. } => {
                let matrices = dim_k * (dim_k + dim_v);
                (0.0, 0.0, 2.0 * time.sqrt() * matrices, matrices)
            }
            Method::Rule(rule) => {
                let memory = dim_k * f(rule.state_columns(self.sizes.dim_v));
                let (window, tail) = (f(rule.window), f(self.tail));
                let length = options.form.stretch(&rule).map_or(time, f);
                let square = match options.form {
                    Form::Recurrent => (length.min(time) + 1.0) * memory,
                    Form::Masked => 3.0 * (time * window.min(time + tail)).powi(2),
                    Form::Chunked { .. } => {
                        let rows = time.min(length) + window;
                        4.0 * rows * rows + 3.0 * rows * window * (dim_v + 1.0)
                    }
                };
                let history = if options.grad { (time / length.max(1.0)).ceil() * memory } else { 0.0 };
                (tail, window - 1.0, square + history + 16.0 * window * window, memory)
            }
        };
        let states = f(sequences) * f(heads) * memory
            + f(sequences) * (tail + capacity + 1.0) * (f(key_heads) * dim_k + f(heads) * dim_v);
        let (threads, all_heads) = (f(rayon::current_num_threads()), f(sequences) * f(heads));
        // With more threads than heads, each prepares up to eight chunks of usual length ahead.
        let ahead = threads > all_heads && matches!(options.form, Form::Chunked { chunk: ..=256 });
        let at_once = if ahead { 8.0 * threads } else { threads.min(all_heads) };
        let needed = 8.0 * (4.0 * states + at_once * work + 2.0 * f(tokens) * f(heads) * dim_v);
        if needed <= options.max_memory as f64 {
            return Ok(());
        }
        Err(ScanError::Memory { needed, allowed: options.max_memory })
    }
}

fn missing(tensor: &str, variant: Variant, axes: &str) -> ScanError {
    ScanError::Missing { tensor: tensor.into(), why: format!("{} needs it, with axes {axes}", variant.name) }
}

/// The shape of a tensor that defines sizes: it has `N` axes, of which only the first, time, may be 0.
fn shape<const N: usize>(
    file: &ScanFile<'_>,
    variant: Variant,
    name: &str,
    axes: &'static str,
) -> Result<[usize; N], ScanError> {
    let got = file.shape(name).ok_or_else(|| missing(name, variant, axes))?;
    let shape: [usize; N] = got.try_into().map_err(|_| ScanError::Shape {
        tensor: name.into(),
        got: got.to_vec(),
        expected: format!("{N} axes"),
        axes,
    })?;
    if shape[1..].contains(&0) {
        let (tensor, shape) = (name.to_string(), shape.to_vec());
        return Err(ScanError::Zero { tensor, shape, what: "every size but that of time" });
    }
    Ok(shape)
}
