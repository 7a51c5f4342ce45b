//! Registrations on the way to the engine: an engine in memory, and what it says of phones that have moved.

use super::*;
use crate::cluster::bindings::{Conflicts, ReceivedNotices};
use crate::cluster::engine::{BindOutcome, Conflict, Exchanged, Leased, Publication};
use crate::cluster::leases::Request;
use crate::cluster::{Directory, NodeInfo, SharedBinding};
use crate::store::StoreFuture;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

#[test]
fn addresses_of_a_server_that_is_away_wait_and_rejected_ones_do_not() {
    let bindings = Arc::new(ClusterBindings::default());
    let binding = SharedBinding {
        id: 1,
        has_reg_id: true,
        phone: 0,
        call: 2,
        cseq: 3,
        q: 1_000,
        age_ms: 0,
        ttl_ms: 600_000,
    };
    for aor in [&b"written@d"[..], b"away@d", b"rejected@d"] {
        bindings.publish(aor, vec![binding]);
    }
    let seal = Seal::new(&[1; 32]);
    let mut writer = Writer::new("a".to_owned(), seal, Arc::clone(&bindings));
    let requests = writer.begin(1_000);
    let away = || Err(StoreError::Connect("away".to_owned()));
    let rejected = Err(StoreError::Query("WRONGTYPE".to_owned()));
    let written = BindOutcome {
        older: 1,
        ..BindOutcome::default()
    };
    let bound = vec![Ok(written), away(), rejected];
    assert_eq!(writer.end(requests, Ok(bound), Duration::ZERO), GATHER_TIME);
    let counts = bindings.counters();
    assert_eq!((counts.written, counts.failed, counts.waiting), (1, 2, 1));
    assert_eq!(counts.older, 1);
    let requests = writer.begin(1_000);
    assert_eq!(requests.len(), 1);
    assert_eq!(&*requests[0].aor, b"away@d");
    // Nothing is written: all wait, for longer and longer.
    let pause = writer.end(requests, Ok(vec![away()]), Duration::ZERO);
    assert!(pause >= Duration::from_millis(FIRST_PAUSE_MS / 2));
    assert_eq!(bindings.counters().waiting, 1);
    assert!(writer.batch.get() == BatchSize::MAX);
}

/// A node with a binding that another node has, too.
struct Phone {
    writer: Writer,
    request: BindRequest,
    /// What the other node has written, with its earlier REGISTER or with its later one.
    earlier: String,
    later: String,
}

const NOW_MS: u64 = 1_000_000_000;

fn shared(id: u64, call: u64, age_ms: u64) -> SharedBinding {
    SharedBinding {
        id,
        has_reg_id: true,
        phone: 0,
        call,
        cseq: 3,
        q: 1_000,
        age_ms,
        ttl_ms: 600_000,
    }
}

/// The request of a node for one binding, as it writes it with this key.
fn written(
    node: &str,
    key: u8,
    aor: &[u8],
    (binding, unix_ms): (SharedBinding, u64),
) -> (Writer, BindRequest) {
    let bindings = Arc::new(ClusterBindings::default());
    bindings.publish(aor, vec![binding]);
    let writer = Writer::new(node.to_owned(), Seal::new(&[key; 32]), bindings);
    let request = writer.begin(unix_ms).remove(0);
    (writer, request)
}

fn written_text(node: &str, key: u8, aor: &[u8], binding: SharedBinding) -> String {
    let (_, mut request) = written(node, key, aor, (binding, NOW_MS));
    request.entries.remove(0).text
}

/// The node A has a REGISTER of this age.
fn phone(binding: SharedBinding) -> Phone {
    let (writer, request) = written("a", 1, b"bob@d", (binding, NOW_MS));
    Phone {
        writer,
        request,
        earlier: written_text("b", 1, b"bob@d", shared(1, 8, 60_000)),
        later: written_text("b", 1, b"bob@d", shared(1, 9, 10_000)),
    }
}

impl Phone {
    /// What node A removes, and what it tells other nodes to remove: the Call-IDs. Then how many texts are forged.
    fn end(mut self, is_accepted: bool, text: &str) -> (Vec<u64>, Vec<(String, u64)>, u64) {
        let conflict = Conflict {
            is_accepted,
            text: text.to_owned(),
        };
        let written = BindOutcome {
            older: u64::from(!is_accepted),
            conflicts: vec![conflict],
        };
        let requests = vec![self.request.clone()];
        self.writer
            .end(requests, Ok(vec![Ok(written)]), Duration::ZERO);
        let own = self.writer.bindings.take_moved();
        let others = self.writer.moved.iter();
        let others = others.map(|(node, it)| (node.clone(), it.call));
        (
            own.iter().map(|it| it.call).collect(),
            others.collect(),
            self.writer.forged,
        )
    }
}

