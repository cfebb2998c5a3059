//! The scores of models that know nothing, on the benchmarks in a folder as `falcon eval --data` takes it:
//!
//! ```text
//! cargo run --release -p falcon-lm --example chance -- eval/ [tokenizer.json]
//! ```
//!
//! `random` gives every choice a random score. Its accuracy must agree with that of guessing; a difference would mean
//! that the scoring is biased.
//! `uniform` is a model for which all tokens are always equally likely: it prefers the choice with the fewest tokens
//! (`acc`), or with the fewest tokens per character (`acc_norm`), which equals guessing only where right answers are
//! neither longer nor shorter than wrong ones.

use std::error::Error;
use std::path::PathBuf;

use falcon_lm::data::Tokenizer;
use falcon_lm::evaluate::{BENCHMARKS, Estimate, Likelihood, Questions, Request};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: chance DIR [TOKENIZER], where DIR has the benchmarks")?);
    let tokenizer = args.next().map_or(Ok(Tokenizer::bytes()), |name| Tokenizer::open(&name))?;
    let token = -(tokenizer.size() as f64).ln();
    let mut rng = ChaCha12Rng::seed_from_u64(1);
    println!("| | questions | guessing | random, acc | off by | uniform, acc | acc_norm |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for benchmark in BENCHMARKS.iter().filter(|benchmark| !benchmark.has_perplexity()) {
        let questions = Questions::read(benchmark, &folder.join(benchmark.file_name()), None, 0)?;
        let requests = questions.requests(&tokenizer, 0, &mut ())?;
        let grade = |score: &mut dyn FnMut(&Request) -> f64| {
            let answer = |request: &Request| Likelihood { log: score(request), greedy: false };
            questions.grade(&requests, &requests.iter().map(answer).collect::<Vec<_>>(), 0)
        };
        let random = grade(&mut |_| -rng.random_range(0.0..100.0));
        let uniform = grade(&mut |request| token * request.continuation.len() as f64);
        let percent = |Estimate { mean, stderr }: Estimate| format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * stderr);
        println!(
            "| {} | {} | {:.1} | {} | {:+.1} standard errors | {} | {} |",
            benchmark.title,
            questions.asked.len(),
            100.0 * random.chance,
            percent(random.acc),
            (random.acc.mean - random.chance) / random.acc.stderr,
            percent(uniform.acc),
            uniform.acc_norm.map_or("–".into(), percent),
        );
    }
    Ok(())
}
