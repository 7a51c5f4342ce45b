//! The log lines of what the engine reports: allocations opened and closed, clients that move, failed authentications.

use turn::server::{Output, RelayedAddresses};

/// Writes the line of an output, if it has one.
pub(super) fn output(worker: u16, output: &Output<'_>) {
    match output {
        Output::AllocationOpened {
            realm,
            user,
            path,
            relayed,
            lifetime_s,
            ..
        } => {
            let client = path.five_tuple.remote;
            let relayed = Relayed(*relayed);
            tracing::info!(worker, realm, user, %client, %relayed, lifetime_s, "allocation opened");
        }
        Output::AllocationClosed {
            realm,
            user,
            path,
            relayed,
            to_peers,
            to_client,
            duration,
            reason,
            ..
        } => {
            tracing::info!(
                worker,
                realm,
                user,
                client = %path.five_tuple.remote,
                relayed = %Relayed(*relayed),
                to_peers_bytes = to_peers.bytes,
                to_peers_packets = to_peers.packets,
                to_client_bytes = to_client.bytes,
                to_client_packets = to_client.packets,
                duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
                reason = reason.name(),
                "allocation closed"
            );
        }
        Output::ClientMoved { client, from } => {
            let (realm, user) = (client.realm, client.user);
            let (from, client) = (from.five_tuple.remote, client.five_tuple.remote);
            tracing::info!(worker, realm, user, %client, %from, "client moved");
        }
        Output::AuthenticationFailed {
            path,
            user,
            reason,
            omitted,
        } => {
            let (client, reason) = (path.five_tuple.remote, reason.name());
            // The name is what anybody has written: control characters are escaped.
            tracing::info!(worker, %client, ?user, reason, omitted, "authentication failed");
        }
        _ => {}
    }
}

/// `192.0.2.1:50000`, `[2001:db8::1]:50000`, or both with a comma.
struct Relayed(RelayedAddresses);

impl std::fmt::Display for Relayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0.v4, self.0.v6) {
            (Some(v4), Some(v6)) => write!(f, "{v4},{v6}"),
            (Some(one), None) | (None, Some(one)) => write!(f, "{one}"),
            (None, None) => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_or_two_are_shown() {
        let v4 = "192.0.2.1:50000".parse().ok();
        let v6 = "[2001:db8::1]:50001".parse().ok();
        let shown = |v4, v6| Relayed(RelayedAddresses { v4, v6 }).to_string();
        assert_eq!(shown(v4, None), "192.0.2.1:50000");
        assert_eq!(shown(v4, v6), "192.0.2.1:50000,[2001:db8::1]:50001");
        assert_eq!(shown(None, None), "-");
    }
}
