//! Logs go to stderr, so that stdout carries the banner and nothing else. [`crate::log_queue`] writes them. With
//! `telemetry.otlp`, they also go to a collector.

use std::fs::{File, Metadata};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::log_json::Json;
use crate::audit;
use crate::commands::input;
use crate::config::LogFormat;
use crate::log_queue::{MAX_FLUSH_TIME, QUEUE, ToQueue};
use crate::telemetry::ToCollector;

/// Changes the level while the program runs.
pub(in crate::commands) struct Level(reload::Handle<LevelFilter, Registry>);

impl Level {
    /// Logs what is at least as severe as `level` from now on.
    pub(super) fn set(&self, level: LevelFilter) {
        // Fails only if the subscriber was dropped, and then nothing is logged anyway.
        let _ = self.0.reload(level);
    }
}

/// Whether this output is the journal of systemd.
pub(super) fn is_the_journal(output: &impl AsFd) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let output = output.as_fd().try_clone_to_owned();
    let about = output.and_then(|file| File::from(file).metadata());
    about.is_ok_and(|about| names(&stream, &about))
}

/// Whether `JOURNAL_STREAM` is of this file: device and inode in decimal with a colon between them (systemd.exec(5)). A
/// process that inherits the variable may write somewhere else.
fn names(stream: &str, about: &Metadata) -> bool {
    stream == format!("{}:{}", about.dev(), about.ino())
}

/// Installs the global subscriber.
pub(in crate::commands) fn install(format: LogFormat, level: LevelFilter) -> Result<Level> {
    let json = match format {
        LogFormat::Auto => {
            let stderr = std::io::stderr();
            !stderr.is_terminal() && !is_the_journal(&stderr)
        }
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let layer = fmt::layer()
        .with_writer(|| ToQueue)
        .with_target(false)
        .with_ansi(input::colour());
    let layer = if json {
        layer.event_format(Json).boxed()
    } else {
        layer.boxed()
    };
    let (filter, handle) = reload::Layer::new(level);
    // `log.level` does not apply to audit lines. The hint keeps the callsites of all other levels disabled.
    let audit = filter_fn(|event| event.target() == audit::TARGET);
    let filter = filter.or(audit.with_max_level_hint(LevelFilter::INFO));
    Registry::default()
        .with(layer.and_then(ToCollector).with_filter(filter))
        .try_init()
        .context("logging is already set up")?;
    QUEUE
        .start()
        .context("cannot start the thread that writes the log")?;
    Ok(Level(handle))
}

/// Has a panic logged as one line like everything else, with its thread and its place in the code.
pub(super) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("?");
        let location = panic.location().map(tracing::field::display);
        let reason = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(thread, location, reason, "panic");
        // The process may end at once.
        QUEUE.flush(MAX_FLUSH_TIME);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_the_journal_is_that_of_the_same_device_and_inode() {
        let file = tempfile::tempfile().unwrap().metadata().unwrap();
        let (dev, ino) = (file.dev(), file.ino());
        assert!(names(&format!("{dev}:{ino}"), &file));
        let others = [
            format!("{dev}:{}", ino + 1),
            format!("{}:{ino}", dev + 1),
            format!("{dev}:{ino}:"),
            format!("{ino}:{dev}x"),
            String::new(),
        ];
        for other in others {
            assert!(!names(&other, &file), "{other}");
        }
    }
}
