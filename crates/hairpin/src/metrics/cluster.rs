//! The cluster: its engine, its nodes, and what was acquired beyond leases. Nodes have names of the configuration, so
//! they are no labels.

use stores::cluster::bindings::BindingCounters;
use stores::cluster::{Handle, Status};

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, cluster: Option<&Handle>) {
    let Some(cluster) = cluster else {
        return;
    };
    let status = cluster.status();
    let attempts = cluster.quota().attempts();
    let mut gauge = |name, help, value: u64| page.family(name, Kind::Gauge, help).put(&[], value);
    gauge(
        "hairpin_cluster_engine_up",
        "1 while the engine of the cluster responds, else 0.",
        u64::from(status.is_up),
    );
    gauge(
        "hairpin_cluster_leases_granted",
        "0 while the engine of the cluster responds to no request for leases with one, else 1.",
        u64::from(status.grants_leases),
    );
    gauge(
        "hairpin_cluster_nodes",
        "Other nodes of the cluster that are alive.",
        status.nodes as u64,
    );
    gauge(
        "hairpin_cluster_leases",
        "Users and realms with a lease of this node.",
        cluster.quota().leases() as u64,
    );
    let mut requests = page.family(
        "hairpin_cluster_engine_requests_total",
        Kind::Counter,
        "Requests to the engine of the cluster, by result.",
    );
    requests.put(&[("result", &"answered")], status.answered);
    requests.put(&[("result", &"failed")], status.failed);
    let mut acquired = page.family(
        "hairpin_cluster_quota_attempts_total",
        Kind::Counter,
        "Attempts to acquire a relayed address from the quota of all nodes, one for its user and one for its realm, by outcome.",
    );
    for (outcome, count) in [
        ("leased", attempts.leased),
        ("ahead", attempts.ahead),
        ("blind", attempts.blind),
        ("refused", attempts.refused),
    ] {
        acquired.put(&[("outcome", &outcome)], count);
    }
    if let Some(bindings) = cluster.bindings() {
        write_bindings(page, &bindings.counters());
    }
    write_events(page, &status);
}

/// What this node has noticed.
fn write_events(page: &mut Page, status: &Status) {
    let mut counter =
        |name, help, value: u64| page.family(name, Kind::Counter, help).put(&[], value);
    counter(
        "hairpin_cluster_orders_total",
        "Orders of other nodes that this node has received.",
        status.orders,
    );
    counter(
        "hairpin_cluster_engine_restarts_total",
        "Times that the engine of the cluster had lost its data.",
        status.restarts,
    );
    counter(
        "hairpin_cluster_forged_texts_total",
        "Entries in the engine of the cluster (nodes, orders and bindings) that no node with the secret has written.",
        status.forged,
    );
    counter(
        "hairpin_cluster_unknown_orders_total",
        "Orders of nodes with another version that this version does not know.",
        status.unknown,
    );
    counter(
        "hairpin_cluster_twins_total",
        "Times that another process had the name of this node.",
        status.twins,
    );
}

/// Registrations that nodes share.
fn write_bindings(page: &mut Page, counts: &BindingCounters) {
    let mut writes = page.family(
        "hairpin_cluster_sip_writes_total",
        Kind::Counter,
        "Registrations for the engine of the cluster: addresses of record that were written, failed or were dropped, and bindings that were older than those of other nodes or too many, by result.",
    );
    for (result, count) in [
        ("written", counts.written),
        ("older", counts.older),
        ("failed", counts.failed),
        ("dropped", counts.dropped),
    ] {
        writes.put(&[("result", &result)], count);
    }
    let mut lookups = page.family(
        "hairpin_cluster_sip_lookups_total",
        Kind::Counter,
        "Look-ups of the nodes where an address of record is registered, by result.",
    );
    for (result, count) in [
        ("found", counts.found),
        ("none", counts.none),
        ("cached", counts.cached),
        ("unavailable", counts.unavailable),
    ] {
        lookups.put(&[("result", &result)], count);
    }
    let mut notices = page.family(
        "hairpin_cluster_sip_notices_total",
        Kind::Counter,
        "Notices of this node that another node must remove a binding, because its phone has registered here, by result.",
    );
    for (result, count) in [
        ("sent", counts.notices_sent),
        ("failed", counts.notices_failed),
        ("dropped", counts.notices_dropped),
    ] {
        notices.put(&[("result", &result)], count);
    }
    write_removals(page, counts);
    page.family(
        "hairpin_cluster_sip_waiting",
        Kind::Gauge,
        "Addresses of record whose registrations wait to be written to the engine of the cluster.",
    )
    .put(&[], counts.waiting);
}

/// Bindings of phones that have registered at several nodes.
fn write_removals(page: &mut Page, counts: &BindingCounters) {
    let received = &counts.received;
    let mut notices = page.family(
        "hairpin_cluster_sip_notices_received_total",
        Kind::Counter,
        "Texts in the engine that tell this node to remove a binding, by result.",
    );
    for (result, count) in [
        ("accepted", received.accepted),
        ("untimely", received.untimely),
        ("other_node", received.other_node),
        ("forged", received.forged),
        ("dropped", received.dropped),
    ] {
        notices.put(&[("result", &result)], count);
    }
    let mut conflicts = page.family(
        "hairpin_cluster_sip_conflicts_total",
        Kind::Counter,
        "Bindings that this node has written and that another node had, too, by the node that must remove its binding.",
    );
    for (result, count) in [
        ("this_node", counts.conflicts.this_node),
        ("other_node", counts.conflicts.other_node),
        ("unproven", counts.conflicts.unproven),
        ("dropped", counts.conflicts.dropped),
    ] {
        conflicts.put(&[("result", &result)], count);
    }
}
