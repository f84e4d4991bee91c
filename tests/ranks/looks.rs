//! Looks at messages that are given up, and messages whose sends are: nothing is lost, nor out of order, nor there for ever.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use hcomm::{Communicator, Error, Source, Tags};

/// Long enough for what comes at once.
const SHORT: Duration = Duration::from_secs(5);

fn pair() -> (Communicator, Communicator) {
    let mut ranks = Communicator::local(2);
    let one = ranks.pop().unwrap();
    (ranks.pop().unwrap(), one)
}

/// Looks once, and sees nothing.
macro_rules! waits {
    ($($look:ident),+) => {$(
        assert!((&mut $look).now_or_never().is_none());
    )+};
}

#[test]
fn who_waits_behind_a_claim_that_is_given_up_has_the_message() {
    let (zero, one) = pair();
    let (mut first, mut second) = (zero.matched_probe(1, 0), zero.matched_probe(1, 0));
    let mut looks = zero.probe(1, 0);
    waits!(first, second, looks);
    one.send(0, 0, vec![1u8]).wait().unwrap();
    assert_eq!(zero.try_probe(1, 0).unwrap(), None, "the first has claimed it");
    drop(first);
    assert_eq!(zero.try_probe(1, 0).unwrap(), None, "and now the second");
    let message = second.timeout(SHORT).wait().unwrap();
    assert_eq!(message.recv(vec![0u8]).wait().unwrap().buffer, [1]);
    one.send(0, 0, vec![2u8, 3]).wait().unwrap();
    assert_eq!(looks.timeout(SHORT).wait().unwrap().count, 2);
}

#[test]
fn what_was_claimed_and_is_not_comes_back_to_where_it_was() {
    let (zero, one) = pair();
    let (mut first, mut second, mut of_tag) =
        (zero.matched_probe(1, 0), zero.matched_probe(1, 0), zero.matched_probe(1, 5));
    waits!(first, second, of_tag);
    // Of two tags in turn, all but the tags 9 are claimed.
    for (tag, value) in [(9, 1u8), (0, 2), (5, 3), (0, 4), (9, 5)] {
        one.send(0, tag, vec![value]).wait().unwrap();
    }
    assert_eq!(zero.try_probe(1, 0).unwrap(), None);
    // In whatever order they are given up.
    drop((second, first, of_tag));
    let next = || zero.recv_from(Source::Any, Tags::Any, vec![0u8]).wait().unwrap().buffer[0];
    assert_eq!([next(), next(), next(), next(), next()], [1, 2, 3, 4, 5]);
}

#[test]
fn a_message_to_oneself_goes_with_its_send() {
    let (zero, _one) = pair();
    for count in [0, 4] {
        // Claimed as it comes, and known to somebody.
        let mut claims = zero.matched_probe(Source::Any, Tags::Any);
        waits!(claims);
        let sent = zero.send(0, 6, vec![9u8; count]);
        let message = claims.wait().unwrap();
        sent.cancel();
        sent.wait().unwrap_err();
        let got = message.recv(vec![0u8; count]).timeout(SHORT).wait().unwrap_err();
        assert!(matches!(got.error, Error::Aborted { .. }), "{:?}", got.error);
        // Or to nobody.
        let mut claims = zero.matched_probe(Source::Any, Tags::Any);
        waits!(claims);
        let sent = zero.send(0, 6, vec![9u8; count]);
        sent.cancel();
        sent.wait().unwrap_err();
        drop(claims);
        assert_eq!(zero.try_probe(Source::Any, Tags::Any).unwrap(), None);
    }
}

#[test]
fn a_claimed_message_whose_sender_gives_it_up_is_told_so() {
    let (zero, one) = pair();
    let sent = one.send(0, 1, vec![1u8; 100_000]);
    let message = zero.matched_probe(1, 1).wait().unwrap();
    sent.cancel();
    sent.wait().unwrap_err();
    let got = message.recv(vec![0u8; 100_000]).timeout(SHORT).wait().unwrap_err();
    assert!(matches!(got.error, Error::Aborted { .. }), "{:?}", got.error);
}

