//! How links end: in order, by a goodbye on both connections; or broken, and then the peer is lost unless it had said goodbye.

use super::core::{Core, TURN_BYTES};
use super::peer::Standing;
use super::wires::unwatch;
use crate::link::Class;
use crate::link::frame::{Header, Kind, Outgoing};
use crate::link::tcp::Broken;

/// How often a connection that has ended is read on: so much is never under way, unless its other side goes on writing.
const SALVAGED: usize = 1024;

impl Core {
    /// A connection is of no more use; the peer is gone, unless it had said goodbye on it.
    pub(super) fn broken(&mut self, peer: usize, class: Class, broken: Broken) {
        match broken {
            Broken::Closed => return self.ended(peer, class),
            Broken::Lost(cause) => self.interrupted(peer, class, cause),
            Broken::Protocol(problem) => self.state.lost(peer, format!("it broke the protocol: {problem}")),
        }
        self.disconnect(peer, class);
    }

    /// A connection has ended without the system's goodbye. Ours may have been among what had come, and then the other
    /// connection goes on. So it does for a rank that has said goodbye itself: nothing is in flight here that could fail,
    /// but what was sent on the other one may still be under way.
    fn interrupted(&mut self, peer: usize, class: Class, cause: String) {
        self.salvage(peer, class);
        let said_bye = self.links[peer].as_mut().is_some_and(|pair| pair.conn(class).said_bye());
        if !said_bye && !self.leaving {
            [Class::Fast, Class::Bulk].into_iter().for_each(|class| self.salvage(peer, class));
            self.state.lost(peer, cause);
        }
    }

    /// The peer has closed a connection in order. Both are kept until it has closed the other one as well: if it saw one
    /// of them closed here, it might end, and what it had sent on the other one and has not arrived yet be lost.
    fn ended(&mut self, peer: usize, class: Class) {
        let Some(pair) = self.links[peer].as_mut() else { return };
        pair.ended[class as usize] = true;
        pair.conn(class).hear_out();
        if pair.ended != [true; 2] {
            return;
        }
        let consumed = self.state.io.peers[peer].consumed;
        for class in [Class::Fast, Class::Bulk] {
            let Some(pair) = self.links[peer].as_mut() else { return };
            let conn = pair.conn(class);
            conn.push(Outgoing::control(Header::new(Kind::Bye, 0, 0)));
            // It waits for no more than this; if it has gone, that is no loss.
            let _ = conn.write(consumed, TURN_BYTES, &mut self.state);
            if conn.is_looked_at() {
                self.state.io.call(peer);
            }
            self.disconnect(peer, class);
        }
    }

    /// What the peer had sent before it went is still good: the system may have refused a write only.
    fn salvage(&mut self, peer: usize, class: Class) {
        if let Some(pair) = self.links[peer].as_mut() {
            let conn = pair.conn(class);
            (0..SALVAGED).all(|_| matches!(conn.read(peer, TURN_BYTES, &mut self.state), Ok(true)));
        }
        self.state.advance();
    }

    fn disconnect(&mut self, peer: usize, class: Class) {
        self.keep_counters(peer);
        if let Some(pair) = self.links[peer].as_mut() {
            pair.ended[class as usize] = true;
            let conn = pair.conn(class);
            conn.shut();
            unwatch(&self.poller, conn);
            if pair.fast.is_shut() && pair.bulk.is_shut()
                || matches!(self.state.peers[peer].standing, Standing::Lost(_))
            {
                unwatch(&self.poller, &pair.fast);
                unwatch(&self.poller, &pair.bulk);
                self.links[peer] = None;
                self.state.io.let_go(peer);
            }
        }
    }

    /// Peers that were found out by what they had sent before.
    pub(super) fn disconnect_offenders(&mut self) {
        while let Some(peer) = self.state.offenders.pop() {
            for class in [Class::Fast, Class::Bulk] {
                self.disconnect(peer, class);
            }
        }
    }

    /// Says goodbye to all peers, on both connections.
    pub(crate) fn say_bye(&mut self) {
        self.leaving = true;
        let header = Header::new(Kind::Bye, 0, 0);
        self.writable = true;
        for (peer, pair) in self.links.iter_mut().enumerate() {
            if let Some(pair) = pair
                && !matches!(self.state.peers[peer].standing, Standing::Lost(_))
            {
                pair.fast.push(Outgoing::control(header));
                pair.bulk.push(Outgoing::control(header));
            }
        }
        self.turn(false);
    }

    /// Whether no peer will send anything any more.
    pub(crate) fn all_left(&self) -> bool {
        let here = |peer: usize| self.state.peers[peer].standing == Standing::Here;
        (0..self.links.len()).all(|peer| self.links[peer].is_none() || !here(peer))
    }

    /// Nothing more will be written; peers that still write are heard out by the system.
    pub(crate) fn shut_writing(&mut self) {
        for pair in self.links.iter().flatten() {
            for conn in [&pair.fast, &pair.bulk] {
                conn.shut_writing();
            }
        }
    }
}

