//! Training of fast-weight models.

pub mod train;