#[test]
fn a_probe_that_is_dropped_is_over() {
    let (mut zero, _one) = pair();
    let file = crate::common::meeting_place();
    zero.report_to(&file).unwrap();
    zero.set_deadline(Duration::from_millis(50));
    for _ in 0..1000 {
        let mut looks = zero.probe(1, 0);
        waits!(looks);
    }
    assert_eq!(zero.resources().operations, 0);
    // Nobody is blamed for what nobody waits for.
    zero.recv(1, 0, vec![0u8]).timeout(Duration::from_millis(100)).wait().unwrap_err();
    let reports = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(reports.lines().count(), 1, "{reports}");
}

#[test]
fn a_stream_refuses_a_message_of_another_type() {
    let (zero, one) = pair();
    let sent = one.send(0, 1, vec![1u8; 100_000]);
    let mut stream = zero.incoming::<f64>(1);
    let got = stream.next().now_or_never().flatten();
    assert!(matches!(got, Some(Err(Error::Mismatch { .. }))), "{got:?}");
    sent.wait().unwrap_err();
    one.send(0, 1, vec![0.5f64]).wait().unwrap();
    let got = stream.next().now_or_never().flatten();
    assert_eq!(got.unwrap().unwrap().buffer, [0.5]);
}

/// Of whom nobody knows that he waits in vain.
#[test]
fn who_waits_for_anybody_is_in_no_circle() {
    let mut ranks = Communicator::local(3);
    let _idle = ranks.pop().unwrap();
    let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let waits = zero.recv_from(Source::Any, 1, vec![0u8]);
    let thread = std::thread::spawn(move || drop(waits.timeout(Duration::from_secs(2)).wait()));
    let failed = one.recv(0, 0, vec![0u8]).timeout(Duration::from_millis(900)).wait().unwrap_err();
    let Error::Deadline(report) = &failed.error else { panic!("{:?}", failed.error) };
    assert!(!report.cause.contains("wait for each other"), "{}", report.cause);
    thread.join().unwrap();
}

/// Of many who try, one has each message.
#[test]
fn a_message_is_claimed_at_once_or_not_at_all() {
    let (zero, one) = pair();
    assert!(zero.try_matched_probe(1, Tags::Any).unwrap().is_none());
    for value in 0..100u8 {
        one.send(0, 3, vec![value]).wait().unwrap();
    }
    let mut seen: Vec<u8> = std::thread::scope(|scope| {
        let take = || {
            let claimed = || zero.try_matched_probe(Source::Any, 3).unwrap();
            let received = |message: hcomm::Message<'_>| message.recv(vec![0u8]).wait().unwrap().buffer[0];
            std::iter::from_fn(claimed).map(received).collect::<Vec<u8>>()
        };
        let takers = [scope.spawn(take), scope.spawn(take)];
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    let wrong = zero.try_matched_probe(2, 3).unwrap_err();
    assert!(matches!(wrong, Error::InvalidArgument { .. }), "{wrong:?}");
}

/// Of a message nobody else has a result, and a look has no length.
#[test]
fn what_waits_for_any_message_is_told_as_what_it_is() {
    let (zero, _one) = pair();
    let short = Duration::from_millis(20);
    let probe = zero.probe(1, Tags::Any).timeout(short).wait().unwrap_err().to_string();
    let receive = zero.recv_from(Source::Any, Tags::Any, vec![0f32; 3]).timeout(short).wait().unwrap_err();
    let receive = receive.error.to_string();
    assert!(probe.contains("probe(peer 1, any tag)") && !probe.contains("may have"), "{probe}");
    assert!(receive.contains("recv_from(3 × f32, any tag)") && !receive.contains("may have"), "{receive}");
}
