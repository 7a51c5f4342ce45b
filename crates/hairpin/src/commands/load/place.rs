//! Which server is loaded, and whether it may be.

use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use load::generator::{Target, TargetError};
use load::uri::{Scheme, Uri, UriTransport};

use super::Fault;
use crate::cli::load::course::Where;

/// Finds the server; `scheme` is what a bare host means.
pub(super) fn server(args: &Where, scheme: Scheme) -> Result<Target, Fault> {
    let usage = |error: anyhow::Error| Fault::Usage(error);
    let uri = Uri::parse_target(&args.target, scheme).map_err(|error| usage(error.into()))?;
    if uri.scheme.is_secure() || uri.transport == Some(UriTransport::Tcp) {
        let name = scheme.name();
        return Err(usage(anyhow!(
            "{uri}: load goes over UDP only; say {name}:HOST:PORT"
        )));
    }
    if scheme == Scheme::Turn && uri.scheme == Scheme::Stun {
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
    admit(address, args.i_own_the_target)
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
        let args = Where {
            target: target.to_owned(),
            i_own_the_target: mine,
            local: None,
            ipv4: false,
            ipv6: false,
        };
        match server(&args, Scheme::Turn) {
            Ok(target) => Ok(target.address()),
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
    fn what_is_not_turn_over_udp_is_refused() {
        for (target, part) in [
            ("turns:127.0.0.1", "UDP only"),
            ("turn:127.0.0.1?transport=tcp", "UDP only"),
            ("stun:127.0.0.1", "load stun"),
            ("turn://127.0.0.1", "slashes"),
            ("0.0.0.0", "not the address"),
        ] {
            let refusal = found(target, true).unwrap_err();
            assert!(refusal.contains(part), "{target}: {refusal}");
        }
    }
}
