//! The engine's protocols between threads, in all orders that the memory model allows; see `ARCHITECTURE.md`.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use loom::thread;

use super::call::{CallDesc, Op, Outcome, Records, Request, Work};
use super::order::Priority;
use super::sleepers::{Sleep, Sleepers};
use super::turns::Turns;
use super::watch::{Rest, Watch};
use crate::buffer::parts::Parts;
use crate::element::DType;
use crate::runtime::announcement::Announcement;
use crate::runtime::sync::{ArrayQueue, AtomicBool};

/// A waker that notes that it was called.
#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

impl Bell {
    fn new() -> (Arc<Bell>, Waker) {
        let bell = Arc::new(Bell::default());
        (bell.clone(), Waker::from(bell))
    }

    fn has_rung(&self) -> bool {
        self.0.load(Relaxed)
    }
}

fn request(seq: u64) -> Request {
    let desc = CallDesc::new("barrier", DType::U8, 0);
    let (work, parts, deadline) = (Work::Send { to: 0 }, Parts::NONE, Duration::ZERO);
    Request { channel: 0, seq, desc, digest: 0, work, parts, deadline, priority: Priority::Normal }
}

fn outcome() -> Outcome {
    Outcome { result: Ok(()), parts: None, arrival: None }
}

/// The part of an engine that calls go through.
struct Calls {
    waiting: ArrayQueue<u32>,
    /// How many have begun.
    begun: Turns<usize>,
    watch: Watch,
}

impl Calls {
    fn new() -> Arc<Calls> {
        Arc::new(Calls { waiting: ArrayQueue::new(4), begun: Turns::new(0), watch: Watch::default() })
    }

    fn submit(&self) {
        assert!(self.waiting.push(1).is_ok());
        self.drive();
    }

    fn drive(&self) {
        self.begun.drive(self.begun.ask(), |mut begun| {
            self.watch.count();
            self.begin(&mut begun);
        });
    }

    fn begin(&self, begun: &mut usize) {
        while self.waiting.pop().is_some() {
            *begun += 1;
        }
    }

    /// What the service thread finds: how many have begun; `None` if somebody is at it.
    fn serve(&self) -> Option<usize> {
        let mut found = 0;
        let mut drive = false;
        let last = self.begun.drive(self.begun.offer(), |mut begun| {
            if drive {
                self.begin(&mut begun);
            }
            drive = true;
            found = *begun;
        });
        last.then_some(found)
    }
}

#[test]
fn who_submits_begins_or_is_seen_to() {
    loom::model(|| {
        let calls = Calls::new();
        let others = [(); 2].map(|()| {
            let calls = calls.clone();
            thread::spawn(move || calls.submit())
        });
        drop(calls.begun.wait());
        calls.drive();
        for other in others {
            assert!(other.join().is_ok());
        }
        assert!(calls.waiting.is_empty(), "a call is left in the queue and nobody drives");
        assert_eq!(*calls.begun.wait(), 2);
    });
}

#[test]
fn who_submits_while_the_service_thread_is_at_it_is_seen_to() {
    loom::model(|| {
        let calls = Calls::new();
        let service = thread::spawn({
            let calls = calls.clone();
            move || calls.serve()
        });
        calls.submit();
        assert!(service.join().is_ok());
        assert_eq!(*calls.begun.wait(), 1, "a call is left in the queue and nobody drives");
    });
}

#[test]
fn a_call_is_seen_before_a_long_sleep_or_ends_it() {
    loom::model(|| {
        let calls = Calls::new();
        let rest = Arc::new(Rest::default());
        let caller = thread::spawn({
            let (calls, rest) = (calls.clone(), rest.clone());
            move || {
                calls.submit();
                rest.must_end()
            }
        });
        // Somebody who polls takes over what was called, and ends no sleep.
        let driver = thread::spawn({
            let calls = calls.clone();
            move || calls.drive()
        });
        let turns = calls.watch.drives();
        let found = calls.serve();
        let news = || !calls.waiting.is_empty() || calls.watch.drives() != turns;
        let rests = found.filter(|_| !rest.begin(true, news));
        let ended = matches!(caller.join(), Ok(true));
        assert!(driver.join().is_ok());
        if let Some(begun) = rests
            && !ended
        {
            assert_eq!(*calls.begun.wait(), begun, "the service thread sleeps and knows not of a call");
        }
    });
}

#[test]
fn who_asks_in_vain_before_sleep_is_looked_for_by_who_drives() {
    loom::model(|| {
        let news = Arc::new(AtomicBool::new(false));
        let sleep = Arc::new(Announcement::default());
        let found = Arc::new(Turns::new(false));
        let drive = {
            let (news, found) = (news.clone(), found.clone());
            move || found.drive(found.ask(), |mut found| *found |= news.load(Relaxed))
        };
        let publisher = thread::spawn({
            let (news, sleep) = (news.clone(), sleep.clone());
            move || {
                news.store(true, Relaxed);
                sleep.answer()
            }
        });
        let driver = thread::spawn(drive.clone());
        sleep.make();
        drive();
        let called = !sleep.stands();
        assert!(driver.join().is_ok());
        let woken = matches!(publisher.join(), Ok(true));
        assert!(called || woken || *found.wait(), "what was published is not seen, and nobody is woken");
    });
}

