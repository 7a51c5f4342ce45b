//! Bindings in memory, by their own interface.

use sip::{HashKey, Mono, Now};
use sip_server::location::{
    Binding, Change, ChangeError, Found, Limits, Location, MAX_AGENT, MemoryLocation, NO_Q,
    NewBinding, Revision, TooLong,
};
use sip_server::{Aor, AorHash};

use crate::world::{KEY, tcp_flow, udp_flow};

fn second(number: u64) -> Mono {
    Mono(number * 1_000_000_000)
}

fn new(uri: &str) -> NewBinding<'_> {
    NewBinding {
        uri: uri.as_bytes(),
        params: b"",
        instance: b"",
        call_id: b"call",
        cseq: 1,
        path: b"",
        agent: b"",
        flow: None,
        q: NO_Q,
        reg_id: 0,
        gruu: 0,
        expires: second(60),
        updated: second(0),
    }
}

fn until(uri: &str, expires: u64) -> Binding {
    let new = NewBinding {
        expires: second(expires),
        ..new(uri)
    };
    Binding::new(&new).unwrap()
}

fn aor(user: &str) -> Aor {
    Aor::from_canonical(format!("{user}@example.com").as_bytes()).unwrap()
}

fn location(per_user: usize, total: usize) -> MemoryLocation {
    MemoryLocation::new(HashKey::new(KEY), Limits { per_user, total })
}

fn revision(location: &mut MemoryLocation, user: &str) -> Revision {
    match location.find(&aor(user)) {
        Found::Bindings(revision, _) => revision,
        Found::Pending => panic!("memory never asks"),
    }
}

fn uris(location: &mut MemoryLocation, user: &str) -> Vec<String> {
    match location.find(&aor(user)) {
        Found::Bindings(_, bindings) => {
            let uris = bindings.iter().map(Binding::uri);
            uris.map(|uri| String::from_utf8(uri.to_vec()).unwrap())
                .collect()
        }
        Found::Pending => panic!("memory never asks"),
    }
}

fn change(
    location: &mut MemoryLocation,
    user: &str,
    mut changes: Vec<Change>,
) -> Result<(), ChangeError> {
    let revision = revision(location, user);
    let result = location.change(Now::default(), &aor(user), revision, &mut changes);
    assert!(changes.is_empty());
    result.map(drop)
}

#[test]
fn a_binding_has_all_that_it_was_made_of() {
    for flow in [
        None,
        Some(udp_flow("[2001:db8::1]:1")),
        Some(tcp_flow(u64::MAX)),
    ] {
        let new = NewBinding {
            uri: b"sip:a@h",
            params: b";+sip.instance=\"<urn:x:y>\";audio",
            instance: b"urn:x:y",
            call_id: b"call@h",
            cseq: u32::MAX,
            path: b"<sip:p;lr>",
            agent: b"phone/1.0 (model 7)",
            flow,
            q: 1000,
            reg_id: 7,
            gruu: u64::MAX,
            expires: second(9),
            updated: second(8),
        };
        let binding = Binding::new(&new).unwrap();
        assert_eq!(binding.uri(), new.uri);
        assert_eq!(binding.params(), new.params);
        assert_eq!(binding.instance(), new.instance);
        assert_eq!((binding.call_id(), binding.cseq()), (new.call_id, new.cseq));
        assert_eq!((binding.path(), binding.source()), (new.path, new.flow));
        assert_eq!(binding.flow(), None, "the flow is that of the Path");
        assert_eq!((binding.q(), binding.reg_id()), (Some(1000), 7));
        assert_eq!(binding.agent(), new.agent);
        assert_eq!(binding.gruu(), u64::MAX);
        assert_eq!(
            (binding.expires(), binding.updated()),
            (second(9), second(8))
        );
        assert_eq!(Binding::new(&binding.parts()), Ok(binding));
    }
    let long = vec![b'x'; 1 << 16];
    let cut = NewBinding {
        agent: &long,
        flow: Some(udp_flow("192.0.2.1:1")),
        ..new("sip:a@h")
    };
    let binding = Binding::new(&cut).unwrap();
    assert_eq!(binding.agent(), &long[..MAX_AGENT]);
    assert_eq!(binding.flow(), cut.flow);
    for too_long in [
        NewBinding {
            uri: &long,
            ..new("")
        },
        NewBinding {
            params: &long,
            ..new("")
        },
        NewBinding {
            path: &long,
            ..new("")
        },
        NewBinding {
            call_id: &long,
            ..new("")
        },
        NewBinding {
            instance: b"nowhere",
            ..new("")
        },
    ] {
        assert_eq!(Binding::new(&too_long), Err(TooLong));
    }
}

#[test]
fn changes_are_made_all_or_none() {
    let mut location = location(3, 10);
    let add = |uri| Change::Add(until(uri, 60));
    change(&mut location, "a", vec![add("sip:1"), add("sip:2")]).unwrap();
    let wrong = [
        (
            vec![Change::Remove(0), Change::Remove(2)],
            ChangeError::Conflict,
        ),
        (
            vec![Change::SetGruu(0, 5), Change::Replace(2, until("sip:x", 1))],
            ChangeError::Conflict,
        ),
        (vec![add("sip:3"), add("sip:4")], ChangeError::UserFull),
    ];
    for (changes, error) in wrong {
        assert_eq!(change(&mut location, "a", changes), Err(error));
        assert_eq!(uris(&mut location, "a"), ["sip:1", "sip:2"]);
    }
    let changes = vec![
        add("sip:3"),
        Change::Remove(0),
        Change::Replace(1, until("sip:b", 60)),
        add("sip:4"),
        Change::SetGruu(1, 9),
    ];
    change(&mut location, "a", changes).unwrap();
    assert_eq!(uris(&mut location, "a"), ["sip:b", "sip:3", "sip:4"]);
    assert_eq!((location.len(), location.addresses()), (3, 1));
}

