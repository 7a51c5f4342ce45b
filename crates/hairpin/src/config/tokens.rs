//! Keys of access tokens (RFC 7635) as the user writes them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use server::access_tokens::{TokenAlgorithm, TokenKey};
use server::turn::server::max_server_name_bytes;

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{FromText, Mistake, Setting, quote, wrong_type};
use super::walk::unknown_key;

/// USERNAME carries it (RFC 8489 §14.3).
const MAX_KID: usize = 508;

/// A key that is shared with an authorization server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) TokenKey);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const FIELDS: [&str; 4] = ["kid", "key", "algorithm", "realm"];
const EXAMPLE: &str = "write it like { kid = \"2026-11\", key = \"BASE64\", algorithm = \"A256GCM\" }; make a key with: openssl rand -base64 32";

impl Setting for Key {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let fields = match &node.raw {
            Raw::Toml(toml::de::DeValue::Table(_)) => read_table(node, report)?,
            Raw::Plain(text) => {
                let mut parts = text.splitn(4, ':').map(str::to_owned);
                [(); 4].map(|()| parts.next())
            }
            _ => {
                report.push(wrong_type(node, "a key of access tokens").help(EXAMPLE));
                return None;
            }
        };
        make(fields)
            .map_err(|mistake| report.push(mistake.at(&node.at)))
            .ok()
    }

    fn write(&self, reveal: bool) -> String {
        let key = match reveal {
            true => STANDARD.encode(&self.0.key),
            false => "***".to_owned(),
        };
        let realm = self.0.realm.as_deref().map(quote);
        let realm = realm.map_or(String::new(), |realm| format!(", realm = {realm}"));
        format!(
            "{{ kid = {}, key = \"{key}\", algorithm = \"{}\"{realm} }}",
            quote(&self.0.kid),
            self.0.algorithm.name()
        )
    }
}

fn read_table(node: &Node<'_>, report: &mut Report) -> Option<[Option<String>; 4]> {
    let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
        return None;
    };
    let source = node.at.source;
    let mut fields = [None, None, None, None];
    let mut is_complete = true;
    for (name, value) in table.iter() {
        let value = Node::toml(source, value);
        let place = FIELDS.iter().position(|field| field == name.get_ref());
        match (place, value.text()) {
            (Some(place), Some(text)) => fields[place] = Some(text.to_owned()),
            (Some(_), None) => {
                report.push(wrong_type(&value, "a text"));
                is_complete = false;
            }
            (None, _) => {
                let what = "a key of access tokens";
                report.push(unknown_key(source, name, what, &FIELDS, &[]));
            }
        }
    }
    is_complete.then_some(fields)
}

/// From the values of [`FIELDS`].
fn make([kid, key, algorithm, realm]: [Option<String>; 4]) -> Result<Key, Mistake> {
    let missing = |field| Mistake::new(format!("the key has no {field}")).help(EXAMPLE);
    let kid = kid.filter(|kid| !kid.is_empty());
    let kid = kid.ok_or_else(|| missing("kid"))?;
    let key = key.ok_or_else(|| missing("key"))?;
    if kid.len() > MAX_KID || kid.chars().any(char::is_control) {
        let message = "the kid is longer than 508 bytes or has a control character";
        return Err(Mistake::new(message).help("clients send it in USERNAME"));
    }
    let algorithm = algorithm.map_or(Ok(TokenAlgorithm::default()), |name| {
        let known = TokenAlgorithm::ALL.into_iter();
        let mut same = known.filter(|algorithm| algorithm.name() == name);
        same.next().ok_or_else(|| {
            let names = TokenAlgorithm::ALL.map(TokenAlgorithm::name).join(", ");
            Mistake::new(format!("there is no algorithm `{name}` for tokens")).help(names)
        })
    })?;
    // RFC 7518 §6.4.1 has keys in base64url.
    let bytes = STANDARD
        .decode(&key)
        .or_else(|_| URL_SAFE_NO_PAD.decode(&key));
    let bytes = bytes.map_err(|_| Mistake::new("the key is not base64").help(EXAMPLE))?;
    let (got, wanted) = (bytes.len(), algorithm.key_len());
    if got != wanted {
        let message = format!(
            "the key has {got} bytes; {} requires {wanted}",
            algorithm.name()
        );
        let help = format!("make one with: openssl rand -base64 {wanted}");
        return Err(Mistake::new(message).help(help));
    }
    Ok(Key(TokenKey {
        kid,
        algorithm,
        key: bytes,
        realm: realm.filter(|realm| !realm.is_empty()),
    }))
}

