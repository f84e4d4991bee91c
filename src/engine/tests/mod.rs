//! A real engine whose only peer is a pair of sockets in the test's hands.
//!
//! - `lies`: what a peer may try, and what the honest rank makes of it; in `payload`, `counters`, `talk`
//! - `streams`: frames at random
//! - `lent`: memory of a caller who waits, with a reader in it
//! - `meet`: ranks of one process that call at about the same time, or not
//! - `swap`: two ranks that swap small vectors, past the queues of a byte link
//! - `elements`: a link that stops in the middle of one
//! - `shared`: the same lies through memory, and those that only memory allows; `lend`, `taken`: memory that is
//!   read where it lies, the peer's and this rank's; `segments`: where that lies comes and goes, or does not come
//! - `ended`: what is left of operations that have ended; `sleep`: what is seen before sleep

mod counted;
mod counters;
mod elements;
mod ended;
mod lend;
mod lent;
mod lies;
mod meet;
mod near;
mod payload;
mod segments;
mod shared;
mod sleep;
mod streams;
mod swap;
mod taken;
mod talk;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::room::Memory;
use super::{CallDesc, Engine, Op, PeerLink, Priority, Program, Request, Tagged, Work};
use crate::buffer::Buffer;
use crate::buffer::parts::Parts;
use crate::element::{DType, ReduceOp};
use crate::error::Error;
use crate::link::Class;
use crate::link::frame::{EAGER, HEADER_BYTES, Header, Kind, PAYLOAD_MAX};
use crate::link::shm::{Ends, Far};
use crate::path::{Algorithm, Collective, PlanCache};
use crate::rank::{Rank, Tag};
use crate::runtime::spin::SpinPolicy;

/// The communicator of both.
pub(super) const CHANNEL: u64 = 0;
pub(super) const TAG: u32 = 7;
/// Whoever has not ended by then hangs.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Whoever shares memory does what is next within this.
const A_WHILE: Duration = Duration::from_secs(5);

/// Rank 0 is real; rank 1 is the liar.
pub(super) struct Scene {
    pub engine: Arc<Engine>,
    pub liar: Liar,
    channel: usize,
    members: usize,
    plans: PlanCache,
    next: u64,
    deadline: Duration,
    /// Buffers are where other processes read them.
    lends: bool,
}

/// The far ends of the connections of one peer.
pub(super) struct Liar {
    conns: [TcpStream; 2],
    /// In the place of the connections.
    far: Option<Far>,
    frames: [u32; 2],
    /// Number of its next message.
    pub messages: u64,
}

/// What the honest rank calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    /// Broadcast from the liar of so many f32.
    Place(usize),
    /// Ring all_reduce of so many f32: each half is reduced by one rank.
    Reduce(usize),
    /// One-shot all_reduce of so many f32, small enough to be one exchange.
    Exchange(usize),
    /// Broadcast to the liar.
    Send(usize),
    /// A message from, or to, the liar.
    Receive(usize),
    PointSend(usize),
}

/// A call in flight, as the liar knows it.
pub(super) struct Begun {
    pub op: Arc<Op>,
    pub call: Call,
    pub number: u64,
    pub digest: u64,
    program: Option<Arc<Program>>,
}

pub(super) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    far.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    far.set_nodelay(true).unwrap();
    (near, far)
}

/// Connections between two ranks.
pub(super) fn link() -> (PeerLink, [TcpStream; 2]) {
    let ((fast, far_fast), (bulk, far_bulk)) = (pair(), pair());
    (PeerLink::Tcp { fast, bulk }, [far_fast, far_bulk])
}

/// A call that can't be over before it returns.
pub(super) fn flying(call: super::Submitted) -> Arc<Op> {
    match call {
        super::Submitted::Flying(op) => op,
        super::Submitted::Over(_) => panic!("nobody was there to meet"),
    }
}

/// A sum of so many f32, by this program.
pub(super) fn sum_of(program: &Program, count: usize) -> CallDesc {
    CallDesc {
        op: Some(ReduceOp::Sum),
        algorithm: program.plan.algorithm,
        fingerprint: program.plan.fingerprint(),
        ..CallDesc::new("all_reduce", DType::F32, count)
    }
}

/// Runs `act` on a thread; panics if it does not end.
pub(super) fn watched<R: Send + 'static>(name: &str, act: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        let _ = sender.send(result);
    });
    match receiver.recv_timeout(WATCHDOG) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => panic!("{name}: failed; the message is above"),
        Err(_) => panic!("{name}: hangs"),
    }
}

