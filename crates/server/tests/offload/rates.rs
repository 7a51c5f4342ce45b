//! The rate limits of allocations, users, sources, realms and the server hold for what the classifier relays.

use std::time::Instant;

use hairpin_server::Running;
use hairpin_server::stats::DropReason;

use crate::common::rates::{BURST, Caller, Limit, PAYLOAD, expect_limited};
use crate::common::{Client, at, eventually, socket};
use crate::{
    COUNTS_AGE, Call, SETTLED, V4, alone, builder, by_kernel, by_workers, ready, settings, start,
};

/// The listener of the further realm.
const SHOP: &str = "10.9.9.1:3479";
/// The second address of clients.
const SECOND: &str = "10.9.9.2:0";
/// Datagrams of each call and direction: three bursts.
const SENT: u64 = 3 * BURST;
/// Fewer than a burst, from somebody with a limit of their own.
const OTHERS: u64 = BURST * 9 / 10;

fn call(server: &Running, caller: Caller) -> Call {
    let listener = match caller.in_shop {
        true => at(SHOP),
        false => server.listeners()[0],
    };
    let from = if caller.from_second { SECOND } else { V4 };
    let (user, password) = caller.user;
    let mut client = Client::from(from, listener).with_user(user, password);
    let relayed = client.allocate();
    let peer = socket(V4);
    assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
    Call {
        client,
        peer,
        relayed,
        channel: 0x4000,
    }
}

/// Waits until the kernel relays these calls and all counts are there.
fn settle<'a>(server: &Running, calls: impl Iterator<Item = &'a Call> + Clone) {
    ready(server);
    calls.clone().for_each(|call| call.exchange(1));
    std::thread::sleep(SETTLED);
    calls.for_each(|call| call.exchange(1));
    std::thread::sleep(COUNTS_AGE);
}

/// Each call sends so many datagrams, in turns.
fn to_peers(calls: &[Call], datagrams: u64) {
    for _ in 0..datagrams {
        for call in calls {
            call.client.send(call.channel, &[1; PAYLOAD]);
        }
    }
}

/// Each peer sends as many.
fn to_clients(calls: &[Call], datagrams: u64) {
    for _ in 0..datagrams {
        for call in calls {
            call.peer
                .send_to(&[2; PAYLOAD], call.relayed)
                .expect("sent");
        }
    }
}

fn dropped(server: &Running) -> u64 {
    server.observer().offload().totals.tc.rate_dropped
}

/// What passed to peers and to clients since these counts, once the kernel has relayed or dropped so many.
fn passed(server: &Running, [peers, clients]: [u64; 2], sent: u64) -> [u64; 2] {
    let now = || {
        let [to_peers, _, to_clients] = by_kernel(server);
        [to_peers - peers, to_clients - clients]
    };
    eventually("all of them", || {
        let [to_peers, to_clients] = now();
        to_peers + to_clients + dropped(server) >= sent
    });
    now()
}

fn holds(limit: Limit, apart: bool) {
    alone(move || {
        let mut limited = settings();
        limit.set(&mut limited, at(SHOP).port(), apart);
        let builder = builder().listen(at(SHOP)).settings(limited);
        let Some(server) = start(builder) else {
            return;
        };
        let what = format!("{limit:?}, apart: {apart}");
        let calls: Vec<Call> = limit
            .limited()
            .into_iter()
            .map(|caller| call(&server, caller))
            .collect();
        let other = limit.outside().map(|caller| call(&server, caller));
        settle(&server, calls.iter().chain(&other));
        let workers = by_workers(&server);
        let [peers, _, clients] = by_kernel(&server);

        let begin = Instant::now();
        to_peers(&calls, SENT);
        to_clients(&calls, SENT);
        let sent = 2 * SENT * calls.len() as u64;
        let [up, down] = passed(&server, [peers, clients], sent);
        if apart {
            expect_limited(up, begin, &format!("{what}, to peers"));
            expect_limited(down, begin, &format!("{what}, to clients"));
        } else {
            expect_limited(up + down, begin, &what);
        }
        assert_eq!(up + down + dropped(&server), sent, "{what}");
        // The others' calls pass.
        if let Some(other) = other {
            to_peers(std::slice::from_ref(&other), OTHERS);
            let refused = dropped(&server);
            let [more, _] = passed(&server, [peers, clients], sent + OTHERS);
            assert_eq!(more - up, OTHERS, "{what}: others");
            assert_eq!(dropped(&server), refused, "{what}: others");
        }
        assert_eq!(by_workers(&server), workers, "{what}: by the kernel alone");
        assert_eq!(server.stats().dropped(DropReason::OverRate), 0, "{what}");
    });
}

#[test]
fn the_rate_of_an_allocation_holds_in_the_kernel() {
    holds(Limit::Allocation, false);
    holds(Limit::Allocation, true);
}

#[test]
fn the_rate_of_a_user_holds_in_the_kernel() {
    holds(Limit::User, false);
    holds(Limit::User, true);
}

#[test]
fn the_rate_of_a_source_holds_in_the_kernel() {
    holds(Limit::Source, false);
    holds(Limit::Source, true);
}

#[test]
fn the_rate_of_a_realm_holds_in_the_kernel() {
    holds(Limit::Realm, false);
    holds(Limit::Realm, true);
}

#[test]
fn the_rate_of_a_user_of_a_further_realm_holds_in_the_kernel() {
    holds(Limit::UserOfRealm, true);
}

#[test]
fn the_rate_of_the_whole_server_holds_in_the_kernel() {
    holds(Limit::Total, false);
    holds(Limit::Total, true);
}
