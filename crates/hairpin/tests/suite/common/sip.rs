//! Servers with SIP.

use std::net::SocketAddr;

use super::{Serve, hairpin};
use crate::sip_client::phone::{PASSWORD, Phone, Wire};
use crate::tls_peer::Link;

/// The lines of a configuration in which tests differ. `FOLDER` is the server's own folder.
#[derive(Default)]
pub(crate) struct SipConfig<'a> {
    /// Keys of `[server]`.
    pub(crate) server: &'a str,
    /// Keys of `[admin]`.
    pub(crate) admin: &'a str,
    /// Keys of `[sip]`.
    pub(crate) sip: &'a str,
    /// Keys of the domain `example.com`.
    pub(crate) domain: &'a str,
    /// Names of the users. Their password is [`PASSWORD`].
    pub(crate) users: &'a [&'a str],
    /// Further sections.
    pub(crate) more: &'a str,
}

/// A server of SIP for `example.com` on loopback, with its folder.
pub(crate) struct SipServer {
    pub(crate) serve: Serve,
    /// Its listener over UDP and TCP.
    pub(crate) sip: SocketAddr,
    pub(crate) folder: tempfile::TempDir,
}

impl SipServer {
    pub(crate) fn start(config: &SipConfig<'_>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// The same in a folder that may have files already.
    pub(crate) fn start_in(folder: tempfile::TempDir, config: &SipConfig<'_>) -> Self {
        let users: String = config
            .users
            .iter()
            .map(|name| format!("  {{ name = \"{name}\", password = \"{PASSWORD}\" }},\n"))
            .collect();
        let text = format!(
            "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[peers]\nallow_local = true\n\
             [offload]\nmode = \"off\"\n[admin]\nlisten = \"127.0.0.1:0\"\n{}[server]\nworkers = 2\n{}\
             [sip]\nlisten = [\"127.0.0.1:0\"]\ntolerance = \"0s\"\n{}[[sip.domain]]\nname = \"example.com\"\n{}\
             [auth]\nrealm = \"example.com\"\nusers = [\n{users}]\n{}",
            config.admin, config.server, config.sip, config.domain, config.more
        );
        let text = text.replace("FOLDER", &folder.path().display().to_string());
        let path = folder.path().join("hairpin.toml");
        std::fs::write(&path, text).unwrap();
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&path);
        let serve = Serve::start_command(command);
        SipServer {
            sip: sip_listener(&serve),
            serve,
            folder,
        }
    }
}

/// The listener of a server for SIP over UDP and TCP, from its banner.
pub(crate) fn sip_listener(serve: &Serve) -> SocketAddr {
    let mut lines = serve.banner.lines();
    let line = lines.find(|line| line.starts_with("sip ") && line.contains("udp and tcp"));
    let line = line.unwrap_or_else(|| panic!("no SIP in {}", serve.banner));
    let mut words = line.split_whitespace();
    let address = words.find_map(|word| word.trim_end_matches(':').parse().ok());
    address.unwrap()
}

/// A phone over a TLS connection. Nobody listens at the port of its Contact.
pub(crate) fn phone_over_tls(connection: Link, port: u16, user: &str) -> Phone {
    let contact = SocketAddr::from(([127, 0, 0, 8], port));
    Phone::other(Box::new(OverTls(connection)), "TLS", contact, user)
}

struct OverTls(Link);

impl Wire for OverTls {
    fn send(&mut self, text: &str) {
        self.0.send(text);
    }

    fn receive(&mut self) -> String {
        self.0.next().expect("the connection is open")
    }
}
