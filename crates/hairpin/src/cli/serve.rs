//! `hairpin serve`.

use std::path::PathBuf;

use crate::config::Flag;

const EXAMPLES: &str = "\
Examples:
  hairpin serve
        listen on port 3478 of loopback and of the default route's address, with a random secret
  hairpin serve --dev
        the same for development: peers on this machine and in private networks are admitted too
  hairpin serve --config /etc/hairpin/hairpin.toml
        everything from a file; hairpin reload, or SIGHUP, reads it again
  hairpin serve --listen 0.0.0.0:3478 --external-ip 203.0.113.5/10.0.0.5 --secret \"$SECRET\"
        behind a 1:1 NAT, as in most clouds
  HAIRPIN_AUTH__SECRETS=\"$SECRET\" hairpin serve --allow-peer 10.1.0.0/16:5000-6000
        the secret from the environment, out of sight of `ps`; some private peers admitted

Later ones win: defaults, file, environment (HAIRPIN_SECTION__KEY), flags. A list is
replaced as a whole. All keys: docs/configuration.md. Ctrl-C or SIGTERM stops cleanly, a second one at once.";

/// Arguments of `hairpin serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// For development: also allow loopback and private peers, and make a certificate for TLS
    #[arg(long)]
    pub(crate) dev: bool,
    /// Listen here, over UDP (repeatable; port 0 picks a free one)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Vec<String>,
    /// Bind relays to this address of the host (repeatable)
    #[arg(long, value_name = "IP")]
    pub(crate) relay_address: Vec<String>,
    /// Tell clients this address instead (repeatable; 1:1 NAT)
    #[arg(long, value_name = "PUBLIC[/PRIVATE]")]
    pub(crate) external_ip: Vec<String>,
    /// Ports to relay from
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) port_range: Option<String>,
    /// A user with a fixed password (repeatable)
    #[arg(long, value_name = "NAME:PASSWORD")]
    pub(crate) user: Vec<String>,
    /// A secret for time-limited credentials (repeatable; all are valid, the first makes new ones)
    #[arg(long)]
    pub(crate) secret: Vec<String>,
    /// Realm of the credentials
    #[arg(long)]
    pub(crate) realm: Option<String>,
    /// Number of worker threads, or "auto" for one per core
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<String>,
    /// How the kernel relays: auto, xdp, tc or off
    #[arg(long, value_name = "MODE")]
    pub(crate) offload: Option<String>,
    /// Allow peers that are denied by default (repeatable)
    #[arg(long, value_name = "CIDR[:PORTS]")]
    pub(crate) allow_peer: Vec<String>,
    /// Deny peers (repeatable)
    #[arg(long, value_name = "CIDR[:PORTS]")]
    pub(crate) deny_peer: Vec<String>,
    /// Serve /metrics, /healthz and /readyz here, over HTTP; or "off" [default: 127.0.0.1:9641 if it is free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) admin: Option<String>,
    /// off, error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// text, json, or auto: text on a terminal and in the journal of systemd, else JSON
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Take over from the server that is running at the control socket; `hairpin upgrade` does this in the background
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Write where the server wrote that this one takes over from
    #[arg(long, requires = "take_over", hide = true)]
    pub(crate) adopt_output: bool,
    /// The limit of datagrams per batch: to measure the effect of batches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), hide = true)]
    pub(crate) batch_limit: Option<u16>,
    /// Any key of the configuration (repeatable)
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

impl Args {
    /// The flags as settings; `--set` comes first, so that a flag of its own name wins.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let mut flags: Vec<_> = self.set.iter().map(|set| set_flag(set)).collect();
        let lists = [
            ("--listen", "listen.udp", &self.listen),
            ("--relay-address", "relay.addresses", &self.relay_address),
            ("--external-ip", "relay.external_ip", &self.external_ip),
            ("--user", "auth.users", &self.user),
            ("--secret", "auth.secrets", &self.secret),
            ("--allow-peer", "peers.allow", &self.allow_peer),
            ("--deny-peer", "peers.deny", &self.deny_peer),
        ];
        for (flag, key, values) in lists {
            flags.push(Flag {
                flag,
                key: key.to_owned(),
                values: values.clone(),
                list: true,
            });
        }
        let single = [
            ("--port-range", "relay.ports", self.port_range.clone()),
            ("--realm", "auth.realm", self.realm.clone()),
            ("--workers", "server.workers", self.workers.clone()),
            ("--offload", "offload.mode", self.offload.clone()),
            (
                "--dev",
                "peers.allow_local",
                self.dev.then(|| "true".to_owned()),
            ),
            (
                "--dev",
                "tls.self_signed",
                self.dev.then(|| "true".to_owned()),
            ),
            ("--admin", "admin.listen", self.admin.clone()),
            ("--log-level", "log.level", self.log_level.clone()),
            ("--log-format", "log.format", self.log_format.clone()),
        ];
        for (flag, key, value) in single {
            flags.push(Flag {
                flag,
                key: key.to_owned(),
                values: value.into_iter().collect(),
                list: false,
            });
        }
        flags.retain(|flag| !flag.values.is_empty());
        flags
    }
}

fn set_flag(set: &str) -> Flag {
    let (key, value) = set.split_once('=').unwrap_or((set, ""));
    Flag {
        flag: "--set",
        key: key.trim().to_owned(),
        values: vec![value.to_owned()],
        list: false,
    }
}
