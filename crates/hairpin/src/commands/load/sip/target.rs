//! What a `sip:` URI on the command line means.

use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use load::sip::Transport;
use load::uri::{Scheme, Uri};

use crate::cli::load::sip::Args;
use crate::commands::load::Fault;

/// The port of SIP over UDP and TCP (RFC 3261 §19.1.2).
const PORT: u16 = 5060;

/// Where a server is, or is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) transport: Transport,
    /// User part.
    pub(super) user: Option<String>,
    /// The host as it was written, if it is a name: requests are for it.
    pub(super) domain: Option<String>,
}

impl Place {
    /// Reads the target of `args` and looks its address up.
    pub(super) fn of(args: &Args) -> Result<Place, Fault> {
        let wanted = args.target.as_deref().unwrap_or_default();
        let mut place = parse(wanted)?;
        if let Some(transport) = args.transport {
            place.transport = transport.into();
        }
        Ok(place)
    }
}

fn parse(text: &str) -> Result<Place, Fault> {
    let usage = |text: String| Fault::Usage(anyhow!(text));
    let rest = text.strip_prefix("sip:").unwrap_or(text);
    if text.starts_with("sips:") || text.starts_with("tel:") {
        return Err(usage(format!(
            "{text}: load goes over UDP and TCP only; say sip:HOST:PORT"
        )));
    }
    let (address, parameters) = rest.split_once(';').unwrap_or((rest, ""));
    let (user, host) = match address.rsplit_once('@') {
        Some((user, host)) => (Some(user.to_owned()), host),
        None => (None, address),
    };
    let transport = transport(text, parameters)?;
    // Host and port are written as everywhere.
    let mut uri =
        Uri::parse_target(host, Scheme::Stun).map_err(|error| usage(format!("{text}: {error}")))?;
    uri.port.get_or_insert(PORT);
    let address = uri
        .resolve()
        .with_context(|| format!("cannot find the address of {host}: check the name"))?
        .into_iter()
        .next()
        .ok_or_else(|| Fault::Run(anyhow!("{host} has no address")))?;
    let named = host.chars().any(|c| c.is_ascii_alphabetic()) && !host.starts_with('[');
    Ok(Place {
        address,
        transport,
        user,
        domain: named.then(|| host.to_owned()),
    })
}

fn transport(text: &str, parameters: &str) -> Result<Transport, Fault> {
    let mut transport = Transport::Udp;
    for parameter in parameters.split(';').filter(|one| !one.is_empty()) {
        transport = match parameter.to_ascii_lowercase().as_str() {
            "transport=udp" => Transport::Udp,
            "transport=tcp" => Transport::Tcp,
            other => {
                return Err(Fault::Usage(anyhow!(
                    "{text}: `{other}`: only transport=udp and transport=tcp are understood"
                )));
            }
        };
    }
    Ok(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Place, String> {
        parse(text).map_err(|fault| match fault {
            Fault::Usage(error) | Fault::Run(error) => format!("{error:#}"),
        })
    }

    #[test]
    fn uris_and_addresses_are_read() {
        let place = read("sip:bob@127.0.0.1:5070;transport=tcp").unwrap();
        assert_eq!(place.address, "127.0.0.1:5070".parse().unwrap());
        assert_eq!(place.transport, Transport::Tcp);
        assert_eq!((place.user.as_deref(), place.domain), (Some("bob"), None));
        assert_eq!(
            read("[::1]").unwrap().address,
            "[::1]:5060".parse().unwrap()
        );
        let named = read("localhost").unwrap();
        assert_eq!(named.domain.as_deref(), Some("localhost"));
    }

    #[test]
    fn what_cannot_be_loaded_is_refused() {
        for (text, part) in [
            ("sips:127.0.0.1", "UDP and TCP only"),
            ("sip:127.0.0.1;transport=tls", "transport=tls"),
            ("sip:127.0.0.1;lr", "lr"),
            ("127.0.0.1:x", "127.0.0.1:x"),
            ("", ""),
        ] {
            let refusal = read(text).unwrap_err();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
