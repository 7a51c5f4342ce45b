//! `hairpin creds`: time-limited credentials from a shared secret.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, bail};
use load::uri::Uri;

use super::ice::Ice;
use super::{input, output};
use crate::cli::creds::{Args, Format};
use crate::config::{self, Flag};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let ttl = config::parse_seconds(&args.ttl).map_err(|mistake| anyhow!("--ttl: {mistake}"))?;
    for uri in &args.uri {
        uri.parse::<Uri>()
            .map_err(|error| anyhow!("--uri {uri}: {error}"))?;
    }
    let Some(secret) = secret(args)? else {
        return Ok(ExitCode::FAILURE);
    };
    if args.user.chars().any(char::is_control) {
        bail!("--user: control characters cannot stand in a user name");
    }
    let expires = now_unix_s().saturating_add(ttl);
    let ice = make(&secret, &args.user, expires, args.uri.clone());
    output::print(&match args.format {
        Format::Json => ice.json() + "\n",
        Format::Uri => ice.uris_with_credentials().join("\n") + "\n",
        Format::Env => ice.env(),
    })?;
    Ok(ExitCode::SUCCESS)
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
