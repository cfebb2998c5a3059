//! Runs: the recipe (schedule, clipping, AdamW), the loop, and what it leaves on disk.

mod checkpoint;
mod config;
mod folder;
mod footprint;
mod health;
mod metrics;
mod optimizer;
mod schedule;
mod step;
mod trainer;

pub use checkpoint::{Best, Checkpoint, CheckpointError, Progress};
pub(crate) use checkpoint::{fingerprints, sum, verify_model};
pub use config::{TrainConfig, TrainConfigError};
pub(crate) use folder::best_checkpoint;
pub use folder::{Change, Changes, FolderError, RunFolder, checkpoint_steps};
pub use footprint::{Footprint, FootprintError};
pub use health::{Bad, Fault};
pub(crate) use metrics::METRICS_FILE;
pub use metrics::{
    EvalRecord, GatesRecord, MetricsError, Record, Scores, StartRecord, StopRecord, TrainRecord, read_metrics,
};
use optimizer::Moments;
pub use optimizer::{AdamW, AdamWConfig, clip};
pub use schedule::{Schedule, ScheduleError};
pub use step::{StepGradients, gradients};
pub use trainer::{InitialModel, Opening, Outcome, TrainError, Trainer, Watch, fresh_model};
