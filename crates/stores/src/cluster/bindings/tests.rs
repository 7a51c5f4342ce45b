use super::state::{FOUND_MS, MAX_CACHED, MAX_MOVED};
use super::*;
use crate::cluster::seal::Seal;
use std::sync::mpsc;

fn binding(id: u64, q: u16) -> SharedBinding {
    SharedBinding {
        id,
        has_reg_id: true,
        phone: 0,
        call: 7,
        cseq: 1,
        q,
        age_ms: 0,
        ttl_ms: 60_000,
    }
}

fn owner<'o>(node: &'o str, seal: &'o Seal) -> Owner<'o> {
    Owner {
        node,
        seal,
        unix_ms: 1_000_000_000,
    }
}

#[test]
fn a_binding_ages_by_the_time_it_waits_however_often_it_is_tried() {
    let now_ms = Arc::new(AtomicU64::new(5_000));
    let bindings = ClusterBindings::on_virtual_time(Arc::clone(&now_ms));
    let seal = Seal::new(&[1; 32]);
    let owner = owner("a", &seal);
    bindings.publish(b"x@d", vec![binding(1, 1_000)]);
    for waited in [0, 4_000, 8_000, 12_000] {
        now_ms.store(5_000 + waited, Ordering::Relaxed);
        let taken = bindings.take_changes(10, &owner);
        let found = &taken[0].bindings[0];
        let left = 60_000 - waited;
        assert_eq!((found.age_ms, found.ttl_ms), (waited, left));
        now_ms.fetch_add(1_000, Ordering::Relaxed);
        bindings.put_back(taken);
    }
}

#[test]
fn changes_of_one_address_are_one_write_and_too_many_have_all_published_again() {
    let bindings = ClusterBindings::default();
    let seal = Seal::new(&[1; 32]);
    let owner = owner("a", &seal);
    let before = bindings.generation();
    bindings.publish(b"x@d", vec![binding(1, 1_000)]);
    bindings.publish(b"y@d", vec![binding(2, 1_000)]);
    bindings.publish(b"x@d", vec![]);
    let mut taken = bindings.take_changes(10, &owner);
    let of = |request: &BindRequest| (request.aor.to_vec(), request.entries.len());
    let found: Vec<_> = taken.iter().map(of).collect();
    assert_eq!(found, [(b"x@d".to_vec(), 0), (b"y@d".to_vec(), 1)]);
    // The engine has failed. A later change stays.
    bindings.publish(b"x@d", vec![binding(1, 1_000), binding(3, 1_000)]);
    bindings.put_back(std::mem::take(&mut taken));
    let taken = bindings.take_changes(10, &owner);
    assert_eq!(of(&taken[0]), (b"x@d".to_vec(), 2));
    assert_eq!(of(&taken[1]), (b"y@d".to_vec(), 1));
    for number in 0..MAX_CHANGES + 1 {
        bindings.publish(&number.to_be_bytes(), vec![]);
    }
    assert!(bindings.is_busy());
    assert_eq!(bindings.counters().dropped, 1);
    bindings.note_written(1, 0, 0);
    assert_eq!(bindings.generation(), before, "there is no room yet");
    bindings.take_changes(MAX_CHANGES, &owner);
    bindings.note_written(1, 2, 3);
    assert_eq!(bindings.generation(), before + 1);
    bindings.note_written(1, 0, 0);
    assert_eq!(bindings.generation(), before + 1);
    let counters = bindings.counters();
    // Two addresses were put back, and two were rejected.
    assert_eq!(
        (counters.written, counters.failed, counters.older),
        (3, 4, 3)
    );
}

