//! What the configuration leaves open, decided for this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Result, bail};

use crate::config::{Config, DEFAULT_PORT, ExternalIp};

/// The addresses of the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// Every address of every interface that is up.
    pub(super) addresses: Vec<IpAddr>,
    /// The addresses that packets to the Internet leave from, at most one of each family.
    pub(super) routed: Vec<IpAddr>,
}

/// Where to listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listeners {
    pub(super) udp: Vec<SocketAddr>,
    pub(super) tcp: Vec<SocketAddr>,
    pub(super) tls: Vec<SocketAddr>,
    pub(super) dtls: Vec<SocketAddr>,
}

/// RFC 8656 §3.1: the port of TURN over TLS.
pub(super) const TLS_PORT: u16 = 5349;

/// Where to listen: over TCP where the configuration says, else where UDP is listened on.
pub(super) fn listeners(config: &Config, machine: &Machine) -> Result<Listeners> {
    let udp = udp_listeners(config, machine)?;
    let tcp = config.listen_tcp.clone().unwrap_or_else(|| udp.clone());
    let tls = match &config.listen_tls {
        Some(chosen) => chosen.clone(),
        None if !config.has_certificate_for_all() => Vec::new(),
        None => with_tls_port(&tcp),
    };
    let dtls = match &config.listen_dtls {
        Some(chosen) => chosen.clone(),
        // DTLS is 1.2.
        None if config.only_tls13 => Vec::new(),
        None if !config.has_certificate_for_all() => Vec::new(),
        None => with_tls_port(&udp),
    };
    Ok(Listeners {
        udp,
        tcp,
        tls,
        dtls,
    })
}

/// TLS or DTLS on the ports of TCP or UDP (the first bytes distinguish them), and on a separate port.
fn with_tls_port(plain: &[SocketAddr]) -> Vec<SocketAddr> {
    let own = plain
        .iter()
        .filter(|address| address.port() == DEFAULT_PORT)
        .map(|address| SocketAddr::new(address.ip(), TLS_PORT));
    let mut all: Vec<_> = plain.iter().copied().chain(own).collect();
    all.dedup();
    all
}

/// Where to listen over UDP: what the configuration says, else port 3478 of loopback and of the default route's
/// addresses.
fn udp_listeners(config: &Config, machine: &Machine) -> Result<Vec<SocketAddr>> {
    if let Some(chosen) = &config.listen_udp {
        return Ok(chosen.clone());
    }
    let mut found = machine.loopback();
    found.extend(machine.routed.iter().filter(|ip| !ip.is_loopback()));
    if found.is_empty() {
        bail!(
            "this machine has neither a loopback address nor a default route: say where to listen, --listen ADDRESS:PORT"
        );
    }
    Ok(found
        .into_iter()
        .map(|ip| SocketAddr::new(ip, DEFAULT_PORT))
        .collect())
}

/// The relay addresses. The configuration has them; otherwise, per family, the local addresses of its mappings or the
/// address of the default route. On a machine without a route it is loopback, for a first try.
pub(super) fn relays(config: &Config, machine: &Machine) -> Result<Vec<IpAddr>> {
    if let Some(chosen) = &config.relay_addresses {
        return Ok(chosen.clone());
    }
    let mut found: Vec<IpAddr> = config
        .external_ip
        .iter()
        .filter_map(|external| external.private)
        .collect();
    let mapped = [true, false].map(|v4| found.iter().any(|ip| ip.is_ipv4() == v4));
    found.extend(
        machine
            .routed
            .iter()
            .filter(|ip| !mapped[usize::from(ip.is_ipv6())]),
    );
    if found.is_empty() {
        found = machine.loopback();
    }
    if found.is_empty() {
        bail!(
            "this machine has neither a default route nor a loopback address: say where to relay from, --relay-address IP"
        );
    }
    Ok(found)
}

