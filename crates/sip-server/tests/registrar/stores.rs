//! Locations that are not in memory: they answer later, or fail.

use sip::Now;
use sip_server::location::{Change, ChangeError, Found, Location, MemoryLocation, Revision, Saved};
use sip_server::registrar::{Examined, Outcome, Request};
use sip_server::{Aor, AorKey};

use crate::world::{World, request, run};

/// A database in front of memory.
struct Store<'l> {
    memory: &'l mut MemoryLocation,
    knows: bool,
    fails: Option<ChangeError>,
}

impl Location for Store<'_> {
    fn find(&mut self, aor: &Aor) -> Found<'_> {
        match self.knows {
            true => self.memory.find(aor),
            false => Found::Pending,
        }
    }

    fn find_gruu(&mut self, key: AorKey, gruu: u64) -> Option<Aor> {
        self.memory.find_gruu(key, gruu)
    }

    fn change(
        &mut self,
        now: Now,
        aor: &Aor,
        basis: Revision,
        changes: &mut Vec<Change>,
    ) -> Result<Saved, ChangeError> {
        if let Some(error) = self.fails {
            changes.clear();
            return Err(error);
        }
        let Saved::Now = self.memory.change(now, aor, basis, changes)? else {
            panic!("memory saves at once")
        };
        Ok(Saved::Later(17))
    }
}

const CONTACT: &str = "Contact: <sip:a@h>";

#[test]
fn a_failure_to_save_gets_500_and_changes_nothing_rfc3261_10_3() {
    let mut world = World::new();
    for (error, code) in [
        (ChangeError::Failed, 500),
        (ChangeError::Conflict, 500),
        (ChangeError::Full, 503),
        (ChangeError::UserFull, 403),
    ] {
        let mut store = Store {
            memory: &mut world.location,
            knows: true,
            fails: Some(error),
        };
        let text = request("a", 1, CONTACT);
        let access = world.access;
        let reply = run(
            &mut world.registrar,
            &mut store,
            &text,
            world.now,
            world.flow,
            access,
        );
        let reply = reply.unwrap();
        assert_eq!(reply.code, code);
        assert_eq!(reply.values("Retry-After").len(), usize::from(code == 503));
        assert!(world.location.is_empty());
    }
}

#[test]
fn a_request_waits_for_a_location_that_asks_and_is_run_again() {
    let mut world = World::new();
    let text = request("a", 1, CONTACT);
    let mut send = |knows| {
        let mut store = Store {
            memory: &mut world.location,
            knows,
            fails: None,
        };
        run(
            &mut world.registrar,
            &mut store,
            &text,
            world.now,
            world.flow,
            world.access,
        )
    };
    assert_eq!(send(false), None);
    assert_eq!(send(false), None);
    assert_eq!(send(true).unwrap().code, 200);
}

#[test]
fn an_answer_waits_for_a_location_that_saves_later() {
    let mut world = World::new();
    let mut spans = sip::Spans::new();
    let mut send = |text: &str| {
        let mut store = Store {
            memory: &mut world.location,
            knows: true,
            fails: None,
        };
        let message = sip::Message::parse(text.as_bytes(), &mut spans).unwrap();
        let mut buffer = [0; 1024];
        let Examined::Aor(aor) = world.registrar.examine(&message, &mut buffer) else {
            panic!("ours")
        };
        let request = Request {
            message: &message,
            aor,
            flow: world.flow,
            access: world.access,
        };
        let outcome = world
            .registrar
            .register(world.now, &request, &mut store, &mut buffer);
        match outcome {
            Outcome::Response(answer) => (None, answer.code),
            Outcome::Later(number, answer) => (Some(number), answer.code),
            Outcome::Pending => panic!("it knows"),
        }
    };
    assert_eq!(send(&request("a", 1, CONTACT)), (Some(17), 200));
    // What changes nothing need not be saved, and a refusal neither.
    assert_eq!(send(&request("a", 2, "")), (None, 200));
    assert_eq!(send(&request("a", 1, CONTACT)), (None, 500));
}
