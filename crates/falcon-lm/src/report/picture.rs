//! Curves as one SVG file, for pages that cannot hold more.

use std::fmt::Write;

use super::html::escape;
use super::scale::{Fit, Format, Scale};

/// A line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// What stands around curves.
pub(crate) struct Axes {
    pub title: &'static str,
    /// What `x` is.
    pub name: &'static str,
    pub x: Scale,
    pub x_ticks: Vec<(f64, String)>,
    pub y: Scale,
    pub y_ticks: Vec<(f64, String)>,
    /// A line upwards, and what is behind it.
    pub border: Option<(f64, &'static str)>,
}

/// Curves, and what stands around them.
pub(crate) struct Panel {
    pub axes: Axes,
    pub curves: Vec<Curve>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
/// From one name to the next.
const NAME: f64 = 22.0;
/// Room for what stands around the curves: left, top, right, bottom.
const ROOM: [f64; 4] = [52.0, 44.0, 150.0, 48.0];
/// Told apart also by those who do not see all colours; then again with dashes.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#b0609a", "#a07c00", "#56a0d0", "#6b4fa0", "#505050"];
const DASHES: [&str; 3] = ["none", "7 3", "2 3"];

/// Curves on axes that fit them, across and upwards; `name` is what they go over.
pub fn fitted_curves(title: &'static str, name: &'static str, fits: [Fit; 2], all: &[Curve]) -> String {
    let values = |f: fn(&(f64, f64)) -> f64| all.iter().flat_map(|curve| &curve.points).map(f);
    let [x, y] = [Scale::fit(values(|point| point.0), fits[0]), Scale::fit(values(|point| point.1), fits[1])]
        .map(|scale| scale.unwrap_or(Scale::linear(0.0, 1.0)));
    let [x_ticks, y_ticks] = [x, y].map(|scale| scale.labelled_ticks(Format::Number));
    let axes = Axes { title, name, x, x_ticks, y, y_ticks, border: None };
    panels(&[Panel { axes, curves: all.to_vec() }])
}

/// Panels, one below the other.
pub(crate) fn panels(panels: &[Panel]) -> String {
    let height: f64 = panels.iter().map(Panel::height).sum();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#333\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let mut above = 0.0;
    for panel in panels {
        if above == 0.0 {
            out += &panel.render();
        } else {
            _ = write!(out, "<g transform=\"translate(0 {above})\">\n{}</g>\n", panel.render());
        }
        above += panel.height();
    }
    out + "</svg>\n"
}

impl Panel {
    /// Many names need more room than the curves.
    fn height(&self) -> f64 {
        HEIGHT.max(ROOM[1] + 24.0 + NAME * self.curves.len() as f64)
    }

    /// Curves with their names beside them.
    fn render(&self) -> String {
        let Self { axes, curves } = self;
        let [left, top, right, bottom] = ROOM;
        let x = |value: f64| left + axes.x.place(value) * (WIDTH - left - right);
        let y = |value: f64| HEIGHT - bottom - axes.y.place(value) * (HEIGHT - top - bottom);
        let mut out = format!("<text x=\"{left}\" y=\"24\" font-size=\"15\">{}</text>\n", escape(axes.title));
        for (tick, label) in &axes.y_ticks {
            let (at, end) = (y(*tick), WIDTH - right);
            _ = writeln!(out, "<path d=\"M{left} {at:.1}H{end}\" stroke=\"#ddd\"/>");
            _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                left - 8.0,
                at + 4.5
            );
        }
        for (tick, label) in &axes.x_ticks {
            let (at, under) = (x(*tick), HEIGHT - bottom + 20.0);
            _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{under}\" text-anchor=\"middle\">{label}</text>");
        }
        let middle = (left + WIDTH - right) / 2.0;
        _ = writeln!(
            out,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 10.0,
            escape(axes.name)
        );
        if let Some((border, behind)) = axes.border {
            let (edge, low) = (x(border), HEIGHT - bottom);
            _ = writeln!(out, "<path d=\"M{edge:.1} {top}V{low}\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>");
            _ = writeln!(out, "<text x=\"{:.1}\" y=\"{}\" fill=\"#777\">{behind}</text>", edge + 6.0, top + 4.0);
        }
        for (index, curve) in curves.iter().enumerate() {
            let (colour, dash) = (COLOURS[index % COLOURS.len()], DASHES[index / COLOURS.len() % DASHES.len()]);
            let line = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"");
            let points = curve.points.iter().map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value)));
            _ = writeln!(
                out,
                "<path d=\"M{}\" {line} stroke-linejoin=\"round\"/>",
                points.collect::<Vec<_>>().join("L")
            );
            let (key, at) = (WIDTH - right + 14.0, top + 12.0 + NAME * index as f64);
            _ = writeln!(out, "<path d=\"M{key} {at}h22\" {line}/>");
            _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", key + 30.0, at + 4.5, escape(&curve.name));
        }
        out
    }
}

