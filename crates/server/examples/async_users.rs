//! Users from an async source, as a database client is: workers go on while the look-up waits.

use hairpin_server::credentials::{AsyncCredentials, Claim, KeyLookup, KnownUser, OwnedKeyQuery};
use hairpin_server::{Server, stun};
use std::sync::Arc;
use std::time::Duration;

/// Stands for a query to a database.
async fn password_of(name: &str) -> Option<&'static str> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    (name == "alice").then_some("correct horse battery staple")
}

async fn look_up(query: OwnedKeyQuery) -> KeyLookup {
    let query = query.query();
    let Claim::Username(name) = query.claim else {
        return KeyLookup::Unknown;
    };
    let Some(password) = password_of(name).await else {
        return KeyLookup::Unknown;
    };
    match stun::long_term_key(query.algorithm, name, query.realm, password) {
        Ok(key) => KeyLookup::Known(KnownUser::with_key(name, key)),
        Err(_) => KeyLookup::Unavailable,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    let source = AsyncCredentials::new(move |lookup| drop(handle.spawn(lookup)), look_up);
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .credentials(Arc::new(source))
        .start()?;
    println!("listening on {:?}", server.listeners());
    // A real program waits here; its tasks, look-ups among them, run meanwhile.
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    server.shutdown()?;
    Ok(())
}
