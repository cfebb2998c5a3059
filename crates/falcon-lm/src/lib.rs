//! Training of fast-weight models.

pub mod report;
pub mod train;
