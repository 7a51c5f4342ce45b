//! The removal of a realm: one change of the store for each origin and each limit.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;
use crate::store::{Directory, RealmOption, Shared};

/// Rows that an error message names. A realm can have thousands of origins.
const MAX_NAMED_ROWS: usize = 20;

/// A row that a removal deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RealmRow {
    /// A web origin.
    Origin(String),
    /// A limit.
    Limit(RealmOption),
}

impl fmt::Display for RealmRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RealmRow::Origin(origin) => write!(f, "origin={origin}"),
            RealmRow::Limit(option) => f.write_str(option.name()),
        }
    }
}

/// A removal that has stopped early.
#[derive(Debug)]
pub struct PartialRemoval {
    /// Why.
    pub error: StoreError,
    /// The rows that were deleted before.
    pub removed: Vec<RealmRow>,
    /// The other rows. The store may have deleted the first of them, if its response has not arrived.
    pub left: Vec<RealmRow>,
}

impl PartialRemoval {
    /// How many rows were deleted, such as `2 of 3`.
    #[must_use]
    pub fn count(&self) -> String {
        let done = self.removed.len();
        format!("{done} of {}", done + self.left.len())
    }
}

/// Says what was done and what is left.
impl fmt::Display for PartialRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; removed {}", self.error, self.count())?;
        write_list(f, ": ", &self.removed)?;
        write_list(f, "; not removed: ", &self.left)?;
        f.write_str("; repeat the command for these")
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, before: &str, rows: &[RealmRow]) -> fmt::Result {
    for (number, row) in rows.iter().take(MAX_NAMED_ROWS).enumerate() {
        let separator = if number == 0 { before } else { ", " };
        write!(f, "{separator}{row}")?;
    }
    match rows.len().saturating_sub(MAX_NAMED_ROWS) {
        0 => Ok(()),
        more => write!(f, ", and {more} more"),
    }
}

impl std::error::Error for PartialRemoval {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The origins and limits of a realm.
#[must_use]
pub fn rows_of_realm(shared: &Shared, realm: &str) -> Vec<RealmRow> {
    let origins = shared.origins.iter().filter(|(_, of)| of == realm);
    let origins = origins.map(|(origin, _)| RealmRow::Origin(origin.clone()));
    let limits = shared.options.iter().filter(|(of, ..)| of == realm);
    let limits = limits.map(|(_, option, _)| RealmRow::Limit(*option));
    origins.chain(limits).collect()
}

/// Deletes these rows of a realm, one after the other. Each deletion may take `timeout`, and all together `total`.
///
/// # Errors
/// If the store fails, or does not respond in time. The other rows stay.
pub async fn remove_rows(
    directory: &dyn Directory,
    realm: &str,
    rows: Vec<RealmRow>,
    timeout: Duration,
    total: Option<Duration>,
) -> Result<(), PartialRemoval> {
    let begun = Instant::now();
    for (number, row) in rows.iter().enumerate() {
        let deletion = async {
            match row {
                RealmRow::Origin(origin) => directory.set_origin(origin, None).await.map(drop),
                RealmRow::Limit(option) => directory.set_option(realm, *option, None).await,
            }
        };
        let (limit, late) = match total {
            Some(total) if total.saturating_sub(begun.elapsed()) < timeout => {
                (total.saturating_sub(begun.elapsed()), StoreError::Deadline)
            }
            _ => (timeout, StoreError::Timeout(timeout)),
        };
        let outcome = match limit {
            Duration::ZERO => Err(late),
            limit => tokio::time::timeout(limit, deletion)
                .await
                .unwrap_or(Err(late)),
        };
        if let Err(error) = outcome {
            return Err(PartialRemoval {
                error,
                removed: rows[..number].to_vec(),
                left: rows[number..].to_vec(),
            });
        }
    }
    Ok(())
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

    /// Removes the realm `a`, in virtual time.
    fn remove(slow: &Slow, origins: usize) -> Result<(), PartialRemoval> {
        remove_within(slow, origins, None)
    }

    fn remove_within(
        slow: &Slow,
        origins: usize,
        total: Option<Duration>,
    ) -> Result<(), PartialRemoval> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let rows = rows_of_realm(&shared(origins), "a");
        assert_eq!(rows.len(), origins + 1);
        runtime.block_on(remove_rows(slow, "a", rows, TIMEOUT, total))
    }

    #[test]
    fn each_step_of_a_removal_has_its_own_timeout() {
        let step = TIMEOUT * 3 / 4;
        let slow = Slow {
            origin: step,
            limit: step,
        };
        remove(&slow, 3).expect("no step is too slow");
    }

    #[test]
    fn all_steps_of_a_removal_end_within_the_total_limit() {
        let slow = Slow {
            origin: TIMEOUT * 3 / 4,
            limit: Duration::ZERO,
        };
        // The third step would end after 4.5 s, the second ends after 3 s.
        for total in [4, 3] {
            let total = Duration::from_secs(total);
            let stopped = remove_within(&slow, 9, Some(total)).expect_err("there are too many");
            let text = stopped.to_string();
            let start = "all changes together take too long; removed 2 of 10: ";
            assert!(text.starts_with(start), "{text}");
        }
        remove_within(&slow, 2, Some(TIMEOUT * 2)).expect("there is time for two");
    }

    #[test]
    fn a_removal_that_stops_says_what_was_removed_and_what_is_left() {
        let slow = Slow {
            origin: TIMEOUT / 4,
            limit: TIMEOUT * 2,
        };
        let stopped = remove(&slow, 2).expect_err("the limit is too slow");
        assert_eq!(stopped.left, [RealmRow::Limit(RealmOption::MaxBps)]);
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
}
