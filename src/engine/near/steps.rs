//! A small call of any plan: its steps are walked, in their order, as often as one of them can be done.
//!
//! A step is done whole or not at all, so whatever has been done when the call goes on in flight is a set of steps, with which
//! its [`Run`] begins.

use std::sync::Arc;

use super::super::call::{Op, Request, Work};
use super::super::core::Core;
use super::super::exchange::header;
use super::super::io::EAGER_MAX;
use super::super::program::{Act, From, Input, Program, Straight};
use super::super::run::Run;
use super::super::shared::Submitted;
use super::super::spaces::Spaces;
use super::super::state::{Flight, State};
use super::Terms;
use crate::buffer::parts::Sizes;
use crate::buffer::raw::Raw;
use crate::link::frame::Header;
use crate::link::tcp::Broken;
use crate::path::Range;
use crate::runtime::spin::SpinPolicy;

/// Vectors of more bytes, in all, are worth a record.
const BYTES_MAX: usize = 4 * EAGER_MAX;

/// A call as far as it has come.
struct Walk<'a> {
    program: &'a Program,
    straight: &'a Straight,
    spaces: Spaces,
    members: Arc<[u32]>,
    /// Bytes of the vector.
    bytes: usize,
    call: (u64, u64, u64),
    /// A bit for each step.
    done: u64,
    /// Bytes of each message that are where they belong, while the rest is still being written.
    placed: [u32; u64::BITS as usize],
    /// Some are since the last look.
    has_placed: bool,
}

impl Walk<'_> {
    fn range(&self, range: Range) -> Raw {
        // A program that can be walked has no scratch areas.
        self.spaces.raw(range, |_| (Raw::EMPTY, 0))
    }

    /// Of the world.
    fn peer(&self, rank: usize) -> usize {
        self.members[rank] as usize
    }

    fn header(&self, message: u16, bytes: usize) -> Header {
        let mut header = header(self.call, message);
        header.length = bytes as u32;
        header
    }

    fn input(&self, input: usize, bytes: usize) -> (usize, Header) {
        let Input { from, message, .. } = self.program.inputs[input];
        (self.peer(from), self.header(message, bytes))
    }

    fn is_done(&self) -> bool {
        self.done == self.straight.all
    }

    fn may_go(&self, index: usize) -> bool {
        self.done & 1 << index == 0 && self.straight.before[index] & !self.done == 0
    }
}

impl Core {
    pub(super) fn near_steps<R: FnOnce() -> Arc<Op>>(
        &mut self,
        request: &mut Request,
        terms: Terms<'_, R>,
    ) -> Option<Submitted> {
        let Terms { policy, clock, record } = terms;
        let Work::Collective(program) = &request.work else { return None };
        let program = program.clone();
        let straight = program.straight.as_ref()?;
        if !self.can_walk(request) {
            return None;
        }
        let spaces = Spaces::new(&program, &request.desc, &request.parts);
        if !program.steps.iter().all(|step| spaces.bytes(step.range) <= EAGER_MAX) {
            return None;
        }
        let channel = self.state.channels[request.channel].as_ref()?;
        let mut walk = Walk {
            program: &program,
            straight,
            spaces,
            members: channel.members.clone(),
            bytes: request.desc.bytes(),
            call: (channel.id, request.seq, request.digest),
            done: 0,
            placed: [0; u64::BITS as usize],
            has_placed: false,
        };
        let problem = self.walk(&mut walk, request, policy).err();
        if walk.is_done() && problem.is_none() {
            return Some(self.over_near(request));
        }
        let done = walk.done;
        Some(self.go_on(clock, record, problem, |state, op| state.fly_steps(op, request.take(), done)))
    }

    /// As far as is known without the lengths of its messages.
    fn can_walk(&self, request: &Request) -> bool {
        let Some(channel) = self.state.way(request) else { return false };
        // What one of whom it gets nothing has said may be that the call is given up.
        let is_open = |peer: &u32| *peer as usize == self.state.io.me || self.is_near(*peer as usize);
        request.desc.bytes() <= BYTES_MAX
            && request.parts.sizes() != Some(Sizes::Learned)
            && self.is_clear()
            && channel.members.iter().all(is_open)
    }