impl Scene {
    pub(super) fn new() -> Scene {
        let (peer, conns) = link();
        Scene::with(0, vec![PeerLink::Myself, peer], conns)
    }

    /// Rank `me` among these; the last one is the liar.
    pub(super) fn with(me: usize, peers: Vec<PeerLink>, conns: [TcpStream; 2]) -> Scene {
        let members = peers.len();
        let labels = (0..members).map(|rank| format!("host{rank}")).collect();
        let engine =
            Engine::new(me, peers, labels, None, SpinPolicy::Yield, Memory { limit: 64 << 20 }).unwrap();
        let all = (0..members as u32).collect();
        let channel = engine.open(Channel::new(CHANNEL, "world".into(), all, me));
        let liar = Liar { conns, far: None, frames: [0; 2], messages: 0 };
        let deadline = Duration::from_secs(60);
        let (plans, next, lends) = (PlanCache::new(), 0, false);
        Scene { engine, liar, channel, members, plans, next, deadline, lends }
    }

    /// Where both share memory.
    pub(super) fn beside() -> Scene {
        Scene::between(Ends::both())
    }

    pub(super) fn between([near, far]: [Ends; 2]) -> Scene {
        let mut scene = Scene::with(0, vec![PeerLink::Myself, PeerLink::Shm(near)], link().1);
        scene.liar.far = Some(Far::new(far));
        scene
    }

    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    fn program(&mut self, call: Call) -> Option<Arc<Program>> {
        let (algorithm, collective) = match call {
            Call::Place(_) => (Algorithm::BinomialTree, Collective::Broadcast { root: Rank(1) }),
            Call::Send(_) => (Algorithm::BinomialTree, Collective::Broadcast { root: Rank(0) }),
            Call::Reduce(_) => (Algorithm::Ring, Collective::AllReduce),
            Call::Exchange(_) => (Algorithm::MeshOneShot, Collective::AllReduce),
            Call::Receive(_) | Call::PointSend(_) => return None,
        };
        let plan = self
            .plans
            .get(algorithm, collective, crate::path::Placement::InPlace, self.members as u32)
            .unwrap();
        Some(Arc::new(Program::new(plan, 0)))
    }

    pub(super) fn begin(&mut self, call: Call) -> Begun {
        let (Call::Place(count)
        | Call::Reduce(count)
        | Call::Exchange(count)
        | Call::Send(count)
        | Call::Receive(count)
        | Call::PointSend(count)) = call;
        let parts = match self.engine.arena().filter(|_| self.lends) {
            Some(arena) => {
                let mut buffer = Buffer::in_lot(arena.lot(count * 4).unwrap(), count);
                buffer.fill(1f32);
                buffer.into_parts()
            }
            None => Parts::from_vec(vec![1f32; count]),
        };
        self.begin_with(call, parts)
    }

    pub(super) fn begin_with(&mut self, call: Call, parts: Parts) -> Begun {
        let (mut begun, request) = self.request(call, parts);
        if self.lends {
            // What is small does not leave at once, but is lent as well, where the call is left to whoever drives.
            self.engine.shared.queue(&begun.op, request);
        } else {
            begun.op = flying(self.engine.submit(request));
        }
        if self.liar.far.is_some() {
            // A frame through memory may be faster than who else drives just now.
            self.engine.after_calls(|_| {});
        }
        begun
    }

    /// A call that has not begun.
    fn request(&mut self, call: Call, parts: Parts) -> (Begun, Request) {
        let program = self.program(call);
        let (operation, count, op, root, tag) = match call {
            Call::Place(count) => ("broadcast", count, None, Some(Rank(1)), None),
            Call::Send(count) => ("broadcast", count, None, Some(Rank(0)), None),
            Call::Reduce(count) | Call::Exchange(count) => {
                ("all_reduce", count, Some(ReduceOp::Sum), None, None)
            }
            Call::Receive(count) => ("recv", count, None, Some(Rank(1)), Some(Tag(TAG))),
            Call::PointSend(count) => ("send", count, None, Some(Rank(1)), Some(Tag(TAG))),
        };
        let plan = program.as_ref().map(|program| program.plan.clone());
        let desc = CallDesc {
            op,
            root,
            tag: tag.map(Tagged::Of),
            algorithm: plan.as_ref().map_or("", |plan| plan.algorithm),
            fingerprint: plan.as_ref().map_or(0, |plan| plan.fingerprint()),
            ..CallDesc::new(operation, DType::F32, count)
        };
        let number = if tag.is_some() { 0 } else { self.next };
        self.next += u64::from(tag.is_none());
        let work = match (call, &program) {
            (Call::Receive(_), _) => Work::Recv {
                wish: crate::engine::Wish::exact(1, desc.tag_word()),
                take: crate::engine::Take::Exact,
            },
            (Call::PointSend(_), _) => Work::Send { to: 1 },
            (_, Some(program)) => Work::Collective(program.clone()),
            (_, None) => unreachable!(),
        };
        let (channel, deadline, digest) = (self.channel, self.deadline, desc.digest());
        let priority = Priority::Normal;
        let request = Request { channel, seq: number, desc, digest, work, parts, deadline, priority };
        (Begun { op: Arc::default(), call, number, digest, program }, request)
    }

