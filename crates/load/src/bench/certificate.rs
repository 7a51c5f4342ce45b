//! The certificate that servers show over TLS.

use std::io::{self, Write as _};
use std::path::Path;

use tempfile::NamedTempFile;

use super::sip::Configs;

/// The name in the certificate.
pub(super) const NAME: &str = "bench.test";

/// A self-signed ECDSA certificate (P-256) and its key, in PEM files, and the configuration files of SIP servers.
/// Dropping it deletes them.
#[derive(Debug)]
pub(crate) struct Certificate {
    certificate: NamedTempFile,
    key: NamedTempFile,
    sip: Configs,
}

impl Certificate {
    pub(crate) fn make() -> io::Result<Certificate> {
        let made = generate()?;
        let certificate = file(&made.cert.pem())?;
        let key = file(&made.signing_key.serialize_pem())?;
        Ok(Certificate {
            sip: Configs::make(certificate.path(), key.path())?,
            certificate,
            key,
        })
    }

    /// Replaces `{certificate}`, `{key}` and the configurations of SIP servers by the paths of the files.
    pub(crate) fn fill(&self, words: Vec<String>) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (certificate, key) = (text(self.certificate.path()), text(self.key.path()));
        words
            .into_iter()
            .map(|word| {
                let word = self.sip.fill(&word);
                word.replace("{certificate}", &certificate)
                    .replace("{key}", &key)
            })
            .collect()
    }
}

/// A new certificate, valid for [`NAME`].
pub(super) fn generate() -> io::Result<rcgen::CertifiedKey<rcgen::KeyPair>> {
    rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)
}

fn file(text: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix("hairpin-bench-")?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}