#[test]
fn who_sleeps_is_woken_when_his_operation_ends() {
    loom::model(|| {
        let op = Arc::new(Op::default());
        op.renew();
        op.hold(request(0));
        let sleepers = Arc::new(Sleepers::default());
        let engine = thread::spawn({
            let op = op.clone();
            move || {
                op.finish(outcome());
                op.wake();
            }
        });
        let (bell, waker) = Bell::new();
        op.register(&waker);
        let sleep = sleepers.lie_down(&op, || (), || false, || false);
        if sleep == Sleep::Over {
            assert!(op.take_outcome().is_some(), "an operation has ended without an outcome");
        }
        assert!(engine.join().is_ok());
        assert!(sleep == Sleep::Over || bell.has_rung(), "an operation has ended and its future sleeps");
    });
}

/// Two that sleep, the first of them is the leader.
fn two_asleep(sleepers: &Sleepers) -> [(Arc<Op>, Arc<Bell>); 2] {
    [0, 1].map(|seq| {
        let op = Arc::new(Op::default());
        op.renew();
        op.hold(request(seq));
        let (bell, waker) = Bell::new();
        op.register(&waker);
        assert_eq!(sleepers.lie_down(&op, || (), || false, || false), Sleep::Deep);
        (op, bell)
    })
}

#[test]
fn a_leader_that_is_dropped_passes_the_call_on() {
    loom::model(|| {
        let sleepers = Arc::new(Sleepers::default());
        let [(leader, _), (_next, bell)] = two_asleep(&sleepers);
        let event = thread::spawn({
            let sleepers = sleepers.clone();
            move || sleepers.call_leader()
        });
        sleepers.leave(&leader);
        assert!(event.join().is_ok());
        assert!(bell.has_rung(), "the call went to a leader that is gone");
    });
}

#[test]
fn a_leader_whose_operation_ends_passes_the_call_on() {
    loom::model(|| {
        let sleepers = Arc::new(Sleepers::default());
        let news = Arc::new(AtomicBool::new(false));
        let [(leader, _), (_next, bell)] = two_asleep(&sleepers);
        let event = thread::spawn({
            let (sleepers, news) = (sleepers.clone(), news.clone());
            move || {
                news.store(true, SeqCst);
                sleepers.call_leader();
            }
        });
        let driver = thread::spawn({
            let leader = leader.clone();
            move || {
                leader.finish(outcome());
                leader.wake();
            }
        });
        let look = || {
            news.swap(false, SeqCst);
            false
        };
        loom::future::block_on(poll_fn(|cx| {
            if leader.is_done() {
                return Poll::Ready(());
            }
            leader.register(cx.waker());
            match sleepers.lie_down(&leader, || (), look, || false) {
                Sleep::Over => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }));
        sleepers.call_leader();
        assert!(event.join().is_ok() && driver.join().is_ok());
        assert!(!news.load(SeqCst) || bell.has_rung(), "the call went to a leader that has ended");
    });
}

#[test]
fn a_record_that_is_used_again_knows_nothing_of_its_past() {
    loom::model(|| {
        let (records, sleepers) = (Records::new(), Arc::new(Sleepers::default()));
        let op = records.take();
        op.renew();
        op.hold(request(1));
        let engine = thread::spawn({
            let op = op.clone();
            move || {
                assert!(op.take_request().is_some());
                op.finish(outcome());
                op.wake();
            }
        });
        let caller = thread::spawn({
            let sleepers = sleepers.clone();
            move || sleepers.call_leader()
        });
        loom::future::block_on(poll_fn(|cx| {
            op.register(cx.waker());
            match sleepers.lie_down(&op, || (), || false, || false) {
                Sleep::Over => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }));
        sleepers.leave(&op);
        records.give(op);
        let again = records.take();
        again.renew();
        again.hold(request(2));
        assert!(!again.is_done() && again.is_waited_for(), "another call's end");
        assert!(again.take_outcome().is_none(), "another call's outcome");
        let (bell, waker) = Bell::new();
        again.register(&waker);
        assert_eq!(sleepers.lie_down(&again, || (), || false, || false), Sleep::Deep);
        assert!(engine.join().is_ok() && caller.join().is_ok());
        sleepers.call_leader();
        assert!(bell.has_rung(), "a sleeper that is not in the list");
        assert!(again.take_request().is_some_and(|request| request.seq == 2));
    });
}

#[test]
fn a_call_from_this_process_is_seen_by_the_service_thread_or_interrupts_it() {
    loom::model(|| {
        let sleep = Arc::new(Announcement::default());
        let watch = Arc::new(Watch::default());
        let news = Arc::new(AtomicBool::new(false));
        let peer = thread::spawn({
            let (sleep, watch, news) = (sleep.clone(), watch.clone(), news.clone());
            move || {
                news.store(true, Relaxed);
                sleep.answer() && watch.is_set()
            }
        });
        sleep.make();
        let seen = news.load(Relaxed);
        watch.set(true);
        let called = !sleep.stands();
        let interrupted = matches!(peer.join(), Ok(true));
        assert!(seen || called || interrupted, "what was published is not seen, and nobody is interrupted");
    });
}
