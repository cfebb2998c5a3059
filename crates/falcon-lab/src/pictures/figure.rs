//! A chart as an HTML figure: lines in SVG that stretch with the page, and labels in HTML that do not.

use std::fmt::Write;

use super::axis::TickFormat;
use super::chart::{Area, Axis, Chart, short};
use crate::format::escape;

/// Width and height of the drawing in its own units; the page stretches it.
const SIZE: f64 = 1000.0;
const AREA: Area = Area { left: 0.0, top: 0.0, width: SIZE, height: SIZE };

/// The largest number of labels below the x axis of a wide figure, and of a narrow one.
const LABELS: (usize, usize) = (32, 14);

impl Chart {
    /// The chart as an HTML figure; none if no line has a point.
    pub fn figure(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let title = escape(&self.title);
        let log = if self.y.scale.log { "log scale" } else { "" };
        let unit: Vec<_> = [self.unit.as_str(), log].into_iter().filter(|text| !text.is_empty()).collect();
        let unit = escape(&unit.join(", "));
        Some(format!(
            "<figure>\n<figcaption>{title} <span>{unit}</span></figcaption>\n<div class=\"plot\"{}>\n\
             <svg viewBox=\"0 0 {SIZE} {SIZE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">\n\
             {}</svg>\n{}{}{}</div>\n<p class=\"axis\">{}</p>\n</figure>\n",
            self.hover_data(),
            self.paths(AREA),
            y_labels(&self.y),
            x_labels(&self.x),
            part_names(&self.x),
            escape(&self.x.name),
        ))
    }

    /// Attributes from which the page's script computes the values under the pointer.
    fn hover_data(&self) -> String {
        let scale = &self.y.scale;
        let x = match named(&self.x) {
            false => format!(" data-x=\"{} {}\"", self.x.scale.low, self.x.scale.high),
            true => String::new(),
        };
        let percent = if self.y.format == TickFormat::Percent { " data-percent" } else { "" };
        let log = if scale.log { " data-log" } else { "" };
        format!("{x} data-y=\"{} {}\"{log}{percent}", scale.low, scale.high)
    }
}

/// Whether the ticks have names, which are shown under the pointer instead of numbers.
fn named(axis: &Axis) -> bool {
    axis.ticks.iter().any(|tick| tick.name.is_some())
}

fn y_labels(axis: &Axis) -> String {
    let mut out = "<div class=\"y\">".to_string();
    for tick in &axis.ticks {
        _ = write!(out, "<span style=\"bottom:{}%\">{}</span>", percent(axis.scale.place(tick.at)), tick.label);
    }
    out + "</div>\n"
}

fn x_labels(axis: &Axis) -> String {
    let count = axis.ticks.len();
    let stride = count.div_ceil(LABELS.0).max(1);
    let narrow = count.div_ceil(LABELS.1).max(1).next_multiple_of(stride);
    let mut out = format!("<div class=\"x{}\">", if slanted(axis) { " slant" } else { "" });
    for (index, tick) in axis.ticks.iter().enumerate() {
        // Style sheets hide some labels where the figure is narrow.
        let class = match index {
            index if !index.is_multiple_of(stride) => " class=\"never\"",
            index if !index.is_multiple_of(narrow) => " class=\"wide-only\"",
            index if !index.is_multiple_of(2 * narrow) => " class=\"odd\"",
            _ => "",
        };
        let name = tick.name.as_ref().map_or(String::new(), |name| format!(" data-name=\"{}\"", escape(name)));
        let (left, label) = (percent(axis.scale.place(tick.at)), escape(&tick.label));
        _ = write!(out, "<span{class} style=\"left:{left}%\"{name}>{label}</span>");
    }
    out + "</div>\n"
}

/// Whether names are too long to stand next to each other.
fn slanted(axis: &Axis) -> bool {
    let longest = axis.ticks.iter().map(|tick| tick.label.chars().count()).max().unwrap_or(0);
    named(axis) && longest > 3 && longest * axis.ticks.len() > 36
}

/// The name of each part of the axis, above it.
fn part_names(axis: &Axis) -> String {
    if axis.parts.is_empty() {
        return String::new();
    }
    let mut out = "<div class=\"splits\">".to_string();
    for (index, (start, name)) in axis.parts.iter().enumerate() {
        let end = axis.parts.get(index + 1).map_or(1.0, |(next, _)| axis.scale.place(*next));
        let left = axis.scale.place(*start);
        let (left, width, name) = (percent(left), percent(end - left), escape(name));
        _ = write!(out, "<span style=\"left:{left}%;width:{width}%\">{name}</span>");
    }
    out + "</div>\n"
}

fn percent(place: f64) -> String {
    short(100.0 * place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pictures::{AxisScale, ChartLine, LineStyle, Tick};

    fn chart(lines: Vec<ChartLine>) -> Chart {
        Chart {
            title: "a < b".into(),
            unit: "nats".into(),
            x: Axis::numbers("step", AxisScale::linear(0.0, 10.0), TickFormat::Number),
            y: Axis::numbers("", AxisScale::linear(0.0, 1.0), TickFormat::Percent),
            lines,
        }
    }

    #[test]
    fn lines_go_where_their_points_are() {
        let points = vec![(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)];
        let figure = chart(vec![ChartLine { series: 2, points, style: LineStyle::Dotted }]).figure().unwrap();
        assert!(figure.contains("<path class=\"line r2\" d=\"M0 1000L500 500 1000 0\"/>"), "{figure}");
        assert!(figure.contains("<path class=\"dots r2\" d=\"M0 1000h0M500 500h0M1000 0h0\"/>"), "{figure}");
        assert!(figure.contains("a &lt; b") && !figure.contains("a < b"));
    }

    #[test]
    fn a_single_point_is_visible_and_no_points_make_no_figure() {
        let single = ChartLine { series: 0, points: vec![(5.0, 0.25)], style: LineStyle::Plain };
        let figure = chart(vec![single]).figure().unwrap();
        assert!(figure.contains("d=\"M500 750L500 750\""), "{figure}");
        assert_eq!(chart(vec![ChartLine { series: 0, points: vec![], style: LineStyle::Plain }]).figure(), None);
        assert_eq!(chart(vec![]).figure(), None);
    }

    #[test]
    fn parts_of_the_axis_are_named_and_separated() {
        let tick = |(index, label): (usize, &str)| Tick {
            at: index as f64,
            label: label.into(),
            name: Some(format!("width {label}")),
        };
        let x = Axis {
            name: "width".into(),
            scale: AxisScale::linear(-0.5, 2.5),
            ticks: ["1", "2", "3"].into_iter().enumerate().map(tick).collect(),
            format: TickFormat::Number,
            parts: vec![(-0.5, "validation".into()), (1.5, "beyond".into())],
        };
        let line = ChartLine { series: 0, points: vec![(0.0, 1.0), (1.0, 0.5)], style: LineStyle::Dotted };
        let figure = Chart { x, ..chart(vec![line]) }.figure().unwrap();
        assert!(figure.contains("<span style=\"left:66.67%;width:33.33%\">beyond</span>"), "{figure}");
        assert!(figure.contains("<path class=\"border\" d=\"M666.67 0V1000\"/>"), "{figure}");
        assert!(figure.contains("<p class=\"axis\">width</p>"), "{figure}");
    }
}