#[test]
fn a_node_believes_only_the_text_of_the_other_node_about_a_phone_that_has_moved() {
    let of_age = |age_ms| phone(shared(1, 7, age_ms));
    let nothing = || (Vec::new(), Vec::new(), 0);
    // The phone was at B before: B removes its binding. It is at B now: A removes its own.
    let it = of_age(30_000);
    let text = it.earlier.clone();
    assert_eq!(it.end(true, &text), (vec![], vec![("b".to_owned(), 8)], 0));
    let it = of_age(30_000);
    let text = it.later.clone();
    assert_eq!(it.end(false, &text), (vec![7], vec![], 0));
    // Who writes to the engine changes what is not behind the MAC: the engine says the opposite.
    let it = of_age(30_000);
    let text = it.earlier.clone();
    assert_eq!(it.end(false, &text), nothing());
    let it = of_age(30_000);
    let text = it.later.clone();
    assert_eq!(it.end(true, &text), nothing());
    // Or repeats the text of another binding, of another address, of this node, or a text that has ended.
    let binding = shared(1, 9, 10_000);
    let ended = SharedBinding {
        age_ms: 0,
        ttl_ms: 1,
        ..binding
    };
    for other in [
        written_text("b", 1, b"bob@d", shared(2, 9, 10_000)),
        written_text("b", 1, b"eve@d", binding),
        written_text("a", 1, b"bob@d", binding),
    ] {
        assert_eq!(of_age(30_000).end(false, &other), nothing());
    }
    let mut late = of_age(30_000);
    late.request.taken_unix_ms += 600_000;
    let text = written_text("b", 1, b"bob@d", ended);
    assert_eq!(late.end(false, &text), nothing());
    // Or writes something of its own.
    let forged = written_text("b", 2, b"bob@d", binding);
    for text in [&*forged, "", "nonsense"] {
        assert_eq!(of_age(30_000).end(false, text), (vec![], vec![], 1));
    }
}

#[test]
fn one_register_at_two_nodes_and_a_phone_without_a_reg_id_have_not_moved() {
    // The same Call-ID and CSeq: it was sent again, to another node.
    let same = shared(1, 9, 60_000);
    for is_accepted in [true, false] {
        let it = phone(same);
        let text = it.later.clone();
        assert_eq!(it.end(is_accepted, &text), (vec![], vec![], 0));
    }
    let without = SharedBinding {
        has_reg_id: false,
        ..shared(1, 7, 30_000)
    };
    for is_accepted in [true, false] {
        let it = phone(without);
        let text = match is_accepted {
            true => it.earlier.clone(),
            false => it.later.clone(),
        };
        assert_eq!(it.end(is_accepted, &text), (vec![], vec![], 0));
    }
}

#[test]
fn a_text_of_an_earlier_version_does_not_prove_that_a_phone_has_moved() {
    let seal = Seal::new(&[1; 32]);
    let text = serde_json::json!({
        "aor": crate::keys::hex(b"bob@d"), "node": "b", "id": 1, "q": 1_000, "ends_unix_s": NOW_MS,
    });
    let text = seal.sign("binding", &text);
    for is_accepted in [true, false] {
        let it = phone(shared(1, 7, 30_000));
        assert_eq!(it.end(is_accepted, &text), (vec![], vec![], 0));
    }
}

/// An engine that has bindings of the nodes B and C from before, and that is told slowly or not at all.
#[derive(Debug, Default)]
struct FakeEngine {
    bound: AtomicU64,
    /// Nodes and the number of notices for each.
    told: Mutex<Vec<(String, usize)>>,
    /// So many requests to tell fail, and then the engine responds.
    failures: AtomicU64,
    never_tells: bool,
    /// Requests to tell that have no response yet.
    telling: AtomicU64,
    /// Bindings that were written in that time.
    bound_meanwhile: AtomicU64,
}

struct Telling<'t>(&'t AtomicU64);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FakeEngine {
    /// What another node has written of the binding in this request.
    fn conflict(request: &BindRequest) -> Conflict {
        let id = request.bindings[0].id;
        let node = if id == 1 { "b" } else { "c" };
        let before = (shared(id, 8, 60_000), unix_ms());
        let (_, mut request) = written(node, 1, &request.aor, before);
        Conflict {
            is_accepted: true,
            text: request.entries.remove(0).text,
        }
    }
}

impl Engine for FakeEngine {
    fn exchange<'a>(&'a self, _: &'a Publication) -> StoreFuture<'a, Exchanged> {
        Box::pin(std::future::pending())
    }