    /// Does what can be done, for as long as it may take.
    fn walk(
        &mut self,
        walk: &mut Walk<'_>,
        request: &Request,
        policy: SpinPolicy,
    ) -> Result<(), (usize, Broken)> {
        self.begin_near(request);
        let (mut looks, mut asleep) = (None, false);
        loop {
            let before = walk.done;
            for index in 0..walk.program.steps.len() {
                if walk.may_go(index) && self.near_step(walk, request, index)? {
                    walk.done |= 1 << index;
                }
            }
            if walk.is_done() {
                // Who has nothing to wait for has met nobody.
                if looks.is_some() {
                    self.state.meetings.met(true);
                }
                return Ok(());
            }
            if walk.done != before || std::mem::take(&mut walk.has_placed) {
                continue;
            }
            let looks = looks.get_or_insert_with(|| {
                let sleeps = |rank: &usize| self.neighbours.sleeps(walk.peer(*rank));
                asleep = walk.straight.peers.iter().any(sleeps);
                self.near_looks(walk.bytes, asleep, policy)
            });
            if !looks.pause(&self.neighbours, walk.straight.peers.iter().map(|rank| walk.peer(*rank))) {
                if !asleep {
                    self.state.meetings.met(false);
                }
                return Ok(());
            }
        }
    }

    /// Does a step, if it can be done now. Says whether it did.
    fn near_step(
        &mut self,
        walk: &mut Walk<'_>,
        request: &Request,
        index: usize,
    ) -> Result<bool, (usize, Broken)> {
        let step = &walk.program.steps[index];
        let raw = walk.range(step.range);
        match &step.act {
            Act::Send { to, message, .. } => {
                let (peer, bytes) = (walk.peer(*to), raw.len());
                let goes = self.has_near_room(peer, bytes);
                if goes {
                    self.send_near(peer, walk.header(*message, bytes), raw);
                }
                Ok(goes)
            }
            Act::Place { input, .. } => {
                let (peer, due) = walk.input(*input, raw.len());
                let before = walk.placed[index] as usize;
                let (placed, all) = self.place_near(peer, &due, raw, before);
                walk.placed[index] = placed as u32;
                walk.has_placed |= placed > before;
                if all {
                    self.take_near(peer, &due)?;
                }
                Ok(all)
            }
            Act::Copy { src } => {
                raw.copy_from(walk.range(*src));
                Ok(true)
            }
            Act::Reduce { srcs, post, .. } => {
                let mut sources = std::mem::take(&mut self.sources);
                sources.clear();
                sources.extend(srcs.iter().map_while(|src| match src {
                    From::Local(range) => Some(walk.range(*range)),
                    From::Input(input) => {
                        let (peer, due) = walk.input(*input, raw.len());
                        self.near_input(peer, &due)
                    }
                }));
                let all = sources.len() == srcs.len();
                if all && raw.len() > 0 {
                    let reduction = request.desc.reduction(*post, walk.members.len());
                    raw.reduce_from(reduction, &sources, &[]);
                }
                self.sources = sources;
                if all {
                    self.take_inputs(walk, srcs, raw.len())?;
                }
                Ok(all)
            }
        }
    }

    /// Where an input lies, if it is what comes next from there.
    fn near_input(&self, peer: usize, due: &Header) -> Option<Raw> {
        let conn = self.conn(peer)?;
        if conn.holds(due) { conn.payload_past(due.length as usize) } else { None }
    }

    fn take_inputs(&mut self, walk: &Walk<'_>, srcs: &[From], bytes: usize) -> Result<(), (usize, Broken)> {
        for src in srcs {
            if let From::Input(input) = src {
                let (peer, due) = walk.input(*input, bytes);
                self.take_near(peer, &due)?;
            }
        }
        Ok(())
    }
}

impl State {
    /// Goes on in flight with a call of which some steps are done.
    fn fly_steps(&mut self, op: Arc<Op>, request: Request, done: u64) {
        let aside = self.set_aside(&request);
        let Some(mut head) = self.fly(op, &request) else { return };
        let Work::Collective(program) = request.work else { return };
        let key = head.key;
        head.aside = aside;
        self.recent = request.channel;
        let memory = self.recycled.pop().unwrap_or_default();
        let run = Run::start(head, program, request.parts, memory, done, &mut self.io);
        self.place_flight(key, Flight::Collective(run));
        self.part_with_closed(key);
        self.step(key);
    }
}