/// A secret that nobody can guess, for a server that was given neither secrets nor users.
pub(crate) fn random_secret() -> Result<String> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the kernel gives no random bytes: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// URIs for clients, only the most useful ones. Those of TLS and DTLS have the name of their listener's certificate,
/// which `name_at` finds. There are public addresses if any exist, and loopback only if nothing else exists.
pub(super) fn uris(
    listeners: &Listeners,
    external: &[ExternalIp],
    machine: &Machine,
    name_at: &dyn Fn(SocketAddr) -> Option<String>,
) -> Vec<String> {
    // RFC 7065: turn:host:port?transport=udp, with brackets around an IPv6 address.
    let of = |list: &[SocketAddr], transport: &'static str| {
        addresses(list, external, machine)
            .into_iter()
            .map(move |address| format!("turn:{address}?transport={transport}"))
    };
    let mut uris: Vec<String> = of(&listeners.udp, "udp")
        .chain(of(&listeners.tcp, "tcp"))
        .collect();
    for (plain, secure, transport) in [
        (&listeners.tcp, &listeners.tls, "tcp"),
        (&listeners.udp, &listeners.dtls, "udp"),
    ] {
        // On the port of TCP or UDP only if it has none of its own.
        let is_own = |address: &&SocketAddr| !plain.contains(address);
        let own: Vec<_> = secure.iter().filter(is_own).copied().collect();
        let secure = if own.is_empty() { secure } else { &own };
        for (listener, address) in reachable_addresses(secure, external, machine) {
            let host = name_at(listener).map_or_else(
                || address.to_string(),
                |name| format!("{name}:{}", address.port()),
            );
            let uri = format!("turns:{host}?transport={transport}");
            if !uris.contains(&uri) {
                uris.push(uri);
            }
        }
    }
    uris
}

/// The addresses that clients can use of one transport.
pub(super) fn addresses(
    listeners: &[SocketAddr],
    external: &[ExternalIp],
    machine: &Machine,
) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for (_, address) in reachable_addresses(listeners, external, machine) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Each listener with the addresses that clients can use.
fn reachable_addresses(
    listeners: &[SocketAddr],
    external: &[ExternalIp],
    machine: &Machine,
) -> Vec<(SocketAddr, SocketAddr)> {
    let mut addresses: Vec<(SocketAddr, SocketAddr)> = Vec::new();
    for listener in listeners {
        let ips = if listener.ip().is_unspecified() {
            machine.reachable(listener.is_ipv4())
        } else {
            vec![listener.ip()]
        };
        for ip in ips {
            let address = SocketAddr::new(seen_as(ip, external), listener.port());
            addresses.push((*listener, address));
        }
    }
    let is_loopback = |address: &SocketAddr| address.ip().is_loopback();
    if addresses.iter().any(|(_, address)| !is_loopback(address)) {
        addresses.retain(|(_, address)| !is_loopback(address));
    }
    addresses
}

impl Machine {
    fn loopback(&self) -> Vec<IpAddr> {
        let loopback = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        loopback
            .into_iter()
            .filter(|ip| self.addresses.contains(ip))
            .collect()
    }

    /// The addresses of one family that a wildcard listener is best reached at.
    fn reachable(&self, v4: bool) -> Vec<IpAddr> {
        let of_family = |list: &[IpAddr]| {
            list.iter()
                .copied()
                .filter(|ip| ip.is_ipv4() == v4)
                .take(1)
                .collect::<Vec<_>>()
        };
        match of_family(&self.routed) {
            none if none.is_empty() => of_family(&self.addresses),
            routed => routed,
        }
    }
}

