//! The names of listeners, by which clients check their certificates.

use std::net::{IpAddr, SocketAddr};

use server::certificates::Certificates;

use crate::config::Config;

/// The name in certificates that the server makes itself. Clients on other machines cannot use it.
pub(super) const LOCALHOST: &str = "localhost";

/// The first DNS name of the default certificate of a TLS or DTLS listener. IP addresses and wildcard names do not
/// count. `None` if there is no such name, or if it is [`LOCALHOST`]. `listener` has the real port.
pub(super) fn at(
    certificates: &Certificates,
    config: &Config,
    listener: SocketAddr,
) -> Option<String> {
    let info = certificates
        .at(configured(config, listener))
        .default_info()?;
    let is_name = |name: &&String| name.parse::<IpAddr>().is_err() && !name.starts_with("*.");
    let mut names = info.names.iter();
    names
        .find(is_name)
        .filter(|name| *name != LOCALHOST)
        .cloned()
}

/// The address of a listener as the configuration has it: a certificate can name port 0.
fn configured(config: &Config, listener: SocketAddr) -> SocketAddr {
    let lists = [&config.listen_tls, &config.listen_dtls];
    let has = |address| {
        let mut all = lists.into_iter().flatten().flatten();
        all.any(|known| *known == address)
    };
    let any_port = SocketAddr::new(listener.ip(), 0);
    match !has(listener) && has(any_port) {
        true => any_port,
        false => listener,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, load};
    use server::certificates::CertificateFiles;

    #[test]
    fn each_listener_has_the_name_of_its_own_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let pair = |name: &str, listeners: &[&str]| {
            let path = folder.path().join(name);
            let pem = Certificates::self_signed_pem(&[name.to_owned()]).unwrap();
            std::fs::write(&path, pem).unwrap();
            CertificateFiles {
                certificate: path.clone(),
                key: path,
                listeners: listeners.iter().map(|text| text.parse().unwrap()).collect(),
            }
        };
        let mut pairs = vec![
            pair("web.example.org", &["192.0.2.8:443"]),
            pair("any.example.org", &["192.0.2.9:0"]),
            pair("localhost", &["192.0.2.10:443"]),
        ];
        let mut config = load(&Inputs::default()).config.unwrap();
        let listen = ["192.0.2.8:443", "192.0.2.9:0", "192.0.2.9:443"];
        config.listen_tls = Some(listen.map(|text| text.parse().unwrap()).to_vec());
        let check = |pairs: &[CertificateFiles], expected: &[(&str, Option<&str>)]| {
            let all = Certificates::from_files(pairs.to_vec()).unwrap();
            for (listener, name) in expected {
                let found = at(&all, &config, listener.parse().unwrap());
                assert_eq!(found.as_deref(), *name, "{listener}");
            }
        };
        let of_own = [
            ("192.0.2.8:443", Some("web.example.org")),
            ("192.0.2.9:40000", Some("any.example.org")),
            ("192.0.2.10:443", None),
        ];
        check(&pairs, &of_own);
        check(&pairs, &[("192.0.2.8:5349", None), ("192.0.2.9:443", None)]);
        pairs.push(pair("turn.example.org", &[]));
        let usual = Some("turn.example.org");
        check(&pairs, &of_own);
        check(
            &pairs,
            &[("192.0.2.8:5349", usual), ("192.0.2.9:443", usual)],
        );
    }
}
