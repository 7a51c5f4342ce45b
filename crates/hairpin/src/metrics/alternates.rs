//! Alternate servers, and whether they answer. They are numbered by their place in `alternate.servers`, because labels
//! have no addresses.

use server::Observer;

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, observer: &Observer) {
    let settings = observer.alternates();
    // Without checks, the state is unknown.
    if settings.check_interval.is_zero() || settings.servers.is_empty() {
        return;
    }
    let servers = || (1u32..).zip(&settings.servers);
    let mut up = page.family(
        "hairpin_alternate_up",
        Kind::Gauge,
        "1 while an alternate server responds to the checks, else 0; by its place in alternate.servers.",
    );
    for (number, server) in servers() {
        up.put(&[("alternate", &number)], u8::from(!server.is_down()));
    }
    let mut checks = page.family(
        "hairpin_alternate_checks_total",
        Kind::Counter,
        "Checks of an alternate server, by its place in alternate.servers and by result.",
    );
    for (number, server) in servers() {
        let (answered, unanswered) = server.checks();
        for (result, count) in [("answered", answered), ("unanswered", unanswered)] {
            checks.put(&[("alternate", &number), ("result", &result)], count);
        }
    }
}
