//! What signals do to a measurement: the first ends it, with a report; the next ends the process.

use std::time::Duration;

use anyhow::{Context, Result};
use server::signals::Signals;

/// How often the thread that waits for signals checks whether it must end.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Status after a second Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// Calls `first` at the first SIGINT, SIGTERM or SIGHUP, and `last` at the second, which ends the process. To be called
/// before any thread starts, so that no signal is missed.
pub(super) fn on_signals(
    first: impl Fn() + Send + 'static,
    last: impl Fn() + Send + 'static,
) -> Result<()> {
    let mut signals = Signals::install().context("cannot catch SIGINT and SIGTERM")?;
    let mut asked = false;
    let watch = move || loop {
        match signals.wait(Some(POLL_INTERVAL)) {
            Ok(Some(_)) if asked => {
                last();
                std::process::exit(INTERRUPTED);
            }
            Ok(Some(_)) => {
                asked = true;
                first();
            }
            Ok(None) => {}
            Err(_) => return,
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .context("cannot start the thread that waits for signals")?;
    Ok(())
}
