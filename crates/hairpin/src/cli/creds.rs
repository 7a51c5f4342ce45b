//! `hairpin creds`.

use std::path::PathBuf;

use clap::ValueEnum;

const EXAMPLES: &str = "\
Examples:
  hairpin creds --config /etc/hairpin.toml --user alice --uri turn.example.org
        an iceServers object for a web page, good for a day: UDP, TCP and TLS
  hairpin creds --config /etc/hairpin.toml --uri turn:turn.example.org:3478 --uri turns:turn.example.org:443?transport=tcp
        the same for these transports and ports
  hairpin creds --secret \"$SECRET\" --ttl 10m --format env
        lines for a shell: eval \"$(hairpin creds ...)\"
  HAIRPIN_AUTH__SECRETS=\"$SECRET\" hairpin creds --user alice --format uri
        one URI with the credentials in it, as GStreamer takes it

The formula is the one coturn and others know as the REST API: docs/credentials.md.";

/// Arguments of `hairpin creds`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shared secret; else the first of auth.secrets in the file or the environment
    #[arg(long)]
    pub(crate) secret: Option<String>,
    /// Configuration file to take the secret from
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Whom they are for; shows up in logs
    #[arg(long, short, default_value = "user")]
    pub(crate) user: String,
    /// How long they are good for
    #[arg(long, default_value = "1d")]
    pub(crate) ttl: String,
    /// Where the server is (repeatable): a URI as clients use it, or a host, which stands for UDP and TCP on port 3478
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
