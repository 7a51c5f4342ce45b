//! All routes and trunks, ready to be looked up.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use sip::Message;
use sip::uri::{SipUri, Uri};

use super::call::has_header;
use super::config::{Action, Route, Trunk};
use super::decide::Hop;
use super::health::Health;
use super::hunt;
use super::prefix::PrefixIndex;
use crate::Aor;

/// The most trunks of a table.
const MAX_TRUNKS: usize = 1024;

/// Why a table cannot be made of routes and trunks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Two trunks have one name.
    #[error("`{0}` is the name of two trunks")]
    Twice(String),
    /// A route names a trunk that does not exist.
    #[error("route `{route}` names the trunk `{trunk}`, which does not exist")]
    UnknownTrunk {
        /// The route.
        route: String,
        /// The name.
        trunk: String,
    },
    /// A route leads to a trunk without an address to send to.
    #[error("route `{route}` leads to the trunk `{trunk}`, which has no address in `to`")]
    NowhereToSend {
        /// The route.
        route: String,
        /// The trunk.
        trunk: String,
    },
    /// There are more trunks than this table can number.
    #[error("{0} trunks are more than 1024")]
    TooManyTrunks(usize),
}

/// A trunk with the hash of its name and its health.
#[derive(Debug)]
pub(super) struct TrunkEntry {
    pub(super) trunk: Trunk,
    pub(super) name: u64,
    pub(super) health: Arc<Health>,
}

/// A route with the numbers of its trunks.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) route: Route,
    /// The trunks of the lowest priority number first, else in the order of the route. Routes with the same list share
    /// it, so that it stays in the cache of the processor.
    pub(super) trunks: Arc<[u16]>,
    pub(super) from_trunks: Vec<u16>,
}

/// Routes and trunks.
#[derive(Debug, Default)]
pub struct Table {
    /// The generation of the table. Numbers of trunks of an earlier table are not valid here.
    pub(super) generation: u32,
    pub(super) trunks: Vec<TrunkEntry>,
    pub(super) routes: Vec<Compiled>,
    pub(super) prefixes: PrefixIndex,
    /// The routes without a prefix.
    pub(super) others: Vec<u32>,
    asked: UsedConditions,
    /// The media of calls through some trunk go through a relay.
    has_relays: bool,
}

/// What the conditions of all routes look at, besides the Request-URI and the trunk that a request comes from.
#[derive(Debug, Default)]
struct UsedConditions {
    /// The names of header fields.
    headers: BTreeSet<String>,
    users: bool,
    networks: bool,
}

impl UsedConditions {
    fn of(routes: &[Compiled]) -> UsedConditions {
        let mut asked = UsedConditions::default();
        for Compiled { route, .. } in routes {
            let names = route.headers.iter().map(|it| it.name.to_ascii_lowercase());
            asked.headers.extend(names);
            asked.users |= !route.from_users.is_empty();
            asked.networks |= !route.from_networks.is_empty();
        }
        asked
    }
}

