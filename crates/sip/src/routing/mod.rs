//! Where messages go: requests by the DNS (RFC 3263) and by size (RFC 3261 §18.1.1), responses by the top Via
//! (RFC 3261 §18.2.2, RFC 3581).

mod cache;
mod failover;
mod locate;
mod name;
mod penalties;
mod response;
mod target;
mod weigh;

pub use cache::{DnsCache, DnsFailed, DnsRecords, Naptr, Query, Srv};
pub use failover::{Failover, Outcome};
pub use locate::{Candidate, Locate, Located, Locator, Scheme};
pub use name::DnsName;
pub use penalties::Penalties;
pub use response::{LARGEST_DATAGRAM, SentBy, response_address, wants_stream};
pub use target::TargetError;