/// A key of a database of coturn: its example has longer keys than the algorithm, and coturn uses as many bytes as that
/// needs.
pub(crate) fn token_key(
    kid: &str,
    key: &str,
    algorithm: &str,
    realm: &str,
) -> Result<TokenKey, Mistake> {
    let named = Some(algorithm.to_owned()).filter(|name| !name.is_empty());
    let known = TokenAlgorithm::ALL.into_iter();
    let length = known
        .filter(|known| known.name() == algorithm)
        .map(TokenAlgorithm::key_len)
        .next();
    let length = length.unwrap_or(TokenAlgorithm::default().key_len());
    let key = match STANDARD.decode(key) {
        Ok(bytes) if bytes.len() > length => STANDARD.encode(&bytes[..length]),
        _ => key.to_owned(),
    };
    let realm = Some(realm.to_owned());
    make([Some(kid.to_owned()), Some(key), named, realm]).map(|key| key.0)
}

/// The name by which authorization servers know this server; the realm if it is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerName(pub(crate) String);

impl FromText for ServerName {
    const EXPECTED: &'static str = "a name like \"turn.example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.chars().find(|c| c.is_control()) {
            Some(bad) => Err(Mistake::new(format!("{bad:?} cannot stand in a name"))
                .help("use the name of the server, like \"turn.example.org\"")),
            None => Ok(Self(text.to_owned())),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Reports a name that does not fit a challenge, and keys with the same kid.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let (Some(keys), Some(name), Some(realm), Some(further)) = (
        &settings.token_keys,
        &settings.token_server_name,
        &settings.realm,
        &settings.realms,
    ) else {
        return;
    };
    let further = further.value.iter();
    let further: Vec<&str> = further.map(|realm| realm.value.name()).collect();
    for (number, key) in keys.value.iter().enumerate() {
        let before = &keys.value[..number];
        if let Some(first) = before
            .iter()
            .find(|other| other.value.0.kid == key.value.0.kid)
        {
            let message = format!("two keys have the kid `{}`", key.value.0.kid);
            report.push(Diagnostic::error(&key.at, message).see(&first.at, "the first one"));
        }
        if let Some(of) = &key.value.0.realm
            && *of != realm.value.0
            && !further.contains(&of.as_str())
        {
            let message = format!("there is no realm `{of}` for this key");
            let help = "name auth.realm or one of auth.realms";
            report.push(Diagnostic::error(&key.at, message).help(help));
        }
    }
    let of_keys = keys
        .value
        .iter()
        .filter_map(|key| key.value.0.realm.as_deref());
    let known = of_keys.filter(|realm| further.contains(realm));
    let longest = known.map(str::len).chain([realm.value.0.len()]).max();
    let room = max_server_name_bytes(longest.unwrap_or(0));
    let length = match name.value.0.len() {
        0 => realm.value.0.len(),
        length => length,
    };
    if !keys.value.is_empty() && length > room {
        let message = format!("the server name for access tokens has {length} bytes");
        let help =
            format!("use at most {room} beside this realm: challenges carry both, and stay small");
        report.push(Diagnostic::error(&name.at, message).help(help));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kid: &str, key: &str, algorithm: Option<&str>) -> Result<Key, String> {
        let algorithm = algorithm.map(Into::into);
        make([Some(kid.into()), Some(key.into()), algorithm, None])
            .map_err(|mistake| mistake.one_line())
    }

    #[test]
    fn a_key_has_a_kid_and_as_many_bytes_as_its_algorithm_requires() {
        let key = text("k", &STANDARD.encode([7; 32]), None).unwrap();
        assert_eq!(key.0.algorithm, TokenAlgorithm::A256Gcm);
        assert_eq!(
            key.write(false),
            "{ kid = \"k\", key = \"***\", algorithm = \"A256GCM\" }"
        );
        let url = URL_SAFE_NO_PAD.encode([0xff; 16]);
        assert!(text("k", &url, Some("A128GCM")).is_ok());
        for (kid, key, algorithm, part) in [
            ("", "AAAA", None, "has no kid"),
            ("k", "?", None, "is not base64"),
            ("k", "AAAA", None, "has 3 bytes; A256GCM requires 32"),
            ("k", "AAAA", Some("A192GCM"), "no algorithm `A192GCM`"),
            ("a\nb", "AAAA", None, "control character"),
        ] {
            let mistake = text(kid, key, algorithm).unwrap_err();
            assert!(mistake.contains(part), "{mistake}");
        }
    }
}