/// What a model does with every digit of every width: a row for each width, as many numbers as its sums have digits.
pub(crate) struct Triangle {
    pub name: String,
    /// Fractions of 1.
    pub rows: Vec<Vec<f64>>,
}

/// Side of a triangle, and what stands between and around them.
const SIDE: f64 = 190.0;
const GAP: f64 = 24.0;
/// Shades from chance to certainty.
const SHADES: usize = 10;

/// A triangle for each model: digits of the target to the right, the lowest first, widths downwards; under the line is what was never learnt.
pub(crate) fn digits_of_widths(title: &str, border: usize, triangles: &[Triangle]) -> String {
    let across = triangles.len().clamp(1, 4);
    let down = triangles.len().div_ceil(across);
    let place = |index: usize| {
        let (column, row) = ((index % across) as f64, (index / across) as f64);
        (GAP + column * (SIDE + GAP), 66.0 + row * (SIDE + GAP + 18.0))
    };
    let (width, height) =
        ((GAP + across as f64 * (SIDE + GAP)).max(540.0), 66.0 + down as f64 * (SIDE + GAP + 18.0));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n<text x=\"{GAP}\" y=\"24\" font-size=\"15\">{}</text>\n\
         <text x=\"{GAP}\" y=\"42\" fill=\"#777\">digit, lowest first →, width ↓, never trained under the line; dark to light: wrong to right</text>\n",
        escape(title)
    );
    for (index, triangle) in triangles.iter().enumerate() {
        let (left, top) = place(index);
        let cell = SIDE / (triangle.rows.len() + 1) as f64;
        _ = writeln!(out, "<text x=\"{left}\" y=\"{:.1}\">{}</text>", top + 10.0, escape(&triangle.name));
        _ = writeln!(out, "<g transform=\"translate({left} {:.1}) scale({cell:.3})\">", top + 16.0);
        // One path for all cells of a shade keeps the file small.
        for shade in 0..SHADES {
            let mut path = String::new();
            for (y, row) in triangle.rows.iter().enumerate() {
                for (x, value) in row.iter().enumerate() {
                    if ((value * SHADES as f64) as usize).min(SHADES - 1) == shade {
                        _ = write!(path, "M{x} {y}h1v1h-1z");
                    }
                }
            }
            if !path.is_empty() {
                let part = shade as f64 / (SHADES - 1) as f64;
                let mix = |from: f64, to: f64| from + (to - from) * part;
                let colour = [mix(24.0, 253.0), mix(32.0, 231.0), mix(92.0, 120.0)].map(|c| c.round());
                let [red, green, blue] = colour;
                _ = writeln!(out, "<path d=\"{path}\" fill=\"rgb({red},{green},{blue})\"/>");
            }
        }
        let across = triangle.rows.len() + 1;
        _ = writeln!(
            out,
            "<path d=\"M0 {border}H{across}\" stroke=\"#d00\" stroke-width=\"{:.3}\"/></g>",
            1.5 / cell
        );
    }
    out + "</svg>\n"
}
