//! The terminal: it shows the picture, is restored in every case, and is read for `q`.

use std::io::{self, Stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use load::generator::Stopper;
use load::report::{Second, Step};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
    is_raw_mode_enabled,
};

use super::Title;
use super::screen::Screen;

/// How soon the end of the run is noticed by the thread that listens.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The terminal while it shows a picture.
#[derive(Debug)]
pub(in crate::commands::load) struct Terminal {
    terminal: ratatui::Terminal<CrosstermBackend<Stderr>>,
    screen: Screen,
    done: Arc<AtomicBool>,
    keys: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Takes the terminal and starts to listen.
    pub(super) fn start(title: Title, stopper: Stopper) -> io::Result<Terminal> {
        enable_raw_mode()?;
        let opened = execute!(io::stderr(), EnterAlternateScreen)
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(io::stderr())));
        let terminal = opened.inspect_err(|_| restore_terminal())?;
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        let mut taken = Terminal {
            terminal,
            screen: Screen::new(title),
            done,
            keys: None,
        };
        taken.keys = Some(
            std::thread::Builder::new()
                .name("keys".to_owned())
                .spawn(move || listen(&flag, &stopper))?,
        );
        taken.draw();
        Ok(taken)
    }

    /// Shows one more second.
    pub(super) fn second(&mut self, second: &Second) {
        self.screen.push(second);
        self.draw();
    }

    /// Changes the line at the bottom.
    pub(super) fn note(&mut self, text: &str) {
        self.screen.note(text);
        self.draw();
    }

    /// Adds a row to the table of steps.
    pub(super) fn step(&mut self, step: &Step) {
        self.screen.step(step.clone());
        self.draw();
    }

    fn draw(&mut self) {
        // A terminal that was closed is no reason to stop measuring.
        let _ = self.terminal.draw(|frame| self.screen.draw(frame));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(keys) = self.keys.take() {
            let _ = keys.join();
        }
        restore_terminal();
    }
}

/// Ends raw mode and the alternate screen, if they are on. Errors are of no use here: there is nothing else to try.
pub(super) fn restore_terminal() {
    if matches!(is_raw_mode_enabled(), Ok(true)) {
        let _ = execute!(io::stderr(), LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Stops the run at `q`, Escape or Ctrl-C, which is a key like others while the terminal is ours.
fn listen(done: &AtomicBool, stopper: &Stopper) {
    while !done.load(Ordering::Relaxed) {
        match event::poll(POLL_INTERVAL) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(_) => return,
        }
        match event::read() {
            Ok(Event::Key(key)) if is_stop(&key) => stopper.stop(),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn is_stop(key: &KeyEvent) -> bool {
    let ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    let stop = matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc);
    key.kind == KeyEventKind::Press && (stop || ctrl_c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_stop() {
        let key = |code, modifiers| KeyEvent::new(code, modifiers);
        assert!(is_stop(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(is_stop(&key(KeyCode::Esc, KeyModifiers::NONE)));
        assert!(is_stop(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!is_stop(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
    }
}