#[test]
fn bindings_to_be_removed_are_bounded_and_what_is_lost_is_counted_by_its_cause() {
    let bindings = ClusterBindings::default();
    let moved = |call| MovedBinding {
        aor: b"x@d".as_slice().into(),
        id: 1,
        call,
        cseq: 1,
    };
    let half = MAX_MOVED as u64 / 2;
    bindings.note_conflicts((0..half).map(moved).collect(), 0, 0);
    let notices = |count| (0..count).map(|call| NoticeRead::Valid(moved(call)));
    assert_eq!(bindings.note_received(notices(half + 2)), (0, 0));
    bindings.note_conflicts((0..3).map(moved).collect(), 4, 0);
    let counters = bindings.counters();
    let (received, conflicts) = (counters.received, counters.conflicts);
    assert_eq!((received.accepted, received.dropped), (half, 2));
    assert_eq!((conflicts.this_node, conflicts.dropped), (half, 3));
    assert_eq!((conflicts.other_node, conflicts.unproven), (4, 0));
    assert_eq!(counters.notices_dropped, 0, "it has sent none");
    assert_eq!(bindings.take_moved().len(), MAX_MOVED);
}

#[test]
fn who_asks_for_one_address_gets_one_answer_which_is_remembered_for_a_moment() {
    let bindings = ClusterBindings::default();
    let (sender, replies) = mpsc::channel();
    let ask = || {
        let sender = sender.clone();
        bindings.begin_find(b"x@d", Box::new(move |nodes| sender.send(nodes).unwrap()));
    };
    assert_eq!(bindings.find(b"x@d"), KnownBindings::Ask);
    ask();
    ask();
    assert_eq!(bindings.take_asked(10), [b"x@d".to_vec().into()]);
    // It is on its way.
    ask();
    assert!(bindings.take_asked(10).is_empty());
    let nodes: Arc<[AtNode]> = vec![AtNode {
        node: "b".to_owned(),
        q: 1_000,
        phones: vec![0],
    }]
    .into();
    bindings.finish_find(b"x@d", &Some(Arc::clone(&nodes)));
    let got: Vec<_> = replies.try_iter().collect();
    assert_eq!(got, vec![Some(Arc::clone(&nodes)); 3]);
    let now = bindings.now_ms();
    assert_eq!(bindings.find_at(b"x@d", now), KnownBindings::At(nodes));
    assert_eq!(
        bindings.find_at(b"x@d", now + FOUND_MS + 1),
        KnownBindings::Ask
    );
    let counters = bindings.counters();
    assert_eq!((counters.found, counters.cached, counters.none), (3, 1, 0));
}

#[test]
fn without_an_engine_nobody_waits_and_memory_is_bounded() {
    let bindings = ClusterBindings::default();
    let (sender, replies) = mpsc::channel();
    let ask = |number: usize| {
        let sender = sender.clone();
        let reply = Box::new(move |nodes| sender.send(nodes).unwrap());
        bindings.begin_find(&number.to_be_bytes(), reply);
    };
    for number in 0..MAX_ASKED + 1 {
        ask(number);
    }
    assert_eq!(replies.try_iter().collect::<Vec<_>>(), [None]);
    for aor in bindings.take_asked(MAX_ASKED) {
        bindings.finish_find(&aor, &None);
    }
    assert_eq!(replies.try_iter().count(), MAX_ASKED);
    bindings.set_engine_up(false);
    assert_eq!(bindings.find(b"x@d"), KnownBindings::Unavailable);
    ask(0);
    assert_eq!(replies.try_recv(), Ok(None));
    bindings.set_engine_up(true);
    bindings.set_paused(true);
    assert_eq!(bindings.find(b"x@d"), KnownBindings::Unavailable);
    bindings.set_paused(false);
    assert_eq!(bindings.find(b"x@d"), KnownBindings::Ask);
    for number in 0..2 * MAX_CACHED {
        bindings.finish_find(&number.to_be_bytes(), &Some(Arc::default()));
    }
    let state = bindings.state();
    assert_eq!(
        (state.cache.len(), state.added.len()),
        (MAX_CACHED, MAX_CACHED)
    );
}
