//! `[tls]` in `hairpin check` and `hairpin serve`: files that are right, wrong, replaced, and never shown.

use crate::common::tls::AnyCertificate;
use crate::common::{Serve, fails, hairpin, run, stderr, stdout};
use hairpin_server::rustls::pki_types::pem::PemObject as _;
use hairpin_server::rustls::pki_types::{CertificateDer, ServerName};
use hairpin_server::rustls::{ClientConfig, ClientConnection, crypto};
use rcgen::{CertificateParams, KeyPair};
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A folder with a configuration, a certificate and its key.
struct Files {
    folder: tempfile::TempDir,
}

/// Chain and key in PEM, with a change to the certificate.
fn made(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["turn.example.org".to_owned()]).expect("a name");
    change(&mut params);
    (
        params.self_signed(&key).expect("a certificate").pem(),
        key.serialize_pem(),
    )
}

impl Files {
    fn new((certificate, key): &(String, String)) -> Files {
        let files = Files {
            folder: tempfile::tempdir().expect("a temporary folder"),
        };
        let [certificate_path, key_path] = ["tls.crt", "tls.key"].map(|name| files.path(name));
        let text = format!(
            "[listen]\nudp = [\"127.0.0.1:0\"]\n[tls]\ncertificates = [{{ certificate = {certificate_path:?}, key = {key_path:?} }}]\n"
        );
        fs::write(files.path("hairpin.toml"), text).expect("a file can be written");
        files.put("tls.crt", certificate);
        files.put("tls.key", key);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("a file can be written");
        fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode can be set");
    }

    fn check(&self, flags: &[&str]) -> std::process::Output {
        let config = self.path("hairpin.toml");
        let mut args = vec!["check", config.to_str().expect("a temporary path is UTF-8")];
        args.extend(flags);
        run(&args)
    }
}

/// A line of a private key, which nothing may print.
fn secret_of(pair: &(String, String)) -> &str {
    pair.1.lines().nth(1).expect("PEM has lines")
}

#[test]
fn a_good_pair_is_fine_and_its_key_is_never_shown() {
    let pair = made(|_| {});
    let files = Files::new(&pair);
    let output = files.check(&[]);
    assert_eq!((output.status.code(), &stderr(&output)[..]), (Some(0), ""));
    let output = files.check(&["--effective", "--show-secrets"]);
    let shown = stdout(&output);
    assert!(
        shown.contains("tls.key") && !shown.contains(secret_of(&pair)),
        "{shown}"
    );
}

#[test]
fn faults_of_a_pair_name_the_line_of_the_configuration() {
    let pair = made(|_| {});
    let other = made(|_| {});
    let files = Files::new(&(pair.0.clone(), other.1));
    fails(&files.check(&[]), 1, "hairpin.toml:4:");
    fails(
        &files.check(&[]),
        1,
        "does not belong to the certificate in",
    );
    files.put("tls.key", "no key\n");
    fails(&files.check(&[]), 1, "has no private key");
    fs::remove_file(files.path("tls.crt")).unwrap();
    fails(&files.check(&[]), 1, "cannot read");
}

#[test]
fn a_key_that_everybody_can_read_and_a_wrong_time_are_warnings() {
    let files = Files::new(&made(|_| {}));
    fs::set_permissions(files.path("tls.key"), Permissions::from_mode(0o644)).unwrap();
    let output = files.check(&[]);
    assert_eq!(output.status.code(), Some(0));
    let text = stderr(&output);
    assert!(
        text.contains("warning: every user of this machine can read") && text.contains("chmod o-r"),
        "{text}"
    );
    for (years, part) in [
        ([2020, 2021], "has expired"),
        ([4000, 4001], "is not valid yet"),
    ] {
        let files = Files::new(&made(|params| {
            params.not_before = rcgen::date_time_ymd(years[0], 1, 1);
            params.not_after = rcgen::date_time_ymd(years[1], 1, 1);
        }));
        let output = files.check(&[]);
        let text = stderr(&output);
        assert!(output.status.success() && text.contains(part), "{text}");
    }
}

#[test]
fn sighup_reads_certificates_again_at_once_and_a_bad_pair_changes_nothing() {
    let (first, second) = (made(|_| {}), made(|_| {}));
    let files = Files::new(&first);
    let config = files.path("hairpin.toml");
    let serve = Serve::start_command(hairpin(&["serve", "--config", config.to_str().unwrap()]));
    // Less than the time after which files are looked at without a signal.
    let wait_for_reload = || std::thread::sleep(Duration::from_millis(600));
    files.put("tls.crt", &second.0);
    serve.signal("HUP");
    wait_for_reload();
    files.put("tls.key", &second.1);
    serve.signal("HUP");
    wait_for_reload();
    serve.signal("TERM");
    let (status, log) = serve.wait();
    assert!(status.success());
    let refused = log.find("reload refused").expect(&log);
    let replaced = log.find("certificate replaced").expect(&log);
    assert!(refused < replaced, "{log}");
    assert!(
        log.contains("does not belong to the certificate in"),
        "{log}"
    );
    for pair in [&first, &second] {
        assert!(!log.contains(secret_of(pair)), "{log}");
    }
}

