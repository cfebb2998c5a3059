//! Curves as one SVG file, for pages that cannot hold more.

use std::fmt::Write;

use crate::report::{Format, Scale, escape};

/// A line with a name.
pub(super) struct Curve {
    pub name: String,
    /// Fractions of 1, by `x`.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
/// Room for what stands around the curves: left, top, right, bottom.
const ROOM: [f64; 4] = [52.0, 44.0, 150.0, 48.0];
/// Told apart also by those who do not see all colours; then again with dashes.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#b0609a", "#a07c00", "#56a0d0", "#6b4fa0", "#505050"];
const DASHES: [&str; 3] = ["none", "7 3", "2 3"];

/// Curves over numbers, from 0 to 100 percent; behind `border` begins what was never learnt.
pub(super) fn picture(title: &str, axis: &str, border: f64, curves: &[Curve]) -> String {
    let [left, top, right, bottom] = ROOM;
    let xs = || curves.iter().flat_map(|curve| curve.points.iter().map(|(x, _)| *x));
    let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    let (x_scale, y_scale) = (Scale::linear(low - 0.5, high + 0.5), Scale::linear(0.0, 1.0));
    let x = |value: f64| left + x_scale.place(value) * (WIDTH - left - right);
    let y = |value: f64| HEIGHT - bottom - y_scale.place(value) * (HEIGHT - top - bottom);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#333\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n<text x=\"{left}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    for (tick, label) in y_scale.labelled_ticks(Format::Percent) {
        let (at, end) = (y(tick), WIDTH - right);
        _ = writeln!(out, "<path d=\"M{left} {at:.1}H{end}\" stroke=\"#ddd\"/>");
        _ = writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", left - 8.0, at + 4.5);
    }
    let stride = ((high - low) / 16.0).ceil().max(1.0);
    let mut tick = low;
    while tick <= high {
        _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
            x(tick),
            HEIGHT - bottom + 20.0
        );
        tick += stride;
    }
    let middle = (left + WIDTH - right) / 2.0;
    _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 10.0,
        escape(axis)
    );
    let edge = x(border + 0.5);
    _ = writeln!(
        out,
        "<path d=\"M{edge:.1} {top}V{}\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>",
        HEIGHT - bottom
    );
    _ = writeln!(out, "<text x=\"{:.1}\" y=\"{}\" fill=\"#777\">never trained →</text>", edge + 6.0, top + 4.0);
    for (index, curve) in curves.iter().enumerate() {
        let (colour, dash) = (COLOURS[index % COLOURS.len()], DASHES[index / COLOURS.len() % DASHES.len()]);
        let line = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"");
        let points = curve.points.iter().map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value)));
        _ = writeln!(
            out,
            "<path d=\"M{}\" {line} stroke-linejoin=\"round\"/>",
            points.collect::<Vec<_>>().join("L")
        );
        let (key, at) = (WIDTH - right + 14.0, top + 12.0 + 22.0 * index as f64);
        _ = writeln!(out, "<path d=\"M{key} {at}h22\" {line}/>");
        _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", key + 30.0, at + 4.5, escape(&curve.name));
    }
    out + "</svg>\n"
}
