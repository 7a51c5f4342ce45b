use super::*;
use crate::realms::RealmSettings;
use std::net::SocketAddr;
use turn::server::{ClientIdentity, SharedBuckets as _, rate_scale};
use turn::{FiveTuple, Mono, Transport};

const SECOND: u64 = 1_000_000_000;
const UP: RelayDirection = RelayDirection::ToPeer;
const DOWN: RelayDirection = RelayDirection::ToClient;

fn client<'a>(source: &str, realm: &'a str, user: &'a str) -> ClientIdentity<'a> {
    let address: SocketAddr = source.parse().expect("an address");
    let five_tuple = FiveTuple {
        transport: Transport::Udp,
        local: address,
        remote: address,
    };
    ClientIdentity::new(five_tuple, realm, user)
}

fn shop(all: u64, per_user: u64) -> RealmSettings {
    let mut realm = RealmSettings::new("shop");
    (realm.rate, realm.rate_per_user) = (all, per_user);
    realm
}

/// A table with room for this number of allocations, and the limits of two workers in it.
fn table(
    limits: RateLimits,
    realms: &[RealmSettings],
    room: u32,
) -> (Arc<RateTable>, Rates, Rates) {
    let groups = GroupRates::new(&limits, realms);
    let size = TableSize::new(room, &limits, &groups);
    let table = Arc::new(RateTable::in_memory(size).expect("memory"));
    table.set_rates(groups, SourcePrefix::default());
    let rates = || Rates::new(Arc::clone(&table), table.numbers());
    let (one, two) = (rates(), rates());
    (Arc::clone(&table), one, two)
}

/// What passes in ten seconds, of 100 bytes offered each millisecond by each of these.
fn passed<const N: usize>(offers: [(&Rates, u32, RelayDirection); N]) -> [u64; N] {
    passed_from(1, offers)
}

/// The same from this second on.
fn passed_from<const N: usize>(
    second: u64,
    offers: [(&Rates, u32, RelayDirection); N],
) -> [u64; N] {
    let mut bytes = [0; N];
    for step in 0..10_000 {
        let now = Mono(second * SECOND + step * 1_000_000);
        for ((rates, allocation, direction), bytes) in offers.iter().zip(&mut bytes) {
            if rates.charge(*allocation, *direction, now, 100) != Some(false) {
                *bytes += 100;
            }
        }
    }
    bytes
}

#[track_caller]
fn assert_near(bytes: u64, expected: u64) {
    let difference = bytes.abs_diff(expected);
    assert!(difference <= expected / 50, "{bytes} instead of {expected}");
}

#[test]
fn a_user_has_one_rate_at_all_workers() {
    let limits = RateLimits {
        per_user: 50_000,
        ..RateLimits::default()
    };
    let (_, mut one, mut two) = table(limits, &[], 128);
    assert!(one.begin(0, 0, &client("192.0.2.1:1", "example.org", "ann")));
    assert!(two.begin(70, 0, &client("192.0.2.2:1", "example.org", "ann")));
    assert!(two.begin(71, 0, &client("192.0.2.3:1", "example.org", "bob")));
    let [a, b, c] = passed([(&one, 0, UP), (&two, 70, DOWN), (&two, 71, UP)]);
    assert_near(a + b, 11 * 50_000);
    assert_near(c, 11 * 50_000);
}

#[test]
fn each_group_has_a_limit_and_the_lowest_holds() {
    let limits = RateLimits {
        per_source: 40_000,
        total: 60_000,
        ..RateLimits::default()
    };
    let (_, mut one, mut two) = table(limits, &[shop(10_000, 5_000)], 128);
    one.begin(0, 0, &client("192.0.2.1:1", "example.org", "ann"));
    one.begin(
        1,
        rate_scale(1_000),
        &client("192.0.2.1:2", "example.org", "bob"),
    );
    two.begin(0, 0, &client("192.0.2.2:1", "shop", "ann"));
    two.begin(1, 0, &client("192.0.2.3:1", "shop", "bob"));
    two.begin(2, 0, &client("192.0.2.4:1", "shop", "bob"));
    assert_near(passed([(&one, 0, UP)])[0], 11 * 40_000);
    let (_, mut one, mut two) = table(limits, &[shop(10_000, 5_000)], 128);
    two.begin(0, 0, &client("192.0.2.2:1", "shop", "ann"));
    two.begin(1, 0, &client("192.0.2.3:1", "shop", "bob"));
    two.begin(2, 0, &client("192.0.2.4:1", "shop", "bob"));
    let [a, b, c] = passed([(&two, 0, UP), (&two, 1, UP), (&two, 2, UP)]);
    assert_near(a + b + c, 11 * 10_000);
    assert!(b + c <= 11 * 5_000 + 200, "{b} + {c}");
    one.begin(
        1,
        rate_scale(1_000),
        &client("192.0.2.9:2", "example.org", "bob"),
    );
    assert_near(passed_from(100, [(&one, 1, UP)])[0], 11 * 1_000);
}

#[test]
fn directions_may_have_the_rate_each() {
    let limits = RateLimits {
        total: 20_000,
        directions_apart: true,
        ..RateLimits::default()
    };
    let (_, mut one, _) = table(limits, &[], 64);
    one.begin(
        3,
        rate_scale(15_000),
        &client("192.0.2.1:1", "example.org", "ann"),
    );
    one.begin(4, 0, &client("192.0.2.1:2", "example.org", "ann"));
    let [up, down, other] = passed([(&one, 3, UP), (&one, 3, DOWN), (&one, 4, DOWN)]);
    assert_near(up, 11 * 15_000);
    assert_near(down + other, 11 * 20_000);
    assert_eq!(one.group_scale(3, DOWN), rate_scale(20_000));
}

