//! Reading the configuration again while the server runs.

use anyhow::{Result, bail};

use super::denied::WatchedDenyFiles;
use super::{Service, log_warnings, read, with_credentials};
use crate::config::{self, Config, Loaded};

/// What there is to say of a configuration that applies now.
pub(super) struct Reloaded {
    /// What is hardly meant.
    pub(super) warnings: Vec<String>,
    /// Keys whose new value needs a restart.
    pub(super) needs_restart: Vec<String>,
}

/// Mistakes of a configuration, each with its file and line.
#[derive(Debug)]
pub(super) struct Mistakes(pub(super) Vec<String>);

impl std::fmt::Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Mistakes {}

impl Service<'_> {
    /// Reads the configuration again; one with mistakes changes nothing.
    pub(super) fn reload(&mut self) -> Result<Reloaded> {
        self.manager.reloading();
        let outcome = read(self.args).and_then(|new| self.apply(&new));
        self.source.reloads.note(outcome.is_ok());
        let mut status = self.serving();
        if let Err(error) = &outcome {
            tracing::error!("reload refused, the old configuration stays: {error:#}");
            status = format!("{status}; the last reload was refused: {error:#}");
        }
        self.manager.ready(&status);
        outcome
    }

    fn apply(&mut self, new: &Loaded) -> Result<Reloaded> {
        let Some(mut config) = new.config.clone() else {
            bail!(Mistakes(new.one_line_each()))
        };
        if let Some(started) = &self.started.config {
            // A change of `server.state_dir` requires a restart. Until then, the default store stays in the old
            // directory.
            config.state_dir.clone_from(&started.state_dir);
        }
        let next = self.running.databases().open_next(&config)?;
        let before = self.running.databases_mut().replace(next);
        let tables = self.running.databases().tables();
        let outcome = self.apply_with_stores(config, new);
        let databases = self.running.databases_mut();
        match outcome {
            // New requests use none of the stores of before.
            Ok(_) => {
                databases.set_applied(tables);
                databases.log_change(&before);
                let sources = databases.sources().cloned().collect();
                self.source.set_stores(sources);
            }
            Err(_) => drop(databases.replace(before)),
        }
        outcome
    }

    /// Applies a configuration whose stores are open.
    fn apply_with_stores(&mut self, config: Config, new: &Loaded) -> Result<Reloaded> {
        let databases = self.running.databases();
        let config = with_credentials(config, &mut self.made_up_secret, databases)?;
        let denied = WatchedDenyFiles::of(config);
        let config = denied.with_rules()?;
        let keys = config::in_force(&self.started, new);
        let applied = super::applied(&config, self.uris.clone(), keys)?;
        self.running.reload(&config)?;
        // Nothing fails from here on.
        self.denied = denied;
        self.shared.set_applied(applied);
        self.level.set(config.log_level);
        self.drain = config.drain;
        log_warnings(new);
        let waiting = config::needs_restart(&self.started, new);
        if !waiting.is_empty() {
            tracing::warn!("needs a restart to take effect: {}", waiting.join(", "));
        }
        tracing::info!("configuration reloaded");
        Ok(Reloaded {
            warnings: new.one_line_each(),
            needs_restart: waiting,
        })
    }
}
