//! What the fuzz targets share. Each function takes any input and panics only if the project is wrong.

pub mod dtls;
pub mod sip;
pub mod sip_engine;
pub mod streams;
pub mod stun;
pub mod turn_client;
pub mod turn_server;
pub mod websocket;
