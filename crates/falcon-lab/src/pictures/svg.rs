//! Charts as an SVG file, for pages that can only show images.

use std::fmt::Write;

use super::axis::{AxisScale, Fit, TickFormat};
use super::chart::{Area, Axis, COLOURS, Chart, ChartLine, LineStyle, Point, series_style, short};
use crate::format::escape;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
/// The axes leave room for the title, the labels and the legend.
const AREA: Area = Area { left: 52.0, top: 44.0, width: 658.0, height: 348.0 };
/// Distance between two lines of the legend.
const LEGEND_LINE: f64 = 22.0;
/// Colours that can also be told apart by colour-blind readers.
const PALETTE: [&str; COLOURS] =
    ["#0072b2", "#d55e00", "#009e73", "#b0609a", "#a07c00", "#56a0d0", "#6b4fa0", "#505050"];

/// The name of a series and its points, from left to right.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedLine {
    /// The name in the legend.
    pub name: String,
    /// The points.
    pub points: Vec<Point>,
}

/// A chart whose axes fit its lines, as an SVG file. `fits` is for the x axis and the y axis.
pub fn fitted_chart(title: &str, x_name: &str, fits: [Fit; 2], lines: &[NamedLine]) -> String {
    let axis = |name: &str, value: fn(&Point) -> f64, fit| {
        let values = lines.iter().flat_map(|line| &line.points).map(value);
        let scale = AxisScale::fit(values, fit).unwrap_or(AxisScale::linear(0.0, 1.0));
        Axis::numbers(name, scale, TickFormat::Number)
    };
    let (x, y) = (axis(x_name, |point| point.0, fits[0]), axis("", |point| point.1, fits[1]));
    let line = |(series, line): (usize, &NamedLine)| {
        let points = line.points.clone();
        ChartLine { series, points, style: LineStyle::Plain }
    };
    let chart = Chart {
        title: title.into(),
        unit: String::new(),
        x,
        y,
        lines: lines.iter().enumerate().map(line).collect(),
    };
    svg_file(&[chart], &lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>())
}

/// Charts below each other, as an SVG file. `names` are those of the series, which all charts share.
pub fn svg_file(charts: &[Chart], names: &[&str]) -> String {
    // Many names may need more room than the chart beside them.
    let each = HEIGHT.max(AREA.top + 24.0 + LEGEND_LINE * names.len() as f64);
    let height = each * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" fill=\"#333\">\n{}<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n",
        style_sheet(names.len())
    );
    for (index, chart) in charts.iter().enumerate() {
        let content = labels(chart) + &chart.paths(AREA) + &legend(names);
        _ = write!(out, "<g transform=\"translate(0 {})\">\n{content}</g>\n", each * index as f64);
    }
    out + "</svg>\n"
}

fn style_sheet(series: usize) -> String {
    let mut out =
        "<style>path{fill:none;stroke-linejoin:round;stroke-linecap:round}.grid{stroke:#ddd}.base{stroke:#999}\
                   .border{stroke:#999;stroke-dasharray:4 4}.line{stroke-width:2}"
            .to_string();
    for series in 0..series {
        let (colour, dashes) = series_style(series);
        _ = write!(out, ".r{series}{{stroke:{};stroke-dasharray:{dashes}}}", PALETTE[colour]);
    }
    out + "</style>\n"
}

/// The title and the texts beside the axes.
fn labels(chart: &Chart) -> String {
    let Chart { title, x, y, .. } = chart;
    let mut out = format!("<text x=\"{}\" y=\"24\" font-size=\"15\">{}</text>\n", AREA.left, escape(title));
    let mut text = |x: f64, y: f64, attributes: &str, text: &str| {
        _ = writeln!(out, "<text x=\"{}\" y=\"{}\" {attributes}>{}</text>", short(x), short(y), escape(text));
    };
    for tick in &y.ticks {
        text(AREA.left - 8.0, AREA.y(y, tick.at) + 4.5, "text-anchor=\"end\"", &tick.label);
    }
    for tick in &x.ticks {
        text(AREA.x(x, tick.at), AREA.bottom() + 20.0, "text-anchor=\"middle\"", &tick.label);
    }
    text(AREA.left + AREA.width / 2.0, HEIGHT - 10.0, "text-anchor=\"middle\"", &x.name);
    for (start, name) in x.parts.iter().filter(|(_, name)| !name.is_empty()) {
        text(AREA.x(x, *start) + 6.0, AREA.top - 6.0, "fill=\"#777\"", name);
    }
    out
}

fn legend(names: &[&str]) -> String {
    let mut out = String::new();
    for (series, name) in names.iter().enumerate() {
        let (x, y) = (AREA.right() + 14.0, AREA.top + 12.0 + LEGEND_LINE * series as f64);
        _ = writeln!(out, "<path class=\"line r{series}\" d=\"M{x} {y}h22\"/>");
        _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", x + 30.0, y + 4.5, escape(name));
    }
    out
}
