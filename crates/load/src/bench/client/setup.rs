//! Lets many clients allocate, or renew what they have.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use turn::client::{CallError, Event, RequestError};

use super::allocate_options;
use crate::bench::error::{IoContext, SideError};
use crate::bench::layout;
use crate::client::{ClientId, Data, Driver, Handler};

/// Clients at work at once while allocations are made or renewed: enough to keep a server busy, few
/// enough not to overrun its receive buffer.
const MAX_REQUESTS_IN_FLIGHT: usize = 32;

/// Upper limit for the setup of all allocations; each request has its own, shorter limit.
const SETUP_TIMEOUT: Duration = Duration::from_secs(600);

/// What every client is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupStep {
    /// Allocate, and bind the channel.
    Allocate,
    /// Bind the channel again.
    Renew,
}

/// Lets the clients of the first flows reach a goal. Returns the relayed transport addresses that they have got, by
/// flow.
///
/// # Errors
/// The first failure; the other clients are left where they are.
pub(super) fn reach(
    driver: &mut Driver,
    ids: Vec<ClientId>,
    goal: SetupStep,
) -> Result<Vec<SocketAddr>, SideError> {
    let flows = ids.iter().copied().zip(0..).collect();
    let mut setup = Setup {
        goal,
        waiting: ids.into(),
        flows,
        active: 0,
        relays: HashMap::new(),
        failed: None,
    };
    while setup.active < MAX_REQUESTS_IN_FLIGHT && !setup.waiting.is_empty() {
        setup.start_next(driver);
    }
    let is_over = driver
        .run_until(SETUP_TIMEOUT, &mut setup, |_, setup| setup.is_over())
        .doing("wait for responses")?;
    if let Some(error) = setup.failed {
        return Err(error);
    }
    if !is_over {
        let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
        return Err(error).doing("make allocations");
    }
    let mut relays: Vec<_> = setup.relays.into_iter().collect();
    relays.sort_unstable();
    Ok(relays.into_iter().map(|(_, relay)| relay).collect())
}

/// The clients on their way.
struct Setup {
    goal: SetupStep,
    waiting: VecDeque<ClientId>,
    flows: HashMap<ClientId, u16>,
    active: usize,
    relays: HashMap<u16, SocketAddr>,
    failed: Option<SideError>,
}

impl Setup {
    fn is_over(&self) -> bool {
        self.failed.is_some() || self.active == 0
    }

    fn start_next(&mut self, driver: &mut Driver) {
        let Some(id) = self.waiting.pop_front() else {
            return;
        };
        self.active += 1;
        match self.goal {
            SetupStep::Allocate => {
                let call = driver.with(id, |client, now| client.allocate(now, allocate_options()));
                self.note("Allocate", call);
            }
            SetupStep::Renew => self.bind(driver, id),
        }
    }

    fn bind(&mut self, driver: &mut Driver, id: ClientId) {
        let flow = self.flows.get(&id).copied().unwrap_or_default();
        let peer = layout::peer(flow);
        let call = driver.with(id, |client, now| client.bind_channel(now, peer).map(drop));
        self.note("ChannelBind", call);
    }

    fn note(&mut self, method: &'static str, call: Option<Result<(), CallError>>) {
        if let Some(Err(error)) = call {
            let error = std::io::Error::other(error);
            self.failed = Err::<(), _>(error).doing(method).err();
        }
    }
}

impl Handler for Setup {
    fn event(&mut self, driver: &mut Driver, id: ClientId, event: Event) {
        match event {
            Event::Allocated(allocated) => {
                let flow = self.flows.get(&id).copied().unwrap_or_default();
                self.relays.insert(flow, allocated.relayed);
                self.bind(driver, id);
            }
            Event::ChannelBound { .. } => {
                self.active -= 1;
                self.start_next(driver);
            }
            Event::AllocateFailed { error, .. } => {
                self.failed = Some(failure("Allocate", error));
            }
            Event::ChannelFailed { error, .. } => {
                self.failed = Some(failure("ChannelBind", error));
            }
            Event::Lost(loss) => {
                let error = std::io::Error::other(format!("{loss:?}"));
                self.failed = Err::<(), _>(error).doing("keep an allocation").err();
            }
            _ => {}
        }
    }

    /// Of scenarios before.
    fn data(&mut self, _: ClientId, _: Data<'_>) {}
}

/// What became of a request.
pub(super) fn failure(method: &'static str, error: RequestError) -> SideError {
    match (&error, error.code()) {
        (RequestError::Refused(refusal), _) => SideError::Refused {
            method: method.to_owned(),
            code: refusal.code,
            reason: refusal.reason.clone().into(),
        },
        (_, Some(code)) => SideError::Refused {
            method: method.to_owned(),
            code,
            reason: error.to_string(),
        },
        (_, None) => SideError::Io {
            what: method,
            source: std::io::Error::other(error),
        },
    }
}
