//! Rules as Python objects.

use falcon_kernels::rule::{Align, Columns, Decay, Gain, Objective, Read};
use falcon_kernels::{Constant, Form, Rule, RuleError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A rule: one of ``falcon_fwa.RULES``, with any of its options replaced.
///
/// Args:
///     name: The rule whose options are the defaults.
///     window: Number of pairs that each step writes.
///     align: ``"next"`` pairs a value with the key before it, ``"same"`` with its own key.
///     read: ``"after"`` or ``"before"`` the write of the same token.
///     gain: Meaning of the gain: ``"beta"``, ``"eta"``, or ``"unit"`` for no gain.
///     decay: Meaning of the decay: ``"scaled-ridge"``, ``"ridge"``, ``"gate"``, or ``"none"`` for no decay.
///     detach: With ``"scaled-ridge"``: no gradient through the energy that scales the ridge.
///     eps: ``ε`` of the step size.
///     gamma_floor: The least decay factor ``γ`` of a step with a ridge.
///     normaliser_eps: ``ε`` that is added to the total weight, for rules that divide by it.
#[pyclass(name = "Rule", frozen, eq, hash, from_py_object, module = "falcon_fwa")]
#[derive(Clone, Debug, PartialEq)]
pub struct PyRule {
    name: String,
    pub rule: Rule,
}

impl std::hash::Hash for PyRule {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.spec().hash(state);
    }
}

/// The value that a word stands for.
fn choose<T: Copy>(name: &str, got: &str, choices: &[(&str, T)]) -> PyResult<T> {
    choices.iter().find(|(word, _)| *word == got).map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        PyValueError::new_err(format!("{name} must be one of {}, got {got:?}", words.join(", ")))
    })
}

/// The `ValueError` for a rule that is not possible. Constants are called as the arguments of [`PyRule::new`] are.
fn refused(error: &RuleError) -> PyErr {
    PyValueError::new_err(match error {
        RuleError::Constant { constant, value, below } => {
            let argument = match constant {
                Constant::Eps => "eps",
                Constant::Clamp => "gamma_floor",
                Constant::Normaliser => "normaliser_eps",
            };
            format!("{argument} must be in [0, {below}), got {value}")
        }
        other => other.to_string(),
    })
}

