//! All operations on a store end in time for a response, and the response says what was done. In virtual time.

use std::time::Duration;

use stores::{Found, Shared};

use super::*;

/// The time for a request.
const TIME: Duration = Duration::from_secs(7);
/// The time for one query.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A store whose changes take this long.
#[derive(Debug)]
struct Slow(Duration);

impl Slow {
    fn after<'a, T: Send + 'a>(&'a self, result: T) -> StoreFuture<'a, T> {
        Box::pin(async move {
            tokio::time::sleep(self.0).await;
            Ok(result)
        })
    }
}

impl Store for Slow {
    fn find_user<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, Found> {
        self.after(Found::default())
    }

    fn shared(&self) -> StoreFuture<'_, Shared> {
        self.after(Shared::default())
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}

impl Directory for Slow {
    fn put_user<'a>(&'a self, _: &'a str, _: &'a str, _: Keys) -> StoreFuture<'a, ()> {
        self.after(())
    }

    fn delete_user<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, bool> {
        self.after(true)
    }

    fn list_users<'a>(
        &'a self,
        _: Option<&'a str>,
        _: Option<(&'a str, &'a str)>,
        _: usize,
    ) -> StoreFuture<'a, Vec<(String, String)>> {
        self.after(Vec::new())
    }

    fn put_secret<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, ()> {
        self.after(())
    }

    fn delete_secret<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, bool> {
        self.after(true)
    }

    fn set_option<'a>(&'a self, _: &'a str, _: RealmOption, _: Option<u64>) -> StoreFuture<'a, ()> {
        self.after(())
    }

    fn set_origin<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> StoreFuture<'a, bool> {
        self.after(true)
    }
}

/// The error of a request to a store whose changes take `each`. It comes within [`TIME`].
fn error(each: Duration, request: impl AsyncFnOnce(Open) -> Result<Value, Problem>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let begun = Instant::now();
        let open = Open {
            store: Arc::new(Slow(each)),
            kind: Kind::Sqlite,
            timeout: TIMEOUT,
            deadline: begun + TIME,
            caller: Caller("test".to_owned()),
        };
        let outcome = request(open).await;
        assert!(begun.elapsed() <= TIME, "{:?}", begun.elapsed());
        outcome.expect_err("it is too slow").detail().to_owned()
    })
}

async fn import(open: Open) -> Result<Value, Problem> {
    let lines = (0..5).map(|number| format!("user{number}:a:{}\n", "0".repeat(32)));
    let text = lines.collect();
    open.import_users("a", UsersText { text }).await
}

#[test]
fn an_import_ends_in_time_and_says_how_many_users_it_has_made() {
    // The third would be there after 9 s.
    let text = error(Duration::from_secs(3), import);
    let expected = "stopped at the user user2 of the realm a, after 2 of 5 users: the sqlite store failed: the time for this request is over";
    assert_eq!(text, expected);
    // The seventh second is over.
    let text = error(Duration::from_millis(3_500), import);
    assert!(
        text.contains("after 2 of 5 users: the time for this request is over: send fewer"),
        "{text}"
    );
    let text = error(Duration::from_secs(6), import);
    assert!(
        text.contains("after 0 of 5 users: the sqlite store failed: no response within 5000 ms"),
        "{text}"
    );
}

#[test]
fn a_realm_is_set_in_time_and_the_response_says_what_was_set() {
    let text = error(Duration::from_secs(3), async |open: Open| {
        let origins = vec![
            "https://a.example".to_owned(),
            "https://b.example".to_owned(),
        ];
        let realm = Realm {
            origins,
            max_bps: Some(7),
            ..Realm::default()
        };
        open.set_realm("a", realm).await
    });
    assert_eq!(
        text,
        "the sqlite store failed: the time for this request is over; changed 2 of 3: origin=https://a.example, \
         origin=https://b.example; not changed: max-bps=7; repeat the command for these"
    );
}
