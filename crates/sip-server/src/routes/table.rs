//! All routes and trunks, ready to be looked up.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::{Action, Route, Trunk};
use super::decide::Hop;
use super::health::Health;
use super::hunt;
use super::prefix::PrefixIndex;

/// The most trunks of a table.
const MOST_TRUNKS: usize = 1024;

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
pub(super) struct Known {
    pub(super) trunk: Trunk,
    pub(super) name: u64,
    pub(super) health: Arc<Health>,
}

/// A route with the numbers of its trunks.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) route: Route,
    pub(super) trunks: Vec<u16>,
    pub(super) from_trunks: Vec<u16>,
}

/// Routes and trunks.
#[derive(Debug, Default)]
pub struct Table {
    /// The generation of the table. Numbers of trunks of an earlier table are not valid here.
    pub(super) generation: u32,
    pub(super) trunks: Vec<Known>,
    pub(super) routes: Vec<Compiled>,
    pub(super) prefixes: PrefixIndex,
    /// The routes without a prefix.
    pub(super) others: Vec<u32>,
}

impl Table {
    /// Makes a table of these routes and trunks. A trunk keeps its health if the earlier table has it with the same name, addresses and probes.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(
        routes: Vec<Route>,
        trunks: Vec<Trunk>,
        earlier: Option<&Table>,
    ) -> Result<Table, TableError> {
        if trunks.len() > MOST_TRUNKS {
            return Err(TableError::TooManyTrunks(trunks.len()));
        }
        let mut numbers = HashMap::new();
        for (number, trunk) in (0..).zip(&trunks) {
            if !trunk.name.is_empty() && numbers.insert(trunk.name.clone(), number).is_some() {
                return Err(TableError::Twice(trunk.name.clone()));
            }
        }
        let routes: Result<Vec<Compiled>, TableError> = routes
            .into_iter()
            .map(|route| compile(route, &trunks, &numbers))
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
            generation: earlier.map_or(0, |earlier| earlier.generation.wrapping_add(1)),
            prefixes: PrefixIndex::new(pairs),
            others,
            trunks: trunks.into_iter().map(|it| known(it, earlier)).collect(),
            routes,
        })
    }

    /// Whether there is any route.
    #[must_use]
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
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

fn known(trunk: Trunk, earlier: Option<&Table>) -> Known {
    let mut before = earlier.into_iter().flat_map(|table| &table.trunks);
    let is_same = |before: &&Known| {
        let before = &before.trunk;
        (&before.name, &before.to, before.probe) == (&trunk.name, &trunk.to, trunk.probe)
    };
    let health = match before.find(is_same) {
        Some(before) => before.health.clone(),
        None => Arc::new(Health::new(&trunk)),
    };
    Known {
        name: hunt::hash(trunk.name.as_bytes()),
        trunk,
        health,
    }
}

fn compile(
    route: Route,
    trunks: &[Trunk],
    numbers: &HashMap<String, u16>,
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
    let (to, from_trunks) = (to?, from?);
    let trunk_of = |number: &u16| trunks.get(usize::from(*number));
    let deaf = to.iter().filter_map(trunk_of).find(|it| it.to.is_empty());
    if let Some(deaf) = deaf {
        return Err(TableError::NowhereToSend {
            route: route.name.clone(),
            trunk: deaf.name.clone(),
        });
    }
    Ok(Compiled {
        route,
        trunks: to,
        from_trunks,
    })
}
