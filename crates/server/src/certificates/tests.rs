use super::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Chain and key in PEM.
pub(super) fn made(names: &[&str]) -> (String, String) {
    let list: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(list).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, names[0]);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

pub(super) fn write(folder: &Path, (certificate, key): &(String, String)) -> CertificateFiles {
    let files = CertificateFiles {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        ..CertificateFiles::default()
    };
    fs::write(&files.certificate, certificate).unwrap();
    fs::write(&files.key, key).unwrap();
    files
}

fn error_of(certificate: &str, key: &str) -> CertificateError {
    Certificates::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err()
}

#[test]
fn a_name_gets_its_certificate_and_others_get_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str, names: &[&str]| {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        write(&folder, &made(names))
    };
    let certificates = Certificates::from_files(vec![
        place("one", &["turn.example.org", "192.0.2.1"]),
        place("two", &["*.example.net"]),
        place("three", &["exact.example.net"]),
    ])
    .unwrap();
    let info = certificates.info();
    assert_eq!(info[0].names, ["turn.example.org", "192.0.2.1"]);
    assert_eq!(
        (info[1].name(), info[0].sha256.len()),
        ("*.example.net", 64)
    );
    let chosen = |name: Option<&str>| {
        let key = certificates.select(name).unwrap();
        let pairs = certificates.shared.pairs();
        pairs.iter().position(|pair| Arc::ptr_eq(&pair.key, &key))
    };
    for (name, pair) in [
        (None, 0),
        (Some("turn.example.org"), 0),
        (Some("nobody.example"), 0),
        (Some("a.example.net"), 1),
        (Some("A.EXAMPLE.net"), 1),
        (Some("a.b.example.net"), 0),
        (Some("example.net"), 0),
        (Some("exact.example.net"), 2),
    ] {
        assert_eq!(chosen(name), Some(pair), "{name:?}");
    }
}

#[test]
fn a_listener_that_is_named_has_only_its_own_pairs_and_others_have_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, other]: [SocketAddr; 3] =
        ["192.0.2.1:443", "192.0.2.2:443", "192.0.2.1:5349"].map(|text| text.parse().unwrap());
    let place = |name: &str, names: &[&str], listeners: &[SocketAddr]| {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        CertificateFiles {
            listeners: listeners.to_vec(),
            ..write(&folder, &made(names))
        }
    };
    let files = vec![
        place("1", &["a.example"], &[one]),
        place("2", &["b.example"], &[]),
        place("3", &["c.example"], &[two, one]),
        place("4", &["d.example"], &[]),
    ];
    let all = Certificates::from_files(files.clone()).unwrap();
    assert_eq!(all.listeners(), [one, two]);
    let check = |all: &Certificates| {
        for (listener, name, expected) in [
            (one, None, "a.example"),
            (one, Some("c.example"), "c.example"),
            (one, Some("b.example"), "a.example"),
            (two, Some("a.example"), "c.example"),
            (other, None, "b.example"),
            (other, Some("d.example"), "d.example"),
            (other, Some("a.example"), "b.example"),
        ] {
            let own = all.at(listener);
            let key = own.select(name).unwrap();
            let pairs = all.shared.pairs();
            let pair = pairs.iter().find(|pair| Arc::ptr_eq(&pair.key, &key));
            assert_eq!(pair.unwrap().about.name(), expected, "{listener} {name:?}");
        }
    };
    check(&all);
    assert_eq!(all.at(two).default_info().unwrap().name(), "c.example");
    assert_eq!((all.info().len(), all.is_empty()), (4, false));
    // A pair that is read again, and those that are not, stay with their listeners.
    write(&folder.path().join("3"), &made(&["c.example"]));
    assert!(matches!(all.reload()[..], [Ok(_)]));
    check(&all);
    let named = Certificates::from_files(files[..1].to_vec()).unwrap();
    assert!(named.is_empty() && named.at(other).is_empty() && !named.at(one).is_empty());
    assert!(named.select(None).is_none());
}

#[test]
fn unusable_certificates_say_why() {
    let (certificate, key) = made(&["a.example"]);
    let (other, _) = made(&["b.example"]);
    assert!(matches!(
        error_of("", &key),
        CertificateError::NoCertificate { .. }
    ));
    assert!(matches!(
        error_of(&certificate, ""),
        CertificateError::NoKey { .. }
    ));
    assert!(matches!(
        error_of(&other, &key),
        CertificateError::Mismatch { .. }
    ));
    let unordered = format!("{certificate}{other}");
    assert!(matches!(
        error_of(&unordered, &key),
        CertificateError::Order { number: 2, .. }
    ));
    let cut = certificate.replace("-----END", "----END");
    assert!(matches!(
        error_of(&cut, &key),
        CertificateError::Pem { .. } | CertificateError::NoCertificate { .. }
    ));
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        error_of(garbage, &key),
        CertificateError::Malformed { number: 1, .. }
    ));
    assert!(matches!(
        Certificates::from_files(Vec::new()),
        Err(CertificateError::Empty)
    ));
    let missing = CertificateFiles {
        certificate: "/nowhere/tls.crt".into(),
        key: "/nowhere/tls.key".into(),
        ..CertificateFiles::default()
    };
    let error = Certificates::from_files(vec![missing]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot read /nowhere/tls.crt: ")
    );
}