#[test]
fn a_reload_changes_the_rates_of_groups_that_exist() {
    let limits = RateLimits {
        per_user: 50_000,
        ..RateLimits::default()
    };
    let (table, mut one, _) = table(limits, &[], 64);
    one.begin(0, 0, &client("192.0.2.1:1", "example.org", "ann"));
    let none = GroupRates::default();
    table.set_rates(none, SourcePrefix::default());
    assert_eq!(passed([(&one, 0, UP)]), [1_000_000]);
    let lower = RateLimits {
        per_user: 10_000,
        ..RateLimits::default()
    };
    table.set_rates(GroupRates::new(&lower, &[]), SourcePrefix::default());
    assert_near(passed_from(1_000, [(&one, 0, UP)])[0], 11 * 10_000);
}

#[test]
fn groups_end_with_their_last_allocation() {
    let limits = RateLimits {
        total: 1_000_000,
        ..RateLimits::default()
    };
    let (table, mut one, mut two) = table(limits, &[], 64);
    let count = || table.groups.as_ref().expect("groups").count();
    one.begin(0, 0, &client("192.0.2.1:1", "example.org", "ann"));
    two.begin(0, 0, &client("192.0.2.1:2", "example.org", "ann"));
    one.begin(1, 0, &client("192.0.2.2:1", "example.org", "bob"));
    assert_eq!(count(), 6, "2 sources, 2 users, a realm and all");
    one.begin(1, 0, &client("192.0.2.1:1", "example.org", "ann"));
    assert_eq!(count(), 4, "it began again as another's");
    one.end(0);
    two.end(0);
    assert_eq!(count(), 4);
    one.end(1);
    one.end(1);
    assert_eq!(count(), 0);
}

#[test]
fn without_room_others_share_a_limit_and_none_is_without() {
    let limits = RateLimits {
        per_user: 10_000,
        total: 1_000_000,
        ..RateLimits::default()
    };
    let (_, mut one, _) = table(limits, &[], 64);
    let names: Vec<String> = (0..3000).map(|number| format!("user{number}")).collect();
    for (number, name) in (0..).zip(&names) {
        let source = format!("10.0.{}.{}:1", number / 250, number % 250 + 1);
        let has_bucket = one.begin(number, 0, &client(&source, "example.org", name));
        assert_eq!(has_bucket, number < 64);
    }
    assert_near(passed([(&one, 0, UP)])[0], 11 * 10_000);
    let [a, b] = passed_from(100, [(&one, 2998, UP), (&one, 2999, UP)]);
    assert_near(a + b, 11 * 10_000);
}

#[test]
fn numbers_come_by_the_chunk_while_there_are_any() {
    let pool = Arc::new(Chunks::new(2 * Chunks::SIZE));
    let [one, two] = [1, 2].map(|stride| Numbers::new(Arc::clone(&pool), stride));
    assert_eq!(one.bucket(5, UP), None, "nothing began there");
    let rates = |numbers: Numbers, allocation: u32| {
        let numbers = Arc::new(numbers);
        let table = RateTable::in_memory(TableSize::default()).expect("memory");
        let mut rates = Rates::new(Arc::new(table), Arc::clone(&numbers));
        rates.begin(allocation, 0, &client("192.0.2.1:1", "example.org", "ann"));
        numbers
    };
    let one = rates(one, 5);
    let two = rates(two, 5);
    assert_eq!((one.bucket(5, UP), one.bucket(5, DOWN)), (Some(5), Some(5)));
    let second = 2 * (Chunks::SIZE + 5);
    assert_eq!(two.bucket(5, UP), Some(second));
    assert_eq!(two.bucket(5, DOWN), Some(second + 1));
    assert_eq!(one.bucket(6, UP), Some(6), "of the same chunk");
    assert_eq!(one.bucket(Chunks::SIZE, UP), None, "all are taken");
    assert_eq!(one.bucket(1_000_000, UP), None);
}

/// Each of two tables counts what the other one has.
fn share(one: &RateTable, two: &RateTable) {
    for (from, to) in [(one, two), (two, one)] {
        let own = from
            .size()
            .shared_counts()
            .expect("memory")
            .expect("groups");
        let descriptor = own.descriptor().expect("a descriptor");
        from.share(own);
        to.share_with(OtherCounts::of(descriptor).expect("the same"));
    }
}

#[test]
fn two_processes_share_the_rate_of_a_group_by_their_allocations() {
    let limits = RateLimits {
        per_user: 40_000,
        ..RateLimits::default()
    };
    let (old, mut there, _) = table(limits, &[], 64);
    let (new, mut here, _) = table(limits, &[], 128);
    let ann = client("192.0.2.1:1", "example.org", "ann");
    for allocation in 0..2 {
        there.begin(allocation, 0, &ann);
    }
    share(&old, &new);
    there.begin(2, 0, &ann);
    here.begin(0, 0, &ann);
    here.begin(1, 0, &client("192.0.2.1:9", "example.org", "bob"));
    old.set_shares();
    assert_near(passed([(&there, 0, UP)])[0], 11 * 30_000);
    let [ann_here, bob] = passed([(&here, 0, UP), (&here, 1, UP)]);
    assert_near(ann_here, 11 * 10_000);
    assert_near(bob, 11 * 40_000);
    there.end(0);
    there.end(1);
    new.set_shares();
    assert_near(passed_from(100, [(&here, 0, UP)])[0], 11 * 20_000);
    there.end(2);
    new.set_shares();
    assert_near(passed_from(200, [(&here, 0, UP)])[0], 11 * 40_000);
    there.begin(2, 0, &ann);
    new.stop_sharing();
    assert_near(passed_from(300, [(&here, 0, UP)])[0], 11 * 40_000);
}