#[test]
fn a_change_of_bindings_that_have_changed_since_is_refused() {
    let mut location = location(9, 9);
    let before = revision(&mut location, "a");
    change(&mut location, "a", vec![Change::Add(until("sip:1", 60))]).unwrap();
    let mut late = vec![Change::Add(until("sip:2", 60))];
    let refused = location.change(Now::default(), &aor("a"), before, &mut late);
    assert_eq!(refused, Err(ChangeError::Conflict));
    // Also where the bindings are gone and others have come.
    let before = revision(&mut location, "a");
    change(&mut location, "a", vec![Change::Remove(0)]).unwrap();
    change(&mut location, "a", vec![Change::Add(until("sip:3", 60))]).unwrap();
    let refused = location.change(
        Now::default(),
        &aor("a"),
        before,
        &mut vec![Change::Remove(0)],
    );
    assert_eq!(refused, Err(ChangeError::Conflict));
    assert_eq!(uris(&mut location, "a"), ["sip:3"]);
}

#[test]
fn there_are_so_many_bindings_in_all_and_each_removed_one_makes_room() {
    let mut location = location(10, 3);
    for user in ["a", "b", "c"] {
        change(&mut location, user, vec![Change::Add(until("sip:1", 60))]).unwrap();
    }
    let full = change(&mut location, "d", vec![Change::Add(until("sip:1", 60))]);
    assert_eq!(full, Err(ChangeError::Full));
    let swap = vec![Change::Add(until("sip:2", 60)), Change::Remove(0)];
    change(&mut location, "a", swap).unwrap();
    change(&mut location, "b", vec![Change::Remove(0)]).unwrap();
    change(&mut location, "d", vec![Change::Add(until("sip:1", 60))]).unwrap();
    assert_eq!((location.len(), location.addresses()), (3, 3));
}

#[test]
fn bindings_end_in_time_and_those_that_were_refreshed_stay() {
    let mut location = location(10, 1000);
    for number in 0..100 {
        let user = format!("user{number}");
        let changes = vec![
            Change::Add(until("sip:short", 60 + number)),
            Change::Add(until("sip:long", 1000)),
        ];
        change(&mut location, &user, changes).unwrap();
    }
    change(
        &mut location,
        "user5",
        vec![Change::Replace(0, until("sip:short", 999))],
    )
    .unwrap();
    assert!(location.next_deadline().unwrap() <= second(60));
    assert!(location.expire(second(59)).is_none());
    let mut ended = 0;
    for now in 60..160 {
        while let Some(removed) = location.expire(second(now)) {
            assert_eq!(removed.bindings.len(), 1);
            assert_eq!(removed.bindings[0].expires(), second(now));
            assert_ne!(removed.aor, aor("user5"));
            ended += 1;
        }
    }
    assert_eq!((ended, location.len()), (99, 101));
    assert_eq!(
        uris(&mut location, "user5"),
        ["sip:long", "sip:short"][..]
            .iter()
            .rev()
            .copied()
            .collect::<Vec<_>>()
    );
    while location.expire(second(2000)).is_some() {}
    assert!(location.is_empty() && location.addresses() == 0);
    assert_eq!(location.next_deadline(), None);
}

#[test]
fn an_instance_is_found_by_its_number_on_the_address_that_has_it() {
    let mut location = location(10, 10);
    let with_gruu = |uri, gruu| Binding::new(&NewBinding { gruu, ..new(uri) }).unwrap();
    change(&mut location, "a", vec![Change::Add(with_gruu("sip:1", 5))]).unwrap();
    change(&mut location, "b", vec![Change::Add(with_gruu("sip:1", 0))]).unwrap();
    let hash = AorHash::new(HashKey::new(KEY));
    assert_eq!(location.find_gruu(hash.of(&aor("a")), 5), Some(aor("a")));
    assert_eq!(location.find_gruu(hash.of(&aor("a")), 6), None);
    assert_eq!(location.find_gruu(hash.of(&aor("b")), 5), None);
    assert_eq!(location.find_gruu(hash.of(&aor("b")), 0), None);
    assert_eq!(location.find_gruu(hash.of(&aor("c")), 5), None);
}

#[test]
fn all_addresses_and_bindings_can_be_gone_through() {
    let mut location = location(10, 10);
    for user in ["a", "b"] {
        change(&mut location, user, vec![Change::Add(until("sip:1", 60))]).unwrap();
    }
    change(&mut location, "b", vec![Change::Remove(0)]).unwrap();
    let all: Vec<(&[u8], usize)> = location.iter().map(|(aor, all)| (aor, all.len())).collect();
    assert_eq!(all, [(&b"a@example.com"[..], 1)]);
}
