//! The recipe: schedule, clipping, AdamW; and what a run tells about itself.

mod metrics;
mod optimizer;
mod schedule;

pub use metrics::{
    EvalRecord, GatesRecord, METRICS_FILE, MetricsError, Record, Scores, StartRecord, StopRecord, TrainRecord,
    read_metrics,
};
pub use optimizer::{AdamW, AdamWConfig, Moments, clip, global_norm};
pub use schedule::{Schedule, ScheduleError};