/// The word that stands for a value.
fn word<T: Copy + PartialEq>(value: T, choices: &[(&'static str, T)]) -> &'static str {
    choices.iter().find(|(_, choice)| *choice == value).map_or("other", |(word, _)| word)
}

const ALIGNS: [(&str, Align); 2] = [("next", Align::Next), ("same", Align::Same)];
const READS: [(&str, Read); 2] = [("after", Read::After), ("before", Read::Before)];
pub const GAINS: [(&str, Gain); 3] = [("beta", Gain::Beta), ("eta", Gain::Eta), ("unit", Gain::Unit)];
pub const DECAYS: [(&str, Decay); 4] = [
    ("scaled-ridge", Decay::ScaledRidge { detach: false }),
    ("ridge", Decay::Ridge),
    ("gate", Decay::Gate),
    ("none", Decay::None),
];
const OBJECTIVES: [(&str, Objective); 3] = [
    ("inner-product", Objective::InnerProduct),
    ("regression", Objective::Regression),
    ("decayed-regression", Objective::DecayedRegression),
];

#[pymethods]
impl PyRule {
    #[new]
    #[pyo3(signature = (name, *, window=None, align=None, read=None, gain=None, decay=None, detach=None, eps=None,
                        gamma_floor=None, normaliser_eps=None))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn new(
        name: &str,
        window: Option<usize>,
        align: Option<&str>,
        read: Option<&str>,
        gain: Option<&str>,
        decay: Option<&str>,
        detach: Option<bool>,
        eps: Option<f64>,
        gamma_floor: Option<f64>,
        normaliser_eps: Option<f64>,
    ) -> PyResult<Self> {
        let mut rule = choose("rule", name, &Rule::ALL)?;
        rule.window = window.unwrap_or(rule.window);
        if let Some(got) = align {
            rule.align = choose("align", got, &ALIGNS)?;
        }
        if let Some(got) = read {
            rule.read = choose("read", got, &READS)?;
        }
        if let Some(got) = gain {
            rule.gain = choose("gain", got, &GAINS)?;
        }
        let detached = matches!(rule.decay, Decay::ScaledRidge { detach: true });
        if let Some(got) = decay {
            rule.decay = choose("decay", got, &DECAYS)?;
        }
        match &mut rule.decay {
            Decay::ScaledRidge { detach: value } => *value = detach.unwrap_or(detached),
            _ if detach == Some(true) => {
                return Err(PyValueError::new_err("detach=True needs a rule whose decay is \"scaled-ridge\""));
            }
            _ => {}
        }
        rule.eps = eps.unwrap_or(rule.eps);
        if gamma_floor.is_some() {
            rule.clamp = gamma_floor;
        }
        match (&mut rule.normaliser, normaliser_eps) {
            (Some(normaliser), Some(eps)) => normaliser.eps = eps,
            (None, Some(_)) => {
                return Err(PyValueError::new_err(format!(
                    "normaliser_eps: the rule {name} does not divide by a total weight"
                )));
            }
            (_, None) => {}
        }
        rule.validate().map_err(|error| refused(&error))?;
        Ok(Self { name: name.into(), rule })
    }

    /// The rule with the given :attr:`spec`.
    #[staticmethod]
    #[pyo3(name = "parse")]
    fn py_parse(spec: &str) -> PyResult<Self> {
        parse(spec)
    }

    /// A one-line description of all options, which :meth:`parse` reads.
    #[getter]
    fn spec(&self) -> String {
        let Rule { window, eps, clamp, .. } = self.rule;
        let floor = clamp.map_or_else(|| "none".to_string(), |floor| format!("{floor:?}"));
        let normaliser = self.rule.normaliser.map_or_else(String::new, |n| format!(" normaliser_eps={:?}", n.eps));
        format!(
            "{} window={window} align={} read={} gain={} decay={} detach={} eps={eps:?} gamma_floor={floor}{normaliser}",
            self.name,
            self.align(),
            self.read(),
            self.gain(),
            self.decay(),
            self.detach(),
        )
    }

    /// The name of the rule that the defaults come from.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Number of pairs that each step writes.
    #[getter]
    fn window(&self) -> usize {
        self.rule.window
    }

    /// ``"next"`` or ``"same"``.
    #[getter]
    fn align(&self) -> &'static str {
        word(self.rule.align, &ALIGNS)
    }

    /// ``"after"`` or ``"before"``.
    #[getter]
    fn read(&self) -> &'static str {
        word(self.rule.read, &READS)
    }

    /// ``"beta"``, ``"eta"`` or ``"unit"``.
    #[getter]
    fn gain(&self) -> &'static str {
        word(self.rule.gain, &GAINS)
    }

    /// ``"scaled-ridge"``, ``"ridge"``, ``"gate"`` or ``"none"``.
    #[getter]
    fn decay(&self) -> &'static str {
        match self.rule.decay {
            Decay::ScaledRidge { .. } => "scaled-ridge",
            other => word(other, &DECAYS),
        }
    }

    /// Whether no gradient passes through the energy that scales a ridge.
    #[getter]
    fn detach(&self) -> bool {
        matches!(self.rule.decay, Decay::ScaledRidge { detach: true })
    }

    /// ``ε`` of the step size.
    #[getter]
    fn eps(&self) -> f64 {
        self.rule.eps
    }

    /// The least decay factor ``γ`` of a step with a ridge; ``None`` for no lower bound.
    #[getter]
    fn gamma_floor(&self) -> Option<f64> {
        self.rule.clamp
    }

    /// ``ε`` that is added to the total weight; ``None`` if the rule does not divide by it.
    #[getter]
    fn normaliser_eps(&self) -> Option<f64> {
        self.rule.normaliser.map(|normaliser| normaliser.eps)
    }

    /// Whether every column of the value has its own gain.
    #[getter]
    fn per_column(&self) -> bool {
        self.rule.columns == Columns::Each
    }

    /// What a write descends: ``"inner-product"`` (it erases nothing), ``"regression"`` (it writes the error of the
    /// memory's prediction) or ``"decayed-regression"`` (of the prediction of the memory that has already decayed).
    #[getter]
    fn objective(&self) -> &'static str {
        word(self.rule.objective, &OBJECTIVES)
    }

    /// Whether a write first removes what the memory predicts for its key.
    #[getter]
    fn erases(&self) -> bool {
        self.rule.erases()
    }

    /// Whether reads are divided by the total weight, which is then one more column of the memory.
    #[getter]
    fn normalised(&self) -> bool {
        self.rule.normaliser.is_some()
    }

    /// Number of tokens between two memories that a form saves; ``None`` for a whole sequence.
    fn stretch(&self, form: &str, chunk_size: usize) -> PyResult<Option<usize>> {
        Ok(form_by_name(form, chunk_size)?.stretch(&self.rule))
    }

    fn __repr__(&self) -> String {
        let (name, rest) =
            self.spec().split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())).unwrap_or_default();
        format!("Rule({name:?}, {})", rest.replace(' ', ", "))
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        Ok((slf.get_type().getattr("parse")?.unbind(), (slf.get().spec(),)))
    }
}

/// The form with this name.
pub fn form_by_name(name: &str, chunk_size: usize) -> PyResult<Form> {
    let forms = [
        ("chunked", Form::Chunked { chunk: chunk_size }),
        ("recurrent", Form::Recurrent),
        ("masked", Form::Masked),
    ];
    match choose("form", name, &forms)? {
        Form::Chunked { chunk: 0 } => Err(PyValueError::new_err("chunk_size must be at least 1, got 0")),
        form => Ok(form),
    }
}

/// The inverse of [`PyRule::spec`].
pub fn parse(spec: &str) -> PyResult<PyRule> {
    let wrong = |what: &str| PyValueError::new_err(format!("not the spec of a rule: {what:?} in {spec:?}"));
    let mut words = spec.split(' ');
    let name = words.next().unwrap_or_default();
    let mut parsed = PyRule { name: name.into(), rule: choose("rule", name, &Rule::ALL)? };
    let (rule, mut detached) = (&mut parsed.rule, false);
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| wrong(word))?;
        match key {
            "window" => rule.window = value.parse().map_err(|_| wrong(word))?,
            "align" => rule.align = choose(key, value, &ALIGNS)?,
            "read" => rule.read = choose(key, value, &READS)?,
            "gain" => rule.gain = choose(key, value, &GAINS)?,
            "decay" => rule.decay = choose(key, value, &DECAYS)?,
            "detach" => detached = value == "true",
            "eps" => rule.eps = value.parse().map_err(|_| wrong(word))?,
            "gamma_floor" if value == "none" => rule.clamp = None,
            "gamma_floor" => rule.clamp = Some(value.parse().map_err(|_| wrong(word))?),
            "normaliser_eps" => match &mut rule.normaliser {
                Some(normaliser) => normaliser.eps = value.parse().map_err(|_| wrong(word))?,
                None => return Err(wrong(word)),
            },
            _ => return Err(wrong(word)),
        }
    }
    if let Decay::ScaledRidge { detach } = &mut rule.decay {
        *detach = detached;
    }
    rule.validate().map_err(|error| refused(&error))?;
    Ok(parsed)
}
