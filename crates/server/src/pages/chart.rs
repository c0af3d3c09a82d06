//! Charts as SVG, drawn by the server.

use maud::{Markup, html};

/// Width and height of a small chart.
const SMALL: (u64, u64) = (96, 24);
/// Width and height of a large chart.
const LARGE: (u64, u64) = (720, 140);

/// Returns a line without axes, for a cell of a table.
pub(crate) fn small(values: &[u64], label: &str) -> Markup {
    chart(values, label, SMALL, "spark", None)
}

/// Texts at the axes of a large chart, whose values begin at zero.
pub(crate) struct Axes {
    /// The highest value.
    pub(crate) top: String,
    /// Where the line begins.
    pub(crate) begin: String,
    /// Where it ends.
    pub(crate) end: String,
}

/// Returns a large chart with its scales, and what it shows. A script may replace its line by newer values, and its highest
/// value, under the given name.
pub(crate) fn large(values: &[u64], label: &str, axes: &Axes, live: Option<&str>) -> Markup {
    if values.len() < 2 {
        return html! {};
    }
    html! {
        figure {
            div.scaled {
                div.scale aria-hidden="true" {
                    span data-live=[live.map(|live| format!("top {live}"))] { (axes.top) }
                    span { "0" }
                }
                (chart(values, label, LARGE, "chart", live))
            }
            div.ends aria-hidden="true" { span { (axes.begin) } span { (axes.end) } }
            figcaption { (label) }
        }
    }
}

fn chart(
    values: &[u64],
    label: &str,
    (width, height): (u64, u64),
    class: &str,
    live: Option<&str>,
) -> Markup {
    if values.len() < 2 {
        return html! {};
    }
    let points = points(values, width, height);
    html! {
        svg class=(class) role="img" aria-label=(label) viewBox=(format!("0 0 {width} {height}"))
            width=(width) height=(height) preserveAspectRatio="none" data-chart=[live] {
            polyline points=(points) {}
        }
    }
}

/// Returns the corners of a line that begins at zero and fills the height.
fn points(values: &[u64], width: u64, height: u64) -> String {
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let steps = values.len().saturating_sub(1).max(1) as u64;
    let corner = |(at, value): (usize, &u64)| {
        let x = at as u64 * (width - 2) / steps + 1;
        // A margin of the line's width is kept at both ends.
        let high = u128::from(*value) * u128::from(height - 4) / u128::from(most);
        let y = u128::from(height - 2).saturating_sub(high);
        format!("{x},{y}")
    };
    values.iter().enumerate().map(corner).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_within_their_chart() {
        assert_eq!(points(&[0, 5, 10], 96, 24), "1,22 48,12 95,2");
        assert_eq!(points(&[u64::MAX, 0], 96, 24), "1,2 95,22");
        assert_eq!(points(&[0, 0], 96, 24), "1,22 95,22");
        assert_eq!(small(&[7], "one").into_string(), "");
    }
}
