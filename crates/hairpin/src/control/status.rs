//! What `hairpin status` shows: the state of the server at one moment.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Shared;
use crate::admin::health;

/// The status of this moment. It costs the workers nothing.
pub(crate) fn status(shared: &Shared) -> Value {
    let source = &shared.source;
    let observer = &source.observer;
    let stats = observer.stats();
    let (sip, streams) = (stats.sip(), stats.streams());
    let (held, limit) = observer.relayed_addresses();
    let health = health::liveness(observer);
    let offload = observer.offload();
    let interfaces = offload.interfaces.iter().map(ToString::to_string);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "predecessor": predecessor(shared),
        "upgrade": shared.upgrade.json(),
        "uptime_s": source.started.elapsed().as_secs(),
        "state": state(shared),
        "healthy": health.is_healthy,
        "health": health.message,
        "config_file": shared.config_file,
        "last_reload_successful": source.reloads.was_successful(),
        "config_loaded_unix_s": source.reloads.last_success_unix_s(),
        "workers": stats.workers.len(),
        "steering": observer.features().steering.name(),
        "allocations": stats.allocations(),
        "relayed_addresses": held,
        "relayed_addresses_limit": limit,
        "connections": {
            "tcp": streams.tcp_now,
            "tls": streams.tls_now,
            "dtls": stats.dtls().connections_now,
        },
        "sip": {
            "transactions": sip.transactions,
            "connections": sip.connections,
            "calls": sip.calls,
            "banned_sources": sip.banned,
        },
        "listeners": {
            "udp": observer.listeners(),
            "tcp": observer.tcp_listeners(),
            "tls": observer.tls_listeners(),
            "dtls": observer.dtls_listeners(),
            "sip": observer.sip_listeners(),
            "sip_tls": observer.sip_tls_listeners(),
            "sip_ws": observer.sip_ws_listeners(),
            "sip_wss": observer.sip_wss_listeners(),
            "admin": shared.admin.into_iter().collect::<Vec<_>>(),
        },
        "offload": interfaces.collect::<Vec<_>>(),
    })
}

/// What the process has left that this one has taken over from.
fn predecessor(shared: &Shared) -> Option<Value> {
    let predecessor = shared.predecessor.lock();
    predecessor.unwrap_or_else(PoisonError::into_inner).clone()
}

fn state(shared: &Shared) -> &'static str {
    if shared.stopping.load(Ordering::Relaxed) {
        "stopping"
    } else if shared.source.observer.is_draining() {
        "draining"
    } else {
        "serving"
    }
}
