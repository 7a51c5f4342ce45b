//! Where a store or a sink of events is: its URL, and the files that belong to it.

use std::marker::PhantomData;
use std::path::Path;

use stores::{Options, StoreError};

use super::diagnostics::{Diagnostic, Report};
use super::node::Node;
use super::setting::{FromText, Mistake, Setting};
use super::sip_tls::RootFile;
use super::source::{Located, Location};
use super::table::Writer;

/// The most bytes of a password file: a longer file is a mistake, such as a certificate.
const MAX_PASSWORD_FILE: u64 = 4_096;

/// What a URL leads to.
pub(crate) trait Destination {
    /// Its name, such as `store`.
    const NAME: &'static str;
    /// A sentence with a valid table.
    const EXAMPLE: &'static str;
    /// What a URL looks like.
    const EXPECTED: &'static str;
    /// Where the reader finds valid URLs.
    const HELP: &'static str;

    /// Checks a URL, and opens nothing.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(options: &Options) -> Result<(), StoreError>;
}

/// A URL, which may have a password in it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url<D>(String, PhantomData<D>);

impl<D> Url<D> {
    /// As it is written.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<D> std::fmt::Debug for Url<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Url(***)")
    }
}

impl<D: Destination> FromText for Url<D> {
    const EXPECTED: &'static str = D::EXPECTED;
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let options = Options {
            url: text.to_owned(),
            ..Options::default()
        };
        match D::check(&options) {
            Ok(()) => Ok(Self(text.to_owned(), PhantomData)),
            Err(error) => {
                let message = format!("the URL cannot be used: {error}");
                Err(Mistake::new(message).help(D::HELP))
            }
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The keys of a table that say where something is.
#[derive(Clone, Debug)]
pub(super) struct Remote<D> {
    pub(super) url: Option<Located<Url<D>>>,
    password_file: Option<Located<RootFile>>,
    ca: Option<Located<RootFile>>,
}

impl<D> Default for Remote<D> {
    fn default() -> Self {
        Self {
            url: None,
            password_file: None,
            ca: None,
        }
    }
}

impl<D: Destination> Remote<D> {
    /// Reads one key. Returns `false` if there is none of this name.
    pub(super) fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool {
        match name {
            "url" => self.url = located(value, report),
            "password_file" => self.password_file = located(value, report),
            "ca" => self.ca = located(value, report),
            _ => return false,
        }
        true
    }

    /// Reports a table without a URL.
    pub(super) fn needs_url(&self, at: &Location, report: &mut Report) {
        if self.url.is_none() {
            let message = format!("the {} has no url", D::NAME);
            report.push(Diagnostic::error(at, message).help(D::EXAMPLE));
        }
    }

    /// Writes the keys.
    pub(super) fn write(&self, writer: Writer) -> Writer {
        fn bare<T>(value: &Option<Located<T>>) -> Option<&T> {
            value.as_ref().map(|value| &value.value)
        }
        writer
            .one("url", bare(&self.url))
            .one("password_file", bare(&self.password_file))
            .one("ca", bare(&self.ca))
    }

    /// The files that are set.
    pub(super) fn files(&self) -> impl Iterator<Item = &Located<RootFile>> {
        [&self.password_file, &self.ca].into_iter().flatten()
    }

    /// Reports files that cannot be used.
    pub(super) fn check_files(&self, report: &mut Report) {
        if let Some(file) = &self.password_file
            && let Err(error) = password(&file.value.0)
        {
            let message = format!("cannot read {}: {error}", file.value.0.display());
            let help = format!(
                "the file must have the password of the {}, and the server's user must be able to read it",
                D::NAME
            );
            report.push(Diagnostic::error(&file.at, message).help(help));
        }
        if let Some(file) = &self.ca
            && let Err(error) = server::certificates::Certificates::roots(&[&file.value.0])
        {
            let help = "give a PEM file with the certificates of the issuers";
            report.push(Diagnostic::error(&file.at, error.to_string()).help(help));
        }
    }

    /// The plain values; `None` without a URL. Files have been checked.
    pub(super) fn options(self) -> Option<Options> {
        let file = self.password_file.as_ref();
        Some(Options {
            password: file.and_then(|file| password(&file.value.0).ok()),
            url: self.url?.value.0,
            ca: self.ca.map(|file| file.value.0),
            sentinel_password: None,
        })
    }
}

/// Reads a value with its place.
fn located<T: Setting>(node: &Node<'_>, report: &mut Report) -> Option<Located<T>> {
    let value = T::read(node, report)?;
    let at = node.at.clone();
    Some(Located { value, at })
}

/// The password in a file, without the end of the line.
fn password(path: &Path) -> std::io::Result<String> {
    small_text(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            std::io::Error::other(format!("{error}, so it is no password"))
        }
        _ => error,
    })
}

/// The text of a small file, without line breaks at its end. An empty file is a mistake.
pub(super) fn small_text(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read};
    let file = std::fs::File::open(path)?;
    let mut text = String::new();
    file.take(MAX_PASSWORD_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_PASSWORD_FILE {
        let error = format!("the file has more than {MAX_PASSWORD_FILE} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, error));
    }
    let text = text.trim_end_matches(['\r', '\n']);
    match text.is_empty() {
        true => Err(Error::other("the file is empty")),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_file_has_a_password_and_nothing_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        for (content, is_accepted) in [
            ("secret\r\n".to_owned(), true),
            ("x".repeat(4_096), true),
            ("x".repeat(4_097), false),
            ("\n".to_owned(), false),
        ] {
            std::fs::write(&path, &content).unwrap();
            let read = password(&path);
            assert_eq!(read.is_ok(), is_accepted, "{} bytes", content.len());
            if let Ok(read) = read {
                assert_eq!(read, content.trim_end());
            }
        }
    }
}
