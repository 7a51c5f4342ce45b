//! Changes of a realm: one change of the store for each origin and each limit.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;
use crate::store::{Directory, RealmOption, Shared};

/// Changes that an error message names. A realm can have thousands of origins.
const NAMED: usize = 20;

/// One change of a realm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RealmChange {
    /// A web origin selects the realm.
    SetOrigin(String),
    /// A web origin selects no realm any more.
    RemoveOrigin(String),
    /// A limit gets this value.
    SetLimit(RealmOption, u64),
    /// The realm has no such limit any more.
    RemoveLimit(RealmOption),
}

impl RealmChange {
    const fn is_removal(&self) -> bool {
        matches!(
            self,
            RealmChange::RemoveOrigin(_) | RealmChange::RemoveLimit(_)
        )
    }

    /// Its name and its value: for a limit that is removed, 0.
    #[must_use]
    pub fn field(&self) -> (&'static str, String) {
        match self {
            RealmChange::SetOrigin(origin) | RealmChange::RemoveOrigin(origin) => {
                ("origin", origin.clone())
            }
            RealmChange::SetLimit(option, value) => (option.name(), value.to_string()),
            RealmChange::RemoveLimit(option) => (option.name(), "0".to_owned()),
        }
    }

    async fn make(&self, directory: &dyn Directory, realm: &str) -> Result<(), StoreError> {
        match self {
            RealmChange::SetOrigin(origin) => {
                directory.set_origin(origin, Some(realm)).await.map(drop)
            }
            RealmChange::RemoveOrigin(origin) => directory.set_origin(origin, None).await.map(drop),
            RealmChange::SetLimit(option, value) => {
                directory.set_option(realm, *option, Some(*value)).await
            }
            RealmChange::RemoveLimit(option) => directory.set_option(realm, *option, None).await,
        }
    }
}

impl fmt::Display for RealmChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RealmChange::SetOrigin(origin) | RealmChange::RemoveOrigin(origin) => {
                write!(f, "origin={origin}")
            }
            RealmChange::SetLimit(option, value) => write!(f, "{}={value}", option.name()),
            RealmChange::RemoveLimit(option) => f.write_str(option.name()),
        }
    }
}

/// Changes that have stopped early.
#[derive(Debug)]
pub struct PartialChange {
    /// Why.
    pub error: StoreError,
    /// The changes that were made before.
    pub made: Vec<RealmChange>,
    /// The other changes. The store may have made the first of them, if its response has not arrived.
    pub left: Vec<RealmChange>,
}

impl PartialChange {
    /// How many changes were made, such as `2 of 3`.
    #[must_use]
    pub fn count(&self) -> String {
        let made = self.made.len();
        format!("{made} of {}", made + self.left.len())
    }
}

/// Says what was done and what is left.
impl fmt::Display for PartialChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.made.iter().chain(&self.left);
        let verb = match all.all(RealmChange::is_removal) {
            true => "removed",
            false => "changed",
        };
        write!(f, "{}; {verb} {}", self.error, self.count())?;
        write_list(f, ": ", &self.made)?;
        write_list(f, &format!("; not {verb}: "), &self.left)?;
        f.write_str("; repeat the command for these")
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, before: &str, list: &[RealmChange]) -> fmt::Result {
    for (number, change) in list.iter().take(NAMED).enumerate() {
        let separator = if number == 0 { before } else { ", " };
        write!(f, "{separator}{change}")?;
    }
    match list.len().saturating_sub(NAMED) {
        0 => Ok(()),
        more => write!(f, ", and {more} more"),
    }
}

