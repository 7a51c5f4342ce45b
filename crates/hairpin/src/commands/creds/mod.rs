//! `hairpin creds`: time-limited credentials from a shared secret.

mod oauth;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail};
use load::uri::{Scheme, Uri};

use super::ice::Ice;
use super::{input, output};
use crate::cli::creds::{Args, Format, Kind};
use crate::config::{self, Flag};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(Kind::Oauth(args)) = &args.kind {
        return oauth::run(args);
    }
    let ttl = config::parse_seconds(&args.ttl).map_err(|mistake| anyhow!("--ttl: {mistake}"))?;
    let uris: Vec<Vec<String>> = args
        .uri
        .iter()
        .map(|uri| uris_of(uri).map_err(|error| anyhow!("--uri {uri}: {error}")))
        .collect::<Result<_>>()?;
    let Some(secret) = secret(args)? else {
        return Ok(ExitCode::FAILURE);
    };
    if args.user.chars().any(char::is_control) {
        bail!("--user: control characters cannot stand in a user name");
    }
    let expires = now_unix_s().saturating_add(ttl);
    let ice = make(&secret, &args.user, expires, uris.concat());
    output::print(&match args.format {
        Format::Json => ice.json() + "\n",
        Format::Uri => ice.uris_with_credentials().join("\n") + "\n",
        Format::Env => ice.env(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A URI as it is given, or those of every transport on its usual port for a bare host.
fn uris_of(text: &str) -> Result<Vec<String>> {
    let uri = Uri::parse_target(text, Scheme::Turn)?;
    if uri.to_string().starts_with("stun") && uri.transport.is_some() {
        // RFC 7064 has no such part, and browsers refuse it.
        bail!("stun: and stuns: URIs have no ?transport for clients");
    }
    if text.parse::<Uri>().is_ok() {
        return Ok(vec![text.to_owned()]);
    }
    if uri.port.is_some() || uri.transport.is_some() {
        bail!("write turn:{text}; a host alone stands for every transport");
    }
    let host = uri.to_string();
    let host = host.trim_start_matches("turn:");
    Ok(vec![
        format!("turn:{host}?transport=udp"),
        format!("turn:{host}?transport=tcp"),
        format!("turns:{host}?transport=tcp"),
    ])
}

/// Credentials that expire at `expires_unix_s`.
pub(crate) fn make(secret: &str, user: &str, expires_unix_s: u64, uris: Vec<String>) -> Ice {
    let username = format!("{expires_unix_s}:{user}");
    let password = server::rest::rest_password(secret.as_bytes(), &username);
    Ice {
        uris,
        username,
        password,
    }
}

/// Seconds since 1970-01-01 UTC; 0 on a machine whose clock is before that.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The first secret of flag, environment and file; `None` after the mistakes in them have been shown.
fn secret(args: &Args) -> Result<Option<String>> {
    let values: Vec<_> = args.secret.iter().cloned().collect();
    let flag = Flag {
        flag: "--secret",
        key: "auth.secrets".to_owned(),
        values,
        list: true,
    };
    let loaded = config::load(&input::gather(args.config.as_ref(), vec![flag])?);
    let Some(config) = &loaded.config else {
        eprint!("{}", loaded.diagnostics(input::colour()));
        eprintln!("{}", loaded.count());
        return Ok(None);
    };
    match config.secrets.first() {
        Some(secret) => Ok(Some(secret.clone())),
        None => bail!(
            "there is no secret to make credentials from: give --secret, set HAIRPIN_AUTH__SECRETS, \
             or name a file with auth.secrets by --config"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_stands_for_every_transport_and_a_uri_for_itself() {
        let of = |text| uris_of(text).unwrap();
        assert_eq!(
            of("turn:h:5000?transport=tcp"),
            ["turn:h:5000?transport=tcp"]
        );
        assert_eq!(of("stuns:h"), ["stuns:h"]);
        for (text, host) in [
            ("turn.example.org", "turn.example.org"),
            ("2001:db8::1", "[2001:db8::1]"),
        ] {
            let expected = [
                format!("turn:{host}?transport=udp"),
                format!("turn:{host}?transport=tcp"),
                format!("turns:{host}?transport=tcp"),
            ];
            assert_eq!(of(text), expected);
        }
        for (text, part) in [
            ("turn://h", "no slashes"),
            ("h:5000", "write turn:h:5000"),
            ("stun:h?transport=tcp", "no ?transport"),
        ] {
            let error = uris_of(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
