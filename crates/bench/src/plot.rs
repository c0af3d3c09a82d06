//! Draws bar charts with confidence intervals as self-contained SVG.

use std::fmt::Write as _;

use crate::statistics::Estimate;

/// A bar of a plot.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Label of the bar.
    pub label: String,
    /// Group of the bar; a change starts a new group.
    pub group: String,
    /// Length of the bar.
    pub value: Estimate,
    /// Text at the end of the bar.
    pub note: String,
}

const LEFT: f64 = 190.0;
const WIDTH: f64 = 460.0;
const RIGHT: f64 = 200.0;
const BAR: f64 = 22.0;
const GROUP: f64 = 30.0;
const TOP: f64 = 44.0;
const COLORS: [&str; 5] = ["#7f8c8d", "#2e86c1", "#d68910", "#28b463", "#884ea0"];

/// Draws bars of seconds from zero, with whiskers for their intervals.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    let longest = bars.iter().map(|bar| bar.value.high).fold(f64::MIN_POSITIVE, f64::max);
    let groups = bars.iter().zip(bars.iter().skip(1)).filter(|(a, b)| a.group != b.group).count() + 1;
    let height = TOP + BAR * bars.len() as f64 + GROUP * groups as f64 + 12.0;
    let total = LEFT + WIDTH + RIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
         <text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>",
        escaped(title)
    );
    let mut y = TOP;
    let mut group = None;
    let mut labels: Vec<&str> = Vec::new();
    for bar in bars {
        if group != Some(&bar.group) {
            group = Some(&bar.group);
            // Writing to a string succeeds, here and below.
            let _ = write!(
                svg,
                "<text x=\"12\" y=\"{}\" font-weight=\"bold\">{}</text>",
                y + 20.0,
                escaped(&bar.group)
            );
            y += GROUP;
        }
        let color = labels.iter().position(|label| *label == bar.label).unwrap_or_else(|| {
            labels.push(&bar.label);
            labels.len() - 1
        });
        let x = |seconds: f64| LEFT + WIDTH * seconds / longest;
        let middle = y + BAR / 2.0 - 2.0;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/>\
             <path d=\"M{:.1} {middle}H{:.1}\" stroke=\"#000\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
            LEFT - 8.0,
            y + 13.0,
            escaped(&bar.label),
            x(bar.value.point) - LEFT,
            BAR - 5.0,
            COLORS[color % COLORS.len()],
            x(bar.value.low),
            x(bar.value.high),
            x(bar.value.high) + 8.0,
            y + 13.0,
            escaped(&bar.note),
        );
        y += BAR;
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
