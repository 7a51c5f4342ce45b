//! What `serve` prints on stdout once it runs: where it is, and what to paste where.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::plan::Listeners;
use crate::commands::ice::Ice;
use crate::commands::output::Lines;
use crate::config::is_private;

/// The contents of the banner.
#[derive(Debug)]
pub(super) struct Banner {
    /// Listening addresses, with the real ports.
    pub(super) listeners: Listeners,
    /// Where SIP is served, over UDP and TCP.
    pub(super) sip: Vec<SocketAddr>,
    /// SIP over TLS and WebSocket.
    pub(super) sip_streams: Vec<String>,
    /// Whether the test user agent server takes REGISTER and INVITE.
    pub(super) test_uas: bool,
    /// Relay addresses: the bound one, and the one that clients get.
    pub(super) relays: Vec<(IpAddr, IpAddr)>,
    /// Ports of relays.
    pub(super) relay_ports: RangeInclusive<u16>,
    /// Number of workers.
    pub(super) workers: usize,
    /// How clients find theirs, if there are several.
    pub(super) steering: Option<&'static str>,
    /// The realm.
    pub(super) realm: String,
    /// Whether loopback and private peers are admitted.
    pub(super) local_peers: bool,
    /// What the kernel does for the server, each line with its name.
    pub(super) kernel: Vec<(&'static str, String)>,
    /// Who relays what arrives on each interface.
    pub(super) offload: Vec<String>,
    /// Where metrics and health checks are served.
    pub(super) admin: Option<SocketAddr>,
    /// Where the control socket is.
    pub(super) control: Option<PathBuf>,
    /// How clients get in.
    pub(super) access: Access,
}

/// How clients get in.
#[derive(Debug)]
pub(super) enum Access {
    /// No file: credentials to try it with, and the secret if it was made up.
    Quick {
        /// Ready to use.
        ice: Ice,
        /// How long they are good for, if not forever.
        expires: bool,
        /// The random secret.
        made_up_secret: Option<String>,
    },
    /// A file says who may: nothing secret is printed, since stdout of a service ends up in a journal.
    FromFile {
        /// Path of the file.
        file: String,
        /// `turn:` URIs.
        uris: Vec<String>,
        /// Whether `creds` can make credentials from the file.
        has_secret: bool,
    },
}

impl Banner {
    /// The text.
    pub(super) fn render(&self) -> String {
        let mut lines = Lines::default();
        lines.text(concat!("hairpin ", env!("CARGO_PKG_VERSION"), "\n\n"));
        for listener in &self.listeners.udp {
            lines.line("listening", format!("udp {listener}"));
        }
        for listener in &self.listeners.tcp {
            lines.line("listening", format!("tcp {listener}"));
        }
        for listener in &self.listeners.tls {
            lines.line("listening", format!("tls {listener}"));
        }
        for listener in &self.listeners.dtls {
            lines.line("listening", format!("dtls {listener}"));
        }
        self.sip(&mut lines);
        self.relays(&mut lines);
        let steering = self.steering.map(|how| format!(", {how}"));
        let steering = steering.unwrap_or_default();
        lines.line("workers", format!("{}{steering}", self.workers));
        lines.line("realm", &self.realm);
        lines.line(
            "peers",
            if self.local_peers {
                LOCAL_PEERS
            } else {
                PUBLIC_PEERS
            },
        );
        for (name, line) in &self.kernel {
            lines.line(name, line);
        }
        for interface in &self.offload {
            lines.line("offload", interface);
        }
        if let Some(admin) = self.admin {
            lines.line(
                "admin",
                format!("http://{admin}/metrics, /healthz, /readyz; live page http://{admin}/"),
            );
        }
        if let Some(control) = &self.control {
            lines.line("control", control.display());
        }
        lines.text("\n");
        self.access.render(&mut lines);
        lines.text("\nStop with Ctrl-C or SIGTERM.\n");
        lines.finish()
    }

    fn sip(&self, lines: &mut Lines) {
        for listener in &self.sip {
            lines.line("sip", format!("udp and tcp {listener}: sip:{listener}"));
        }
        for stream in &self.sip_streams {
            lines.line("sip", stream.clone());
        }
        if self.test_uas && !(self.sip.is_empty() && self.sip_streams.is_empty()) {
            lines.line("note", TEST_UAS);
        }
    }

