//! The addresses that the server writes into Via, Record-Route, Path and Contact: `sip.advertise` and
//! `sip.local_networks`.

use std::net::{IpAddr, SocketAddr};

use super::cluster;
use super::diagnostics::{Diagnostic, Report};
use super::network::is_dns_name;
use super::schema::Settings;
use super::setting::{FromText, Mistake};
use server::sip::Advertised;

/// `HOST[:PORT][/LISTENER[:PORT]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advertise(pub(crate) Advertised);

/// An address or a name, and a port.
type HostPort<'t> = (&'t str, Option<u16>);

/// Splits the port off; an IPv6 address with a port has brackets.
fn host_port(text: &str) -> Option<HostPort<'_>> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':')?),
        };
        return with_port(host, port);
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => with_port(host, Some(port)),
        _ => with_port(text, None),
    }
}

fn with_port<'t>(host: &'t str, port: Option<&str>) -> Option<HostPort<'t>> {
    match port.map(str::parse) {
        None => Some((host, None)),
        Some(Ok(port @ 1..)) => Some((host, Some(port))),
        Some(_) => None,
    }
}

impl FromText for Advertise {
    const EXPECTED: &'static str =
        "\"HOST\" or \"HOST/LISTENER\", like \"203.0.113.5\" or \"sip.example.org:5060/10.0.0.5\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let help = "write an address or a DNS name, and after a slash the address of a listener";
        let wrong = |part: &str| {
            Mistake::new(format!("`{part}` is not an address or a DNS name")).help(help)
        };
        let (outside, listener) = match text.split_once('/') {
            Some((outside, listener)) => (outside, Some(listener)),
            None => (text, None),
        };
        let (host, port) = host_port(outside).ok_or_else(|| wrong(outside))?;
        let ip = host.parse::<IpAddr>().ok();
        if ip.is_none() && !is_dns_name(host) {
            return Err(wrong(outside));
        }
        if ip.is_some_and(|ip| ip.is_unspecified() || ip.is_multicast()) {
            let message = format!("nobody can send to {host}");
            let help = "write the address that others reach this server at, like \"203.0.113.5\"";
            return Err(Mistake::new(message).help(help));
        }
        let (mut of, mut of_port) = (None, None);
        if let Some(listener) = listener {
            let (address, port) = host_port(listener).ok_or_else(|| wrong(listener))?;
            let not_listened = || Mistake::new(format!("`{address}` is not an address")).help(help);
            of = Some(address.parse::<IpAddr>().map_err(|_| not_listened())?);
            of_port = port;
        }
        let families = ip.zip(of);
        if families.is_some_and(|(ip, of)| ip.is_ipv4() != of.is_ipv4()) {
            let message = format!("`{text}` has two address families");
            let help = "map IPv4 to IPv4 and IPv6 to IPv6, each with its own entry";
            return Err(Mistake::new(message).help(help));
        }
        Ok(Self(Advertised {
            host: ip.map_or_else(|| host.to_owned(), |ip| ip.to_string()),
            port,
            of,
            of_port,
        }))
    }

    fn to_text(&self) -> String {
        let with_port = |host: &str, port: Option<u16>| match port {
            Some(port) if host.contains(':') => format!("[{host}]:{port}"),
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let Advertised {
            host,
            port,
            of,
            of_port,
        } = &self.0;
        let outside = with_port(host, *port);
        match of {
            Some(of) => format!("{outside}/{}", with_port(&of.to_string(), *of_port)),
            None => outside,
        }
    }
}

/// Reports entries that apply to no listener.
pub(super) fn check(settings: &Settings, listeners: &[SocketAddr], report: &mut Report) {
    let entries = settings.sip_advertise.as_ref();
    for entry in entries.map_or(&[][..], |list| &list.value) {
        let Advertised { of, of_port, .. } = entry.value.0;
        let is_of = |listener: &&SocketAddr| {
            let of_ip = of.is_none_or(|of| {
                of == listener.ip()
                    || listener.ip().is_unspecified() && listener.is_ipv4() == of.is_ipv4()
            });
            of_ip && of_port.is_none_or(|port| port == listener.port())
        };
        if !listeners.iter().any(|listener| is_of(&listener)) {
            let message = "no SIP listener has this address";
            let help = "after the slash, write an address of sip.listen, sip.listen_tls, sip.listen_ws or sip.listen_wss";
            report.push(Diagnostic::error(&entry.at, message).help(help));
        }
    }
    let name = entries.and_then(|list| {
        let mut all = list.value.iter();
        all.find(|entry| entry.value.0.host.parse::<IpAddr>().is_err())
    });
    if let (Some(name), Some(_)) = (name, cluster::engine(settings)) {
        let message = "other nodes of the cluster do not send calls to a name";
        let help = "write the address of this node, like \"203.0.113.5\"";
        report.push(Diagnostic::warning(&name.at, message).help(help));
    }
    let networks = settings.sip_local_networks.as_ref();
    let first = networks.and_then(|list| list.value.first());
    let advertises = entries.is_some_and(|list| !list.value.is_empty());
    if let Some(first) = first.filter(|_| !advertises) {
        let message = "sip.local_networks has no effect without sip.advertise";
        let help = "set sip.advertise, or remove sip.local_networks";
        report.push(Diagnostic::warning(&first.at, message).help(help));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_addresses_are_read_and_written() {
        for text in [
            "203.0.113.5",
            "203.0.113.5/10.0.0.5",
            "sip.example.org",
            "sip.example.org:15060/10.0.0.5:5060",
            "2001:db8::5",
            "[2001:db8::5]:5070/fd00::1",
            "203.0.113.5:5070/10.0.0.5",
        ] {
            assert_eq!(Advertise::from_text(text).ok().unwrap().to_text(), text);
        }
        let brackets = Advertise::from_text("[2001:db8::5]/[fd00::1]")
            .ok()
            .unwrap();
        assert_eq!(brackets.to_text(), "2001:db8::5/fd00::1");
        for wrong in [
            "",
            "0.0.0.0",
            "a b",
            "203.0.113.5:0",
            "203.0.113.5:x",
            "203.0.113.5/name",
            "203.0.113.5/fd00::1",
            "[2001:db8::5",
            "224.0.0.1",
        ] {
            assert!(Advertise::from_text(wrong).is_err(), "{wrong}");
        }
    }
}