fn seen_as(ip: IpAddr, external: &[ExternalIp]) -> IpAddr {
    let mapped = external.iter().find(|external| match external.private {
        Some(private) => private == ip,
        None => external.public.is_ipv4() == ip.is_ipv4() && !ip.is_loopback(),
    });
    mapped.map_or(ip, |external| external.public)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, load};

    fn config() -> Config {
        load(&Inputs::default()).config.unwrap()
    }

    fn machine(addresses: &[&str], routed: &[&str]) -> Machine {
        let parse = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect();
        Machine {
            addresses: parse(addresses),
            routed: parse(routed),
        }
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter()
            .map(|address| address.parse().unwrap())
            .collect()
    }

    #[test]
    fn listens_on_what_exists() {
        let both = machine(
            &["127.0.0.1", "::1", "192.0.2.2", "192.0.2.3", "2001:db8::2"],
            &["192.0.2.2", "2001:db8::2"],
        );
        let expected = addresses(&[
            "127.0.0.1:3478",
            "[::1]:3478",
            "192.0.2.2:3478",
            "[2001:db8::2]:3478",
        ]);
        let found = listeners(&config(), &both).unwrap();
        assert_eq!((found.udp, found.tcp), (expected.clone(), expected));
        let only_v4 = machine(&["127.0.0.1", "192.0.2.2"], &["192.0.2.2"]);
        assert_eq!(
            listeners(&config(), &only_v4).unwrap().udp,
            addresses(&["127.0.0.1:3478", "192.0.2.2:3478"])
        );
        assert!(listeners(&config(), &machine(&[], &[])).is_err());
        let mut without = config();
        without.listen_tcp = Some(Vec::new());
        assert!(listeners(&without, &only_v4).unwrap().tcp.is_empty());
    }

    #[test]
    fn relays_from_what_leads_to_the_internet() {
        let both = machine(
            &["127.0.0.1", "10.0.0.5", "2001:db8::2"],
            &["10.0.0.5", "2001:db8::2"],
        );
        let ips = |list: &[&str]| {
            list.iter()
                .map(|ip| ip.parse().unwrap())
                .collect::<Vec<IpAddr>>()
        };
        assert_eq!(
            relays(&config(), &both).unwrap(),
            ips(&["10.0.0.5", "2001:db8::2"])
        );
        let mut mapped = config();
        let (public, private) = ("203.0.113.5".parse().unwrap(), "10.0.0.9".parse().ok());
        mapped.external_ip = vec![ExternalIp { public, private }];
        assert_eq!(
            relays(&mapped, &both).unwrap(),
            ips(&["10.0.0.9", "2001:db8::2"])
        );
        assert_eq!(
            relays(&config(), &machine(&["127.0.0.1"], &[])).unwrap(),
            ips(&["127.0.0.1"])
        );
        assert!(relays(&config(), &machine(&[], &[])).is_err());
    }

    fn no_name(_: SocketAddr) -> Option<String> {
        None
    }

    #[test]
    fn uris_have_the_name_of_the_certificate_of_their_listener() {
        let host = machine(&["127.0.0.1", "10.0.0.5"], &["10.0.0.5"]);
        let secure = addresses(&["10.0.0.5:443", "0.0.0.0:5349", "10.0.0.5:5350"]);
        let all = Listeners {
            tls: secure.clone(),
            dtls: secure,
            ..Listeners::default()
        };
        let name = |listener: SocketAddr| match listener.port() {
            443 => Some("web.example.org".to_owned()),
            5349 => Some("turn.example.org".to_owned()),
            _ => None,
        };
        let expected = ["tcp", "udp"].map(|transport| {
            [
                format!("turns:web.example.org:443?transport={transport}"),
                format!("turns:turn.example.org:5349?transport={transport}"),
                format!("turns:10.0.0.5:5350?transport={transport}"),
            ]
        });
        assert_eq!(uris(&all, &[], &host, &name), expected.concat());
    }

    #[test]
    fn uris_name_what_clients_can_reach() {
        let host = machine(&["127.0.0.1", "10.0.0.5"], &["10.0.0.5"]);
        let external = [ExternalIp {
            public: "203.0.113.5".parse().unwrap(),
            private: None,
        }];
        let udp = |list: &[&str]| Listeners {
            udp: addresses(list),
            ..Listeners::default()
        };
        let loopback = udp(&["127.0.0.1:3478"]);
        assert_eq!(
            uris(&loopback, &[], &host, &no_name),
            ["turn:127.0.0.1:3478?transport=udp"]
        );
        let wildcard = udp(&["0.0.0.0:3478", "127.0.0.1:3478"]);
        assert_eq!(
            uris(&wildcard, &[], &host, &no_name),
            ["turn:10.0.0.5:3478?transport=udp"]
        );
        assert_eq!(
            uris(&wildcard, &external, &host, &no_name),
            ["turn:203.0.113.5:3478?transport=udp"]
        );
        let v6 = udp(&["[2001:db8::2]:5349"]);
        assert_eq!(
            uris(&v6, &external, &host, &no_name),
            ["turn:[2001:db8::2]:5349?transport=udp"]
        );
        let both = Listeners {
            tcp: addresses(&["10.0.0.5:443"]),
            ..loopback
        };
        assert_eq!(
            uris(&both, &[], &host, &no_name),
            [
                "turn:127.0.0.1:3478?transport=udp",
                "turn:10.0.0.5:443?transport=tcp"
            ]
        );
        let mut config = config();
        config.self_signed = true;
        let found = listeners(&config, &machine(&["127.0.0.1"], &[])).unwrap();
        assert_eq!(found.tls, addresses(&["127.0.0.1:3478", "127.0.0.1:5349"]));
        let all = uris(&found, &[], &host, &|_| Some("turn.example.org".to_owned()));
        assert_eq!(
            all[2..],
            [
                "turns:turn.example.org:5349?transport=tcp",
                "turns:turn.example.org:5349?transport=udp"
            ]
        );
        assert_eq!(found.dtls, found.tls);
        config.only_tls13 = true;
        let found = listeners(&config, &machine(&["127.0.0.1"], &[])).unwrap();
        assert_eq!((found.tls.len(), found.dtls.len()), (2, 0), "DTLS is 1.2");
    }

    #[test]
    fn secrets_differ() {
        assert_ne!(random_secret().unwrap(), random_secret().unwrap());
        assert_eq!(random_secret().unwrap().len(), 40);
    }
}
