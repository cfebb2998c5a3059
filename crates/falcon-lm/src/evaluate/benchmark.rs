//! The benchmarks of the paper, and how lm-evaluation-harness runs each of them.

/// How a question is put to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptFormat {
    /// `Question: …\nAnswer:`
    Question,
    /// The beginning of a sentence, which the choices complete.
    Stem,
    /// `Q: context question\nA:`
    Situation,
    /// A context, which the choices continue.
    Story,
    /// Two contexts with the same continuation.
    Contexts,
    /// A text whose last word is to be predicted.
    LastWord,
}

/// The splits that a benchmark has in lm-evaluation-harness. They decide how many examples the harness draws for a
/// question. Where there is no test split, it draws one more than needed. This spare example is meant for benchmarks
/// whose examples are drawn from the questions themselves: it replaces the question that is asked, if that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    /// Training and validation. Questions are from the validation split; from the training split, one example more than
    /// needed is drawn, and not used.
    Validation,
    /// Training and test. Questions are from the test split, and as many examples as needed from the training split.
    Test,
    /// Test only: both questions and examples are from it. As many examples as needed are drawn, and the question
    /// itself may be one of them.
    TestOnly,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// Its name, which is also the name of its file without `.jsonl`.
    pub name: &'static str,
    /// Its name in tables.
    pub title: &'static str,
    pub(super) form: PromptFormat,
    pub(super) splits: Splits,
    /// Whether tables show `acc_norm` instead of `acc`, as the paper's tables do.
    pub normalised: bool,
}

/// The benchmarks of the paper, in its order.
pub const BENCHMARKS: &[Benchmark] = {
    use {PromptFormat::*, Splits::*};
    &[
        benchmark("lambada_openai", "LAMBADA", LastWord, TestOnly, false),
        benchmark("piqa", "PIQA", Question, Validation, false),
        benchmark("hellaswag", "HellaSwag", Story, Validation, true),
        benchmark("winogrande", "WinoGrande", Contexts, Validation, false),
        benchmark("arc_easy", "ARC-e", Question, Test, false),
        benchmark("arc_challenge", "ARC-c", Question, Test, true),
        benchmark("openbookqa", "OBQA", Stem, Test, true),
        benchmark("social_iqa", "SIQA", Situation, Validation, false),
        benchmark("sciq", "SciQ", Question, Test, false),
    ]
};

const fn benchmark(
    name: &'static str,
    title: &'static str,
    form: PromptFormat,
    splits: Splits,
    normalised: bool,
) -> Benchmark {
    Benchmark { name, title, form, splits, normalised }
}

impl Benchmark {
    /// Finds a benchmark by its name.
    pub fn named(name: &str) -> Option<&'static Self> {
        BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
    }

    /// The name of its file.
    pub fn file_name(&self) -> String {
        format!("{}.jsonl", self.name)
    }

    /// Whether the last word of a text is predicted, so that there is a perplexity.
    pub fn has_perplexity(&self) -> bool {
        self.form == PromptFormat::LastWord
    }
}