#[test]
fn a_development_server_makes_a_certificate_and_logs_its_fingerprint() {
    let serve = Serve::start(&["--dev", "--listen", "127.0.0.1:0"]);
    serve.signal("TERM");
    let (_, log) = serve.wait();
    let line = log
        .lines()
        .find(|line| line.contains("made a certificate that no client trusts"))
        .expect(&log);
    let (_, rest) = line.split_once("sha256").expect(line);
    let digits = rest.chars().filter(char::is_ascii_hexdigit).count();
    assert!(digits >= 64 && line.contains("localhost"), "{line}");
}

#[test]
fn a_pair_may_be_for_some_listeners_only() {
    let files = Files::new(&made(|_| {}));
    let own = made(|_| {});
    files.put("own.crt", &own.0);
    files.put("own.key", &own.1);
    let pair = |name: &str, more: &str| {
        let [certificate, key] =
            ["crt", "key"].map(|end| files.path(&format!("{name}.{end}")).display().to_string());
        format!("[[tls.certificates]]\ncertificate = {certificate:?}\nkey = {key:?}\n{more}")
    };
    let config = |listeners: &str, pairs: &[String]| {
        files.put("hairpin.toml", &format!("{listeners}\n{}", pairs.concat()));
    };
    let two = "[listen]\nudp = [\"127.0.0.1:0\"]\ntls = [\"127.0.0.1:443\", \"127.0.0.2:443\"]\ndtls = []";
    let of_second = pair("own", "listen = [\"127.0.0.2:443\"]\n");
    config(two, &[pair("tls", ""), of_second.clone()]);
    let output = files.check(&["--effective"]);
    let shown = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        shown.contains("own.key\", listen = [\"127.0.0.2:443\"] }"),
        "{shown}"
    );
    config(two, &[of_second]);
    fails(
        &files.check(&[]),
        1,
        "the listener 127.0.0.1:443 has no certificate",
    );
    let unknown = pair("own", "listen = [\"127.0.0.2:444\"]\n");
    config(two, &[pair("tls", ""), unknown]);
    fails(
        &files.check(&[]),
        1,
        "no listener with TLS or DTLS has the address 127.0.0.2:444",
    );
    config(two, &[pair("tls", ""), pair("own", "listen = []\n")]);
    fails(&files.check(&[]), 1, "no listener uses this certificate");
    config(two, &[pair("tls", ""), pair("own", "listener = []\n")]);
    fails(&files.check(&[]), 1, "did you mean `listen`?");
    let web = "[listen]\nudp = [\"127.0.0.1:0\"]\n[sip]\nlisten_wss = [\"127.0.0.3:443\"]\n[[sip.domain]]\nname = \"example.org\"";
    config(web, &[pair("own", "listen = [\"127.0.0.1:9641\"]\n")]);
    fails(
        &files.check(&[]),
        1,
        "the listener 127.0.0.3:443 has no certificate",
    );
}

/// The certificate that a server shows.
fn shown_at(address: SocketAddr) -> Option<CertificateDer<'static>> {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    let name = ServerName::try_from("turn.example.org").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    while client.is_handshaking() {
        client.complete_io(&mut socket).ok()?;
    }
    let shown = client.peer_certificates()?.first()?.clone();
    Some(shown.into_owned())
}

#[test]
fn the_server_shows_the_certificate_of_the_listener() {
    let files = Files::new(&made(|_| {}));
    let own = made(|_| {});
    files.put("own.crt", &own.0);
    files.put("own.key", &own.1);
    let [all, all_key, one, one_key] =
        ["tls.crt", "tls.key", "own.crt", "own.key"].map(|name| files.path(name));
    let text = format!(
        "[listen]\nudp = [\"127.0.0.1:0\"]\ntls = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\ndtls = []\n\
         [admin]\nlisten = \"127.0.0.2:0\"\n\
         [[tls.certificates]]\ncertificate = {all:?}\nkey = {all_key:?}\n\
         [[tls.certificates]]\ncertificate = {one:?}\nkey = {one_key:?}\nlisten = [\"127.0.0.2:0\"]\n"
    );
    files.put("hairpin.toml", &text);
    let config = files.path("hairpin.toml");
    let serve = Serve::start_command(hairpin(&["serve", "--config", config.to_str().unwrap()]));
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let all = certificate(&fs::read_to_string(all).unwrap());
    let own = certificate(&own.0);
    let address = |ip: &str| -> SocketAddr {
        let lines = serve.banner().lines();
        let mut places = lines.filter_map(|line| {
            let (_, place) = line.strip_prefix("listening")?.split_once("tls ")?;
            place.trim().parse().ok()
        });
        let found = places.find(|place: &SocketAddr| place.ip().to_string() == ip);
        found.unwrap_or_else(|| panic!("{ip}: {}", serve.banner()))
    };
    assert_eq!(shown_at(address("127.0.0.1")), Some(all));
    assert_eq!(shown_at(address("127.0.0.2")), Some(own.clone()));
    assert_eq!(shown_at(serve.admin().parse().unwrap()), Some(own));
    serve.signal("TERM");
    let (status, log) = serve.wait();
    assert!(status.success(), "{log}");
}
