//! A server whose API tests use: its tokens, its configuration, and clients that relay.

use std::path::Path;
use std::process::{Child, Stdio};

use super::hairpin;

/// The token of `admin.tokens`.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789";
/// The token of `admin.credential_tokens`.
pub(crate) const CREDENTIAL_TOKEN: &str = "fedcba9876543210fedcba9876";
/// The secret of time-limited credentials.
pub(crate) const SECRET: &str = "a shared secret of this test";

/// The beginning of a configuration with a store and a control socket in this folder. It ends with `[admin]`, and each
/// of the texts has lines for its table.
pub(crate) fn config(folder: &Path, realm: &str, [auth, admin]: [&str; 2]) -> String {
    let (state, socket) = (folder.join("state"), folder.join("control.sock"));
    format!(
        "[server]\nstate_dir = {state:?}\ncontrol_socket = {socket:?}\nworkers = 2\n[auth]\nrealm = {realm:?}\nsecrets = [{SECRET:?}]\n{auth}\
         [admin]\ntokens = [{TOKEN:?}]\n{admin}"
    )
}

/// Two clients that relay until this is dropped.
pub(crate) struct TwoClients(Child);

impl TwoClients {
    /// Of the server with this TURN listener.
    pub(crate) fn start(listener: &str) -> Self {
        let clients = ["--secret", SECRET, "--clients", "2"];
        let pace = ["--rate", "100", "--duration", "60s"];
        let mut load = hairpin(&[&["load", "turn", listener], &clients[..], &pace].concat());
        load.stdout(Stdio::null()).stderr(Stdio::null());
        Self(load.spawn().expect("it starts"))
    }
}

impl Drop for TwoClients {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
