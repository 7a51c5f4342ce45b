//! The folder of the ACME account and the certificate. Only its owner can read it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use instant_acme::AccountCredentials;
use serde_json::{Value, json};
use server::certificates::{CertificateFiles, CertificateInfo, Certificates};

/// The first line of a certificate that is used before the ACME server has made one.
const PLACEHOLDER: &str =
    "# No client trusts this certificate. The ACME server's one takes its place.\n";

/// The folder `acme.state`.
#[derive(Clone, Debug)]
pub(super) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Makes the folder if it does not exist. Only its owner gets access.
    pub(super) fn open(folder: &Path) -> Result<Store> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("cannot make the folder {} (acme.state)", folder.display()))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).with_context(|| {
            format!(
                "cannot keep others out of the folder {} (acme.state)",
                folder.display()
            )
        })?;
        Ok(Store {
            folder: folder.to_owned(),
        })
    }

    /// The file of the certificate. It has the chain and the key, so both are replaced at the same time.
    pub(super) fn files(&self) -> CertificateFiles {
        let file = self.folder.join("certificate.pem");
        CertificateFiles {
            certificate: file.clone(),
            key: file,
            listeners: Vec::new(),
        }
    }

    /// Writes a certificate that no client trusts, unless there is a certificate for these domains.
    pub(super) fn prepare(&self, domains: &[String]) -> Result<()> {
        if self
            .certificate()
            .is_some_and(|info| names_are(&info, domains))
        {
            return Ok(());
        }
        let pem = Certificates::self_signed_pem(domains)?;
        self.write("certificate.pem", &format!("{PLACEHOLDER}{pem}"))
    }

    /// The certificate that the ACME server has made; `None` if there is none that can be used.
    pub(super) fn certificate(&self) -> Option<CertificateInfo> {
        let files = self.files();
        let text = fs::read_to_string(&files.certificate).ok()?;
        if text.starts_with(PLACEHOLDER) {
            return None;
        }
        let read = Certificates::from_files(vec![files]).ok()?;
        read.info().into_iter().next()
    }

    /// Replaces the chain and the key.
    pub(super) fn save_certificate(&self, key: &str, chain: &str) -> Result<()> {
        self.write("certificate.pem", &format!("{chain}\n{key}"))
    }

    /// The stored account at the ACME server with this directory URL; `None` if there is none.
    pub(super) fn account(&self, directory: &str) -> Result<Option<AccountCredentials>> {
        let path = self.folder.join("account.json");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut value: Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: remove it", path.display()))?;
        if value["directory"] != directory {
            return Ok(None);
        }
        let account = serde_json::from_value(value["account"].take())
            .with_context(|| format!("{} is damaged: remove it", path.display()))?;
        Ok(Some(account))
    }

    /// Stores the account at the ACME server with this directory URL.
    pub(super) fn save_account(&self, directory: &str, account: &AccountCredentials) -> Result<()> {
        let value = json!({ "directory": directory, "account": account });
        self.write("account.json", &value.to_string())
    }

    /// Replaces the file `name` atomically. Writes a new file to the disk, then renames it. So after a crash, the file
    /// has the old or the new content.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let (path, new) = (
            self.folder.join(name),
            self.folder.join(format!("{name}.new")),
        );
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Whether the certificate is for these domains and no others.
pub(super) fn names_are(info: &CertificateInfo, domains: &[String]) -> bool {
    info.names.len() == domains.len() && domains.iter().all(|domain| info.names.contains(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_replaces_the_placeholder_and_only_the_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/acme");
        let store = Store::open(&path).unwrap();
        let domains = ["turn.example.org".to_owned()];
        store.prepare(&domains).unwrap();
        assert_eq!(store.certificate(), None);
        assert!(Certificates::from_files(vec![store.files()]).is_ok());
        let pem = Certificates::self_signed_pem(&domains).unwrap();
        store.save_certificate("", &pem).unwrap();
        store.prepare(&domains).unwrap();
        assert!(names_are(&store.certificate().unwrap(), &domains));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&store.files().key), 0o600);
        // Other domains need another certificate.
        let other = ["stun.example.org".to_owned()];
        store.prepare(&other).unwrap();
        assert_eq!(store.certificate(), None);
    }

    #[test]
    fn an_account_belongs_to_one_server() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert!(store.account("https://one").unwrap().is_none());
        store.write("account.json", "{").unwrap();
        assert!(store.account("https://one").is_err());
        let text = r#"{"directory":"https://one","account":{}}"#;
        store.write("account.json", text).unwrap();
        assert!(store.account("https://two").unwrap().is_none());
        assert!(store.account("https://one").is_err(), "no account");
    }
}
