//! A self-signed certificate, and coturn's server with it.

use std::path::PathBuf;

use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::coturn::{self, Coturn};

/// A certificate and its key in files, which go with the test.
pub(crate) struct Certificate {
    directory: PathBuf,
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Certificate {
    pub(crate) fn new(test: &str, names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(names).expect("a certificate");
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("streams-{test}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("cert.pem"), cert.pem()).expect("a file");
        std::fs::write(directory.join("key.pem"), signing_key.serialize_pem()).expect("a file");
        Certificate { directory }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// coturn's server with this certificate; `None`, and noted, if it is not installed.
    pub(crate) fn coturn(&self, more: &[&str]) -> Option<Coturn> {
        let mut arguments = vec![
            format!("--cert={}", self.path("cert.pem").display()),
            format!("--pkey={}", self.path("key.pem").display()),
        ];
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let started = coturn::start(&arguments);
        if started.is_none() {
            coturn::skipped("streams", "coturn is not installed");
        }
        started
    }
}
