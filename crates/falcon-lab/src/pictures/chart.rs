//! What a chart shows, and its drawing: the grid, the borders and the lines, without any text.

use std::fmt::Write;

use super::axis::{AxisScale, TickFormat};

/// A position on the x axis, and a value there.
pub type Point = (f64, f64);

/// Lines with the style [`LineStyle::Dotted`] have a dot at each point, if they have at most this many points.
const DOTS: usize = 40;

/// The number of colours. Series beyond them use the same colours again, with dashes.
pub(super) const COLOURS: usize = 8;
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// The colour and the dashes (`stroke-dasharray`) of a series, by its index.
pub fn series_style(series: usize) -> (usize, &'static str) {
    (series % COLOURS, DASHES[series / COLOURS % DASHES.len()])
}

/// Lines over a common x axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The title above the chart.
    pub title: String,
    /// The unit of the y axis, shown after the title; may be empty.
    pub unit: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines. Later ones are drawn over earlier ones.
    pub lines: Vec<ChartLine>,
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What the axis shows; may be empty.
    pub name: String,
    /// Its range.
    pub scale: AxisScale,
    /// The numbers or names beside it, in ascending order.
    pub ticks: Vec<Tick>,
    /// Whether its values are shown as percentages.
    pub format: TickFormat,
    /// Where its parts begin, and their names. Borders are drawn between parts. Empty if it has none.
    pub parts: Vec<(f64, String)>,
}

/// A number or name beside an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Its value on the axis.
    pub at: f64,
    /// The text beside the axis.
    pub label: String,
    /// The full name of what is at this place, shown under the pointer; none if it is just a number.
    pub name: Option<String>,
}

impl Axis {
    /// An axis of numbers, with ticks at round ones.
    pub fn numbers(name: impl Into<String>, scale: AxisScale, format: TickFormat) -> Self {
        let ticks = scale.labelled_ticks(format).into_iter();
        let ticks = ticks.map(|(at, label)| Tick { at, label, name: None }).collect();
        Self { name: name.into(), scale, ticks, format, parts: Vec::new() }
    }
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartLine {
    /// The index of its series, which determines its colour and dashes.
    pub series: usize,
    /// Its points, from left to right.
    pub points: Vec<Point>,
    /// How it is drawn.
    pub style: LineStyle,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LineStyle {
    /// Thin and faint, in the background: single noisy steps.
    Faint,
    /// A plain line.
    Plain,
    /// A line with a dot at each point, unless there are many.
    Dotted,
}

/// The rectangle that the axes enclose, in units of the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    /// The horizontal coordinate of a value.
    pub fn x(&self, axis: &Axis, value: f64) -> f64 {
        self.left + self.width * axis.scale.place(value)
    }

    /// The vertical coordinate of a value; the y axis of SVG points down.
    pub fn y(&self, axis: &Axis, value: f64) -> f64 {
        self.top + self.height * (1.0 - axis.scale.place(value))
    }

    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

impl Chart {
    /// Whether no line has a point.
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// The grid, the borders between parts, and the lines, as SVG paths. Their appearance is determined by style
    /// sheets for the classes `grid`, `base`, `border`, `line`, `faint`, `dots`, and `r0`, `r1`, … for the series.
    pub(super) fn paths(&self, area: Area) -> String {
        let (left, right) = (short(area.left), short(area.right()));
        let rule = |y: f64| format!("M{left} {}H{right}", short(y));
        let grid: String = self.y.ticks.iter().map(|tick| rule(area.y(&self.y, tick.at))).collect();
        let mut out = format!("<path class=\"grid\" d=\"{grid}\"/>\n");
        _ = writeln!(out, "<path class=\"grid base\" d=\"{}\"/>", rule(area.bottom()));
        let border = |start: f64| {
            format!("M{} {}V{}", short(area.x(&self.x, start)), short(area.top), short(area.bottom()))
        };
        let borders: String = self.x.parts.iter().skip(1).map(|(start, _)| border(*start)).collect();
        if !borders.is_empty() {
            _ = writeln!(out, "<path class=\"border\" d=\"{borders}\"/>");
        }
        self.lines.iter().filter(|line| !line.points.is_empty()).for_each(|line| out += &self.line(line, area));
        out
    }

    fn line(&self, line: &ChartLine, area: Area) -> String {
        let place = |&(x, y): &Point| format!("{} {}", short(area.x(&self.x, x)), short(area.y(&self.y, y)));
        let places: Vec<String> = line.points.iter().map(place).collect();
        let class = if line.style == LineStyle::Faint { "faint" } else { "line" };
        // A line from a single point to itself is a dot, because line caps are round.
        let rest = places.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&places);
        let mut out =
            format!("<path class=\"{class} r{}\" d=\"M{}L{}\"/>\n", line.series, places[0], rest.join(" "));
        if line.style == LineStyle::Dotted && places.len() <= DOTS {
            let dots: String = places.iter().map(|place| format!("M{place}h0")).collect();
            _ = writeln!(out, "<path class=\"dots r{}\" d=\"{dots}\"/>", line.series);
        }
        out
    }
}

/// Formats a number with two decimals and without trailing zeros: precise enough for a drawing, and half the size of
/// the file.
pub(super) fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}
