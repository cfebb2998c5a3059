//! Training runs side by side: one self-contained HTML page with tables and curves.
//!
//! ```no_run
//! use falcon_lab::report::{RunRecord, page};
//! let runs = [RunRecord::read("runs/first".as_ref())?, RunRecord::read("runs/second".as_ref())?];
//! std::fs::write("report.html", page(&runs)).unwrap();
//! # Ok::<(), falcon_lab::report::ReportError>(())
//! ```

mod charts;
mod measures;
mod page;
mod run;
mod series;
mod summary;
#[cfg(test)]
mod tests;

pub use page::page;
pub use run::{ReportError, RunRecord};
