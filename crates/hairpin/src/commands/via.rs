//! How the server of a URI is reached.

use anyhow::{Result, bail};
use load::uri::{Host, Uri};
use load::{Tls, Transport, Via};

use crate::cli::tls::Tls as Args;

/// What the transport of `uri` is, with what `args` say about TLS and DTLS. What goes wrong is a usage error.
pub(crate) fn of(uri: &Uri, args: &Args) -> Result<Via> {
    let transport = uri.transport();
    if !matches!(transport, Transport::Tls | Transport::Dtls) {
        let given = [
            ("--ca", args.ca.is_some()),
            ("--insecure", args.insecure),
            ("--server-name", args.server_name.is_some()),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
            bail!("{flag} has no effect with {uri}: it is for turns: and stuns:");
        }
    }
    match transport {
        Transport::Udp => Ok(Via::Udp),
        Transport::Tcp => Ok(Via::Tcp),
        Transport::Tls => Ok(Via::Tls(tls(uri, args)?)),
        Transport::Dtls => Ok(Via::Dtls(tls(uri, args)?)),
    }
}

fn tls(uri: &Uri, args: &Args) -> Result<Tls> {
    let host = match &uri.host {
        Host::Ip(ip) => ip.to_string(),
        Host::Name(name) => name.clone(),
    };
    verify(&host, args)
}

/// Whom `args` have one expect at `host`.
pub(crate) fn verify(host: &str, args: &Args) -> Result<Tls> {
    let name = args.server_name.as_deref().unwrap_or(host);
    Ok(match &args.ca {
        _ if args.insecure => Tls::insecure(name)?,
        Some(file) => Tls::with_root_file(name, file)?,
        None => Tls::new(name)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(uri: &str, args: &Args) -> Result<Via, String> {
        let uri: Uri = uri.parse().expect(uri);
        of(&uri, args).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn the_uri_says_which_transport() {
        let none = Args::default();
        assert_eq!(via("turn:192.0.2.1", &none), Ok(Via::Udp));
        assert_eq!(via("turn:192.0.2.1?transport=tcp", &none), Ok(Via::Tcp));
        assert_eq!(via("stun:192.0.2.1?transport=tcp", &none), Ok(Via::Tcp));
        let insecure = Args {
            insecure: true,
            ..Args::default()
        };
        let dtls = via("turns:192.0.2.1?transport=udp", &insecure);
        assert!(matches!(dtls, Ok(Via::Dtls(_))), "{dtls:?}");
    }

    #[test]
    fn the_name_is_the_host_unless_another_is_given() {
        let mut args = Args {
            insecure: true,
            ..Args::default()
        };
        for (uri, name) in [
            ("turns:turn.example.org", "turn.example.org"),
            ("stuns:[::1]", "::1"),
        ] {
            let Ok(Via::Tls(tls)) = via(uri, &args) else {
                panic!("{uri} is TLS");
            };
            assert_eq!(tls.server_name(), name);
        }
        args.server_name = Some("other.example.org".to_owned());
        let Ok(Via::Tls(tls)) = via("turns:192.0.2.1", &args) else {
            panic!("it is TLS");
        };
        assert_eq!(tls.server_name(), "other.example.org");
    }

    #[test]
    fn flags_for_tls_are_refused_without_it() {
        let args = Args {
            insecure: true,
            ..Args::default()
        };
        let refused = via("turn:192.0.2.1?transport=tcp", &args).unwrap_err();
        assert!(refused.contains("--insecure has no effect"), "{refused}");
        let args = Args {
            ca: Some("/nowhere/ca.pem".into()),
            ..Args::default()
        };
        let refused = via("turns:192.0.2.1", &args).unwrap_err();
        assert!(refused.contains("/nowhere/ca.pem"), "{refused}");
    }
}
