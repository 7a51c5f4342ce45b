//! Addresses of record that stand for others: requests for an alias go where requests for its address go.

use std::collections::HashMap;

use sip::uri::Uri;

use super::rewrite;
use crate::Aor;
use crate::registrar::Domains;

/// The most aliases that lead from one to the next.
const MAX_STEPS: usize = 8;

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
    Duplicate,
    /// The alias leads to itself.
    #[error("it leads to itself")]
    SelfReference,
    /// The alias leads back to itself by others, the last of which is this earlier one.
    #[error("it leads back to itself by the earlier alias `{0}`, which applies")]
    Loop(String),
    /// The alias makes a chain with this earlier one that has too many steps.
    #[error(
        "it makes a chain of more than {MAX_STEPS} steps with the earlier alias `{0}`, which applies"
    )]
    TooLong(String),
}

/// All aliases, ready to be looked up.
#[derive(Debug, Default)]
pub struct Aliases(HashMap<Box<[u8]>, Box<[u8]>>);

/// The canonical form of an address.
type Address = Box<[u8]>;

/// The aliases of a list that can be used together. An alias never changes what an earlier one does.
struct ResolvedAliases<'l> {
    list: &'l [Alias],
    /// Where each alias leads, with the place of its entry in the list.
    next: HashMap<Address, (usize, Address)>,
    /// The steps of the longest chain that leads to an address, and the place of the last alias in this chain.
    longest: HashMap<Address, (usize, usize)>,
}

impl ResolvedAliases<'_> {
    /// Adds the entry at this place, if it can be used with those before.
    fn add(&mut self, place: usize, domains: &Domains) -> Result<(), AliasError> {
        let Alias { alias, aor } = &self.list[place];
        let (alias, aor) = (canonical(alias, domains)?, canonical(aor, domains)?);
        if self.next.contains_key(&alias) {
            return Err(AliasError::Duplicate);
        }
        if alias == aor {
            return Err(AliasError::SelfReference);
        }
        let mut after = 0;
        for (place, further) in self.chain(&aor) {
            if *further == alias {
                return Err(AliasError::Loop(self.list[*place].alias.clone()));
            }
            after += 1;
        }
        let before = self.longest.get(&alias);
        let steps = before.map_or(0, |(steps, _)| *steps) + 1;
        if steps + after > MAX_STEPS {
            let below = self.next.get(&aor).map(|(place, _)| *place);
            let other = below.or_else(|| before.map(|(_, place)| *place));
            let other = other.map_or_else(String::new, |place| self.list[place].alias.clone());
            return Err(AliasError::TooLong(other));
        }
        self.note_steps(steps, &aor, place);
        self.next.insert(alias, (place, aor));
        Ok(())
    }

    /// The chain that begins at an address: where each of its aliases leads.
    fn chain<'c>(&'c self, aor: &[u8]) -> impl Iterator<Item = &'c (usize, Box<[u8]>)> {
        std::iter::successors(self.next.get(aor), |(_, aor)| self.next.get(aor))
    }

    /// Notes a chain to this address, and from there to all that follow. The alias at `place` is its last one.
    fn note_steps(&mut self, mut steps: usize, aor: &[u8], mut place: usize) {
        let mut aor: Box<[u8]> = aor.into();
        loop {
            let known = self.longest.get(&aor);
            if known.is_some_and(|(known, _)| *known >= steps) {
                return;
            }
            let next = self.next.get(&aor).cloned();
            self.longest.insert(aor, (steps, place));
            match next {
                Some(next) => (place, aor) = next,
                None => return,
            }
            steps += 1;
        }
    }

    /// The address at the end of the chain that begins with this one.
    fn end_of<'c>(&'c self, first: &'c [u8]) -> &'c [u8] {
        self.chain(first).last().map_or(first, |(_, aor)| aor)
    }
}

impl Aliases {
    /// Builds the aliases of `list` that can be used. Also returns the index and error of each entry that cannot.
    /// Earlier entries apply: a later one that repeats an alias, or makes a loop or too long a chain, is an error.
    #[must_use]
    pub fn new(list: &[Alias], domains: &Domains) -> (Aliases, Vec<(usize, AliasError)>) {
        let mut wrong = Vec::new();
        let mut chains = ResolvedAliases {
            list,
            next: HashMap::with_capacity(list.len()),
            longest: HashMap::new(),
        };
        for place in 0..list.len() {
            if let Err(error) = chains.add(place, domains) {
                wrong.push((place, error));
            }
        }
        let ends = chains.next.iter().map(|(alias, next)| {
            let end = written(chains.end_of(&next.1));
            (alias.clone(), end)
        });
        (Aliases(ends.collect()), wrong)
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
        // The user part of a URI is case-sensitive.
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
        assert_eq!(all.0.len(), 2);
        let places: Vec<_> = wrong.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [1, 3, 4, 5, 6, 7, 8, 9]);
        let loops = AliasError::Loop("a@example.org".to_owned());
        assert_eq!(
            [&wrong[0].1, &wrong[1].1, &wrong[2].1],
            [&AliasError::Duplicate, &loops, &AliasError::SelfReference]
        );
        assert_eq!(
            wrong[5].1,
            AliasError::OtherDomain("alice@example.com".to_owned())
        );
    }

    /// A chain of this many steps from `x0`, each the alias of the next.
    fn chain(steps: usize) -> Vec<(String, String)> {
        let step = |n: usize| {
            (
                format!("x{n}@example.org"),
                format!("x{}@example.org", n + 1),
            )
        };
        (0..steps).map(step).collect()
    }

    fn in_order(chain: &[(String, String)]) -> (Aliases, Vec<(usize, AliasError)>) {
        let pairs: Vec<_> = chain.iter().map(|(a, b)| (&**a, &**b)).collect();
        aliases(&pairs)
    }

    #[test]
    fn a_later_alias_takes_nothing_from_an_earlier_one() {
        // All of a loop but the entry that closes it.
        let (all, wrong) = aliases(&[
            ("a@example.org", "b@example.org"),
            ("b@example.org", "c@example.org"),
            ("c@example.org", "a@example.org"),
        ]);
        let loops = AliasError::Loop("b@example.org".to_owned());
        assert_eq!(wrong, [(2, loops)]);
        for alias in ["a@example.org", "b@example.org"] {
            assert_eq!(target(&all, alias).as_deref(), Some("c@example.org"));
        }
        // Nine steps: the entry that makes the chain too long, at its end, at its beginning and in the middle.
        let too_long = |n: usize| AliasError::TooLong(format!("x{n}@example.org"));
        let nine = chain(9);
        let (all, wrong) = in_order(&nine);
        assert_eq!(wrong, [(8, too_long(7))]);
        assert_eq!(
            target(&all, "x0@example.org").as_deref(),
            Some("x8@example.org")
        );
        let mut backwards = nine.clone();
        backwards.reverse();
        let (all, wrong) = in_order(&backwards);
        assert_eq!(wrong, [(8, too_long(1))]);
        assert_eq!(
            target(&all, "x1@example.org").as_deref(),
            Some("x9@example.org")
        );
        let mut middle = nine;
        let last = middle.remove(4);
        middle.push(last);
        let (all, wrong) = in_order(&middle);
        assert_eq!(wrong, [(8, too_long(5))]);
        assert_eq!(
            target(&all, "x0@example.org").as_deref(),
            Some("x4@example.org")
        );
        assert_eq!(
            target(&all, "x5@example.org").as_deref(),
            Some("x9@example.org")
        );
        assert_eq!(in_order(&chain(8)).1, []);
    }
}
