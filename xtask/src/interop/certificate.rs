//! Makes a certificate authority, and a server certificate that it signs. A client that accepts a file of authorities
//! verifies the server's certificate with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process;
use crate::workspace::output_of;

/// The paths of a certificate authority, of a server certificate, and of its key. All files are PEM.
pub(crate) struct Certificate {
    /// The authority that clients trust.
    pub(crate) authority: PathBuf,
    /// The server's certificate, for the loopback addresses and `localhost`.
    pub(crate) chain: PathBuf,
    /// The private key of the server's certificate.
    pub(crate) key: PathBuf,
}

/// The `openssl` command that makes a P-256 key without a passphrase, and a request or a certificate for it.
const NEW_KEY: &[&str] = &[
    "req",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
];

impl Certificate {
    /// Makes an authority, and a certificate for `localhost` and the loopback addresses, with the command `openssl`.
    /// Both are valid for two days. `folder` gets all files.
    pub(crate) fn make(folder: &Path) -> Result<Certificate> {
        std::fs::create_dir_all(folder)?;
        let file = |name: &str| folder.join(name);
        let extensions = file("server.ext");
        std::fs::write(
            &extensions,
            "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\nextendedKeyUsage=serverAuth\n",
        )?;
        openssl(
            folder,
            NEW_KEY,
            "-x509 -days 2 -subj /CN=hairpin-interop-authority -keyout authority.key -out authority.pem \
             -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign",
        )?;
        openssl(
            folder,
            NEW_KEY,
            "-subj /CN=localhost -keyout server.key -out server.csr",
        )?;
        openssl(
            folder,
            &["x509", "-req"],
            "-days 2 -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -extfile server.ext -out server.pem",
        )?;
        Ok(Certificate {
            authority: file("authority.pem"),
            chain: file("server.pem"),
            key: file("server.key"),
        })
    }

    /// Adds the authority to the NSS database `.pki/nssdb` in the home directory `home`. Browsers with this home trust
    /// it.
    pub(crate) fn trust_in(&self, home: &Path) -> Result<()> {
        let folder = home.join(".pki/nssdb");
        std::fs::create_dir_all(&folder)?;
        let database = format!("sql:{}", folder.display());
        let mut create = process::command("certutil");
        create.args(["-N", "--empty-password", "-d", &database]);
        output_of(&mut create)?;
        let mut add = process::command("certutil");
        add.args(["-A", "-n", "hairpin-interop", "-t", "C,,", "-d", &database]);
        output_of(add.arg("-i").arg(&self.authority))?;
        Ok(())
    }
}

/// Runs `openssl` in `folder`, with the words of `command`, then those of `options`.
fn openssl(folder: &Path, command: &[&str], options: &str) -> Result<()> {
    let output = Command::new("openssl")
        .args(command)
        .args(options.split_whitespace())
        .current_dir(folder)
        .output()?;
    ensure!(
        output.status.success(),
        "openssl {command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
