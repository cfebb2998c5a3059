//! Language models of fast weights: data, training, measurement, generation, and the paper's experiments.
//!
//! # A run
//!
//! A run is a function of its configuration ([`config::RunConfig`]: a model, a task, a recipe) and lives in a folder. Opened again, the same
//! run goes on where it was, after a crash too, and ends with the bits it would have had.
//!
//! ```no_run
//! use falcon_lm::config::{Layer, RunConfig};
//! use falcon_lm::generate::{Sampling, Stream, generate};
//! use falcon_lm::train::{Outcome, Trainer};
//! use falcon_lm::trained::Trained;
//!
//! let keys = [
//!     "task.name=text",
//!     "task.train=book.txt",
//!     "model.preset=falcon-1a.3",
//!     "model.size=tiny",
//!     "train.steps=500",
//! ];
//! let layers: Vec<Layer> = keys.into_iter().map(Layer::set).collect::<Result<_, _>>()?;
//! let config = RunConfig::resolve(&layers)?;
//! let watch = &mut (); // or something that is told of every step, and may say to stop
//! assert_eq!(Trainer::open(&config, "runs/book".as_ref(), watch)?.run(watch)?, Outcome::Finished);
//!
//! // What came of it, and what it says.
//! let Trained { model, tokenizer, .. } = Trained::open("runs/book".as_ref(), None, &burn::tensor::Device::flex())?;
//! let mut stream = Stream::new(&model);
//! stream.read(&model, &tokenizer.encode("It was"), &mut |_| true);
//! let mut said = Vec::new();
//! generate(&model, vec![stream], &Sampling::default(), 0, |_, token| {
//!     said.push(token);
//!     said.len() < 100
//! });
//! println!("It was{}", tokenizer.decode(&said));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where things are
//!
//! [`data`] makes tokens of text, once. A [`tasks::Task`] makes batches; addition and text are two. [`train`] has the loop and what it leaves
//! on disk; [`evaluate`] the perplexity of text and the benchmarks of the paper; [`generate`](mod@generate) says what a model makes of a beginning, in
//! memory that does not grow; [`report`] compares runs in one page; [`reproduce`] is the paper's experiments over all of it.

pub mod config;
pub mod data;
pub mod evaluate;
pub mod generate;
pub mod machine;
pub mod memory;
pub mod report;
pub mod reproduce;
pub mod tasks;
pub mod train;
pub mod trained;
pub mod transfer;
