//! `hairpin creds`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  hairpin creds --config /etc/hairpin/hairpin.toml --user alice --uri turn.example.org
        an iceServers object for a web page, good for a day: UDP, TCP and TLS
  hairpin creds --config /etc/hairpin/hairpin.toml --uri turn:turn.example.org:3478 --uri turns:turn.example.org:443?transport=tcp
        the same for these transports and ports
  hairpin creds --secret \"$SECRET\" --ttl 10m --format env
        lines for a shell: eval \"$(hairpin creds ...)\"
  HAIRPIN_AUTH__SECRETS=\"$SECRET\" hairpin creds --user alice --format uri
        one URI with the credentials in it, as GStreamer takes it

  hairpin creds oauth --config /etc/hairpin/hairpin.toml --ttl 1h
        an access token (RFC 7635), as an authorization server makes it: for tests

The formula is the one coturn and others know as the REST API: docs/credentials.md.";

const OAUTH_EXAMPLES: &str = "\
Examples:
  hairpin creds oauth --config /etc/hairpin/hairpin.toml --ttl 1h
        a token under the first of auth.token_keys
  hairpin creds oauth --key \"2026-11:$(openssl rand -base64 32)\" --server-name turn.example.org
        a token without a file

The answer has the members of RFC 7635 Appendix B: docs/credentials.md.";

/// Arguments of `hairpin creds`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) kind: Option<Kind>,
    /// The shared secret; else the first of auth.secrets in the file or the environment
    #[arg(long)]
    pub(crate) secret: Option<String>,
    /// Configuration file to take the secret from
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Whom they are for; the name appears in logs
    #[arg(long, short, default_value = "user")]
    pub(crate) user: String,
    /// How long they are valid
    #[arg(long, default_value = "1d")]
    pub(crate) ttl: String,
    /// Where the server is (repeatable): a URI as clients use it, or a host, which means UDP and TCP on port 3478
    /// and TLS on port 5349 [default: 127.0.0.1 over UDP and TCP]
    #[arg(
        long,
        hide_default_value = true,
        default_values = ["turn:127.0.0.1:3478?transport=udp", "turn:127.0.0.1:3478?transport=tcp"]
    )]
    pub(crate) uri: Vec<String>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Json)]
    pub(crate) format: Format,
}

/// Other kinds of credentials.
#[derive(Debug, Subcommand)]
pub(crate) enum Kind {
    /// Make an access token (RFC 7635), as an authorization server answers with one: for tests
    Oauth(Oauth),
}

/// Arguments of `hairpin creds oauth`.
#[derive(Debug, clap::Args)]
#[command(after_help = OAUTH_EXAMPLES)]
pub(crate) struct Oauth {
    /// Configuration file with auth.token_keys
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// A key as kid:key or kid:key:algorithm, with the key in base64; else the first of auth.token_keys
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// The server's name; else auth.token_server_name, or the realm
    #[arg(long)]
    pub(crate) server_name: Option<String>,
    /// Which of the configured keys; else the first
    #[arg(long)]
    pub(crate) kid: Option<String>,
    /// How long the token is valid
    #[arg(long, default_value = "1h")]
    pub(crate) ttl: String,
}

/// What `hairpin creds` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// An object for `new RTCPeerConnection(..)`
    Json,
    /// One turn:// URI per line with the credentials in it
    Uri,
    /// TURN_URI, TURN_USERNAME and TURN_PASSWORD for a shell
    Env,
}
