//! What the kernel does for relaying, for status and metrics.

use super::choice::{Obstacle, OffloadMethod};
use bpf::relay::Totals;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How datagrams are relayed that arrive on one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterfaceOffload {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// By which method.
    pub method: OffloadMethod,
    /// Whether the classifier is attached by clsact, because the kernel has no TCX (before Linux 6.6).
    pub clsact: bool,
    /// Why not by native XDP; `None` if it is used.
    pub not_xdp: Option<Obstacle>,
    /// Why not by a classifier; `None` if it is used, or could be.
    pub not_tc: Option<Obstacle>,
    /// Why user space relays what other interfaces with XDP receive and this one sends; `None` if XDP does, or is not
    /// used. XDP relays what arrives and leaves by this interface in any case.
    pub not_redirected: Option<Obstacle>,
}

impl InterfaceOffload {
    /// Why by no better means: what spoke against the best one that was asked for. With XDP: why not for the frames of
    /// other interfaces. `None` if nothing did.
    #[must_use]
    pub fn reason(&self) -> Option<&Obstacle> {
        let wanted = |obstacle: &&Obstacle| **obstacle != Obstacle::NotWanted;
        match self.method {
            OffloadMethod::Xdp => self.not_redirected.as_ref(),
            OffloadMethod::Tc => self.not_xdp.as_ref().filter(wanted),
            OffloadMethod::User => {
                let better = [&self.not_tc, &self.not_xdp].into_iter().flatten();
                better.clone().find(wanted).or(better.last())
            }
        }
    }

    /// The reason's name in metrics; `none` if there is none.
    #[must_use]
    pub fn reason_name(&self) -> &'static str {
        self.reason().map_or("none", Obstacle::name)
    }
}

impl fmt::Display for InterfaceOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.method {
            OffloadMethod::Xdp => "the kernel relays, by XDP in the driver",
            OffloadMethod::Tc if self.clsact => {
                "the kernel relays, by a classifier (tc, by clsact)"
            }
            OffloadMethod::Tc => "the kernel relays, by a classifier (tc)",
            OffloadMethod::User => "user space relays",
        };
        write!(f, "{}: {method}", self.name)?;
        match (self.method, self.reason()) {
            (OffloadMethod::Tc, Some(reason)) => write!(f, "; not by XDP: {reason}"),
            (OffloadMethod::User, Some(reason)) => write!(f, ": {reason}"),
            (OffloadMethod::Xdp, Some(reason)) => write!(
                f,
                "; from other interfaces to this one user space relays: {reason}"
            ),
            _ => Ok(()),
        }
    }
}

/// What the kernel does for relaying at this moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OffloadStatus {
    /// Each interface that serves clients or peers.
    pub interfaces: Vec<InterfaceOffload>,
    /// What the programs have counted, up to about a second ago.
    pub totals: Totals,
    /// When the server read `totals`; `None` if it has not done so yet. A rate is a difference of `totals` by the
    /// difference of these times.
    pub totals_at: Option<Instant>,
    /// Next hops in use by channels, and how many of them the programs may send to.
    pub next_hops: usize,
    /// See [`OffloadStatus::next_hops`].
    pub next_hops_usable: usize,
}

/// The status, shared by the control thread and those who look.
#[derive(Debug, Default)]
pub(crate) struct PublishedStatus(Mutex<OffloadStatus>);

impl PublishedStatus {
    pub(crate) fn get(&self) -> OffloadStatus {
        self.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut OffloadStatus)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, OffloadStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
