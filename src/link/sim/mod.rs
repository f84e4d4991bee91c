//! A simulated network: ranks of one process and one thread, on simulated time.
//!
//! - `fabric`: hosts, edges between them, and what is on its way: everything that happens is drawn from one seed
//! - `stream`: reliable and ordered delivery over datagrams that are lost, doubled and overtaken, as a system's TCP does it
//! - `conn`: one stream as an engine holds it, in the place of a TCP connection
//! - `random`: the seed's numbers
//!
//! What an engine hands over is copied into the fabric when it leaves and is released then, as over a socket. The
//! system's side of a host acknowledges and sends again whether its process runs or not; a process that is killed
//! leaves its connections to be closed by it, a host that vanishes leaves nothing.

mod conn;
mod fabric;
pub(crate) mod random;
mod stream;

pub(crate) use conn::Conn;
pub(crate) use fabric::{Fabric, Weather};
