//! Rate limits of every kind, and which calls each of them limits.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use hairpin_server::Settings;
use hairpin_server::realms::RealmSettings;

use super::{PASSWORD, USER};

/// The limit in bytes per second, and the burst in bytes.
pub(crate) const RATE: u64 = 100_000;
/// The payload of a datagram.
pub(crate) const PAYLOAD: usize = 1_000;
/// A burst in datagrams.
pub(crate) const BURST: u64 = RATE / PAYLOAD as u64;

const SHOP: &str = "shop.example";
const ANN: (&str, &str) = (USER, PASSWORD);
const BOB: (&str, &str) = ("bob", "bob's password");
const CAROL: (&str, &str) = ("carol", "carol's password");
const DAVE: (&str, &str) = ("dave", "dave's password");

/// What one limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Allocation,
    User,
    Source,
    Realm,
    UserOfRealm,
    Total,
}

/// Who makes a call, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) user: (&'static str, &'static str),
    /// At the listener of the further realm.
    pub(crate) in_shop: bool,
    /// From the second address of clients.
    pub(crate) from_second: bool,
}

impl Caller {
    const fn new(user: (&'static str, &'static str), in_shop: bool, from_second: bool) -> Caller {
        Caller {
            user,
            in_shop,
            from_second,
        }
    }
}

impl Limit {
    /// Sets this limit alone. Listeners with this port are those of the further realm.
    pub(crate) fn set(self, settings: &mut Settings, shop_port: u16, apart: bool) {
        let named = |(name, password): (&str, &str)| (name.to_owned(), password.to_owned());
        settings.users = vec![named(ANN), named(BOB)];
        let mut shop = RealmSettings::new(SHOP);
        shop.users = vec![named(CAROL), named(DAVE)];
        shop.listeners = vec![
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, shop_port)),
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, shop_port)),
        ];
        let rates = &mut settings.rates;
        rates.directions_apart = apart;
        let limited = match self {
            Limit::Allocation => &mut settings.allocation_rate,
            Limit::User => &mut rates.per_user,
            Limit::Source => &mut rates.per_source,
            Limit::Realm => &mut shop.rate,
            Limit::UserOfRealm => &mut shop.rate_per_user,
            Limit::Total => &mut rates.total,
        };
        *limited = RATE;
        settings.realms = vec![shop];
    }

    /// Those who share the limit.
    pub(crate) fn limited(self) -> Vec<Caller> {
        let (ann, carol) = (
            Caller::new(ANN, false, false),
            Caller::new(CAROL, true, false),
        );
        match self {
            Limit::Allocation => vec![ann],
            Limit::User => vec![
                Caller::new(BOB, false, false),
                Caller::new(BOB, false, true),
            ],
            Limit::Source => vec![ann, carol],
            Limit::Realm => vec![carol, Caller::new(DAVE, true, true)],
            Limit::UserOfRealm => vec![carol, Caller::new(CAROL, true, true)],
            Limit::Total => vec![ann, Caller::new(CAROL, true, true)],
        }
    }

    /// Somebody who has no part in it. The limit may be theirs, too: then they have a whole one.
    pub(crate) fn outside(self) -> Option<Caller> {
        match self {
            Limit::Allocation | Limit::User | Limit::Realm => Some(Caller::new(ANN, false, false)),
            Limit::Source => Some(Caller::new(ANN, false, true)),
            Limit::UserOfRealm => Some(Caller::new(DAVE, true, false)),
            Limit::Total => None,
        }
    }
}

/// Asserts that a limit has held since this moment: a burst has passed, and no more than the rate after it.
pub(crate) fn expect_limited(passed: u64, begin: Instant, what: &str) {
    let bytes = passed * PAYLOAD as u64;
    // One datagram may exceed the burst. The others are for datagrams that were sent before.
    let allowed = RATE + RATE * begin.elapsed().as_millis() as u64 / 1000 + 4 * PAYLOAD as u64;
    assert!(passed >= BURST - 1, "{what}: {passed} datagrams");
    assert!(bytes <= allowed, "{what}: {bytes} of {allowed} bytes");
}