#[test]
fn a_chain_stands_with_the_servers_own_certificate_first() {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(rcgen::DnType::CommonName, "authority");
    let root = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["turn.example.org".to_owned()]).unwrap();
    let own = own.signed_by(&key, &issuer).unwrap();
    let chain = format!("{}{}", own.pem(), root.pem());
    let pem = key.serialize_pem();
    let certificates = Certificates::from_pem(chain.as_bytes(), pem.as_bytes()).unwrap();
    assert_eq!(certificates.default_chain().len(), 2);
    let reversed = format!("{}{}", root.pem(), own.pem());
    assert!(matches!(
        error_of(&reversed, &pem),
        CertificateError::Order { number: 2, .. }
    ));
}

#[test]
fn files_that_change_are_read_again_and_bad_ones_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), &made(&["first.example"]));
    let certificates = Certificates::from_files(vec![files.clone()]).unwrap();
    let name = || certificates.info()[0].name().to_owned();
    assert!(certificates.reload().is_empty());
    // A new certificate whose key has not been written yet.
    let (certificate, key) = made(&["second.example"]);
    fs::write(&files.certificate, certificate).unwrap();
    let outcomes = certificates.reload();
    assert!(matches!(
        outcomes[..],
        [Err(CertificateError::Mismatch { .. })]
    ));
    assert_eq!(
        (name(), certificates.failed_reloads()),
        ("first.example".to_owned(), 1)
    );
    assert!(certificates.reload().is_empty(), "tried once");
    fs::write(&files.key, key).unwrap();
    assert!(matches!(certificates.reload()[..], [Ok(_)]));
    assert_eq!(
        (name(), certificates.generation()),
        ("second.example".to_owned(), 1)
    );
    fs::remove_file(&files.key).unwrap();
    assert!(matches!(
        certificates.reload()[..],
        [Err(CertificateError::Read { .. })]
    ));
    assert_eq!(name(), "second.example");
}

#[test]
fn a_link_that_is_swapped_is_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let versions = ["1", "2"].map(|version| {
        let version = folder.path().join(version);
        fs::create_dir(&version).unwrap();
        version
    });
    write(&versions[0], &made(&["first.example"]));
    write(&versions[1], &made(&["second.example"]));
    let link = folder.path().join("..data");
    symlink(&versions[0], &link).unwrap();
    let files = CertificateFiles {
        certificate: link.join("tls.crt"),
        key: link.join("tls.key"),
        ..CertificateFiles::default()
    };
    let certificates = Certificates::from_files(vec![files]).unwrap();
    let new = folder.path().join("new");
    symlink(&versions[1], &new).unwrap();
    fs::rename(&new, &link).unwrap();
    assert!(matches!(certificates.reload()[..], [Ok(_)]));
    assert_eq!(certificates.info()[0].name(), "second.example");
}

#[test]
fn an_expired_certificate_replaces_no_valid_one() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), &made(&["valid.example"]));
    let certificates = Certificates::from_files(vec![files.clone()]).unwrap();
    assert!(certificates.info()[0].days_left() > 365);
    let key = KeyPair::generate().unwrap();
    let mut old = CertificateParams::new(vec!["old.example".to_owned()]).unwrap();
    old.not_before = rcgen::date_time_ymd(2020, 1, 1);
    old.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let old = old.self_signed(&key).unwrap();
    write(folder.path(), &(old.pem(), key.serialize_pem()));
    assert!(matches!(
        certificates.reload()[..],
        [Err(CertificateError::Expired { .. })]
    ));
    // At the start it is all there is.
    let started = Certificates::from_files(vec![files]).unwrap();
    assert!(started.info()[0].days_left() < 0);
}

#[test]
fn a_certificate_that_is_not_valid_yet_says_so() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(4000, 1, 1);
    params.not_after = rcgen::date_time_ymd(4001, 1, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    let begun = |certificate: &str, key: &str| {
        let pair = Certificates::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        pair.info()[0].has_begun()
    };
    assert!(!begun(&certificate, &key.serialize_pem()));
    let (certificate, key) = made(&["a.example"]);
    assert!(begun(&certificate, &key));
}

#[test]
fn a_key_that_everybody_can_read_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), &made(&["a.example"]));
    for (mode, is_exposed) in [(0o600, false), (0o640, false), (0o644, true)] {
        fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(files.is_key_exposed(), is_exposed, "{mode:o}");
    }
}

#[test]
fn keys_are_never_shown() {
    let (certificate, key) = made(&["a.example"]);
    let certificates = Certificates::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let shown = format!("{certificates:?} {:?}", certificates.server_config(false));
    let secret = key.lines().nth(1).unwrap();
    assert!(!shown.contains(secret) && shown.contains("a.example"));
}
