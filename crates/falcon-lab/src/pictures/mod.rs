//! Charts in SVG, for HTML pages and as files of their own.
//!
//! A [`Chart`] is drawn by one function, which writes the grid, the borders and the lines. [`Chart::figure`] puts it
//! into a page that stretches it, with labels in HTML; [`svg_file`] makes a file of one or several charts, with
//! labels in SVG and a legend. [`digit_maps`] draws heat maps of the accuracy of single digits.

mod axis;
mod chart;
mod digits;
mod figure;
mod svg;

pub use axis::{AxisScale, Fit, TickFormat};
pub use chart::{Axis, Chart, ChartLine, LineStyle, Point, Tick, series_style};
pub use digits::{DigitMap, digit_maps};
pub use svg::{NamedLine, fitted_chart, svg_file};
