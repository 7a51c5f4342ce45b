//! SIP's engine and parser alone.

#[expect(
    dead_code,
    reason = "making requests up is for who takes its time off the others"
)]
#[path = "../../../sip/examples/engine/bed.rs"]
mod bed;
#[path = "../../../sip/examples/parser/read.rs"]
mod read;

use crate::{Outcome, measure};
use bed::{Operation, TestBed};
use sip::Spans;

/// Operations in one round.
const ROUND: usize = 32;

/// Operations per second of the engine's time: while rounds are counted, as many transactions end as begin, about 64
/// being alive.
const RATE: u64 = 2;

/// Measures everything.
pub(crate) fn run() -> Outcome<()> {
    for (name, operation) in Operation::ALL {
        let mut bed = TestBed::new(operation, RATE)?;
        measure(&format!("engine: SIP {name}"), &mut || {
            (0..ROUND).try_for_each(|_| bed.once())?;
            Ok(ROUND)
        })?;
    }
    let mut spans = Spans::new();
    measure("engine: SIP parser, REGISTER of 533 bytes", &mut || {
        (0..ROUND).try_for_each(|_| read::read_register(read::REGISTER, &mut spans))?;
        Ok(ROUND)
    })?;
    measure("engine: SIP parser, INVITE of 1,625 bytes", &mut || {
        (0..ROUND).try_for_each(|_| read::read_invite(read::INVITE, &mut spans))?;
        Ok(ROUND)
    })
}
