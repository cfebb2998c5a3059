//! A chart: lines in SVG that stretch with the page, and numbers in HTML beside them that do not.

use std::fmt::Write;

use super::html::escape;
use super::scale::{Format, Scale};
use super::series::Point;

/// Width and height of the drawing in its own units.
const SIZE: f64 = 1000.0;

/// Lines of no more points than this show each of them.
const DOTS: usize = 40;

/// Groups with a label below the axis, at most, on a wide page, and on a narrow one.
const GROUP_LABELS: (usize, usize) = (32, 14);

/// What is drawn.
pub struct Chart {
    pub title: String,
    /// What the numbers beside the y axis are.
    pub unit: String,
    pub x: Across,
    pub y: Scale,
    pub format: Format,
    /// Later ones on top.
    pub lines: Vec<Line>,
}

/// What the x axis shows.
pub enum Across {
    /// Steps of training.
    Steps(Scale),
    /// Parts of held-out data, each a place of its own from 0.
    Groups(Vec<Group>),
}

/// A place on the x axis.
pub struct Group {
    pub split: String,
    /// Its whole name.
    pub name: String,
    /// Below the axis.
    pub label: String,
}

/// A line of a run.
pub struct Line {
    /// Its index, which is its colour.
    pub run: usize,
    pub points: Vec<Point>,
    pub look: Look,
}

/// How a line is drawn.
#[derive(Clone, Copy, PartialEq)]
pub enum Look {
    /// In the background: single steps.
    Faint,
    /// What is read off.
    Strong,
    /// So too, with a dot for each point unless there are many.
    Dotted,
}

impl Chart {
    /// The chart as a figure, or none if no line has a point.
    pub fn render(&self) -> Option<String> {
        if self.lines.iter().all(|line| line.points.is_empty()) {
            return None;
        }
        let title = escape(&self.title);
        let log = if self.y.log { "log scale" } else { "" };
        let unit: Vec<_> = [self.unit.as_str(), log].into_iter().filter(|text| !text.is_empty()).collect();
        let unit = escape(&unit.join(", "));
        let mut svg = self.grid();
        self.lines.iter().filter(|line| !line.points.is_empty()).for_each(|line| svg += &self.line(line));
        Some(format!(
            "<figure>\n<figcaption>{title} <span>{unit}</span></figcaption>\n<div class=\"plot\"{}>\n\
             <svg viewBox=\"0 0 {SIZE} {SIZE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">\n\
             {svg}</svg>\n{}{}</div>\n<p class=\"axis\">{}</p>\n</figure>\n",
            self.data(),
            self.y_numbers(),
            self.x_numbers(),
            escape(self.x.name()),
        ))
    }

    /// What it takes to read values off the drawing.
    fn data(&self) -> String {
        let Scale { low, high, log } = self.y;
        let x = match &self.x {
            Across::Steps(scale) => format!(" data-x=\"{} {}\"", scale.low, scale.high),
            Across::Groups(_) => String::new(),
        };
        let percent = if self.format == Format::Percent { " data-percent" } else { "" };
        format!("{x} data-y=\"{low} {high}\"{}{percent}", if log { " data-log" } else { "" })
    }

    /// From the left, 0 to 1.
    fn across(&self, x: f64) -> f64 {
        match &self.x {
            Across::Steps(scale) => scale.place(x),
            Across::Groups(groups) => (x + 0.5) / groups.len() as f64,
        }
    }

    fn line(&self, line: &Line) -> String {
        let places = line.points.iter().map(|&(x, y)| (SIZE * self.across(x), SIZE * (1.0 - self.y.place(y))));
        let places: Vec<_> = places.map(|(x, y)| format!("{} {}", short(x), short(y))).collect();
        let class = if line.look == Look::Faint { "faint" } else { "line" };
        // A single point is a line to itself: its round ends make a dot.
        let rest = places.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&places);
        let mut out = format!("<path class=\"{class} r{}\" d=\"M{}L{}\"/>\n", line.run, places[0], rest.join(" "));
        if line.look == Look::Dotted && places.len() <= DOTS {
            let dots: String = places.iter().map(|place| format!("M{place}h0")).collect();
            _ = writeln!(out, "<path class=\"dots r{}\" d=\"{dots}\"/>", line.run);
        }
        out
    }

    /// Lines behind the ticks, and between splits.
    fn grid(&self) -> String {
        let mut d = String::new();
        for tick in self.y.ticks() {
            _ = write!(d, "M0 {}H{SIZE}", short(SIZE * (1.0 - self.y.place(tick))));
        }
        let mut out =
            format!("<path class=\"grid\" d=\"{d}\"/>\n<path class=\"grid base\" d=\"M0 {SIZE}H{SIZE}\"/>\n");
        if let Across::Groups(groups) = &self.x {
            let borders = (1..groups.len()).filter(|&index| groups[index].split != groups[index - 1].split);
            let d: String = borders.map(|index| format!("M{} 0V{SIZE}", short(self.border(index)))).collect();
            if !d.is_empty() {
                _ = writeln!(out, "<path class=\"border\" d=\"{d}\"/>");
            }
        }
        out
    }

    /// Between a group and the one before.
    fn border(&self, index: usize) -> f64 {
        SIZE * self.across(index as f64 - 0.5)
    }

    fn y_numbers(&self) -> String {
        let mut out = "<div class=\"y\">".to_string();
        for (tick, label) in self.y.labelled_ticks(self.format) {
            _ = write!(out, "<span style=\"bottom:{}%\">{label}</span>", percent(self.y.place(tick)));
        }
        out + "</div>\n"
    }

    fn x_numbers(&self) -> String {
        match &self.x {
            Across::Steps(scale) => step_numbers(scale),
            Across::Groups(groups) => self.group_labels(groups) + &split_names(groups),
        }
    }

    fn group_labels(&self, groups: &[Group]) -> String {
        let slant = if labels_are_long(groups) { " slant" } else { "" };
        let stride = groups.len().div_ceil(GROUP_LABELS.0);
        let narrow = groups.len().div_ceil(GROUP_LABELS.1).next_multiple_of(stride);
        let mut out = format!("<div class=\"x{slant}\">");
        for (index, Group { split, name, label }) in groups.iter().enumerate() {
            let class = match index {
                index if !index.is_multiple_of(stride) => " class=\"never\"",
                index if !index.is_multiple_of(narrow) => " class=\"wide-only\"",
                _ => "",
            };
            let (name, label) = (escape(&format!("{name}, {split}")), escape(label));
            let left = percent(self.across(index as f64));
            _ = write!(out, "<span{class} style=\"left:{left}%\" data-name=\"{name}\">{label}</span>");
        }
        out + "</div>\n"
    }
}

