//! `--api`, `--token-file` and `--ca`: the server of a command is on another machine.

use std::cell::OnceCell;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::api_client::{ApiUrl, Client};

/// The admin API of a server.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Remote {
    // Not a doc comment: rustdoc would require a link, and the help would show its brackets.
    #[arg(
        long,
        value_name = "URL",
        env = "HAIRPIN_API",
        value_parser = ApiUrl::read,
        help = "Use the admin API of a server, such as https://turn.example.org:9641"
    )]
    pub(crate) api: Option<ApiUrl>,
    /// A file with one of admin.tokens, for --api
    #[arg(long, value_name = "FILE", env = "HAIRPIN_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A PEM file with the issuer of the server's certificate, for --api [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "api")]
    pub(crate) ca: Option<PathBuf>,
    #[arg(skip)]
    client: OnceCell<Client>,
}

impl Remote {
    /// The client for `--api`; `None` without it.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn client(&self) -> Result<Option<&Client>> {
        let Some(url) = &self.api else {
            return Ok(None);
        };
        if let Some(flag) = local_flag(std::env::args()) {
            bail!("--api (or HAIRPIN_API) and {flag} name different servers: use one of them");
        }
        if let Some(client) = self.client.get() {
            return Ok(Some(client));
        }
        let client = Client::new(url, self.token_file.as_deref(), self.ca.as_deref())?;
        Ok(Some(self.client.get_or_init(|| client)))
    }
}

/// The flag on the command line that names a server on this machine. The variables for the same do not count.
fn local_flag(mut words: impl Iterator<Item = String>) -> Option<&'static str> {
    words.find_map(|word| {
        // `-cFILE` is `-c FILE`.
        if word.starts_with("-c") {
            return Some("-c");
        }
        let name = word.split('=').next().unwrap_or_default();
        ["--socket", "--config", "-c"]
            .into_iter()
            .find(|flag| *flag == name)
    })
}
