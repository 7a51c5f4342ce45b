//! All operations on a store end in time for a response, and the response says what was done. In virtual time.

use std::sync::Mutex;
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

/// The audit lines of realm `a` that are written while `test` runs. Of each, it returns the part between the realm and
/// `by=`.
fn audit_lines(test: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, test);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once("realm=\"a\" ")?;
        Some(rest.split_once("by=")?.0.trim_end().to_owned())
    });
    lines.collect()
}

/// The text of a log.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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

async fn set_realm(open: Open) -> Result<Value, Problem> {
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
}

#[test]
fn a_realm_is_set_in_time_and_the_response_says_what_was_set() {
    let text = error(Duration::from_secs(3), set_realm);
    assert_eq!(
        text,
        "the sqlite store failed: the time for this request is over; changed 2 of 3: origin=https://a.example, \
         origin=https://b.example; not changed: max-bps=7; repeat the command for these"
    );
}

#[test]
fn each_change_of_a_realm_has_its_audit_line_at_once() {
    let [a, b] = ["a", "b"].map(|name| format!("origin=\"https://{name}.example\""));
    let third = "max-bps=\"7\" outcome=\"failed\"".to_owned();
    let lines = |each: u64, given_up_after: Duration| {
        audit_lines(|| {
            error(Duration::from_millis(each), async |open: Open| {
                let outcome = tokio::time::timeout(given_up_after, set_realm(open)).await;
                outcome.unwrap_or_else(|_| Err(Problem::bad_request("it is given up")))
            });
        })
    };
    // The third is cut off after 7 s.
    assert_eq!(lines(3_000, TIME * 2), [a.clone(), b.clone(), third]);
    // The third does not begin.
    assert_eq!(lines(3_500, TIME * 2), [a.clone(), b.clone()]);
    // The process ends during the second.
    assert_eq!(lines(3_000, Duration::from_secs(5)), [a]);
}

#[test]
fn a_change_that_does_not_begin_in_time_has_no_audit_line() {
    let lines = audit_lines(|| {
        for is_new in [true, false] {
            let text = error(Duration::ZERO, async |open: Open| {
                tokio::time::sleep(TIME).await;
                match is_new {
                    true => open.add_secret("a", Secret::default()).await,
                    false => open.delete_user("a", "user").await,
                }
            });
            assert!(text.contains("the time for this request is over"), "{text}");
        }
    });
    assert_eq!(lines, [""; 0]);
}