impl Across {
    /// What the numbers below the axis are.
    pub fn name(&self) -> &str {
        match self {
            Self::Steps(_) => "step",
            Self::Groups(groups) => match groups.first() {
                Some(Group { name, label, .. }) if name != label => {
                    name.strip_suffix(label).unwrap_or(name).trim_end()
                }
                _ => "group",
            },
        }
    }
}

fn step_numbers(scale: &Scale) -> String {
    let mut out = "<div class=\"x\">".to_string();
    for (index, (tick, label)) in scale.labelled_ticks(Format::Number).into_iter().enumerate() {
        // Left out where it is narrow.
        let class = if index.is_multiple_of(2) { "" } else { " class=\"odd\"" };
        _ = write!(out, "<span{class} style=\"left:{}%\">{label}</span>", percent(scale.place(tick)));
    }
    out + "</div>\n"
}

/// Too long to stand beside each other.
fn labels_are_long(groups: &[Group]) -> bool {
    let longest = groups.iter().map(|group| group.label.chars().count()).max().unwrap_or(0);
    longest > 3 && longest * groups.len() > 36
}

/// The name of each split above its groups.
fn split_names(groups: &[Group]) -> String {
    let mut out = "<div class=\"splits\">".to_string();
    let mut start = 0;
    for part in groups.chunk_by(|a, b| a.split == b.split) {
        let (left, width) = (start as f64 / groups.len() as f64, part.len() as f64 / groups.len() as f64);
        let split = escape(&part[0].split);
        _ = write!(out, "<span style=\"left:{}%;width:{}%\">{split}</span>", percent(left), percent(width));
        start += part.len();
    }
    out + "</div>\n"
}

fn percent(place: f64) -> String {
    short(100.0 * place)
}

/// Two decimals, without zeros at the end: a hundredth of a pixel, and half the page.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: Vec<Line>) -> Chart {
        Chart {
            title: "a < b".into(),
            unit: "nats".into(),
            x: Across::Steps(Scale::linear(0.0, 10.0)),
            y: Scale::linear(0.0, 1.0),
            format: Format::Percent,
            lines,
        }
    }

    #[test]
    fn lines_go_where_their_points_are() {
        let points = vec![(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)];
        let figure = chart(vec![Line { run: 2, points, look: Look::Dotted }]).render().unwrap();
        assert!(figure.contains("<path class=\"line r2\" d=\"M0 1000L500 500 1000 0\"/>"), "{figure}");
        assert!(figure.contains("<path class=\"dots r2\" d=\"M0 1000h0M500 500h0M1000 0h0\"/>"), "{figure}");
        assert!(figure.contains("a &lt; b") && !figure.contains("a < b"));
    }

    #[test]
    fn one_point_is_seen_and_none_is_no_chart() {
        let single = Line { run: 0, points: vec![(5.0, 0.25)], look: Look::Strong };
        let figure = chart(vec![single]).render().unwrap();
        assert!(figure.contains("d=\"M500 750L500 750\""), "{figure}");
        assert_eq!(chart(vec![Line { run: 0, points: vec![], look: Look::Strong }]).render(), None);
        assert_eq!(chart(vec![]).render(), None);
    }

    #[test]
    fn splits_are_side_by_side() {
        let group = |split: &str, label: &str| Group {
            split: split.into(),
            name: format!("width {label}"),
            label: label.into(),
        };
        let groups = vec![group("validation", "1"), group("validation", "2"), group("beyond", "3")];
        let line = Line { run: 0, points: vec![(0.0, 1.0), (1.0, 0.5)], look: Look::Dotted };
        let figure = Chart { x: Across::Groups(groups), ..chart(vec![line]) }.render().unwrap();
        assert!(figure.contains("<span style=\"left:66.67%;width:33.33%\">beyond</span>"), "{figure}");
        assert!(figure.contains("<path class=\"border\" d=\"M666.67 0V1000\"/>"), "{figure}");
        assert!(figure.contains("<p class=\"axis\">width</p>"), "{figure}");
    }
}
