//! Whom to trust behind a TLS or DTLS connection.

use std::path::PathBuf;

/// How to verify a server over TLS and DTLS.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct Tls {
    /// TLS: trust the certificates of this PEM file, and no others [default: those of the system]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) ca: Option<PathBuf>,
    /// TLS: accept any certificate, without verification
    #[arg(long)]
    pub(crate) insecure: bool,
    /// TLS: the name that the certificate must be for [default: the host of the URI]
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
}
