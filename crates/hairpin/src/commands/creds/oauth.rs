//! `hairpin creds oauth`: access tokens (RFC 7635), as an authorization server makes them.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use server::access_tokens::{TokenContent, TokenKeys};

use super::now_unix_s;
use crate::cli::creds::Oauth;
use crate::commands::{input, output};
use crate::config::{self, Config, Flag};

/// RFC 7635 §6.2: 160 bits, the key of HMAC-SHA1.
const MAC_KEY_LEN: usize = 20;

/// Runs the command.
pub(crate) fn run(args: &Oauth) -> Result<ExitCode> {
    let ttl = config::parse_seconds(&args.ttl).map_err(|mistake| anyhow!("--ttl: {mistake}"))?;
    let lifetime_s =
        u32::try_from(ttl).map_err(|_| anyhow!("--ttl: at most 4294967295 seconds"))?;
    let Some(config) = read(args)? else {
        return Ok(ExitCode::FAILURE);
    };
    let kid = kid(args, &config)?;
    let keys = TokenKeys::new(&config.token_server_name, config.token_keys)?;
    let mut mac_key = vec![0; MAC_KEY_LEN];
    getrandom::fill(&mut mac_key)?;
    let content = TokenContent {
        mac_key,
        made_unix_s: now_unix_s(),
        lifetime_s,
    };
    let token = keys.seal(&kid, &content);
    let token = token.ok_or_else(|| anyhow!("the token cannot be encrypted"))?;
    // The members of RFC 7635 §3 and Appendix B.
    let answer = serde_json::json!({
        "access_token": STANDARD.encode(token),
        "token_type": "pop",
        "expires_in": lifetime_s,
        "kid": kid,
        "key": STANDARD.encode(&content.mac_key),
        "alg": "HMAC-SHA-1",
    });
    output::print(&format!("{answer:#}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration with the flags; `None` after the mistakes in it have been shown.
fn read(args: &Oauth) -> Result<Option<Config>> {
    let flag = |flag, key: &str, value: &Option<String>, list| {
        let values: Vec<_> = value.iter().cloned().collect();
        Flag {
            flag,
            key: key.to_owned(),
            values,
            list,
        }
    };
    let flags = vec![
        flag("--key", "auth.token_keys", &args.key, true),
        flag(
            "--server-name",
            "auth.token_server_name",
            &args.server_name,
            false,
        ),
    ];
    let loaded = config::load(&input::gather(args.config.as_ref(), flags)?);
    if loaded.config.is_none() {
        eprint!("{}", loaded.diagnostics(input::colour()));
        eprintln!("{}", loaded.count());
    }
    Ok(loaded.config)
}

/// The name of the key to make the token with.
fn kid(args: &Oauth, config: &Config) -> Result<String> {
    let mut kids = config.token_keys.iter().map(|key| key.kid.clone());
    match &args.kid {
        Some(kid) => kids
            .find(|known| known == kid)
            .ok_or_else(|| anyhow!("--kid: auth.token_keys has no key `{kid}`")),
        None => kids.next().ok_or_else(|| {
            anyhow!(
                "there is no key to make a token with: give --key KID:BASE64, or name a file with auth.token_keys by --config"
            )
        }),
    }
}
