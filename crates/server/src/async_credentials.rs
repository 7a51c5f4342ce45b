//! Credentials from an async function, on any runtime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use stun::PasswordAlgorithm;
use turn::server::credentials::{Credentials, KeyLookup, KeyQuery, KeyReply, OwnedKeyQuery};

/// A look-up, ready to be spawned.
pub type KeyFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

type Start = dyn Fn(OwnedKeyQuery, KeyReply) + Send + Sync;

/// A source of credentials that responds later: an async function, and what runs its futures.
///
/// No worker waits for it and no worker runs it: a worker hands the future to `spawn`, and gets the result as an
/// inter-worker message.
///
/// ```
/// # use hairpin_server::credentials::{AsyncCredentials, Claim, KeyLookup, KnownUser, OwnedKeyQuery};
/// async fn look_up(query: OwnedKeyQuery) -> KeyLookup {
///     let query = query.query();
///     let Claim::Username(name) = query.claim else { return KeyLookup::Unknown };
///     // Here a database is asked.
///     match stun::long_term_key(query.algorithm, name, query.realm, "its password") {
///         Ok(key) => KeyLookup::Known(KnownUser::with_key(name, key)),
///         Err(_) => KeyLookup::Unknown,
///     }
/// }
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let handle = runtime.handle().clone();
/// std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
/// let source = AsyncCredentials::new(move |future| drop(handle.spawn(future)), look_up);
/// # drop(source);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct AsyncCredentials {
    start: Box<Start>,
    algorithms: Option<Vec<PasswordAlgorithm>>,
    knows_userhash: bool,
}

impl AsyncCredentials {
    /// `find` looks a user up; `spawn` has a runtime run what it is given, and returns at once. A future that is
    /// dropped before it is done means that the source is unavailable: the client gets 500.
    pub fn new<F, A>(spawn: impl Fn(KeyFuture) + Send + Sync + 'static, find: F) -> Self
    where
        F: Fn(OwnedKeyQuery) -> A + Send + Sync + 'static,
        A: Future<Output = KeyLookup> + Send + 'static,
    {
        let start = move |query: OwnedKeyQuery, reply: KeyReply| {
            let answer = find(query);
            spawn(Box::pin(async move { reply.send(answer.await) }));
        };
        AsyncCredentials {
            start: Box::new(start),
            algorithms: None,
            knows_userhash: false,
        }
    }

    /// Says that the source has keys of these algorithms only, as a database of MD5 keys has.
    #[must_use]
    pub fn with_algorithms(mut self, algorithms: &[PasswordAlgorithm]) -> Self {
        self.algorithms = Some(algorithms.to_vec());
        self
    }

    /// Says that the source finds users by USERHASH.
    #[must_use]
    pub fn with_userhash(mut self) -> Self {
        self.knows_userhash = true;
        self
    }
}

impl Credentials for AsyncCredentials {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        let has_key = self.supports(query.algorithm);
        let by_hash = matches!(query.claim, turn::server::credentials::Claim::Userhash(_));
        // What the source does not have, it need not be asked for.
        if !has_key || by_hash && !self.knows_userhash {
            return KeyLookup::Unknown;
        }
        KeyLookup::Pending
    }

    fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
        (self.start)(query.to_owned(), reply);
    }

    fn knows_userhash(&self) -> bool {
        self.knows_userhash
    }

    fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
        let algorithms = self.algorithms.as_ref();
        algorithms.is_none_or(|algorithms| algorithms.contains(&algorithm))
    }
}

impl fmt::Debug for AsyncCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCredentials")
            .field("algorithms", &self.algorithms)
            .field("knows_userhash", &self.knows_userhash)
            .finish_non_exhaustive()
    }
}
