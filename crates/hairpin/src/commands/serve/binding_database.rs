//! The database that has the registration bindings, for the thread of the server that saves them.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use server::Builder;
use server::privileges;
use server::sip::{AddressState, BindingDatabase, SaveError};
use stores::{BindingRow, Options, SavedBindings};
use tokio::runtime::Runtime;

use crate::config::Config;

/// Adds the database of the configuration, if there is one.
///
/// # Errors
/// If there is no state directory, or this node has no name.
pub(super) fn add(builder: Builder, config: &Config) -> Result<Builder> {
    let Some(options) = &config.sip.binding_database else {
        return Ok(builder);
    };
    if config.state_dir.path().is_none() {
        bail!(
            "sip.binding_database requires server.state_dir: set it to a directory like \"/var/lib/hairpin\""
        );
    }
    let node = config.cluster.name();
    let node = node.context("this node has no name; set cluster.node")?;
    Ok(builder.binding_database(std::sync::Arc::new(Database {
        options: options.clone(),
        node,
        opened: Mutex::new(None),
    })))
}

/// The database. It is opened by the thread that uses it.
#[derive(Debug)]
struct Database {
    options: Options,
    node: String,
    opened: Mutex<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    runtime: Runtime,
    saved: SavedBindings,
}

impl Database {
    fn with<T>(
        &self,
        work: impl AsyncFnOnce(&SavedBindings) -> Result<T, stores::StoreError>,
    ) -> Result<T, SaveError> {
        let mut slot = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match &mut *slot {
            Some(opened) => opened,
            None => slot.insert(self.open()?),
        };
        Ok(opened.runtime.block_on(work(&opened.saved))?)
    }

    fn open(&self) -> Result<Opened, SaveError> {
        // This thread opens no port and loads nothing.
        privileges::drop_all()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let entered = runtime.enter();
        let saved = SavedBindings::open(&self.options, &self.node)?;
        drop(entered);
        Ok(Opened { runtime, saved })
    }
}

impl BindingDatabase for Database {
    fn id(&self) -> u64 {
        SavedBindings::id(&self.options, &self.node)
    }

    fn load(&self) -> Result<Vec<u8>, SaveError> {
        self.with(SavedBindings::load)
    }

    fn save(&self, states: &[AddressState<'_>]) -> Result<(), SaveError> {
        let rows = states.iter().map(|state| BindingRow {
            aor: state.aor,
            contacts: &state.contacts,
            ends_unix_s: state.ends_unix_s,
            state: state.record,
        });
        let rows: Vec<BindingRow<'_>> = rows.collect();
        self.with(async |saved| saved.save(&rows).await)
    }
}
