//! Connects the server to the SQL database of registration bindings (`sip.binding_database`).

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use server::Builder;
use server::privileges;
use server::sip::{AddressState, BindingDatabase, SaveError};
use stores::{BindingRow, Options, SavedBindings};
use tokio::runtime::Runtime;

use crate::config::Config;

/// Adds the database of `sip.binding_database` to the server, if it is set.
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

/// The database. The thread that saves bindings opens it, at its first use.
#[derive(Debug)]
struct Database {
    options: Options,
    /// The value of the column `node`.
    node: String,
    opened: Mutex<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    runtime: Runtime,
    saved: SavedBindings,
}

impl Database {
    /// Opens the database if that was not done, and waits for the result of `query`.
    fn run<T>(
        &self,
        query: impl AsyncFnOnce(&SavedBindings) -> Result<T, stores::StoreError>,
    ) -> Result<T, SaveError> {
        let mut slot = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match &mut *slot {
            Some(opened) => opened,
            None => slot.insert(self.open()?),
        };
        Ok(opened.runtime.block_on(query(&opened.saved))?)
    }

    fn open(&self) -> Result<Opened, SaveError> {
        // This thread requires no capability: it binds no port and loads no BPF program.
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
        self.run(SavedBindings::load)
    }

    fn save(&self, states: &[AddressState<'_>]) -> Result<(), SaveError> {
        let rows = states.iter().map(|state| BindingRow {
            aor: state.aor,
            contacts: &state.contacts,
            ends_unix_s: state.ends_unix_s,
            state: state.record,
        });
        let rows: Vec<BindingRow<'_>> = rows.collect();
        self.run(async |saved| saved.save(&rows).await)
    }
}