#[cfg(all(test, not(hcomm_loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::super::call::{CallDesc, Op, Request, Work};
    use super::super::channel::Channel;
    use super::super::order::Priority;
    use super::super::program::{Act, Program};
    use super::super::tests::{CHANNEL, link};
    use super::super::wires::PeerLink;
    use super::*;
    use crate::buffer::parts::Parts;
    use crate::buffer::pool::Pool;
    use crate::element::{DType, ReduceOp};
    use crate::error::Error;
    use crate::link::frame::{EAGER, HEADER_BYTES, Payload};
    use crate::path::{Algorithm, Collective, PlanCache};
    use crate::runtime::poller::Poller;

    /// Divides into blocks of equal size.
    const COUNT: usize = 480;

    /// Rank 0 of three, and of both others the far ends and this end of the fast connection.
    fn core_of_three() -> (Core, Vec<([TcpStream; 2], TcpStream)>) {
        let (mut peers, mut others) = (vec![PeerLink::Myself], Vec::new());
        for _ in 0..2 {
            let (peer, far) = link();
            let PeerLink::Tcp { fast, .. } = &peer else { unreachable!() };
            others.push((far, fast.try_clone().unwrap()));
            peers.push(peer);
        }
        let (pool, poller) = (Pool::new(64 << 20, 16 << 20), Poller::new().unwrap());
        let labels = vec![String::new(); 3];
        let mut core = Core::new(0, peers, labels, pool, None, poller, Instant::now()).unwrap();
        core.state.open(Channel::new(CHANNEL, "world".into(), (0..3).collect(), 0));
        (core, others)
    }

    fn begin(core: &mut Core, program: &Arc<Program>) -> (Arc<Op>, u64) {
        let desc = CallDesc { op: Some(ReduceOp::Sum), ..CallDesc::new("all_reduce", DType::F32, COUNT) };
        let mut request = Request {
            channel: 0,
            seq: 0,
            desc,
            digest: desc.digest(),
            work: Work::Collective(program.clone()),
            parts: Parts::from_vec(vec![1f32; COUNT]),
            deadline: Duration::from_secs(60),
            priority: Priority::Normal,
        };
        let op = Arc::new(Op::default());
        core.state.start(op.clone(), &mut request);
        (op, request.digest)
    }

    fn lent(core: &Core) -> usize {
        core.state
            .io
            .outbox
            .iter()
            .filter(|(.., frame)| matches!(frame.payload, Payload::Lent { .. }))
            .count()
    }

    /// The payload of every frame that comes until one of this kind does.
    fn read_until(far: &mut TcpStream, kind: Kind) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        loop {
            let mut bytes = [0; HEADER_BYTES];
            far.read_exact(&mut bytes).unwrap();
            let header = Header::decode(&bytes).unwrap();
            let mut payload = vec![0; header.length as usize];
            far.read_exact(&mut payload).unwrap();
            if header.kind == kind {
                return payloads;
            }
            payloads.push(payload);
        }
    }

    /// A peer goes after its last data has come and before this rank writes to it, in one turn: its data lets a step move
    /// that lends to another rank, and the operation ends.
    #[test]
    fn memory_that_an_operation_lent_as_it_ended_is_not_sent_later() {
        let plan = PlanCache::new()
            .get(Algorithm::Ring, Collective::AllReduce, crate::path::Placement::InPlace, 3)
            .unwrap();
        let program = Arc::new(Program::new(plan, 0));
        let first = *program.inputs.iter().min_by_key(|input| input.message).unwrap();
        let next = program.steps.iter().find_map(|step| match step.act {
            Act::Send { to, .. } => Some(to),
            _ => None,
        });
        let (from, next) = (first.from, next.unwrap());
        assert_ne!(from, next, "a ring");
        let (mut core, mut others) = core_of_three();
        let (op, digest) = begin(&mut core, &program);
        core.turn(true);
        // Its last data, and then it can't be written to.
        let (far, near) = &mut others[from - 1];
        let mut header = Header::new(Kind::Data, CHANNEL, 0);
        (header.item, header.digest, header.flags) = (first.message.into(), digest, EAGER);
        let payload: Vec<u8> = std::iter::repeat_n(2f32.to_le_bytes(), COUNT / 3).flatten().collect();
        header.length = payload.len() as u32;
        let frame = [&header.encode(), &payload[..]].concat();
        far[0].write_all(&frame).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        while !matches!(near.peek(&mut vec![0; 2 * frame.len()]), Ok(bytes) if bytes == frame.len()) {
            std::thread::yield_now();
        }
        core.state.io.control(from, Outgoing::control(Header::new(Kind::Consumed, 0, 0)));
        // What a turn does after it has read.
        core.flush();
        core.write();
        assert!(matches!(core.state.peers[from].standing, Standing::Lost(_)));
        assert!(lent(&core) > 0, "a step has moved");
        core.settle();
        assert_eq!(lent(&core), 0);
        let (of, outcome) = core.failed.pop().unwrap();
        assert!(
            Arc::ptr_eq(&of, &op) && matches!(outcome.result, Err(Error::PeerLost { .. })),
            "{outcome:?}"
        );
        // The owner has it back, and writes to it.
        let mut memory: Vec<f32> = outcome.parts.unwrap().into_vec();
        memory.fill(9.0);
        core.turn(false);
        assert_eq!(core.state.io.queued_bytes(), 0);
        for payload in read_until(&mut others[next - 1].0[0], Kind::Abort) {
            assert!(payload.chunks(4).all(|value| value != 9f32.to_le_bytes()), "another's memory was sent");
        }
        drop(memory);
    }
}