    fn leave<'a>(&'a self, _: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn lease<'a>(&'a self, _: &'a str, _: &'a [Request]) -> StoreFuture<'a, Vec<Leased>> {
        Box::pin(std::future::pending())
    }

    fn bind<'a>(&'a self, _: &'a str, all: &'a [BindRequest]) -> StoreFuture<'a, Vec<BindResult>> {
        let count = all.len() as u64;
        self.bound.fetch_add(count, Ordering::Relaxed);
        if self.telling.load(Ordering::Relaxed) > 0 {
            self.bound_meanwhile.fetch_add(count, Ordering::Relaxed);
        }
        let bound = all.iter().map(|request| {
            Ok(BindOutcome {
                older: 0,
                conflicts: vec![Self::conflict(request)],
            })
        });
        let bound = bound.collect();
        Box::pin(async { Ok(bound) })
    }

    fn find_bindings<'a>(&'a self, _: &'a [Box<[u8]>]) -> StoreFuture<'a, Vec<Texts>> {
        Box::pin(std::future::pending())
    }

    fn tell<'a>(&'a self, node: &'a str, all: &'a [(String, String)]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.telling.fetch_add(1, Ordering::Relaxed);
            let _telling = Telling(&self.telling);
            if self.never_tells {
                std::future::pending::<()>().await;
            }
            let left = self.failures.load(Ordering::Relaxed);
            if left > 0 {
                self.failures.store(left - 1, Ordering::Relaxed);
                return Err(StoreError::Connect("away".to_owned()));
            }
            self.told.lock().unwrap().push((node.to_owned(), all.len()));
            Ok(())
        })
    }

    fn send<'a>(&'a self, _: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

fn tasks(engine: &Arc<FakeEngine>) -> Tasks {
    let seal = Seal::new(&[1; 32]);
    let own = NodeInfo {
        name: "a".to_owned(),
        ..NodeInfo::default()
    };
    let directory = Directory::new(own, seal.clone());
    let bindings = Arc::new(ClusterBindings::default());
    Tasks {
        engine: Arc::clone(engine) as _,
        shared: Arc::new(Shared::new(
            directory,
            Arc::default(),
            Some(Arc::clone(&bindings)),
        )),
        bindings,
        node: "a".to_owned(),
        seal,
    }
}

/// Runs the tasks of node A until `is_done`, and calls that again and again. The nodes B and C are alive.
fn run_until(engine: &Arc<FakeEngine>, mut is_done: impl FnMut(&ClusterBindings) -> bool) {
    let tasks = tasks(engine);
    let (shared, bindings) = (Arc::clone(&tasks.shared), Arc::clone(&tasks.bindings));
    let mut others = ["b", "c"].map(|name| {
        let info = NodeInfo {
            name: name.to_owned(),
            ..NodeInfo::default()
        };
        Directory::new(info, Seal::new(&[1; 32]))
    });
    let work = all(
        Arc::clone(engine) as _,
        Arc::clone(&shared),
        ("a".to_owned(), Seal::new(&[1; 32])),
    );
    let done = async {
        let started = Instant::now();
        loop {
            let texts = others.each_mut().map(|it| it.publish(unix_s(), |_| {}));
            let now_ms = shared.now_ms();
            shared.directory().learn(&texts, now_ms, unix_s());
            if is_done(&bindings) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{engine:?}");
            sleep(Duration::from_millis(10)).await;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let _ended = futures_util::future::select(pin!(work), pin!(done)).await;
    });
}

#[test]
fn registrations_are_written_while_another_node_cannot_be_told() {
    let engine = Arc::new(FakeEngine {
        never_tells: true,
        ..FakeEngine::default()
    });
    let mut number = 0;
    run_until(&engine, |bindings| {
        number += 1;
        let aor = format!("user{number}@d");
        bindings.publish(aor.as_bytes(), vec![shared(1, 7, 0)]);
        engine.bound_meanwhile.load(Ordering::Relaxed) >= 2
    });
}

#[test]
fn all_nodes_are_told_after_errors_of_the_engine() {
    let engine = Arc::new(FakeEngine::default());
    engine.failures.store(2, Ordering::Relaxed);
    let mut is_published = false;
    run_until(&engine, |bindings| {
        if !std::mem::replace(&mut is_published, true) {
            bindings.publish(b"bob@d", vec![shared(1, 7, 0)]);
            bindings.publish(b"eve@d", vec![shared(2, 7, 0)]);
        }
        bindings.counters().notices_sent == 2
    });
    let mut told = engine.told.lock().unwrap().clone();
    told.sort();
    assert_eq!(told, [("b".to_owned(), 1), ("c".to_owned(), 1)]);
}

