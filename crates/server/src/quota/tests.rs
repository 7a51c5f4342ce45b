use super::*;
use std::sync::Arc;

/// The default realm.
const R: &str = "r";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("test addresses are well formed")
}

fn quotas(per_user: u32, per_source: u32, total: u32) -> Quotas {
    Quotas::new(
        QuotaLimits {
            per_user,
            per_source,
            total,
        },
        SourcePrefix::default(),
    )
}

#[test]
fn each_limit_is_reported_by_name_and_takes_nothing() {
    let quotas = quotas(2, 3, 4);
    let (a, b, c) = (ip("192.0.2.1"), ip("192.0.2.2"), ip("2001:db8::1"));
    assert_eq!(quotas.acquire(R, "ann", a), Ok(()));
    assert_eq!(quotas.acquire(R, "ann", a), Ok(()));
    assert_eq!(quotas.acquire(R, "ann", b), Err(QuotaExceeded::User));
    assert_eq!(quotas.acquire(R, "bob", a), Ok(()));
    assert_eq!(quotas.acquire(R, "bob", a), Err(QuotaExceeded::Source));
    assert_eq!(quotas.held(), 3);
    assert_eq!(quotas.acquire(R, "bob", c), Ok(()));
    assert_eq!(quotas.acquire(R, "eve", c), Err(QuotaExceeded::Total));
    quotas.release_unit(R, "ann", a);
    assert_eq!(quotas.acquire(R, "eve", c), Ok(()));
}

#[test]
fn each_realm_has_its_users_and_its_total() {
    let quotas = quotas(1, 100, 100);
    let limits = |per_user, total| RealmLimits { per_user, total };
    quotas.set_realms([("shop", limits(2, 3))].into_iter());
    let a = ip("192.0.2.1");
    assert_eq!(quotas.acquire(R, "ann", a), Ok(()));
    assert_eq!(quotas.acquire(R, "ann", a), Err(QuotaExceeded::User));
    assert_eq!(quotas.acquire("shop", "ann", a), Ok(()));
    assert_eq!(quotas.acquire("shop", "ann", a), Ok(()));
    assert_eq!(quotas.acquire("shop", "ann", a), Err(QuotaExceeded::User));
    assert_eq!(quotas.acquire("shop", "bob", a), Ok(()));
    assert_eq!(quotas.acquire("shop", "eve", a), Err(QuotaExceeded::Realm));
    assert_eq!(quotas.held(), 4);
    // The realm is gone, and what its clients hold is not.
    quotas.set_realms([].into_iter());
    quotas.release_unit("shop", "bob", a);
    quotas.set_realms([("shop", limits(9, 9))].into_iter());
    assert_eq!(quotas.acquire("shop", "ann", a), Ok(()));
    for (realm, user) in [
        (R, "ann"),
        ("shop", "ann"),
        ("shop", "ann"),
        ("shop", "ann"),
    ] {
        quotas.release_unit(realm, user, a);
    }
    assert_eq!((quotas.held(), quotas.sources.keys()), (0, 0));
}

#[test]
fn an_ipv6_source_is_its_64() {
    let quotas = quotas(100, 2, 100);
    assert_eq!(quotas.acquire(R, "a", ip("2001:db8:0:1::1")), Ok(()));
    assert_eq!(quotas.acquire(R, "b", ip("2001:db8:0:1:ffff::2")), Ok(()));
    assert_eq!(
        quotas.acquire(R, "c", ip("2001:db8:0:1::3")),
        Err(QuotaExceeded::Source)
    );
    assert_eq!(quotas.acquire(R, "c", ip("2001:db8:0:2::3")), Ok(()));
}

#[test]
fn prefixes_of_every_length_mask_what_they_say() {
    let all = SourcePrefix { v4: 0, v6: 0 };
    assert_eq!(all.of(ip("192.0.2.1")), ip("0.0.0.0"));
    assert_eq!(all.of(ip("2001:db8::1")), ip("::"));
    let none = SourcePrefix { v4: 32, v6: 128 };
    assert_eq!(none.of(ip("192.0.2.1")), ip("192.0.2.1"));
    assert_eq!(none.of(ip("2001:db8::1")), ip("2001:db8::1"));
    assert_eq!(
        SourcePrefix { v4: 24, v6: 48 }.of(ip("192.0.2.1")),
        ip("192.0.2.0")
    );
}

#[test]
fn a_unit_moves_to_another_source_and_user_or_stays() {
    let quotas = quotas(1, 1, 10);
    let at = |user, remote: &str| {
        let five_tuple = turn::FiveTuple {
            transport: turn::Transport::Udp,
            local: "192.0.2.9:3478".parse().expect("an address"),
            remote: remote.parse().expect("an address"),
        };
        ClientIdentity::new(five_tuple, "r", user)
    };
    let (ann, bob) = (at("ann", "192.0.2.1:1"), at("bob", "192.0.2.2:1"));
    let free = at("eve", "192.0.2.3:1");
    quotas.try_acquire(&ann).expect("the first");
    quotas.try_acquire(&bob).expect("the second");
    // Bob may hold no more, and neither may his source.
    let to_bob = quotas.transfer(&ann, &at("bob", "192.0.2.3:1"));
    assert_eq!(to_bob, Err(QuotaExceeded::User));
    let to_source = quotas.transfer(&ann, &at("eve", "192.0.2.2:1"));
    assert_eq!(to_source, Err(QuotaExceeded::Source));
    assert_eq!(quotas.transfer(&ann, &free), Ok(()));
    quotas.release(&free);
    quotas.release(&bob);
    assert_eq!((quotas.held(), quotas.default.users.keys()), (0, 0));
    assert_eq!(quotas.sources.keys(), 0);
}

#[test]
fn a_released_quota_leaves_no_entry() {
    let quotas = quotas(10, 10, 10);
    for name in ["a", "b", "a"] {
        quotas
            .acquire(R, name, ip("192.0.2.1"))
            .expect("below every limit");
    }
    for name in ["a", "b", "a"] {
        quotas.release_unit(R, name, ip("192.0.2.1"));
    }
    assert_eq!(
        (
            quotas.held(),
            quotas.default.users.keys(),
            quotas.sources.keys()
        ),
        (0, 0, 0)
    );
}

#[test]
fn lowered_limits_take_nothing_away() {
    let quotas = quotas(10, 10, 10);
    quotas
        .acquire(R, "a", ip("192.0.2.1"))
        .expect("below every limit");
    quotas.set_limits(QuotaLimits {
        per_user: 0,
        per_source: 0,
        total: 0,
    });
    assert_eq!(
        quotas.acquire(R, "a", ip("192.0.2.1")),
        Err(QuotaExceeded::Total)
    );
    quotas.release_unit(R, "a", ip("192.0.2.1"));
    assert_eq!(quotas.held(), 0);
}

#[test]
fn workers_count_together() {
    let quotas = Arc::new(quotas(100, u32::MAX, u32::MAX));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let quotas = Arc::clone(&quotas);
            std::thread::spawn(move || {
                (0..100)
                    .filter(|_| quotas.acquire(R, "ann", ip("192.0.2.1")).is_ok())
                    .count()
            })
        })
        .collect();
    let taken: usize = workers
        .into_iter()
        .map(|worker| worker.join().expect("no worker panics"))
        .sum();
    assert_eq!(taken, 100);
}
