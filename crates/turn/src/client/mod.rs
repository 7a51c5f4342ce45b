//! The client side of TURN.