impl std::error::Error for PartialChange {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The removal of all origins and limits of a realm.
#[must_use]
pub fn removal_of_realm(shared: &Shared, realm: &str) -> Vec<RealmChange> {
    let origins = shared.origins.iter().filter(|(_, of)| of == realm);
    let origins = origins.map(|(origin, _)| RealmChange::RemoveOrigin(origin.clone()));
    let limits = shared.options.iter().filter(|(of, ..)| of == realm);
    let limits = limits.map(|(_, option, _)| RealmChange::RemoveLimit(*option));
    origins.chain(limits).collect()
}

/// The changes that set these origins and limits. A limit of 0 is removed.
#[must_use]
pub fn settings_of_realm(
    origins: &[String],
    limits: &[(RealmOption, Option<u64>)],
) -> Vec<RealmChange> {
    let origins = origins.iter().cloned().map(RealmChange::SetOrigin);
    let limits = limits.iter().filter_map(|(option, value)| {
        Some(match (*value)? {
            0 => RealmChange::RemoveLimit(*option),
            value => RealmChange::SetLimit(*option, value),
        })
    });
    origins.chain(limits).collect()
}

/// Makes these changes of a realm, one after the other. Each may take `timeout`, and all must end before `deadline`.
/// `after` gets each change that has begun, as soon as it has ended, and whether it was made. If the response of the
/// store has not arrived, the store may have made it nevertheless.
///
/// # Errors
/// If the store fails, or does not respond in time. The other changes are not made.
pub async fn change_realm(
    directory: &dyn Directory,
    realm: &str,
    changes: Vec<RealmChange>,
    timeout: Duration,
    deadline: Option<Instant>,
    mut after: impl FnMut(&RealmChange, bool),
) -> Result<(), PartialChange> {
    for (number, change) in changes.iter().enumerate() {
        let stopped = |error| PartialChange {
            error,
            made: changes[..number].to_vec(),
            left: changes[number..].to_vec(),
        };
        if is_over(deadline) {
            return Err(stopped(StoreError::Deadline));
        }
        let outcome = within(timeout, deadline, change.make(directory, realm)).await;
        after(change, outcome.is_ok());
        outcome.map_err(stopped)?;
    }
    Ok(())
}

/// Whether the time is over, so that nothing begins.
#[must_use]
pub fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Waits for a store at most for `timeout`, and until `deadline`. After the deadline, nothing begins.
///
/// # Errors
/// The error of the store; [`StoreError::Timeout`] or [`StoreError::Deadline`] without a response in time.
pub async fn within<T>(
    timeout: Duration,
    deadline: Option<Instant>,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let (limit, late) = match left {
        Some(Duration::ZERO) => return Err(StoreError::Deadline),
        Some(left) if left < timeout => (left, StoreError::Deadline),
        _ => (timeout, StoreError::Timeout(timeout)),
    };
    let outcome = tokio::time::timeout(limit, answer).await;
    outcome.unwrap_or(Err(late))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::store::StoreFuture;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Each deletion of an origin takes `origin`, and each deletion of a limit `limit`.
    struct Slow {
        origin: Duration,
        limit: Duration,
    }

    fn never<'a, T: 'a>() -> StoreFuture<'a, T> {
        Box::pin(std::future::pending())
    }

