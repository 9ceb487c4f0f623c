//! Line charts over steps, as SVG: the bottom is 1, integers are marked, and the legend is above.

use std::fmt::Write;

/// The width of the plotting area.
pub(crate) const WIDTH: f64 = 720.0;
/// The height of the plotting area.
pub(crate) const HEIGHT: f64 = 220.0;
/// The margin on every side.
pub(crate) const MARGIN: f64 = 48.0;
/// Line colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Its name in the legend.
    pub(crate) name: String,
    /// A value per step, at least 1.
    pub(crate) values: Vec<f64>,
    /// Related lines have equal colours.
    pub(crate) colour: usize,
    /// True for a dashed line.
    pub(crate) dashed: bool,
}

/// Starts a drawing of this height with a title. The caller appends the content and `</svg>`.
pub(crate) fn begin(title: &str, height: f64) -> String {
    let width = WIDTH + 2.0 * MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"15\">{}</text>\n",
        title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
    )
}

/// Draws lines below a legend with `spacing` between its entries, and a caption under them.
pub(crate) fn lines(out: &mut String, lines: &[Line], spacing: f64, caption: &str) {
    let most = lines.iter().flat_map(|line| &line.values).copied().fold(2.0, f64::max).ceil();
    let steps = lines.iter().map(|line| line.values.len()).max().unwrap_or(0).max(2) - 1;
    let bottom = MARGIN + HEIGHT;
    let y = |value: f64| bottom - (value - 1.0) / (most - 1.0) * HEIGHT;
    for tick in 1..=most as usize {
        let (at, end, left) = (y(tick as f64), MARGIN + WIDTH, MARGIN - 6.0);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<line x1=\"{MARGIN}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{left}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            at + 4.0
        );
    }
    for (place, line) in lines.iter().enumerate() {
        let point = |(step, &value): (usize, &f64)| {
            format!("{:.1},{:.1}", MARGIN + WIDTH * step as f64 / steps as f64, y(value))
        };
        let points: Vec<String> = line.values.iter().enumerate().map(point).collect();
        let colour = COLOURS[line.colour % COLOURS.len()];
        let dashes = if line.dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let (x, y, name) = (MARGIN + spacing * place as f64, MARGIN - 8.0, &line.name);
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"{dashes} points=\"{}\"/>\
             <text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>",
            points.join(" ")
        );
    }
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{:.1}\">{caption}</text>", bottom + 16.0);
}
