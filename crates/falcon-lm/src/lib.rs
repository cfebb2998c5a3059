//! Language models with fast-weight attention: data, training, evaluation and generation.
//!
//! # A run
//!
//! The configuration of a run ([`config::RunConfig`]: a model, a task and a recipe) determines its result. Every run
//! has its own folder. A run that is opened again resumes from its last checkpoint, also after a crash, and ends with
//! the same bits as an uninterrupted run.
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
//! let watch = &mut (); // or a Watch, which receives every record and may cancel
//! assert_eq!(Trainer::open(&config, "runs/book".as_ref(), watch)?.run(watch)?, Outcome::Finished);
//!
//! // The trained model, and what it generates.
//! let Trained { model, tokenizer, .. } = Trained::open("runs/book".as_ref(), None, &burn::tensor::Device::flex())?;
//! let mut stream = Stream::new(&model);
//! stream.read(&model, &tokenizer.encode("It was"), &mut ())?;
//! let mut generated = Vec::new();
//! generate(&model, vec![stream], &Sampling::default(), 0, |_, token| {
//!     generated.push(token);
//!     generated.len() < 100
//! });
//! println!("It was{}", tokenizer.decode(&generated));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where things are
//!
//! [`data`] encodes text once and caches its tokens. A [`tasks::Task`], addition or text, makes batches. [`train`] has
//! the training loop and the files of a run, [`evaluate`] the perplexity of text and the paper's benchmarks, and
//! [`generate`](mod@generate) continues a prompt in constant memory. Long work reports its progress to a
//! [`monitor::Monitor`], which may cancel it.

pub mod batch;
pub mod config;
pub mod data;
pub mod evaluate;
pub mod generate;
pub mod machine;
pub mod memory;
pub mod monitor;
pub mod predict;
pub mod random;
pub mod recipe;
pub mod scores;
pub mod tasks;
pub mod train;
pub mod trained;
pub mod transfer;
