//! The page as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Claim, Data, Judged, Measured, Point, Verdict};
use crate::startup::report::{Report, Row};
use crate::statistics::Estimate;

/// Writing to a string succeeds, so results of `write!` are not looked at here.
pub(super) fn render(
    intro: &str,
    points: &[(&Point, Vec<Judged<'_>>)],
    files: &BTreeMap<PathBuf, Data>,
) -> String {
    let mut text = format!("# Performance\n\n{}\n", intro.trim());
    text += "\n| Promise | Met | Missed | Not measured |\n|---|---|---|---|\n";
    for (point, judged) in points {
        let count = |verdict| judged.iter().filter(|one| one.verdict() == verdict).count();
        let counts = [Verdict::Met, Verdict::Missed, Verdict::Open].map(|verdict| match count(verdict) {
            0 => String::new(),
            some => some.to_string(),
        });
        let _ = writeln!(text, "| [{}](#{}) | {} |", point.title, anchor(&point.title), counts.join(" | "));
    }
    text += &losses(points);
    for (point, judged) in points {
        text += &section(point, judged, files);
    }
    text += "\n## Results and conditions\n\nSeconds are medians; processor seconds those of command and client \
             together; ratios are to the first root in the same setting.\n";
    for (name, data) in files {
        text += &results(name, data);
    }
    text
}

/// Where the guide's viewers put a heading.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn losses(points: &[(&Point, Vec<Judged<'_>>)]) -> String {
    let mut text =
        "\n## Where Esker loses\n\nPromises that were missed, and everything that is slower than what it is \
                    compared with, beyond the doubt of its interval.\n\n"
            .to_owned();
    for judged in points.iter().flat_map(|(_, judged)| judged) {
        let Some(measured) = &judged.measured else { continue };
        let missed = judged.verdict() == Verdict::Missed;
        if missed || judged.loses() {
            let limit =
                if missed { format!(", promised {}", goal(judged.claim, measured)) } else { String::new() };
            let why = judged.claim.why.as_ref().map_or_else(String::new, |why| format!(": {}", why.trim()));
            let _ = writeln!(
                text,
                "- {}: {} ({}){limit}{why}",
                judged.claim.what,
                point(measured),
                range(measured)
            );
        }
    }
    text
}

fn section(point_: &Point, judged: &[Judged<'_>], files: &BTreeMap<PathBuf, Data>) -> String {
    let mut text = format!("\n## {}\n\nGoal: {}\n", point_.title, point_.goal.trim());
    text += "\n| What | Promised | Measured | 95 % | Runs | |\n|---|---|---|---|---|---|\n";
    for one in judged {
        let verdict = match one.verdict() {
            Verdict::Met if one.in_doubt() => "met by the median, in doubt by the interval",
            Verdict::Met => "met",
            Verdict::Missed => "**missed**",
            Verdict::Open => "not measured",
            Verdict::Told => "",
        };
        let cells = one.measured.as_ref().map_or_else(
            || [String::new(), String::new(), String::new(), String::new()],
            |measured| {
                let runs = measured.runs.map_or_else(String::new, |runs| runs.to_string());
                [goal(one.claim, measured), point(measured), range(measured), runs]
            },
        );
        let _ = writeln!(text, "| {} | {} | {verdict} |", one.claim.what, cells.join(" | "));
    }
    for one in judged.iter().filter(|one| one.verdict() == Verdict::Open) {
        let why = one.claim.why.as_deref().unwrap_or_default().trim();
        let _ = writeln!(text, "\nNot measured: {}: {why}", one.claim.what);
    }
    if !point_.text.is_empty() {
        let _ = writeln!(text, "\n{}", point_.text.trim());
    }
    let mut names: Vec<&PathBuf> = judged.iter().flat_map(|one| one.claim.files()).collect();
    names.sort();
    names.dedup();
    if !names.is_empty() {
        text += "\nMeasured:\n\n";
    }
    for name in names {
        if let Some(data) = files.get(name) {
            let _ = writeln!(text, "- [{}]({}): {}", stem(name), name.display(), data.conditions.line());
        }
    }
    if let Some(repeat) = &point_.repeat {
        let _ = writeln!(
            text,
            "\nTo repeat it:\n\n```sh elsewhere: needs an idle machine, root and minutes\n{}\n```",
            repeat.trim()
        );
    }
    text
}

fn results(name: &Path, data: &Data) -> String {
    let mut text = format!("\n### {}\n\n", stem(name));
    let Some(results) = &data.results else {
        let _ = writeln!(text, "{}", data.conditions.line());
        return text;
    };
    let report = Report::from(results.clone());
    let _ = writeln!(text, "`{}`; {}\n", report.results.command.join(" "), data.conditions.line());
    text += "| Setting | Root | Runs | s | 95 % | Ratio | 95 % | CPU s | MB | Requests |\n\
             |---|---|---|---|---|---|---|---|---|---|\n";
    for row in &report.rows {
        let _ = writeln!(text, "| {} |", cells(row).join(" | "));
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let ends = |estimate: &Estimate| format!("{:.3}–{:.3}", estimate.low, estimate.high);
    let traffic = row.traffic.as_ref();
    vec![
        row.setting.to_string(),
        row.root.clone(),
        row.runs.to_string(),
        format!("{:.3}", row.real.point),
        ends(&row.real),
        row.ratio.map_or_else(|| "1".into(), |ratio| format!("{:.3}", ratio.point)),
        row.ratio.as_ref().map_or_else(String::new, ends),
        format!("{:.2}", row.cpu.point),
        traffic.map_or_else(String::new, |traffic| format!("{:.1}", traffic.fetched / 1e6)),
        traffic.map_or_else(String::new, |traffic| format!("{:.0}", traffic.requests)),
    ]
}

fn stem(name: &Path) -> String {
    name.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn goal(claim: &Claim, measured: &Measured) -> String {
    let unit = unit(measured);
    let point = claim.at_most.map(|limit| format!("≤ {limit}{unit}"));
    let upper = claim.upper_at_most.map(|limit| format!("upper end ≤ {limit}{unit}"));
    [point, upper].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn unit(measured: &Measured) -> &'static str {
    if measured.ratio { " ×" } else { " s" }
}

fn point(measured: &Measured) -> String {
    format!("{:.3}{}", measured.value.point, unit(measured))
}

fn range(measured: &Measured) -> String {
    format!("{:.3}–{:.3}", measured.value.low, measured.value.high)
}
