//! What a server depends on: the clock, names, its address, its certificates, and what the kernel can relay by.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use server::certificates::Certificates;

use super::limits::some;
use super::system::ProgramOutcome;
use super::{CheckedHost, Finding};
use crate::config::{OffloadMode, is_private};

/// 1 January 2025: an earlier clock was never set.
const RECENT_UNIX_S: u64 = 1_735_689_600;
/// ACME renews a month ahead; a certificate with less is one that nobody renews.
const MIN_DAYS: i64 = 14;

/// Whether the kernel can relay on the interfaces of the server.
pub(super) fn offload(host: &CheckedHost<'_>) -> Vec<Finding> {
    if host.config.offload_mode == OffloadMode::Off {
        return vec![Finding::good(
            "offload.mode is \"off\": the kernel is not to relay",
        )];
    }
    let is_ours = |name: &String| host.interfaces.contains(name);
    let all = host.system.probe_interfaces().into_iter();
    let found = all
        .filter(|(name, ..)| is_ours(name))
        .map(|(name, method, why)| {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            match method {
                "xdp" => Finding::good(format!("the kernel can relay on {name} by XDP")),
                "tc" => Finding::good(format!(
                    "the kernel can relay on {name} by tc, not by XDP{why}"
                )),
                _ => Finding::warning(format!("the kernel cannot relay on {name}{why}"))
                    .fix(format!("hairpin probe offload {name} --log-level debug")),
            }
        });
    some(
        found.collect(),
        "no interface of a default route is up and has an address",
    )
}

/// Whether the clock is right: credentials and certificates expire by it.
pub(super) fn clock(host: &CheckedHost<'_>) -> Vec<Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    if now.map_or(0, |now| now.as_secs()) < RECENT_UNIX_S {
        return vec![
            Finding::wrong(
                "the clock was never set: certificates and time-limited credentials do not work",
            )
            .fix("timedatectl set-ntp true"),
        ];
    }
    let said = host
        .system
        .run("timedatectl show --property=NTPSynchronized --value");
    vec![match said {
        ProgramOutcome::Text(text) if text.trim() == "yes" => {
            Finding::good("the clock is synchronized")
        }
        ProgramOutcome::Text(_) => Finding::warning(
            "the clock is not synchronized: time-limited credentials expire too early or too late",
        )
        .fix("timedatectl set-ntp true"),
        ProgramOutcome::Missing => Finding::skipped(
            "timedatectl is not installed: find out in another way whether the clock is synchronized",
        ),
        ProgramOutcome::Failed(why) => Finding::skipped(format!(
            "timedatectl does not tell whether the clock is synchronized: {why}"
        )),
    }]
}

