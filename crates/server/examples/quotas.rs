//! Limits: per user, per source prefix, in all, and by a rule of one's own.

use hairpin_server::Server;
use hairpin_server::hooks::ClientIdentity;
use hairpin_server::quota::QuotaLimits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use turn::server::{Quota, QuotaExceeded};

/// Guests share ten relayed addresses.
#[derive(Debug, Default)]
struct Guests(AtomicU32);

impl Quota for Guests {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        if !client.user.starts_with("guest") {
            return Ok(());
        }
        let more = |held: u32| (held < 10).then(|| held + 1);
        self.0
            .try_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .map(drop)
            .map_err(|_| QuotaExceeded::User)
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        if client.user.starts_with("guest") {
            self.0.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn transfer(
        &self,
        _from: &ClientIdentity<'_>,
        _to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        // The user stays the same, so the count does.
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = QuotaLimits::default()
        .per_user(10)
        .per_source(100)
        .total(10_000);
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .user("guest-1", "secret")
        .quota(limits)
        .quota_hook(Arc::new(Guests::default()))
        .start()?;
    println!(
        "{} relayed addresses are held",
        server.relayed_addresses_held()
    );
    server.shutdown()?;
    Ok(())
}
