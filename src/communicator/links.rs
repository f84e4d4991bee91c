//! What is known about the links to the other ranks.

use super::Communicator;
use crate::error::LinkReport;
use crate::rank::Rank;

impl Communicator {
    /// The link to every rank of this communicator, in rank order, oneself included: how it is reached, in which state it
    /// is, since when and why, and what was counted since set-up. The counters are those of the processes: all communicators share their
    /// links. Asks the system twice per link; not for every step of a loop.
    ///
    /// A TCP link becomes [`Degraded`](crate::LinkState::Degraded) when ten samples in a row, each of operations of 1 MiB
    /// or more, run at less than half of the best rate that ten in a row have sustained; a warning names the peer and the
    /// counters. After three good samples it is [`Ready`](crate::LinkState::Ready) again, with another warning.
    ///
    /// ```
    /// use hcomm::{Communicator, LinkKind, LinkState};
    ///
    /// let ranks = Communicator::local(2);
    /// let links = ranks[0].links();
    /// assert_eq!((links[0].kind, links[1].kind), (LinkKind::Myself, LinkKind::Memory));
    /// assert_eq!(links[1].state, LinkState::Ready);
    /// ```
    pub fn links(&self) -> Vec<LinkReport> {
        let members = self.members.iter().zip(0..).map(|(world, rank)| (*world as usize, Rank(rank)));
        self.engine.links(members)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::engine::room::{MEMORY, Memory};
    use crate::engine::{Engine, PeerLink};
    use crate::error::{LinkKind, LinkState};
    use crate::events::Events;
    use crate::path::{Facts, PlanCache};
    use crate::runtime::spin::SpinPolicy;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// Passes bytes on, and waits so many microseconds after each piece.
    fn pass(mut from: TcpStream, mut to: TcpStream, pause_us: Arc<AtomicU64>) {
        std::thread::spawn(move || {
            let mut piece = vec![0; 32 << 10];
            while let Ok(bytes @ 1..) = from.read(&mut piece) {
                if to.write_all(&piece[..bytes]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(pause_us.load(Ordering::Relaxed)));
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }

    /// A connection that goes through somebody who can be told to be slow.
    fn proxied(pause_us: &Arc<AtomicU64>) -> (TcpStream, TcpStream) {
        let ((one, near), (far, other)) = (pair(), pair());
        for socket in [&one, &near, &far, &other] {
            let socket = socket2::SockRef::from(socket);
            // So that what is slow shows at the sender.
            let _ = socket.set_recv_buffer_size(64 << 10);
            let _ = socket.set_send_buffer_size(64 << 10);
        }
        pass(near.try_clone().unwrap(), far.try_clone().unwrap(), pause_us.clone());
        pass(far, near, pause_us.clone());
        for socket in [&one, &other] {
            socket.set_nonblocking(true).unwrap();
        }
        (one, other)
    }

    fn two_ranks(pause_us: &Arc<AtomicU64>) -> Vec<Communicator> {
        let ((fast, other_fast), (bulk, other_bulk)) = (proxied(pause_us), proxied(pause_us));
        let plans = Arc::new(Mutex::new(PlanCache::new()));
        let ends = [PeerLink::Tcp { fast, bulk }, PeerLink::Tcp { fast: other_fast, bulk: other_bulk }];
        let ranks = ends.into_iter().enumerate().map(|(rank, end)| {
            let peers = if rank == 0 { vec![PeerLink::Myself, end] } else { vec![end, PeerLink::Myself] };
            let labels = vec!["host a".into(), "host b".into()];
            let engine =
                Engine::new(rank, peers, labels, None, SpinPolicy::choose(2, 2), Memory { limit: MEMORY })
                    .unwrap();
            Communicator::open(engine, 0, "world".into(), [0, 1].into(), rank, Facts::new(2), plans.clone())
        });
        ranks.collect()
    }

    /// Sends from rank 0 to rank 1 until the link is like this.
    fn send_until(is_so: impl Fn(&LinkReport) -> bool, zero: &Communicator, one: &Communicator) {
        const SENDS_MAX: usize = 2000;
        for _ in 0..SENDS_MAX {
            let sent = zero.send(Rank(1), 1, vec![7u8; 2 << 20]);
            assert_eq!(one.recv(Rank(0), 1, vec![0u8; 2 << 20]).wait().unwrap(), [7; 2 << 20]);
            sent.wait().unwrap();
            if is_so(&zero.links()[1]) {
                return;
            }
        }
        panic!("not so after {SENDS_MAX} messages: {:?}", zero.links()[1]);
    }

    #[test]
    fn a_link_that_becomes_slow_is_degraded_and_recovers() {
        let warnings = Events::of_all_threads();
        let pause_us = Arc::new(AtomicU64::new(0));
        let mut ranks = two_ranks(&pause_us);
        let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        // The guard gets to know what the link can do.
        let link = zero.links().remove(1);
        assert_eq!((link.state, link.reason.as_str()), (LinkState::Ready, ""));
        send_until(|link| link.best_bytes_per_s > 0, &zero, &one);
        pause_us.store(5000, Ordering::Relaxed);
        send_until(|link| link.state == LinkState::Degraded, &zero, &one);
        let slow = zero.links().remove(1);
        assert!(slow.reason.contains("bytes per second, of"), "{slow:?}");
        std::thread::sleep(Duration::from_millis(2));
        assert!(zero.links()[1].state_age >= slow.state_age + Duration::from_millis(2));
        pause_us.store(0, Ordering::Relaxed);
        send_until(|link| link.state == LinkState::Ready, &zero, &one);
        assert!(zero.links()[1].reason.contains("after it was slow"), "{:?}", zero.links()[1]);
        // Other tests of this process have no host of this name.
        let told = |what| {
            let mut told = warnings.with(what).into_iter();
            told.find(|told| told.field("rank") == "1" && told.field("host") == "host b").expect(what)
        };
        let slow = told("a link has become slow");
        let number = |name| slow.field(name).parse::<u64>().expect(name);
        assert!(number("bytes_per_s") > 0 && number("rtt_us") > 0, "{slow:?}");
        assert!(number("best_bytes_per_s") > 2 * number("bytes_per_s"), "{slow:?}");
        number("retransmissions");
        assert!(told("a slow link has recovered").at > slow.at);
        let [myself, link] = &zero.links()[..] else { panic!("two links") };
        assert_eq!((myself.kind, link.kind, link.rank), (LinkKind::Myself, LinkKind::Tcp, Rank(1)));
        assert_eq!(link.address, "host b");
        assert!(link.sent_bytes > 40 << 20 && link.sent_frames > 300 && link.rtt_us > 0, "{link:?}");
        assert!(one.links()[0].received_bytes > 40 << 20, "{:?}", one.links());
        let late = zero.recv(1, 2, vec![0u8]).timeout(Duration::from_millis(20)).wait().unwrap_err();
        let crate::Error::Deadline(report) = &late.error else { panic!("{late}") };
        let links: Vec<_> = report.links.iter().map(|link| (link.rank, link.kind)).collect();
        assert_eq!(links, [(Rank(1), LinkKind::Tcp)], "{report:?}");
        let dropped = std::time::Instant::now();
        drop(one);
        let gone = zero.recv(Rank(1), 1, vec![0u8]).wait().unwrap_err();
        assert!(matches!(gone.error, crate::Error::Left { .. }), "{gone}");
        // It says goodbye once it has nothing more to do.
        while zero.links()[1].state != LinkState::Down {
            std::thread::sleep(Duration::from_millis(1));
        }
        let gone = zero.links().remove(1);
        assert!(gone.received_frames > 0, "the counters of a link that is gone are kept");
        assert!(gone.state_age <= dropped.elapsed(), "{gone:?}");
        assert_eq!((gone.state, gone.reason.as_str()), (LinkState::Down, "its process has left"));
    }
}
