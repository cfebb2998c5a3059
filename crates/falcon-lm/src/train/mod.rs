//! Training: the loop, gradients, clipping and AdamW, the search for what made a step fail, and the files of a run.

mod checkpoint;
mod folder;
mod footprint;
mod health;
mod metrics;
mod optimizer;
mod step;
mod trainer;

pub use checkpoint::sum;
pub use checkpoint::{Best, Checkpoint, CheckpointError, RunProgress};
pub(crate) use checkpoint::{load_model, tokenizer_fingerprints};
pub(crate) use folder::best_checkpoint;
pub use folder::{Change, Changes, FolderError, RunFolder, checkpoint_steps};
pub use footprint::{Footprint, FootprintError};
pub use health::{Fault, NonFinite};
pub use metrics::METRICS_FILE;
pub use metrics::{
    EvalRecord, GatesRecord, MetricsError, Record, StartRecord, StopRecord, TrainRecord, read_intact_metrics,
    read_metrics,
};
pub use optimizer::{AdamW, Clip, clip};
pub use step::{StepGradients, gradients};
pub use trainer::{InitialModel, Opening, Outcome, TrainError, Trainer, Watch, fresh_model};
