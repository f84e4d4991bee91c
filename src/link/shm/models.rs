//! Protocols between processes that share memory, in all orders that the memory model allows; see `ARCHITECTURE.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::bell::{Naps, Sleeper};
use super::reach::Grants;
use super::ring::{Head, LINE, Reader, Ring, Writer};
use super::words::{WORD, Words};
use crate::runtime::sync::AtomicBool;

/// Lines of a ring: two frames without payload, and the line that is cleared after them.
const LINES: usize = 4;

fn ring() -> (Writer, Reader) {
    let (words, heads) = (Words::modelled(LINES * LINE / WORD), Words::modelled(1));
    let ring = || Ring::new(words.clone(), LINES * LINE);
    let ahead = Words::modelled(1);
    (Writer::new(ring(), heads.clone(), 0, (ahead.clone(), 0)), Reader::new(ring(), heads, 0, (ahead, 0)))
}

fn frame(number: u64) -> Head {
    let mut head = [number; LINE / WORD];
    head[0] = number + 1;
    head
}

/// Twice round the ring: the writer overwrites what was read, and the reader finds there what is new.
#[test]
fn frames_come_whole_once_and_in_order() {
    const FRAMES: u64 = 7;
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        let far = thread::spawn(move || {
            let mut number = 0;
            while number < FRAMES {
                if writer.has_room(0).unwrap() {
                    writer.publish(&frame(number), 0);
                    number += 1;
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut number = 0;
        while number < FRAMES {
            match reader.peek() {
                Some(head) => {
                    assert_eq!(head, frame(number));
                    reader.advance(0);
                    reader.tell();
                    number += 1;
                }
                None => thread::yield_now(),
            }
        }
        assert!(far.join().is_ok());
        assert_eq!(reader.peek(), None);
    });
}

/// What is told of a frame before it is published is of this one, and not beyond what was written.
#[test]
fn what_is_told_ahead_is_there() {
    const FRAMES: u64 = 3;
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        let far = thread::spawn(move || {
            let mut number = 0;
            while number < FRAMES {
                if writer.has_room(LINE).unwrap() {
                    writer.tell_ahead(&frame(number), 8 + number as usize);
                    writer.publish(&frame(number), LINE);
                    number += 1;
                } else {
                    thread::yield_now();
                }
            }
        });
        for number in 0..FRAMES {
            while reader.peek().is_none() {
                let told = reader.told_ahead();
                let of_it = reader.told_of(&frame(number)[..2]);
                assert!(told == 0 || told >= 8 + number && of_it >= told, "{told} and {of_it} of {number}");
                thread::yield_now();
            }
            assert_eq!(reader.told_of(&frame(number + 1)[..2]), 0);
            reader.advance(LINE);
            reader.tell();
        }
        assert!(far.join().is_ok());
    });
}

/// A process that falls asleep in its lane, and the other one, which rings for it if it must.
struct Sleep {
    naps: Arc<Naps>,
    rung: Arc<AtomicBool>,
    word: Words,
}

impl Sleep {
    fn new() -> Sleep {
        let word = Words::modelled(1);
        let mut naps = Naps::default();
        naps.add(word.clone(), 0);
        Sleep { naps: Arc::new(naps), rung: Arc::default(), word }
    }

    /// The other one does this, and looks whether it is to ring.
    fn other(&self, act: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
        let (sleeper, rung) = (Sleeper::new(self.word.clone(), 0), self.rung.clone());
        thread::spawn(move || {
            act();
            if sleeper.must_wake() {
                rung.store(true, Relaxed);
            }
        })
    }

    /// Announces that it sleeps, and looks once more for what the other one has done: it has seen it then, or is rung for.
    fn assert_ended(
        &self,
        others: impl IntoIterator<Item = thread::JoinHandle<()>>,
        look: impl FnOnce() -> bool,
    ) {
        self.naps.announce();
        let seen = look();
        others.into_iter().for_each(|other| assert!(other.join().is_ok()));
        assert!(seen || self.rung.load(Relaxed), "it sleeps, and nobody rings");
    }
}

/// One that sleeps when it has seen nothing is rung for, whoever is first.
#[test]
fn who_sleeps_is_rung_for() {
    loom::model(|| {
        let (mut writer, reader) = ring();
        let sleep = Sleep::new();
        let far = sleep.other(move || writer.publish(&frame(0), 0));
        sleep.assert_ended([far], || reader.peek().is_some());
    });
}

/// Who waits for room sleeps as well: he is rung for when something was read.
#[test]
fn who_sleeps_for_want_of_room_is_rung_for() {
    loom::model(|| {
        let (mut writer, mut reader) = ring();
        let mut written = 0;
        while writer.has_room(0).unwrap() {
            writer.publish(&frame(written), 0);
            written += 1;
        }
        let sleep = Sleep::new();
        let far = sleep.other(move || {
            reader.advance(0);
            reader.tell();
        });
        sleep.assert_ended([far], || !writer.is_full_for(0));
    });
}

/// Two threads of a process announce its sleep at about the same time: what is published after both is rung for.
#[test]
fn each_of_two_sleeps_at_once_is_ended() {
    loom::model(|| {
        let (mut writer, reader) = ring();
        let sleep = Sleep::new();
        let naps = sleep.naps.clone();
        let other = thread::spawn(move || naps.announce());
        let far = sleep.other(move || writer.publish(&frame(0), 0));
        sleep.assert_ended([other, far], || reader.peek().is_some());
    });
}

/// A lender takes memory back and writes to it; a reader for whom the grant stood after he had read has read what was lent.
#[test]
fn what_was_read_while_the_grant_stood_was_lent() {
    loom::model(|| {
        let (words, memory) = (Words::modelled(1), Words::modelled(1));
        let lender = Grants::new(words.clone(), 0);
        memory.at(0).store(7, Relaxed);
        let grant = lender.now(0);
        let reader = thread::spawn({
            let (grants, memory) = (Grants::new(words, 0), memory.clone());
            move || {
                let read = memory.at(0).load(Relaxed);
                (read, grants.stands(grant))
            }
        });
        lender.take_back(grant);
        memory.at(0).store(8, Relaxed);
        let (read, stood) = reader.join().unwrap();
        assert!(!stood || read == 7, "it was written meanwhile, and the reader does not know");
    });
}
