//! Addresses of record that stand for others: requests for an alias go where requests for its address go.

use std::collections::HashMap;

use sip::uri::Uri;

use super::rewrite;
use crate::Aor;
use crate::registrar::Domains;

/// The most aliases that lead from one to the next.
const MOST_STEPS: usize = 8;

/// An alias and the address that it stands for, both like `info@example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The alias.
    pub alias: String,
    /// The address, or another alias.
    pub aor: String,
}

/// Why an alias cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AliasError {
    /// A text is no address of record.
    #[error("`{0}` is not an address like info@example.org")]
    NotAnAddress(String),
    /// An address is not in any domain of the server.
    #[error("`{0}` is in no domain of this server")]
    OtherDomain(String),
    /// There is another entry for the alias, which applies.
    #[error("there is an earlier entry for this alias")]
    Twice,
    /// The alias leads to itself, or by too many others.
    #[error("it leads back to itself, or by more than {MOST_STEPS} steps")]
    Loop,
}

/// All aliases, ready to be looked up.
#[derive(Debug, Default)]
pub struct Aliases(HashMap<Box<[u8]>, Box<[u8]>>);

/// Where each alias leads, with the place of its entry in the list.
type Steps = HashMap<Box<[u8]>, (usize, Box<[u8]>)>;

impl Aliases {
    /// Those of a list that can be used, and what is wrong with the others, by their places in the list.
    #[must_use]
    pub fn new(list: &[Alias], domains: &Domains) -> (Aliases, Vec<(usize, AliasError)>) {
        let mut wrong = Vec::new();
        let mut next = Steps::new();
        for (place, Alias { alias, aor }) in list.iter().enumerate() {
            let pair =
                canonical(alias, domains).and_then(|alias| Ok((alias, canonical(aor, domains)?)));
            match pair {
                Ok((alias, _)) if next.contains_key(&alias) => {
                    wrong.push((place, AliasError::Twice))
                }
                Ok((alias, aor)) => drop(next.insert(alias, (place, aor))),
                Err(error) => wrong.push((place, error)),
            }
        }
        let mut all = HashMap::with_capacity(next.len());
        for (alias, (place, aor)) in &next {
            match end_of(aor, &next) {
                Some(aor) => drop(all.insert(alias.clone(), written(aor))),
                None => wrong.push((*place, AliasError::Loop)),
            }
        }
        wrong.sort_by_key(|(place, _)| *place);
        (Aliases(all), wrong)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The address that an alias stands for, as a URI has it behind the scheme; `None` if this is no alias.
    #[must_use]
    pub fn of(&self, aor: &Aor) -> Option<&[u8]> {
        self.0.get(aor.as_bytes()).map(|address| &**address)
    }
}

/// The canonical form of an address in a domain of this server.
fn canonical(text: &str, domains: &Domains) -> Result<Box<[u8]>, AliasError> {
    let wrong = || AliasError::NotAnAddress(text.to_owned());
    let bare = text
        .strip_prefix("sip:")
        .or_else(|| text.strip_prefix("sips:"));
    let uri = format!("sip:{}", bare.unwrap_or(text));
    let Ok(Uri::Sip(uri)) = Uri::parse(uri.as_bytes()) else {
        return Err(wrong());
    };
    let has_more = uri.password.is_some()
        || uri.port.is_some()
        || !uri.params.as_bytes().is_empty()
        || !uri.headers.as_bytes().is_empty();
    if uri.user.is_none() || has_more {
        return Err(wrong());
    }
    let domain = domains.of(uri.host);
    let domain = domain.ok_or_else(|| AliasError::OtherDomain(text.to_owned()))?;
    let aor = Aor::of(&uri, domain.name.as_bytes()).ok_or_else(wrong)?;
    Ok(aor.as_bytes().into())
}

/// The address at the end of a chain of aliases; `None` if there is none.
fn end_of<'a>(first: &'a [u8], next: &'a Steps) -> Option<&'a [u8]> {
    let mut aor = first;
    for _ in 0..MOST_STEPS {
        match next.get(aor) {
            Some((_, further)) => aor = further,
            None => return Some(aor),
        }
    }
    None
}

/// An address in canonical form as a URI has it.
fn written(aor: &[u8]) -> Box<[u8]> {
    let at = aor.iter().rposition(|&byte| byte == b'@').unwrap_or(0);
    let (user, domain) = aor.split_at(at);
    [&rewrite::escaped(user), domain].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registrar::Domain;

    fn domains() -> Domains {
        let domain = |name: &str, aliases: &[&str]| Domain {
            name: name.to_owned(),
            aliases: aliases.iter().map(|name| (*name).to_owned()).collect(),
            ..Domain::default()
        };
        Domains::new(vec![
            domain("example.org", &["sip.example.org"]),
            domain("example.net", &[]),
        ])
        .expect("domains")
    }

    fn aliases(pairs: &[(&str, &str)]) -> (Aliases, Vec<(usize, AliasError)>) {
        let list: Vec<_> = pairs
            .iter()
            .map(|(alias, aor)| Alias {
                alias: (*alias).to_owned(),
                aor: (*aor).to_owned(),
            })
            .collect();
        Aliases::new(&list, &domains())
    }

    fn target(aliases: &Aliases, aor: &str) -> Option<String> {
        let aor = Aor::from_canonical(aor.as_bytes()).expect("an address");
        let found = aliases.of(&aor);
        found.map(|found| String::from_utf8_lossy(found).into_owned())
    }

    #[test]
    fn an_alias_leads_to_the_address_at_the_end_of_the_chain() {
        let (all, wrong) = aliases(&[
            ("info@example.org", "office@EXAMPLE.org"),
            ("sip:office@sip.example.org", "alice@example.net"),
            ("+4930@example.org", "a%40b@example.org"),
        ]);
        assert_eq!(wrong, []);
        assert_eq!(
            target(&all, "info@example.org").as_deref(),
            Some("alice@example.net")
        );
        assert_eq!(
            target(&all, "office@example.org").as_deref(),
            Some("alice@example.net")
        );
        assert_eq!(
            target(&all, "+4930@example.org").as_deref(),
            Some("a%40b@example.org")
        );
        // The user has its case.
        assert_eq!(target(&all, "Info@example.org"), None);
        assert_eq!(target(&all, "alice@example.net"), None);
        assert!(!all.is_empty());
    }

    #[test]
    fn entries_that_cannot_be_used_are_named_and_the_others_stay() {
        let (all, wrong) = aliases(&[
            ("good@example.org", "alice@example.org"),
            ("good@example.org", "bob@example.org"),
            ("a@example.org", "b@example.org"),
            ("b@example.org", "a@example.org"),
            ("self@example.org", "self@example.org"),
            ("nobody", "alice@example.org"),
            ("c@example.org", "alice@example.org:5070"),
            ("d@example.org", "alice@example.com"),
            ("e@example.com", "alice@example.org"),
            ("", ""),
        ]);
        assert_eq!(
            target(&all, "good@example.org").as_deref(),
            Some("alice@example.org")
        );
        assert_eq!(all.0.len(), 1);
        let places: Vec<_> = wrong.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(wrong[0].1, AliasError::Twice);
        assert_eq!(
            (&wrong[1].1, &wrong[3].1),
            (&AliasError::Loop, &AliasError::Loop)
        );
        assert_eq!(
            wrong[6].1,
            AliasError::OtherDomain("alice@example.com".to_owned())
        );
        let chain: Vec<(String, String)> = (0..10)
            .map(|n| (format!("{n}@example.org"), format!("{}@example.org", n + 1)))
            .collect();
        let pairs: Vec<_> = chain.iter().map(|(a, b)| (&**a, &**b)).collect();
        let (all, wrong) = aliases(&pairs);
        assert_eq!((all.0.len(), wrong.len()), (8, 2), "{wrong:?}");
    }
}
