//! Heat maps of the accuracy of single digits.

use std::fmt::Write;

use crate::format::escape;

/// The accuracy of a model on every digit of every width.
pub struct DigitMap {
    /// The name of the model.
    pub name: String,
    /// A row for each width, with a fraction of 1 for each digit of its sums, the lowest digit first.
    pub rows: Vec<Vec<f64>>,
}

/// Side length of a map, and the gap between and around maps.
const SIDE: f64 = 190.0;
const GAP: f64 = 24.0;
/// Shades of accuracy, from 0 to 1.
const SHADES: usize = 10;

/// Draws a map for each model as an SVG file: digits of the sum from left to right, the lowest first, and widths
/// downwards. Widths above `trained`, marked by a line, were not in the training data.
pub fn digit_maps(title: &str, trained: usize, maps: &[DigitMap]) -> String {
    let across = maps.len().clamp(1, 4);
    let down = maps.len().div_ceil(across);
    let place = |index: usize| {
        let (column, row) = ((index % across) as f64, (index / across) as f64);
        (GAP + column * (SIDE + GAP), 66.0 + row * (SIDE + GAP + 18.0))
    };
    let (width, height) =
        ((GAP + across as f64 * (SIDE + GAP)).max(540.0), 66.0 + down as f64 * (SIDE + GAP + 18.0));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n<text x=\"{GAP}\" y=\"24\" font-size=\"15\">{}</text>\n\
         <text x=\"{GAP}\" y=\"42\" fill=\"#777\">digits →, lowest first; widths ↓, not trained below the line; dark: wrong, light: right</text>\n",
        escape(title)
    );
    for (index, map) in maps.iter().enumerate() {
        let (left, top) = place(index);
        let cell = SIDE / (map.rows.len() + 1) as f64;
        _ = writeln!(out, "<text x=\"{left}\" y=\"{:.1}\">{}</text>", top + 10.0, escape(&map.name));
        _ = writeln!(out, "<g transform=\"translate({left} {:.1}) scale({cell:.3})\">", top + 16.0);
        // One path for all cells of a shade keeps the file small.
        for shade in 0..SHADES {
            let mut path = String::new();
            for (y, row) in map.rows.iter().enumerate() {
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
        let across = map.rows.len() + 1;
        _ = writeln!(
            out,
            "<path d=\"M0 {trained}H{across}\" stroke=\"#d00\" stroke-width=\"{:.3}\"/></g>",
            1.5 / cell
        );
    }
    out + "</svg>\n"
}
