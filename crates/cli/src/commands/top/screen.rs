//! Shows the live view on the terminal until it is quit.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::poll::Poller;
use super::state::{Key, State};
use super::view;
use crate::error::Failure;

/// Interval at which a signal is checked for. The daemons are asked at the interval of the view.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the view. The terminal is restored however it ends: `ratatui::try_init` does so for a panic.
pub(super) fn run(
    poller: &Poller,
    interval: Duration,
    count: Option<u64>,
    signals: &Receiver<i32>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("can't use the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = show(&mut terminal, poller, interval, count, signals);
    ratatui::try_restore().and(outcome).map_err(failed)
}

fn show(
    terminal: &mut DefaultTerminal,
    poller: &Poller,
    interval: Duration,
    count: Option<u64>,
    signals: &Receiver<i32>,
) -> std::io::Result<()> {
    let mut state = State::default();
    let mut shown = 0;
    poller.poll();
    poller.wait_for_answers(POLL_INTERVAL);
    state.update(poller.snapshot());
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view::draw(frame, &state))?;
        if signals.try_recv().is_ok() {
            return Ok(());
        }
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            poller.poll();
            poller.wait_for_answers(POLL_INTERVAL);
            state.update(poller.snapshot());
            next = Instant::now() + interval;
            shown += 1;
            if count.is_some_and(|count| shown >= count) {
                return Ok(());
            }
            continue;
        }
        // A resize is an event, too, after which the view is drawn again.
        if event::poll(left.min(POLL_INTERVAL))?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && !handle(&mut state, key)
        {
            return Ok(());
        }
    }
}

/// Passes a key on; returns false if the view has to end.
fn handle(state: &mut State, key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let key = match key.code {
        KeyCode::Char('c') if control => return false,
        KeyCode::Char(_) if control => return true,
        KeyCode::Char(c) => Key::Character(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        _ => return true,
    };
    state.press(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_c_ends_the_view_while_a_filter_is_typed() {
        let mut state = State { types_filter: true, ..State::default() };
        assert!(handle(&mut state, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert_eq!(state.filter, "c");
        assert!(!handle(&mut state, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
