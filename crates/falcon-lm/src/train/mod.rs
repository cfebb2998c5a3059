//! Runs: the recipe (schedule, clipping, AdamW), the loop, and what it leaves on disk.

mod checkpoint;
mod config;
mod folder;
mod health;
mod metrics;
mod optimizer;
mod schedule;
mod step;
mod trainer;

pub use checkpoint::{Best, Checkpoint, CheckpointError, Progress};
pub(crate) use checkpoint::{sum, verify_model};
pub use config::{TrainConfig, TrainConfigError};
pub use folder::{FolderError, RunFolder, best_checkpoint, checkpoint_steps};
pub use health::{Bad, Fault, diagnose};
pub use metrics::{
    EvalRecord, GatesRecord, METRICS_FILE, MetricsError, Record, Scores, StartRecord, StopRecord, TrainRecord,
    read_metrics,
};
pub use optimizer::{AdamW, AdamWConfig, Moments, clip, global_norm};
pub use schedule::{Schedule, ScheduleError};
pub use step::{StepGradients, gradients};
pub use trainer::{Outcome, TrainError, Trainer, Watch};
