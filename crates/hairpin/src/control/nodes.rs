//! The nodes of the cluster, as this node knows them. Nothing is stored for this list.

use serde_json::{Value, json};
use stores::cluster::{KnownNode, Status};

use super::protocol::{Refusal, Reply};
use super::serve::Shared;

/// The reply to a question for the nodes.
pub(crate) fn list(shared: &Shared) -> Reply {
    let Some(cluster) = &shared.source.cluster else {
        let message = "this server knows no other nodes: set cluster.engine and cluster.secret";
        return Err(Refusal::new(message));
    };
    Ok(nodes_to_json(&cluster.nodes(), &cluster.status()))
}

fn nodes_to_json(nodes: &[KnownNode], status: &Status) -> Value {
    let infos = || nodes.iter().map(|node| &node.info);
    let allocations: u64 = infos().map(|info| u64::from(info.allocations)).sum();
    let bindings: u64 = infos().map(|info| info.bindings).sum();
    let total = json!({ "nodes": nodes.len(), "allocations": allocations, "bindings": bindings });
    let nodes = nodes.iter().map(
        |KnownNode {
             info,
             age_ms,
             is_own,
         }| {
            let addresses = info.addresses.iter();
            let addresses = addresses.map(|(transport, address)| format!("{transport} {address}"));
            json!({
                "name": info.name,
                "is_own": is_own,
                "state": match (info.draining, info.overloaded) {
                    (true, _) => "draining",
                    (_, true) => "overloaded",
                    _ => "serving",
                },
                "allocations": info.allocations,
                "load_percent": f64::from(info.load) / 10.0,
                "bindings": info.bindings,
                "addresses": addresses.collect::<Vec<_>>(),
                "version": info.version,
                "fingerprints": info.fingerprints,
                "age_ms": age_ms,
            })
        },
    );
    json!({
        "engine": { "is_up": status.is_up, "since_s": status.since.as_secs(), "grants_leases": status.grants_leases },
        "nodes": nodes.collect::<Vec<_>>(),
        "total": total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use stores::cluster::NodeInfo;

    #[test]
    fn a_node_has_one_state() {
        let status = Status {
            is_up: true,
            since: Duration::from_secs(3),
            grants_leases: true,
            answered: 0,
            failed: 0,
            nodes: 1,
            forged: 0,
            unknown: 0,
            twins: 0,
            orders: 0,
            restarts: 0,
        };
        let mut known = KnownNode {
            info: NodeInfo {
                name: "a".to_owned(),
                load: 125,
                allocations: 3,
                bindings: 5,
                overloaded: true,
                ..NodeInfo::default()
            },
            age_ms: 900,
            is_own: false,
        };
        let shown = nodes_to_json(&[known.clone()], &status);
        assert_eq!(shown["nodes"][0]["state"], "overloaded");
        assert_eq!(shown["nodes"][0]["load_percent"], 12.5);
        assert_eq!(shown["engine"]["is_up"], true);
        let total = nodes_to_json(&[known.clone(), known.clone()], &status);
        let expected = json!({ "nodes": 2, "allocations": 6, "bindings": 10 });
        assert_eq!(total["total"], expected);
        known.info.draining = true;
        assert_eq!(
            nodes_to_json(&[known], &status)["nodes"][0]["state"],
            "draining"
        );
    }
}