    /// Waits for a call's end.
    pub(super) fn end(&self, begun: &Begun) -> Result<Vec<f32>, Error> {
        self.engine.block_on(&begun.op);
        let outcome = begun.op.take_outcome().unwrap();
        let parts = outcome.parts.expect("no peer reads this memory");
        let values = |bytes: Vec<u8>| {
            bytes.chunks(4).map(|of| f32::from_le_bytes(std::array::from_fn(|at| of[at]))).collect()
        };
        outcome.result.map(|()| values(parts.raw().to_vec()))
    }

    /// That both still understand each other.
    pub(super) fn assert_usable(&mut self) {
        let begun = self.begin(Call::Place(16));
        self.liar.serve(&begun);
        assert_eq!(self.end(&begun).unwrap(), [2f32; 16]);
    }
}

impl Begun {
    pub(super) fn header(&self, kind: Kind) -> Header {
        let mut header = Header::new(kind, CHANNEL, self.number);
        header.digest = self.digest;
        header
    }

    /// Part of the message that is placed (or reduced), at an offset.
    pub(super) fn data(&self, reduced: bool, offset: u64) -> Header {
        let mut header = self.header(Kind::Data);
        header.item = self.item(reduced);
        header.offset = offset;
        header
    }

    fn item(&self, reduced: bool) -> u32 {
        let program = self.program.as_ref().unwrap();
        let reduces = |step: usize| matches!(program.steps[step].act, super::program::Act::Reduce { .. });
        let input = program.inputs.iter().find(|input| reduces(input.step) == reduced).unwrap();
        input.message.into()
    }

    pub(super) fn bytes(&self) -> usize {
        match self.call {
            Call::Place(count) | Call::Send(count) | Call::Exchange(count) => count * 4,
            Call::Reduce(count) => count * 2,
            Call::Receive(count) | Call::PointSend(count) => count * 4,
        }
    }
}

impl Liar {
    pub(super) fn raw(&mut self, class: Class, bytes: &[u8]) {
        if let Some(far) = &mut self.far {
            return publish(far, class, bytes);
        }
        // The other side may have closed by now, as it should.
        let _ = self.conns[class as usize].write_all(bytes);
    }

    /// A frame as it should be, whatever its contents say.
    pub(super) fn frame(&mut self, class: Class, mut header: Header, payload: &[u8]) -> Vec<u8> {
        header.frame = self.frames[class as usize];
        header.length = payload.len() as u32;
        self.frames[class as usize] += 1;
        [&header.encode(), payload].concat()
    }

    pub(super) fn send(&mut self, class: Class, header: Header, payload: &[u8]) {
        let bytes = self.frame(class, header, payload);
        self.raw(class, &bytes);
    }

    /// The next frame on a connection, and its payload; `None` at its end.
    pub(super) fn read(&mut self, class: Class) -> Option<(Header, Vec<u8>)> {
        if let Some(far) = &mut self.far {
            let until = Instant::now() + A_WHILE;
            return std::iter::repeat_with(|| take(far, class)).find_map(|found| match found {
                None if Instant::now() < until => None,
                found => Some(found),
            })?;
        }
        let mut bytes = [0; HEADER_BYTES];
        self.conns[class as usize].read_exact(&mut bytes).ok()?;
        let header = Header::decode(&bytes).unwrap();
        let mut payload = vec![0; header.length as usize];
        self.conns[class as usize].read_exact(&mut payload).ok()?;
        Some((header, payload))
    }

    pub(super) fn read_kind(&mut self, class: Class, kind: Kind) -> (Header, Vec<u8>) {
        loop {
            let (header, payload) = self.read(class).expect("another frame");
            if header.kind == kind {
                return (header, payload);
            }
        }
    }

    /// How many frames of a kind have come within a second of silence.
    pub(super) fn count(&mut self, class: Class, kind: Kind) -> usize {
        self.conns[class as usize].set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut count = 0;
        while let Some((header, _)) = self.read(class) {
            count += usize::from(header.kind == kind);
        }
        self.conns[class as usize].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        count
    }