/// Names that the configuration has, and that must have addresses.
fn names(host: &CheckedHost<'_>) -> Vec<String> {
    let config = host.config;
    let mut names: Vec<String> = certificates(host)
        .into_iter()
        .flat_map(|info| info.names)
        .chain(config.external_sources.name.clone())
        .filter(|name| name.parse::<IpAddr>().is_err() && !name.starts_with("*."))
        .filter(|name| name != "localhost")
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The certificates of the configuration that can be read.
fn certificates(host: &CheckedHost<'_>) -> Vec<server::certificates::CertificateInfo> {
    let files = host.config.certificates.clone();
    match files.is_empty() {
        true => Vec::new(),
        false => Certificates::from_files(files).map_or_else(|_| Vec::new(), |all| all.info()),
    }
}

/// Whether names lead somewhere, and those of the certificates here.
pub(super) fn dns(host: &CheckedHost<'_>) -> Vec<Finding> {
    let text = host.system.read("/etc/resolv.conf").unwrap_or_default();
    let mut found = Vec::new();
    if !text
        .lines()
        .any(|line| line.trim_start().starts_with("nameserver "))
    {
        let finding = Finding::warning(
            "/etc/resolv.conf names no name server: next hops, stores and trunks by name cannot be found",
        );
        found.push(finding.fix("resolvectl status"));
    }
    let ours = own_addresses(host);
    for name in names(host) {
        found.push(match host.system.resolve(&name) {
            Err(error) => Finding::wrong(format!("{name} has no address: {error}"))
                .fix(format!("dig {name} A {name} AAAA")),
            Ok(addresses) if addresses.iter().any(|ip| ours.contains(ip)) => {
                Finding::good(format!("{name} is an address of this server"))
            }
            Ok(addresses) => {
                let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let ours: Vec<String> = ours.iter().map(ToString::to_string).collect();
                Finding::warning(format!(
                    "{name} is {}, and this server has {}: fine behind a NAT or a load balancer only",
                    list.join(", "),
                    ours.join(", ")
                ))
                .fix(format!("dig {name} A {name} AAAA"))
            }
        });
    }
    if found.is_empty() {
        found.push(Finding::good(
            "there is a name server, and the configuration has no name of this server",
        ));
    }
    found
}

/// The addresses that clients get, or may get.
fn own_addresses(host: &CheckedHost<'_>) -> Vec<IpAddr> {
    let config = host.config;
    let mut all: Vec<IpAddr> = config
        .external_ip
        .iter()
        .map(|external| external.public)
        .collect();
    all.extend(relays(host));
    all
}

/// Where relays are bound.
fn relays(host: &CheckedHost<'_>) -> Vec<IpAddr> {
    let chosen = host.config.relay_addresses.clone();
    chosen.unwrap_or_else(|| host.system.routed_addresses())
}

/// Whether clients get addresses that the Internet can reach.
pub(super) fn address(host: &CheckedHost<'_>) -> Vec<Finding> {
    let config = host.config;
    let sources = &config.external_sources;
    let check = |relay: IpAddr| {
        let external = config.external_ip.iter().find(|external| {
            let same_family = external.public.is_ipv4() == relay.is_ipv4();
            external
                .private
                .map_or(same_family, |private| private == relay)
        });
        match external {
            Some(external) if is_private(external.public) => {
                Finding::warning(format!("clients are told {} for {relay}, which is private, too", external.public))
                    .fix("hairpin probe stun stun.example.org")
            }
            Some(external) => Finding::good(format!("clients are told {} for {relay}", external.public)),
            None if !is_private(relay) => Finding::good(format!("the relay address {relay} is public")),
            None if !sources.servers.is_empty() || sources.name.is_some() => {
                Finding::good(format!("the server finds the external address of {relay} itself"))
            }
            None => Finding::wrong(format!(
                "the relay address {relay} is private, and relay.external_ip does not say by which address the Internet reaches it: only clients in the same network can use relays"
            ))
            .fix("hairpin probe stun stun.example.org")
            .fix(format!("hairpin serve --external-ip PUBLIC/{relay}")),
        }
    };
    let found = relays(host)
        .into_iter()
        .filter(|ip| !ip.is_loopback())
        .map(check);
    some(
        found.collect(),
        "this machine has no default route, and relay.addresses names no other address than loopback",
    )
}

/// Whether certificates are valid for long enough.
pub(super) fn certificate(host: &CheckedHost<'_>) -> Vec<Finding> {
    let config = host.config;
    if !config.acme.domains.is_empty() && config.certificates.is_empty() {
        return vec![Finding::good("ACME keeps the certificate valid")];
    }
    if config.certificates.is_empty() {
        return vec![Finding::good(match config.self_signed {
            true => "the server makes a certificate that no client trusts, for development",
            false => "there is no certificate: TLS and DTLS are off",
        })];
    }
    let check = |files: &server::certificates::CertificateFiles| {
        let place = files.certificate.display();
        let info = Certificates::from_files(vec![files.clone()]).map(|all| all.info());
        let info = match &info {
            Ok(all) => all.first(),
            Err(error) => {
                return Finding::wrong(error.to_string())
                    .fix(format!("openssl x509 -in {place} -noout -text"));
            }
        };
        let Some(info) = info else {
            return Finding::wrong(format!("{place} has no certificate"));
        };
        let (name, days) = (info.name(), info.days_left());
        let show = format!("openssl x509 -in {place} -noout -dates");
        match () {
            () if !info.has_begun() => {
                Finding::wrong(format!("the certificate of {name} is not valid yet")).fix(show)
            }
            () if days < 0 => {
                Finding::wrong(format!("the certificate of {name} has expired")).fix(show)
            }
            () if days < MIN_DAYS => {
                Finding::warning(format!("the certificate of {name} expires in {days} days"))
                    .fix(show)
            }
            () if files.is_key_exposed() => Finding::warning(format!(
                "every user of this machine can read the private key of {name}"
            ))
            .fix(format!("chmod o-r {}", files.key.display())),
            () => Finding::good(format!(
                "the certificate of {name} is valid for {days} days"
            )),
        }
    };
    config.certificates.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::test_host::{TestHost, is};

    #[test]
    fn the_kernel_says_by_what_it_can_relay() {
        let made = TestHost::new("");
        assert_eq!(made.one("offload").level, Level::Skipped);
        for (prospect, level, part, fix) in [
            ("eth0 xdp", Level::Good, "by XDP", &[][..]),
            (
                "eth0 tc the driver has no XDP",
                Level::Good,
                "not by XDP: the driver has no XDP",
                &[],
            ),
            (
                "eth0 user no CAP_BPF",
                Level::Warning,
                "cannot relay on eth0: no CAP_BPF",
                &["hairpin probe offload eth0 --log-level debug"],
            ),
        ] {
            made.says("prospects", &format!("{prospect}\nother user nothing\n"));
            is(&made.one("offload"), level, part, fix);
        }
        is(
            &TestHost::new("[offload]\nmode = \"off\"\n").one("offload"),
            Level::Good,
            "is not to relay",
            &[],
        );
    }

    #[test]
    fn a_clock_that_drifts_is_reported() {
        let made = TestHost::new("");
        assert_eq!(made.one("clock").level, Level::Skipped);
        let ask = "timedatectl show --property=NTPSynchronized --value";
        made.says(ask, "no\n");
        is(
            &made.one("clock"),
            Level::Warning,
            "not synchronized",
            &["timedatectl set-ntp true"],
        );
        made.says(ask, "yes\n");
        is(&made.one("clock"), Level::Good, "is synchronized", &[]);
    }

    #[test]
    fn a_private_address_needs_an_external_one() {
        let made = TestHost::new("");
        assert_eq!(made.one("address").level, Level::Skipped);
        made.says("addresses", "10.0.0.5\n");
        let found = made.one("address");
        assert_eq!(
            (found.level, &*found.fix[1]),
            (Level::Wrong, "hairpin serve --external-ip PUBLIC/10.0.0.5")
        );
        made.says("addresses", "93.184.216.34\n");
        is(&made.one("address"), Level::Good, "is public", &[]);
        let mapped = TestHost::new("[relay]\nexternal_ip = [\"93.184.216.34/10.0.0.5\"]\n");
        mapped.says("addresses", "10.0.0.5\n");
        is(
            &mapped.one("address"),
            Level::Good,
            "clients are told 93.184.216.34 for 10.0.0.5",
            &[],
        );
        let auto = TestHost::new(
            "[relay]\nexternal_ip = [\"auto\"]\nexternal_ip_servers = [\"stun.example.org\"]\n",
        );
        auto.says("addresses", "10.0.0.5\n");
        is(
            &auto.one("address"),
            Level::Good,
            "finds the external address of 10.0.0.5 itself",
            &[],
        );
    }

    /// A configuration with a certificate for this name.
    fn certified(name: &str, days: i64) -> (tempfile::TempDir, TestHost) {
        let folder = tempfile::tempdir().unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let now = std::time::SystemTime::now();
        let begin = now - std::time::Duration::from_secs(100 * 86_400);
        let end = match u64::try_from(days) {
            Ok(days) => now + std::time::Duration::from_secs(days * 86_400 + 3_600),
            Err(_) => now - std::time::Duration::from_secs(86_400),
        };
        parameters.not_before = begin.into();
        parameters.not_after = end.into();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(path("key.pem"), key.serialize_pem()).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path("key.pem"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let config = format!(
            "[tls]\ncertificates = [{{ certificate = {:?}, key = {:?} }}]\n",
            path("cert.pem"),
            path("key.pem")
        );
        let made = TestHost::new(&config);
        (folder, made)
    }

    #[test]
    fn a_certificate_must_last() {
        is(
            &TestHost::new("").one("certificate"),
            Level::Good,
            "TLS and DTLS are off",
            &[],
        );
        let level = |days| {
            certified("turn.example.org", days)
                .1
                .one("certificate")
                .level
        };
        assert_eq!(
            [level(60), level(5), level(-1)],
            [Level::Good, Level::Warning, Level::Wrong]
        );
        let (folder, made) = certified("turn.example.org", 60);
        use std::os::unix::fs::PermissionsExt;
        let key = folder.path().join("key.pem");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        is(
            &made.one("certificate"),
            Level::Warning,
            "can read the private key",
            &[&format!("chmod o-r {}", key.display())],
        );
    }

    #[test]
    fn names_of_certificates_must_lead_here() {
        let made = TestHost::new("");
        is(
            &made.one("dns"),
            Level::Warning,
            "names no name server",
            &["resolvectl status"],
        );
        made.file("/etc/resolv.conf", "nameserver 192.0.2.53\n");
        assert_eq!(made.one("dns").level, Level::Good);
        let (_folder, made) = certified("turn.example.org", 60);
        made.file("/etc/resolv.conf", "nameserver 192.0.2.53\n")
            .says("addresses", "93.184.216.34\n");
        is(
            &made.one("dns"),
            Level::Wrong,
            "turn.example.org has no address: no such name",
            &["dig turn.example.org A turn.example.org AAAA"],
        );
        made.says("resolve turn.example.org", "93.184.216.34\n");
        is(
            &made.one("dns"),
            Level::Good,
            "is an address of this server",
            &[],
        );
        made.says("resolve turn.example.org", "192.0.2.1\n");
        assert_eq!(made.one("dns").level, Level::Warning);
    }
}