fn notice(call: u64, age: Duration) -> Notice {
    Notice {
        node: "b".to_owned(),
        moved: MovedBinding {
            aor: b"bob@d".as_slice().into(),
            id: 1,
            call,
            cseq: 1,
        },
        since: Instant::now().checked_sub(age).expect("an uptime"),
    }
}

#[test]
fn a_notice_is_not_given_up_while_this_node_is_cut_off_itself() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let new = || vec![notice(1, minutes(0)), notice(2, minutes(2))];
    let calls = |all: &[Notice]| all.iter().map(|it| it.moved.call).collect::<Vec<_>>();
    let mut notices = new();
    assert_eq!(expire(&mut notices, true, minutes(2)), 1);
    assert_eq!(calls(&notices), [1]);
    let mut notices = new();
    assert_eq!(expire(&mut notices, false, minutes(2)), 0);
    assert_eq!(calls(&notices), [1, 2]);
    // It knows the other nodes again, and one of them is dead.
    assert_eq!(expire(&mut notices, true, Duration::ZERO), 0);
    let mut notices = vec![notice(1, minutes(3))];
    assert_eq!(expire(&mut notices, false, minutes(1)), 1);
}

#[test]
fn conflicts_and_notices_are_counted_apart() {
    let own = phone(shared(1, 7, 30_000));
    let texts = [
        (false, own.later.clone()),
        (true, own.earlier.clone()),
        (false, own.earlier.clone()),
        (true, "nonsense".to_owned()),
    ];
    let conflicts = texts.map(|(is_accepted, text)| Conflict { is_accepted, text });
    let written = BindOutcome {
        older: 2,
        conflicts: conflicts.into(),
    };
    let Phone {
        mut writer,
        request,
        ..
    } = own;
    writer.end(vec![request], Ok(vec![Ok(written)]), Duration::ZERO);
    let counts = writer.bindings.counters();
    let expected = Conflicts {
        this_node: 1,
        other_node: 1,
        unproven: 2,
        dropped: 0,
    };
    assert_eq!(counts.conflicts, expected);
    assert_eq!(counts.received, ReceivedNotices::default());
    assert_eq!((counts.notices_sent, counts.notices_dropped), (0, 0));
    assert_eq!((writer.moved.len(), writer.forged), (1, 1));
}

#[test]
fn a_machine_that_has_slept_writes_its_bindings_as_old_as_they_are_and_all_of_them() {
    let now_ms = Arc::new(AtomicU64::new(100_000));
    let bindings = Arc::new(ClusterBindings::on_virtual_time(Arc::clone(&now_ms)));
    let seal = Seal::new(&[1; 32]);
    let writer = Writer::new("a".to_owned(), seal, Arc::clone(&bindings));
    assert!(writer.begin(NOW_MS).is_empty());
    let before = bindings.generation();
    bindings.publish(b"bob@d", vec![shared(1, 7, 30_000)]);
    // An hour passes for all others. A worker writes what it had, and a phone registers.
    now_ms.store(101_000, Ordering::Relaxed);
    bindings.publish(b"eve@d", vec![shared(2, 7, 31_000), shared(3, 7, 0)]);
    let requests = writer.begin(NOW_MS + 3_601_000);
    let ages = requests.iter().flat_map(|it| &it.entries);
    let ages: Vec<_> = ages.map(|entry| entry.age_ms).collect();
    assert_eq!(ages, [3_631_000, 3_631_000, 0]);
    assert_eq!(bindings.generation(), before + 1);
    // The engine is away: the hour is added once.
    bindings.put_back(requests);
    now_ms.store(102_000, Ordering::Relaxed);
    let requests = writer.begin(NOW_MS + 3_602_000);
    assert_eq!(requests[0].entries[0].age_ms, 3_632_000);
    // A small step, as of NTP, and a clock that is set back.
    now_ms.store(103_000, Ordering::Relaxed);
    assert!(writer.begin(NOW_MS + 3_606_000).is_empty());
    assert_eq!(bindings.generation(), before + 1);
    now_ms.store(104_000, Ordering::Relaxed);
    assert!(writer.begin(NOW_MS).is_empty());
    assert_eq!(bindings.generation(), before + 2);
}

#[test]
fn notices_that_do_not_fit_are_counted() {
    let tasks = tasks(&Arc::new(FakeEngine::default()));
    let (notices, mut waiting) = mpsc::channel(2);
    let moved = |call| ("b".to_owned(), notice(call, Duration::ZERO).moved);
    tasks.queue((0..5).map(moved).collect(), &notices);
    assert_eq!(tasks.bindings.counters().notices_dropped, 3);
    assert_eq!(waiting.try_recv().unwrap().moved.call, 0);
    tasks.queue(vec![moved(9)], &notices);
    assert_eq!(tasks.bindings.counters().notices_dropped, 3);
}
