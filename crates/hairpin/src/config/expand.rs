//! Texts of a configuration file that name other places: `${NAME}` (environment), `${file:PATH}` and
//! `${credential:NAME}` (systemd).
//!
//! So a secret need not be in the file: each text of the file can have it somewhere else, also in nested tables.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::Report;
use super::setting::Mistake;
use super::source::{Location, SourceId};

/// A longer file is hardly a secret.
const MAX_FILE: u64 = 64 << 10;
/// Where systemd puts credentials (systemd.exec(5), `LoadCredential=`).
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// Replaces references in all texts of a table.
pub(super) fn table(
    source: SourceId,
    table: &mut DeTable<'_>,
    environment: &[(OsString, OsString)],
    report: &mut Report,
) {
    for (_, value) in table.iter_mut() {
        replace(source, value, environment, report);
    }
}

fn replace(
    source: SourceId,
    value: &mut Spanned<DeValue<'_>>,
    environment: &[(OsString, OsString)],
    report: &mut Report,
) {
    let span = value.span();
    match value.get_mut() {
        DeValue::String(text) if text.contains("${") => match expand(text, environment) {
            Ok(expanded) => *text = expanded.into(),
            Err(mistake) => report.push(mistake.at(&Location { source, span })),
        },
        DeValue::Array(items) => {
            for item in items.iter_mut() {
                replace(source, item, environment, report);
            }
        }
        DeValue::Table(inner) => table(source, inner, environment, report),
        _ => {}
    }
}

/// The text with the values of its references. `$${` means `${`.
fn expand(text: &str, environment: &[(OsString, OsString)]) -> Result<String, Mistake> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        expanded.push_str(before);
        if before.ends_with('$') {
            expanded.push('{');
            rest = after;
            continue;
        }
        let Some((name, after)) = after.split_once('}') else {
            return Err(Mistake::new("`${` has no `}`")
                .help("write ${NAME}, ${file:PATH} or ${credential:NAME}; $${ stands for ${"));
        };
        expanded.push_str(&value_of(name, environment)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn value_of(name: &str, environment: &[(OsString, OsString)]) -> Result<String, Mistake> {
    if let Some(path) = name.strip_prefix("file:") {
        return read(Path::new(path));
    }
    if let Some(credential) = name.strip_prefix("credential:") {
        let directory = variable(DIRECTORY, environment).ok_or_else(|| {
            let message = format!("no credential `{credential}`: ${DIRECTORY} is not set");
            let help = format!(
                "set LoadCredential={credential}:/path in the unit of the service (systemd.exec(5))"
            );
            Mistake::new(message).help(help)
        })?;
        if credential.is_empty() || credential.contains('/') {
            return Err(
                Mistake::new(format!("`{credential}` is not the name of a credential"))
                    .help("write the name in LoadCredential=, without a directory"),
            );
        }
        return read(&PathBuf::from(directory).join(credential));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(Mistake::new(format!("`${{{name}}}` is not a reference"))
            .help("write ${NAME}, ${file:PATH} or ${credential:NAME}; $${ stands for ${"));
    }
    let value = variable(name, environment).ok_or_else(|| {
        Mistake::new(format!("the environment variable {name} is not set"))
            .help("set it for the server, or write $${ if the text itself has ${")
    })?;
    let text = value.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Mistake::new(format!("the environment variable {name} is not UTF-8"))
            .help("set it to a text in UTF-8")
    })
}

fn variable<'a>(name: &str, environment: &'a [(OsString, OsString)]) -> Option<&'a OsStr> {
    let found = environment.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_os_str())
}

/// The text of a file, without the line end after it.
fn read(path: &Path) -> Result<String, Mistake> {
    let name = path.display();
    let unreadable = |error: std::io::Error| {
        Mistake::new(format!("cannot read {name}: {error}"))
            .help("name a file that the user of the server can read")
    };
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err(Mistake::new(format!(
            "{name} is larger than {} KiB: that is no secret",
            MAX_FILE >> 10
        )));
    }
    let end = text.strip_suffix('\n').unwrap_or(&text);
    let end = end.strip_suffix('\r').unwrap_or(end);
    match end.is_empty() {
        true => Err(Mistake::new(format!("{name} is empty")).help("write the value into it")),
        false => Ok(end.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_the_values_of_other_places() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("turn");
        std::fs::write(&file, "s3cret\n").unwrap();
        let environment = [
            ("NAME", "north"),
            (DIRECTORY, directory.path().to_str().unwrap()),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let expanded = |text: &str| expand(text, &environment).map_err(|it| it.one_line());
        assert_eq!(
            expanded("a-${NAME}.${NAME}"),
            Ok("a-north.north".to_owned())
        );
        assert_eq!(expanded("$${NAME} $5"), Ok("${NAME} $5".to_owned()));
        let named = format!("${{file:{}}}", file.display());
        assert_eq!(expanded(&named), Ok("s3cret".to_owned()));
        assert_eq!(expanded("${credential:turn}"), Ok("s3cret".to_owned()));
        for (wrong, why) in [
            ("${", "has no `}`"),
            ("${}", "is not a reference"),
            ("${NO_SUCH}", "NO_SUCH is not set"),
            ("${file:/nonexistent/turn}", "cannot read /nonexistent/turn"),
            ("${credential:other}", "cannot read"),
            ("${credential:../turn}", "not the name of a credential"),
        ] {
            let text = expanded(wrong).unwrap_err();
            assert!(text.contains(why), "{wrong}: {text}");
        }
        std::fs::write(&file, "\n").unwrap();
        assert!(expanded(&named).unwrap_err().contains("is empty"));
        let none = expand("${credential:turn}", &[]).map_err(|it| it.one_line());
        assert!(none.unwrap_err().contains("LoadCredential=turn:"));
    }
}