    impl Directory for Slow {
        fn put_user<'a>(&'a self, _: &'a str, _: &'a str, _: Keys) -> StoreFuture<'a, ()> {
            never()
        }

        fn delete_user<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, bool> {
            never()
        }

        fn list_users<'a>(
            &'a self,
            _: Option<&'a str>,
            _: Option<(&'a str, &'a str)>,
            _: usize,
        ) -> StoreFuture<'a, Vec<(String, String)>> {
            never()
        }

        fn put_secret<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, ()> {
            never()
        }

        fn delete_secret<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, bool> {
            never()
        }

        fn set_option<'a>(
            &'a self,
            _: &'a str,
            _: RealmOption,
            _: Option<u64>,
        ) -> StoreFuture<'a, ()> {
            Box::pin(async {
                tokio::time::sleep(self.limit).await;
                Ok(())
            })
        }

        fn set_origin<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> StoreFuture<'a, bool> {
            Box::pin(async {
                tokio::time::sleep(self.origin).await;
                Ok(true)
            })
        }
    }

    fn shared(origins: usize) -> Shared {
        let origins = (0..origins).map(|n| (format!("https://{n}.example"), "a".to_owned()));
        let other = ("https://other.example".to_owned(), "b".to_owned());
        Shared {
            origins: origins.chain([other]).collect(),
            options: vec![
                ("a".to_owned(), RealmOption::MaxBps, 1_000),
                ("b".to_owned(), RealmOption::UserQuota, 1),
            ],
            ..Shared::default()
        }
    }

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(test)
    }

    /// Removes the realm `a`, in virtual time.
    fn remove(slow: &Slow, origins: usize) -> Result<(), PartialChange> {
        remove_within(slow, origins, None)
    }

    fn remove_within(
        slow: &Slow,
        origins: usize,
        total: Option<Duration>,
    ) -> Result<(), PartialChange> {
        let changes = removal_of_realm(&shared(origins), "a");
        assert_eq!(changes.len(), origins + 1);
        block_on(async {
            let deadline = total.map(|total| Instant::now() + total);
            change_realm(slow, "a", changes, TIMEOUT, deadline, |_, _| {}).await
        })
    }

    #[test]
    fn each_change_of_a_realm_has_its_own_timeout() {
        let step = TIMEOUT * 3 / 4;
        let slow = Slow {
            origin: step,
            limit: step,
        };
        remove(&slow, 3).expect("no step is too slow");
    }

    #[test]
    fn all_changes_of_a_realm_end_before_the_deadline() {
        let slow = Slow {
            origin: TIMEOUT * 3 / 4,
            limit: Duration::ZERO,
        };
        // The third step would end after 4.5 s, the second ends after 3 s.
        for total in [4, 3] {
            let total = Duration::from_secs(total);
            let stopped = remove_within(&slow, 9, Some(total)).expect_err("there are too many");
            let text = stopped.to_string();
            let start = "the time for this request is over; removed 2 of 10: ";
            assert!(text.starts_with(start), "{text}");
        }
        remove_within(&slow, 2, Some(TIMEOUT * 2)).expect("there is time for two");
    }

    /// What is reported of a removal whose steps take 1.5 s, and that has this time.
    fn reported(deadline: Option<Duration>, dropped_after: Duration) -> Vec<bool> {
        let step = TIMEOUT * 3 / 4;
        let slow = Slow {
            origin: step,
            limit: step,
        };
        let changes = removal_of_realm(&shared(9), "a");
        let mut reported = Vec::new();
        block_on(async {
            let deadline = deadline.map(|time| Instant::now() + time);
            let mut expected = changes.clone().into_iter();
            let after = |change: &RealmChange, is_made| {
                assert_eq!(Some(change), expected.next().as_ref());
                reported.push(is_made);
            };
            let removal = change_realm(&slow, "a", changes, TIMEOUT, deadline, after);
            let _ = tokio::time::timeout(dropped_after, removal).await;
        });
        reported
    }

    #[test]
    fn each_change_is_reported_when_it_has_ended() {
        let [long, second] = [60, 1].map(Duration::from_secs);
        // Nobody waits for the fourth, which would end after 6 s.
        assert_eq!(reported(None, second * 5), [true; 3]);
        // The deadline cuts the third off.
        assert_eq!(reported(Some(second * 4), long), [true, true, false]);
        // The third does not begin.
        assert_eq!(reported(Some(second * 3), long), [true, true]);
        assert_eq!(reported(Some(Duration::ZERO), long), [true; 0]);
    }

    #[test]
    fn a_removal_that_stops_says_what_was_removed_and_what_is_left() {
        let slow = Slow {
            origin: TIMEOUT / 4,
            limit: TIMEOUT * 2,
        };
        let stopped = remove(&slow, 2).expect_err("the limit is too slow");
        assert_eq!(
            stopped.left,
            [RealmChange::RemoveLimit(RealmOption::MaxBps)]
        );
        assert_eq!(
            stopped.to_string(),
            "no response within 2000 ms; removed 2 of 3: origin=https://0.example, origin=https://1.example; \
             not removed: max-bps; repeat the command for these"
        );
        let slow = Slow {
            origin: TIMEOUT * 2,
            limit: Duration::ZERO,
        };
        let stopped = remove(&slow, 30).expect_err("the first origin is too slow");
        let text = stopped.to_string();
        assert!(text.contains("removed 0 of 31; not removed: "), "{text}");
        assert!(text.contains(", and 11 more; repeat"), "{text}");
    }

    #[test]
    fn a_change_that_stops_says_what_was_set() {
        let slow = Slow {
            origin: TIMEOUT / 4,
            limit: TIMEOUT * 2,
        };
        let limits = [
            (RealmOption::MaxBps, Some(7)),
            (RealmOption::TotalQuota, None),
            (RealmOption::UserQuota, Some(0)),
        ];
        let changes = settings_of_realm(&["https://a.example".to_owned()], &limits);
        let stopped = change_realm(&slow, "a", changes, TIMEOUT, None, |_, _| {});
        let stopped = block_on(stopped);
        assert_eq!(
            stopped.expect_err("the limit is too slow").to_string(),
            "no response within 2000 ms; changed 1 of 3: origin=https://a.example; \
             not changed: max-bps=7, user-quota; repeat the command for these"
        );
    }
}
