//! Reads and checks one certificate chain with its private key.

use super::Fingerprint;
use rcgen::{CertificateParams, KeyPair};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use streams::rustls::RootCertStore;
use streams::rustls::crypto::aws_lc_rs;
use streams::rustls::pki_types::pem::{self, PemObject};
use streams::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use streams::rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The files of a certificate and its private key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// A PEM file with the chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// A PEM file with the private key: PKCS #8, SEC 1 or PKCS #1, without a passphrase.
    pub key: PathBuf,
    /// The addresses of the listeners that use this pair, as they are configured. Empty: all listeners that have no
    /// pair of their own.
    pub listeners: Vec<SocketAddr>,
}

impl CertificateFiles {
    /// Whether every user of this machine can read the private key. `false` if the mode of the file is unknown.
    #[must_use]
    pub fn is_key_exposed(&self) -> bool {
        std::fs::metadata(&self.key).is_ok_and(|data| data.mode() & READABLE_BY_OTHERS != 0)
    }
}

/// The mode bit S_IROTH: users who are neither the owner nor in the group of the file can read it.
const READABLE_BY_OTHERS: u32 = 0o004;

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// There is no certificate.
    #[error("{place} has no certificate: add a PEM block \"-----BEGIN CERTIFICATE-----\"")]
    NoCertificate {
        /// The file.
        place: String,
    },
    /// There is no private key.
    #[error(
        "{place} has no private key: add a PEM block \"-----BEGIN PRIVATE KEY-----\", without a passphrase"
    )]
    NoKey {
        /// The file.
        place: String,
    },
    /// The file is not a PEM file.
    #[error("{place} is not a PEM file: {reason}")]
    Pem {
        /// The file.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A certificate of the chain is malformed.
    #[error("certificate {number} in {place} is malformed: {reason}")]
    Malformed {
        /// The file.
        place: String,
        /// Which of the chain, from 1.
        number: usize,
        /// What is wrong.
        reason: String,
    },
    /// A certificate is not the issuer of the one before it.
    #[error(
        "certificate {number} in {place} did not issue the one before it: put the server's own first, then each issuer"
    )]
    Order {
        /// The file.
        place: String,
        /// Which of the chain, from 1.
        number: usize,
    },
    /// The kind of key is not supported.
    #[error(
        "the private key in {place} cannot be used: {reason}; use ECDSA P-256 or RSA with at least 2048 bits"
    )]
    Key {
        /// The file.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error("the private key in {key} does not belong to the certificate in {certificate}")]
    Mismatch {
        /// The file of the certificate.
        certificate: String,
        /// The file of the key.
        key: String,
    },
    /// The new certificate has expired, and the one in use has not.
    #[error("the certificate in {place} has expired: renew it")]
    Expired {
        /// The file.
        place: String,
    },
    /// A self-signed certificate cannot be made.
    #[error("cannot make a self-signed certificate: {0}")]
    Generate(String),
    /// No pair was given.
    #[error("there is no certificate: give at least one pair of certificate and key")]
    Empty,
}

/// A checked chain with its private key.
pub(super) struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    /// The private key in its original encoding, for DTLS.
    pub(super) private: PrivateKeyDer<'static>,
    pub(super) about: CertificateInfo,
    /// [`CertificateFiles::listeners`].
    pub(super) listeners: Arc<[SocketAddr]>,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The private key must not be in logs.
        f.debug_tuple("Pair").field(&self.about).finish()
    }
}

/// Names, validity and fingerprint of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateInfo {
    /// The file that it was read from, or `memory`.
    pub place: String,
    /// Its subject alternative names: DNS names, perhaps with a wildcard, and IP addresses.
    pub names: Vec<String>,
    /// Start of its validity (notBefore), in seconds since 1970.
    pub begins_unix_s: u64,
    /// End of its validity (notAfter), in seconds since 1970.
    pub expires_unix_s: u64,
    /// SHA-256 of the certificate, in hexadecimal digits.
    pub sha256: String,
}

impl CertificateInfo {
    /// The label of the certificate in metrics and logs: its first name, or the file if it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.first().map_or(&self.place, |name| name)
    }

    /// Whole days until it expires; negative afterwards.
    #[must_use]
    pub fn days_left(&self) -> i64 {
        let left = i128::from(self.expires_unix_s) - i128::from(unix_s());
        i64::try_from(left.div_euclid(86_400)).unwrap_or(i64::MAX)
    }

    /// Whether the start of its validity has passed. Clients reject it before.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begins_unix_s <= unix_s()
    }

    /// How well it matches this server name (RFC 6125 §6.4): 2 by an exact name, 1 by a wildcard, 0 not at all.
    pub(super) fn fits(&self, server_name: &str) -> u8 {
        let name = server_name.trim_end_matches('.');
        let fit = |own: &String| match own.strip_prefix("*.") {
            Some(parent) => {
                let is_child = name.split_once('.').is_some_and(|(label, rest)| {
                    !label.is_empty() && rest.eq_ignore_ascii_case(parent)
                });
                u8::from(is_child)
            }
            None => 2 * u8::from(own.eq_ignore_ascii_case(name)),
        };
        self.names.iter().map(fit).max().unwrap_or(0)
    }
}

fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Reads and checks two files.
pub(super) fn read(files: &CertificateFiles) -> Result<Pair, CertificateError> {
    let certificate = read_file(&files.certificate)?;
    let key = read_file(&files.key)?;
    let place = |path: &Path| path.display().to_string();
    let mut pair = parse(
        &certificate,
        &key,
        &place(&files.certificate),
        &place(&files.key),
    )?;
    pair.listeners = files.listeners.as_slice().into();
    Ok(pair)
}

fn read_file(path: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|source| CertificateError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Adds the certificates of a PEM file.
pub(super) fn read_roots(path: &Path, roots: &mut RootCertStore) -> Result<(), CertificateError> {
    let place = || path.display().to_string();
    let text = read_file(path)?;
    let before = roots.len();
    for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(&text)) {
        let certificate = certificate.map_err(|error| CertificateError::Pem {
            place: place(),
            reason: error.to_string(),
        })?;
        roots
            .add(certificate)
            .map_err(|error| CertificateError::Malformed {
                place: place(),
                number,
                reason: error.to_string(),
            })?;
    }
    match roots.len() - before {
        0 => Err(CertificateError::NoCertificate { place: place() }),
        _ => Ok(()),
    }
}

/// Checks a chain and a key in PEM.
pub(super) fn parse(
    certificate: &[u8],
    key: &[u8],
    certificate_place: &str,
    key_place: &str,
) -> Result<Pair, CertificateError> {
    let place = || certificate_place.to_owned();
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateError::Pem {
            place: place(),
            reason: error.to_string(),
        })?;
    let about = inspect_chain(&chain, certificate_place)?;
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        pem::Error::NoItemsFound => CertificateError::NoKey {
            place: key_place.to_owned(),
        },
        error => CertificateError::Pem {
            place: key_place.to_owned(),
            reason: error.to_string(),
        },
    })?;
    let signing =
        aws_lc_rs::sign::any_supported_type(&private).map_err(|error| CertificateError::Key {
            place: key_place.to_owned(),
            reason: error.to_string(),
        })?;
    let key = CertifiedKey::new(chain, signing);
    key.keys_match().map_err(|_| CertificateError::Mismatch {
        certificate: place(),
        key: key_place.to_owned(),
    })?;
    Ok(Pair {
        key: Arc::new(key),
        private,
        about,
        listeners: Arc::default(),
    })
}

/// Signs a certificate with its own key.
pub(crate) fn self_sign(params: &CertificateParams, key: &KeyPair) -> Result<CertifiedKey, String> {
    let certificate = params.self_signed(key).map_err(|error| error.to_string())?;
    let private = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let signing =
        aws_lc_rs::sign::any_supported_type(&private).map_err(|error| error.to_string())?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], signing))
}

/// Checks the order of a chain. Returns names, validity and fingerprint of its first certificate.
fn inspect_chain(
    chain: &[CertificateDer<'_>],
    place: &str,
) -> Result<CertificateInfo, CertificateError> {
    let mut parsed = Vec::with_capacity(chain.len());
    for (number, der) in (1..).zip(chain) {
        let malformed = |reason: String| CertificateError::Malformed {
            place: place.to_owned(),
            number,
            reason,
        };
        let (_, one) =
            X509Certificate::from_der(der).map_err(|error| malformed(error.to_string()))?;
        parsed.push(one);
    }
    let Some(own) = parsed.first() else {
        return Err(CertificateError::NoCertificate {
            place: place.to_owned(),
        });
    };
    let breaks = parsed
        .windows(2)
        .position(|two| two[0].issuer().as_raw() != two[1].subject().as_raw());
    if let Some(at) = breaks {
        return Err(CertificateError::Order {
            place: place.to_owned(),
            number: at + 2,
        });
    }
    let mut names = Vec::new();
    if let Ok(Some(alternatives)) = own.subject_alternative_name() {
        names.extend(alternatives.value.general_names.iter().filter_map(name_of));
    }
    let sha256 = chain.first().map(|der| Fingerprint::of(der).to_string());
    Ok(CertificateInfo {
        place: place.to_owned(),
        names,
        begins_unix_s: u64::try_from(own.validity().not_before.timestamp()).unwrap_or(0),
        expires_unix_s: u64::try_from(own.validity().not_after.timestamp()).unwrap_or(0),
        sha256: sha256.unwrap_or_default(),
    })
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(std::net::Ipv4Addr::from(<[u8; 4]>::try_from(*bytes).ok()?).to_string()),
            16 => Some(std::net::Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
            _ => None,
        },
        _ => None,
    }
}
