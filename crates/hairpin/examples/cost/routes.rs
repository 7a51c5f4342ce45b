//! The decision about a call in a table of routes.

#[path = "../../../sip-server/examples/routes/table.rs"]
mod table;

use crate::{Outcome, measure};
use sip::{Message, Spans};
use table::{INVITE, TestBed};

/// Decisions in one round.
const ROUND: usize = 32;

/// Measures everything.
pub(crate) fn run() -> Outcome<()> {
    let mut bed = TestBed::new()?;
    let mut spans = Spans::new();
    let message = Message::parse(INVITE, &mut spans)?;
    measure("engine: SIP route among 10,000 prefixes", &mut || {
        (0..ROUND).try_for_each(|_| bed.once(&message))?;
        Ok(ROUND)
    })
}