    fn relays(&self, lines: &mut Lines) {
        let (first, last) = (self.relay_ports.start(), self.relay_ports.end());
        for (local, advertised) in &self.relays {
            let seen = if local == advertised {
                String::new()
            } else {
                format!(", seen as {advertised}")
            };
            lines.line(
                "relaying",
                format!("udp {local}{seen}, ports {first}-{last}"),
            );
        }
        let private = self
            .relays
            .iter()
            .filter(|(_, ip)| is_private(*ip) && !ip.is_loopback());
        for (local, advertised) in private {
            lines.line(
                "note",
                format!("{advertised} is private; behind a NAT say --external-ip PUBLIC/{local}"),
            );
        }
    }
}

const TEST_UAS: &str =
    "sip.test_uas is on: REGISTER and INVITE are accepted from anybody; for tests only";
const LOCAL_PEERS: &str = "public, private and loopback addresses (development: anybody with credentials reaches this network)";
const PUBLIC_PEERS: &str = "public addresses only (--dev admits loopback and private ones)";

impl Access {
    /// `turn:` URIs of the server.
    pub(super) fn uris(&self) -> &[String] {
        match self {
            Self::Quick { ice, .. } => &ice.uris,
            Self::FromFile { uris, .. } => uris,
        }
    }

    fn render(&self, lines: &mut Lines) {
        match self {
            Self::Quick {
                ice,
                expires,
                made_up_secret,
            } => {
                let until = if *expires { ", good for a day" } else { "" };
                lines.text(&format!(
                    "Paste into a web page (new RTCPeerConnection(..)){until}:\n{}\n\n",
                    ice.json()
                ));
                ice.uris.iter().for_each(|uri| lines.line("uri", uri));
                lines.line("username", &ice.username);
                lines.line("password", &ice.password);
                if let Some(secret) = made_up_secret {
                    lines.line(
                        "secret",
                        format!("{secret} (made up for this run; keep one with --secret)"),
                    );
                }
            }
            Self::FromFile {
                file,
                uris,
                has_secret,
            } => {
                uris.iter().for_each(|uri| lines.line("uri", uri));
                if *has_secret {
                    lines.line(
                        "credentials",
                        format!("hairpin creds --config {file} --user NAME --uri URI"),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banner(access: Access) -> Banner {
        Banner {
            listeners: Listeners {
                udp: vec!["127.0.0.1:3478".parse().unwrap()],
                tcp: vec!["127.0.0.1:3478".parse().unwrap()],
                tls: Vec::new(),
                dtls: Vec::new(),
            },
            sip: vec!["127.0.0.1:5060".parse().unwrap()],
            sip_streams: vec!["tls 127.0.0.1:5061: sips:127.0.0.1:5061".to_owned()],
            test_uas: true,
            relays: vec![("10.0.0.5".parse().unwrap(), "203.0.113.5".parse().unwrap())],
            relay_ports: 49_152..=65_535,
            workers: 2,
            steering: Some("each new allocation on the least loaded"),
            realm: "hairpin".to_owned(),
            local_peers: false,
            kernel: vec![("kernel", "GRO".to_owned())],
            offload: vec!["lo: user space relays: not asked for".to_owned()],
            admin: Some("127.0.0.1:9641".parse().unwrap()),
            control: Some("/run/hairpin/control.sock".into()),
            access,
        }
    }

    #[test]
    fn a_quick_server_says_all_one_needs() {
        let ice = Ice {
            uris: vec!["turn:203.0.113.5:3478?transport=udp".to_owned()],
            username: "1735689600:demo".to_owned(),
            password: "secret=".to_owned(),
        };
        let text = banner(Access::Quick {
            ice,
            expires: true,
            made_up_secret: Some("abc".to_owned()),
        })
        .render();
        for expected in [
            concat!("hairpin ", env!("CARGO_PKG_VERSION"), "\n"),
            "listening    udp 127.0.0.1:3478\n",
            "sip          udp and tcp 127.0.0.1:5060: sip:127.0.0.1:5060\n",
            "sip          tls 127.0.0.1:5061: sips:127.0.0.1:5061\n",
            "note         sip.test_uas is on",
            "relaying     udp 10.0.0.5, seen as 203.0.113.5, ports 49152-65535\n",
            "workers      2, each new allocation on the least loaded\n",
            "peers        public addresses only",
            "kernel       GRO\n",
            "offload      lo: user space relays: not asked for\n",
            "admin        http://127.0.0.1:9641/metrics",
            "control      /run/hairpin/control.sock\n",
            r#"{"iceServers":[{"#,
            "uri          turn:203.0.113.5:3478?transport=udp\n",
            "secret       abc (made up",
            "Stop with Ctrl-C",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_server_with_a_file_prints_nothing_secret() {
        let access = Access::FromFile {
            file: "h.toml".to_owned(),
            uris: vec!["turn:x".to_owned()],
            has_secret: true,
        };
        let text = banner(access).render();
        assert!(
            !text.contains("password") && !text.contains("iceServers"),
            "{text}"
        );
        assert!(text.contains("hairpin creds --config h.toml"), "{text}");
    }
}
