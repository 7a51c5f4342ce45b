//! Which server is loaded, and whether it may be.

use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use load::generator::{Target, TargetError};
use load::uri::{Scheme, Uri};
use load::{Transport, Via};

use super::Fault;
use crate::cli::load::course::LoadTarget;
use crate::commands::via;

/// The server under load.
#[derive(Debug)]
pub(super) struct ServerUnderLoad {
    pub(super) target: Target,
    pub(super) via: Via,
}

impl ServerUnderLoad {
    /// The URI with the address in it, for `scheme`: `stun` or `turn`.
    pub(super) fn uri(&self, scheme: &str) -> String {
        let address = self.target.address();
        match self.via.transport() {
            Transport::Tls => format!("{scheme}s:{address}"),
            Transport::Dtls => format!("{scheme}s:{address}?transport=udp"),
            Transport::Tcp => format!("{scheme}:{address}?transport=tcp"),
            _ => format!("{scheme}:{address}"),
        }
    }
}

/// Finds the server; `scheme` is what a bare host means.
pub(super) fn server(args: &LoadTarget, scheme: Scheme) -> Result<ServerUnderLoad, Fault> {
    let usage = |error: anyhow::Error| Fault::Usage(error);
    let uri = Uri::parse_target(&args.target, scheme).map_err(|error| usage(error.into()))?;
    let via = match via::of(&uri, &args.tls).map_err(usage)? {
        Via::Tls(tls) if args.no_resumption => Via::Tls(tls.without_resumption()),
        via if args.no_resumption => {
            return Err(usage(anyhow!(
                "--no-resumption has no effect over {via}: it is for TLS, turns: and stuns: without ?transport=udp"
            )));
        }
        via => via,
    };
    if scheme == Scheme::Turn && matches!(uri.scheme, Scheme::Stun | Scheme::Stuns) {
        return Err(usage(anyhow!(
            "{uri} is a STUN server: load it with `hairpin load stun`"
        )));
    }
    let addresses = uri
        .resolve()
        .with_context(|| format!("cannot find the address of {uri}: check the name"))?;
    let wanted = |address: &SocketAddr| {
        (address.is_ipv4() || !args.ipv4) && (address.is_ipv6() || !args.ipv6)
    };
    let address = addresses.into_iter().find(wanted).ok_or_else(|| {
        let (family, flag) = if args.ipv4 {
            ("IPv4", "-4")
        } else {
            ("IPv6", "-6")
        };
        Fault::Run(anyhow!("{uri} has no {family} address: leave out {flag}"))
    })?;
    let target = admit(address, args.i_own_the_target)?;
    Ok(ServerUnderLoad { target, via })
}

/// Admits an address that load is sent to, or through a server to.
pub(super) fn admit(address: SocketAddr, mine: bool) -> Result<Target, Fault> {
    Target::admit(address, mine).map_err(|error| {
        let flag = match error {
            TargetError::NotYours(_) => " (--i-own-the-target)",
            _ => "",
        };
        Fault::Usage(anyhow!("{error}{flag}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(target: &str, mine: bool) -> Result<SocketAddr, String> {
        let args = LoadTarget {
            target: target.to_owned(),
            i_own_the_target: mine,
            local: None,
            ipv4: false,
            ipv6: false,
            server_pid: None,
            no_resumption: false,
            tls: crate::cli::tls::Tls::default(),
        };
        match server(&args, Scheme::Turn) {
            Ok(place) => Ok(place.target.address()),
            Err(Fault::Usage(error) | Fault::Run(error)) => Err(format!("{error:#}")),
        }
    }

    #[test]
    fn a_public_server_has_to_be_claimed() {
        assert_eq!(
            found("127.0.0.1", false),
            Ok("127.0.0.1:3478".parse().unwrap())
        );
        let refusal = found("turn:192.0.2.1:3478", false).unwrap_err();
        assert!(refusal.contains("--i-own-the-target"), "{refusal}");
        assert!(found("turn:192.0.2.1:3478", true).is_ok());
    }

    #[test]
    fn targets_without_a_turn_server_are_refused() {
        assert!(found("turn:127.0.0.1?transport=tcp", true).is_ok());
        for (target, part) in [
            ("stun:127.0.0.1", "load stun"),
            ("stun:127.0.0.1?transport=tcp", "load stun"),
            ("turn://127.0.0.1", "slashes"),
            ("0.0.0.0", "not the address"),
        ] {
            let refusal = found(target, true).unwrap_err();
            assert!(refusal.contains(part), "{target}: {refusal}");
        }
    }
}