    pub(super) fn hang_up(&mut self, class: Class) {
        if let Some(far) = &self.far {
            far.hang_up();
        }
        let _ = self.conns[class as usize].shutdown(std::net::Shutdown::Both);
    }

    /// Closes a connection as the system of a process that has ended does for what comes then.
    pub(super) fn reset(&mut self, class: Class) {
        socket2::SockRef::from(&self.conns[class as usize]).set_linger(Some(Duration::ZERO)).unwrap();
        self.conns[class as usize] = pair().1;
    }

    /// The next message's header.
    pub(super) fn message(&mut self, kind: Kind, begun: &Begun) -> Header {
        let mut header = Header::new(kind, CHANNEL, self.messages);
        self.messages += 1;
        header.item = TAG;
        header.digest = begun.digest;
        match kind {
            Kind::Eager => header.flags = EAGER,
            Kind::Offer => header.offset = begun.bytes() as u64,
            _ => {}
        }
        header
    }

    /// Does what an honest rank does.
    pub(super) fn serve(&mut self, begun: &Begun) {
        let payload: Vec<u8> = std::iter::repeat_n(2f32.to_le_bytes(), begun.bytes() / 4).flatten().collect();
        match begun.call {
            Call::Place(_) if payload.len() <= super::io::EAGER_MAX => {
                let mut header = begun.data(false, 0);
                header.flags = EAGER;
                self.send(Class::Fast, header, &payload);
            }
            Call::Exchange(_) => {
                let mut header = begun.data(true, 0);
                header.flags = EAGER;
                self.send(Class::Fast, header, &payload);
            }
            Call::Place(_) => self.send_all(begun.data(false, 0), &payload),
            Call::Reduce(_) => {
                let mut credit = begun.header(Kind::Credit);
                credit.offset = payload.len() as u64;
                for message in begun.sent() {
                    credit.item = message;
                    self.send(Class::Fast, credit, &[]);
                }
                self.send_all(begun.data(true, 0), &payload);
                self.drain(Kind::Data, payload.len());
                self.send_all(begun.data(false, 0), &payload);
                self.drain(Kind::Data, payload.len());
            }
            Call::Send(_) => {
                let mut credit = begun.header(Kind::Credit);
                credit.offset = payload.len() as u64;
                credit.item = begun.sent()[0];
                self.send(Class::Fast, credit, &[]);
                self.drain(Kind::Data, payload.len());
            }
            Call::Receive(_) => {
                let offer = self.message(Kind::Offer, begun);
                self.send(Class::Fast, offer, &[]);
                let mut body = Header::new(Kind::Body, CHANNEL, offer.number);
                body.digest = begun.digest;
                self.read_kind(Class::Fast, Kind::Accept);
                self.send_all(body, &payload);
            }
            Call::PointSend(_) => {
                self.send(Class::Fast, begun.header(Kind::Accept), &[]);
                self.drain(Kind::Body, payload.len());
            }
        }
    }

    /// Reads large payload.
    pub(super) fn drain(&mut self, kind: Kind, mut bytes: usize) {
        while bytes > 0 {
            bytes -= self.read_kind(Class::Bulk, kind).1.len();
        }
    }

    fn send_all(&mut self, mut header: Header, payload: &[u8]) {
        for piece in payload.chunks(PAYLOAD_MAX) {
            self.send(Class::Bulk, header, piece);
            header.offset += piece.len() as u64;
        }
    }
}

impl Begun {
    /// The messages that the honest rank sends.
    pub(super) fn sent(&self) -> Vec<u32> {
        let program = self.program.as_ref().unwrap();
        let sends = program.steps.iter().filter_map(|step| match step.act {
            super::program::Act::Send { message, .. } => Some(u32::from(message)),
            _ => None,
        });
        sends.collect()
    }
}

/// A frame goes into a ring, once there is room, which there may not be for one who is found out.
fn publish(far: &mut Far, class: Class, frame: &[u8]) {
    let Some((header, payload)) = frame.split_first_chunk() else { return };
    while !far.has_room(class, payload.len()) {
        if far.is_cut_off() {
            return;
        }
        std::thread::yield_now();
    }
    far.publish(class, header, payload);
    if far.must_wake() {
        far.ring();
    }
}

/// The next frame of a ring, if it is there.
fn take(far: &mut Far, class: Class) -> Option<(Header, Vec<u8>)> {
    let found = far.read(class);
    match found {
        Some(_) if far.must_wake() => far.ring(),
        Some(_) => {}
        None => std::thread::yield_now(),
    }
    found
}
