//! Liveness and readiness: whether every worker runs, and whether new clients should come.

use std::sync::Arc;
use std::time::Duration;

use server::Observer;
use server::observer::WorkerFault;
use stores::Source;
use stores::cluster::{Handle, Status};

/// A worker completes a pass of its loop at least once per second. A worker without a pass for this time hangs.
const LOOP_DEADLINE: Duration = Duration::from_secs(10);

/// The response to a probe: whether the server is healthy, and a message of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    /// Whether the server is healthy.
    pub(crate) is_healthy: bool,
    /// The body of the response.
    pub(crate) message: String,
}

impl Health {
    fn healthy(message: &str) -> Self {
        Self {
            is_healthy: true,
            message: message.to_owned(),
        }
    }

    fn unhealthy(message: String) -> Self {
        Self {
            is_healthy: false,
            message,
        }
    }
}

/// Liveness: healthy if every worker runs. A worker may end while the server drains, because that is a normal stop.
pub(crate) fn liveness(observer: &Observer) -> Health {
    check_workers(observer, LOOP_DEADLINE)
}

/// Like [`liveness`], with another limit: a worker hangs if it has completed no pass of its loop for `limit`.
pub(crate) fn check_workers(observer: &Observer, limit: Duration) -> Health {
    match observer.fault(limit) {
        None => Health::healthy("ok"),
        Some(WorkerFault::Ended { .. }) if observer.is_draining() => Health::healthy("stopping"),
        Some(fault) => Health::unhealthy(fault.to_string()),
    }
}

/// Whether new clients should come. Every worker must serve, new allocations and SIP transactions must be admitted, and
/// every store must respond. Every listener is bound before there is an observer.
///
/// An engine of the cluster that does not respond is no reason to send clients away: all nodes would do so together.
/// The message says it.
pub(crate) fn readiness(
    observer: &Observer,
    stores: &[Arc<Source>],
    cluster: Option<&Handle>,
) -> Health {
    if observer.is_draining() {
        return Health::unhealthy(
            "draining: no new allocations and SIP transactions are admitted".to_owned(),
        );
    }
    let down = stores.iter().position(|store| !store.status().is_up);
    match (liveness(observer), down) {
        (
            Health {
                is_healthy: true, ..
            },
            None,
        ) => Health::healthy(&describe(cluster.map(Handle::status).as_ref())),
        (
            Health {
                is_healthy: true, ..
            },
            Some(place),
        ) => {
            let (number, kind) = (place + 1, stores[place].kind().name());
            Health::unhealthy(format!(
                "store {number} ({kind}) does not answer: users that are not in the cache get 500"
            ))
        }
        (unhealthy, _) => unhealthy,
    }
}

/// The server is ready; and what does not work in the cluster.
fn describe(cluster: Option<&Status>) -> String {
    match cluster {
        Some(status) if !status.is_up => format!(
            "ready; the engine of the cluster has not responded for {} s: limits and nodes are those last known",
            status.since.as_secs()
        ),
        Some(status) if !status.grants_leases => {
            "ready; the engine of the cluster grants no leases: this node applies its own limits"
                .to_owned()
        }
        _ => "ready".to_owned(),
    }
}
