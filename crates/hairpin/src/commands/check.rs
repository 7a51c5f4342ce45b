//! `hairpin check`: the same reading as `serve` does, without starting anything.

use std::process::ExitCode;

use anyhow::Result;

use super::output::Lines;
use super::{input, output};
use crate::cli::check::Args;
use crate::config::{self, Config, Loaded, plural};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let inputs = input::gather(args.file.as_ref(), Vec::new())?;
    let loaded = config::load(&inputs);
    eprint!("{}", loaded.diagnostics(input::colour()));
    let Some(config) = &loaded.config else {
        eprintln!("{}: {}", name(args), loaded.count());
        return Ok(ExitCode::FAILURE);
    };
    if args.effective {
        output::print(&loaded.effective(args.show_secrets))?;
    } else {
        output::print(&summary(&name(args), config, &loaded))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn name(args: &Args) -> String {
    args.file.as_ref().map_or_else(
        || "environment".to_owned(),
        |path| path.display().to_string(),
    )
}

/// What the configuration will do, in a few lines.
fn summary(name: &str, config: &Config, loaded: &Loaded) -> String {
    let warnings = if loaded.count().is_empty() {
        String::new()
    } else {
        format!(" ({})", loaded.count())
    };
    let mut lines = Lines::default();
    lines.text(&format!("{name}: ok{warnings}\n"));
    let listen = list(
        config.listen_udp.as_deref(),
        "port 3478 of loopback and of the default route's address",
    );
    lines.line("listen", format!("udp {listen}"));
    let tcp = match config.listen_tcp.as_deref() {
        Some([]) => "off".to_owned(),
        chosen => list(chosen, "the addresses and ports of udp"),
    };
    lines.line("listen", format!("tcp {tcp}"));
    let has_certificate = config.has_certificate_for_all() || !config.acme.domains.is_empty();
    let tls = match config.listen_tls.as_deref() {
        None if !has_certificate => without_certificate(config, "listen.tls"),
        Some([]) => "off".to_owned(),
        chosen => list(chosen, "the addresses and ports of tcp, and port 5349"),
    };
    lines.line("listen", format!("tls {tls}"));
    let dtls = match config.listen_dtls.as_deref() {
        None if !has_certificate => without_certificate(config, "listen.dtls"),
        None if config.only_tls13 => "off: it is 1.2, and tls.min_version is 1.3".to_owned(),
        Some([]) => "off".to_owned(),
        chosen => list(chosen, "the addresses and ports of udp, and port 5349"),
    };
    lines.line("listen", format!("dtls {dtls}"));
    lines.line("relay", relay(config));
    lines.line("credentials", credentials(config));
    lines.line("peers", peers(config));
    lines.finish()
}

/// Why there is no TLS or DTLS where the configuration does not ask for it.
fn without_certificate(config: &Config, key: &str) -> String {
    match config.certificates.is_empty() {
        true => "off: there is no certificate".to_owned(),
        false => format!("off: the certificates are for other listeners; set {key} for more"),
    }
}

fn relay(config: &Config) -> String {
    let relays = list(
        config.relay_addresses.as_deref(),
        "the default route's address",
    );
    let (first, last) = (config.relay_ports.start(), config.relay_ports.end());
    let external = match config.external_ip.as_slice() {
        [] => String::new(),
        mapped => format!(
            ", seen as {}",
            join(mapped.iter().map(|external| external.public))
        ),
    };
    format!("{relays}{external}, ports {first}-{last}")
}

fn credentials(config: &Config) -> String {
    let realm = &config.realm;
    let keys = match config.token_keys.len() {
        0 => String::new(),
        keys => format!(", {}", plural(keys, "access token key")),
    };
    match (config.secrets.len(), config.users.len()) {
        (0, 0) if keys.is_empty() => {
            format!("a random secret, new at every start, realm \"{realm}\"")
        }
        (secrets, users) => {
            format!(
                "{}, {}{keys}, realm \"{realm}\"",
                plural(secrets, "shared secret"),
                plural(users, "user")
            )
        }
    }
}

fn peers(config: &Config) -> String {
    let admitted = if config.peers_allow_local {
        "public, private and loopback"
    } else {
        "public"
    };
    let (allow, deny) = (config.peers_allow.len(), config.peers_deny.len());
    let files = match config.peers_deny_files.len() {
        0 => String::new(),
        files => format!(", and {} with more", plural(files, "file")),
    };
    format!(
        "{admitted} addresses, {} and {}{files}",
        plural(allow, "allow rule"),
        plural(deny, "deny rule")
    )
}

fn list<T: std::fmt::Display>(chosen: Option<&[T]>, otherwise: &str) -> String {
    chosen.map_or_else(|| otherwise.to_owned(), |list| join(list.iter()))
}

fn join(items: impl Iterator<Item = impl std::fmt::Display>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::certificates::CertificateFiles;

    #[test]
    fn the_summary_distinguishes_no_certificate_and_certificates_for_other_listeners() {
        let loaded = config::load(&config::Inputs::default());
        let mut config = loaded.config.clone().unwrap();
        let lines = |config: &Config| {
            let text = summary("name", config, &loaded);
            let lines = text.lines().filter_map(|line| line.split_once("tls "));
            lines.map(|(_, rest)| rest.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(lines(&config), ["off: there is no certificate"; 2]);
        config.certificates.push(CertificateFiles {
            listeners: vec!["192.0.2.8:5061".parse().unwrap()],
            ..CertificateFiles::default()
        });
        let expected = ["listen.tls", "listen.dtls"].map(|key| {
            format!("off: the certificates are for other listeners; set {key} for more")
        });
        assert_eq!(lines(&config), expected);
    }
}