impl Table {
    /// Makes a table of these routes and trunks. A trunk keeps its health if the earlier table has it with the same
    /// name, addresses and probes.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(
        routes: Vec<Route>,
        trunks: Vec<Trunk>,
        earlier: Option<&Table>,
    ) -> Result<Table, TableError> {
        if trunks.len() > MAX_TRUNKS {
            return Err(TableError::TooManyTrunks(trunks.len()));
        }
        let mut numbers = HashMap::new();
        for (number, trunk) in (0..).zip(&trunks) {
            if !trunk.name.is_empty() && numbers.insert(trunk.name.clone(), number).is_some() {
                return Err(TableError::Twice(trunk.name.clone()));
            }
        }
        let mut lists = HashMap::new();
        let routes: Result<Vec<Compiled>, TableError> = routes
            .into_iter()
            .map(|route| compile(route, &trunks, &numbers, &mut lists))
            .collect();
        let routes = routes?;
        let mut pairs = Vec::new();
        let mut others = Vec::new();
        for (number, compiled) in (0..).zip(&routes) {
            if compiled.route.prefixes.is_empty() {
                others.push(number);
            }
            let prefixes = compiled.route.prefixes.iter();
            pairs.extend(prefixes.map(|prefix| (prefix.as_bytes(), number)));
        }
        Ok(Table {
            asked: UsedConditions::of(&routes),
            generation: earlier.map_or(0, |earlier| earlier.generation.wrapping_add(1)),
            prefixes: PrefixIndex::new(pairs),
            others,
            has_relays: trunks.iter().any(|trunk| trunk.relays_media),
            trunks: (0..)
                .zip(trunks)
                .map(|(place, it)| known(place, it, earlier))
                .collect(),
            routes,
        })
    }

    /// Adds the inputs of the routes besides the Request-URI. These are the sender and the source, if any route uses
    /// them, and the header fields in routes. `sender` is the address that the request came from, and the number of its
    /// trunk. `aor_of` finds the address of record here that a URI names.
    pub fn inputs(
        &self,
        message: &Message<'_>,
        (source, trunk): (IpAddr, Option<u16>),
        aor_of: impl FnOnce(&SipUri<'_>) -> Option<Aor>,
        to: &mut Vec<u8>,
    ) {
        if self.routes.is_empty() {
            return;
        }
        // Whether the sender is a trunk matters to each route, see `Compiled::mismatch`.
        to.extend_from_slice(&trunk.map_or(0, |trunk| u32::from(trunk) + 1).to_be_bytes());
        if self.asked.networks {
            let source = match source {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            to.extend_from_slice(&source.octets());
        }
        // The user is whom From names, who must prove it (`Call::sender`). Routes look at no other part of From, nor at
        // the From of a trunk.
        if self.asked.users && trunk.is_none() {
            let from = message.from().ok();
            let uri = from.as_ref().and_then(|from| from.parse_uri().ok());
            let aor = uri.as_ref().and_then(Uri::as_sip).and_then(aor_of);
            add_value(to, aor.as_ref().map_or(b"", Aor::as_bytes));
        }
        for name in &self.asked.headers {
            has_header(message, name, |value| {
                add_value(to, value);
                false
            });
            to.push(b'\n');
        }
    }

    /// Whether there is any route.
    #[must_use]
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// Whether the media of calls through some trunk go through a relay.
    #[must_use]
    pub const fn has_relays(&self) -> bool {
        self.has_relays
    }

    /// The routes, in the order of their numbers.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().map(|it| &it.route)
    }

    /// The trunks, in the order of their numbers.
    pub fn trunks(&self) -> impl Iterator<Item = (&Trunk, &Health)> {
        self.trunks.iter().map(|it| (&it.trunk, &*it.health))
    }

    /// The trunk of a step. `None` if the step is of an earlier table.
    #[must_use]
    pub fn trunk_of(&self, hop: &Hop) -> Option<(&Trunk, &Health)> {
        match hop.table == self.generation {
            true => self.trunk(hop.trunk),
            false => None,
        }
    }

    /// The trunk of a number.
    #[must_use]
    pub fn trunk(&self, number: u16) -> Option<(&Trunk, &Health)> {
        let known = self.trunks.get(usize::from(number))?;
        Some((&known.trunk, &known.health))
    }
}

/// Adds a value with its length: two values are not one longer value.
fn add_value(to: &mut Vec<u8>, value: &[u8]) {
    to.extend_from_slice(&(value.len() as u32).to_be_bytes());
    to.extend_from_slice(value);
}

/// The trunk at this place of the list, with the health of the same trunk in the earlier table. Trunks without a name
/// are the same if their places are.
fn known(place: usize, trunk: Trunk, earlier: Option<&Table>) -> TrunkEntry {
    let before = earlier.into_iter().flat_map(|table| &table.trunks);
    let is_same = |(at, before): &(usize, &TrunkEntry)| {
        let before = &before.trunk;
        (&before.name, &before.to, before.probe) == (&trunk.name, &trunk.to, trunk.probe)
            && (*at == place || !trunk.name.is_empty())
    };
    let health = match before.enumerate().find(is_same) {
        Some((_, before)) => before.health.clone(),
        None => Arc::new(Health::new(&trunk)),
    };
    TrunkEntry {
        name: hunt::hash(trunk.name.as_bytes()),
        trunk,
        health,
    }
}

/// Compiles a route: checks its trunks, and replaces their names by numbers. Routes with equal lists share one in
/// `lists`.
fn compile(
    route: Route,
    trunks: &[Trunk],
    numbers: &HashMap<String, u16>,
    lists: &mut HashMap<Vec<u16>, Arc<[u16]>>,
) -> Result<Compiled, TableError> {
    let number = |name: &String| {
        let number = numbers.get(name).copied();
        number.ok_or_else(|| TableError::UnknownTrunk {
            route: route.name.clone(),
            trunk: name.clone(),
        })
    };
    let to: &[String] = match &route.action {
        Action::Trunks(names) => names,
        _ => &[],
    };
    let to: Result<Vec<u16>, TableError> = to.iter().map(number).collect();
    let from: Result<Vec<u16>, TableError> = route.from_trunks.iter().map(number).collect();
    let (mut to, from_trunks) = (to?, from?);
    let trunk_of = |number: &u16| trunks.get(usize::from(*number));
    let deaf = to.iter().filter_map(trunk_of).find(|it| it.to.is_empty());
    if let Some(deaf) = deaf {
        return Err(TableError::NowhereToSend {
            route: route.name.clone(),
            trunk: deaf.name.clone(),
        });
    }
    to.sort_by_key(|number| trunk_of(number).map(|it| it.priority));
    let list = lists.entry(to).or_insert_with_key(|to| Arc::from(&**to));
    Ok(Compiled {
        route,
        trunks: list.clone(),
        from_trunks,
    })
}
