//! Draws the live view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table};

use super::snapshot::{MountRow, Snapshot};
use super::state::State;
use super::text::{MOUNT_HEAD, micros, mount_cells};
use crate::output::size;

/// Keys of the view.
const HELP: [&str; 8] = [
    "s       sort by the next column: requests, bytes, hit rate, waiting, name",
    "r       reverse the order",
    "/ or f  show only rows with a text; Enter keeps it, Escape clears it",
    "p       pause",
    "↑ ↓     scroll the mounts",
    "h or ?  show or hide this help",
    "q       quit",
    "LOAD is the number of requests in flight to servers; SLOWEST has the last 10 s",
];

fn head() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

fn titled(title: &str) -> Block<'_> {
    Block::default().borders(Borders::TOP).title(title)
}

/// Draws the state into a frame of any size.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let shown = state.shown();
    let mounts = u16::try_from(shown.mounts.len()).unwrap_or(u16::MAX).saturating_add(2).min(12);
    let [top, table, servers, waiting, slowest, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(mounts.max(3)),
        Constraint::Length(u16::try_from(shown.servers.len().clamp(1, 6)).unwrap_or(6) + 1),
        Constraint::Length(u16::try_from(shown.waiting.len().clamp(1, 8)).unwrap_or(8) + 1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(summary(&shown, state)).style(head()), top);
    draw_mounts(frame, table, &shown, state.scroll);
    draw_servers(frame, servers, &shown);
    draw_waiting(frame, waiting, &shown);
    draw_slowest(frame, slowest, &shown);
    frame.render_widget(Paragraph::new(footer(state)), bottom);
    if state.help {
        draw_help(frame);
    }
}

fn summary(shown: &Snapshot, state: &State) -> Line<'static> {
    let sum = |of: fn(&MountRow) -> f64| shown.mounts.iter().map(of).sum::<f64>();
    let (requests, bytes) = (sum(|row| row.requests_per_second), sum(|row| row.bytes_per_second));
    let waiting: u64 = shown.mounts.iter().map(|row| row.waiting).sum();
    let paused = if state.paused { "  PAUSED" } else { "" };
    let mounts = shown.mounts.len();
    let noun = if mounts == 1 { "mount" } else { "mounts" };
    Line::from(format!(
        "esker top  {mounts} {noun}  {requests:.0} requests/s  {}/s  {waiting} waiting{paused}",
        size(bytes as u64),
    ))
}

fn footer(state: &State) -> Line<'static> {
    if state.types_filter {
        return Line::from(format!("filter: {}▏", state.filter));
    }
    let filter = if state.filter.is_empty() { String::new() } else { format!("  filter: {}", state.filter) };
    let order = if state.reverse { ", reversed" } else { "" };
    Line::from(format!("q quit  s sort: {}{order}  / filter  p pause  h help{filter}", state.sort.name()))
}

fn draw_mounts(frame: &mut Frame<'_>, area: Rect, shown: &Snapshot, scroll: usize) {
    let widths = [8, 6, 10, 5, 5, 6, 8].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let rows = shown.mounts.iter().skip(scroll).map(|row| {
        let color = match row.state {
            "hanging" => Color::Red,
            "offline" => Color::Yellow,
            _ => Color::Reset,
        };
        let mut cells = mount_cells(row);
        for (cell, width) in cells.iter_mut().zip([8, 6, 10, 5, 5, 6]) {
            *cell = format!("{cell:>width$}");
        }
        Row::new(cells).style(Style::default().fg(color))
    });
    let titles =
        MOUNT_HEAD.iter().zip([8, 6, 10, 5, 5, 6, 0, 0]).map(|(title, width)| format!("{title:>width$}"));
    let table = Table::new(rows, widths).header(Row::new(titles).style(head())).block(titled("MOUNTS"));
    frame.render_widget(table, area);
}

fn draw_servers(frame: &mut Frame<'_>, area: Rect, shown: &Snapshot) {
    let rows = shown.servers.iter().map(|row| {
        let through = row.proxy.as_ref().map(|proxy| format!(" through {proxy}")).unwrap_or_default();
        Row::new([
            format!("{:>4} + {}", row.demands, row.prefetches),
            format!("{:>9}", micros(row.oldest_us)),
            format!("{}{through}", row.server),
            row.oldest.clone(),
        ])
    });
    let widths = [Constraint::Length(11), Constraint::Length(9), Constraint::Fill(1), Constraint::Fill(1)];
    let title = "DOWNLOADS BY SERVER: for programs + prefetches, age and object of the oldest";
    frame.render_widget(Table::new(rows, widths).block(titled(title)), area);
}

fn draw_waiting(frame: &mut Frame<'_>, area: Rect, shown: &Snapshot) {
    let rows = shown.waiting.iter().map(|row| {
        Row::new([
            format!("{:>9}", micros(row.waited_us)),
            format!("{:>8}", row.pid),
            row.command.clone(),
            row.operation.to_owned(),
            row.path.clone(),
        ])
    });
    let widths = [9, 8, 15, 10].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    frame.render_widget(Table::new(rows, widths).block(titled("WAITING PROCESSES")), area);
}

fn draw_slowest(frame: &mut Frame<'_>, area: Rect, shown: &Snapshot) {
    let rows = shown.slowest.iter().map(|row| {
        Row::new([
            format!("{:>9}", micros(row.took_us)),
            format!("{:>5}×", row.requests),
            row.operation.to_owned(),
            row.source.to_owned(),
            row.command.clone(),
            row.path.clone(),
        ])
    });
    let widths = [9, 6, 10, 8, 15].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    frame.render_widget(Table::new(rows, widths).block(titled("SLOWEST PATHS")), area);
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (82.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    let text: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(
        Paragraph::new(text).block(Block::default().borders(Borders::ALL).title("Keys")),
        place,
    );
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::state::Key;
    use super::super::tests::example;
    use super::*;

    /// Returns the drawn lines.
    fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, state)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(row).collect()
    }

    #[test]
    fn the_view_shows_mounts_downloads_processes_and_slow_paths() {
        let mut state = State::default();
        state.update(example());
        let text = drawn(&state, 110, 24).join("\n");
        for part in [
            "esker top  2 mounts  100 requests/s  2.0 KiB/s  1 waiting",
            "100   90 %    2.0 KiB     1     3      2 serving  /cvmfs/a.test",
            "hanging  /cvmfs/b.test: no answer for 3 s",
            "1 + 1        70 µs http://s",
            "1.5 ms        4 cat?            read       /cvmfs/a.test/a",
            "5.0 ms     2× read       network  py              /cvmfs/a.test/x",
            "q quit  s sort: requests",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn the_view_fits_any_size() {
        let mut state = State::default();
        state.update(example());
        state.press(Key::Character('h'));
        for (width, height) in [(1, 1), (3, 2), (20, 5), (40, 50), (300, 90)] {
            assert_eq!(drawn(&state, width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn help_and_filter_are_shown() {
        let mut state = State::default();
        state.update(example());
        state.press(Key::Character('h'));
        assert!(drawn(&state, 100, 24).join("\n").contains("reverse the order"));
        state.press(Key::Character('h'));
        state.press(Key::Character('/'));
        state.press(Key::Character('b'));
        let text = drawn(&state, 100, 24).join("\n");
        assert!(text.contains("filter: b") && !text.contains("/cvmfs/a.test"), "{text}");
    }
}
