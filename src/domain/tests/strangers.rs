//! Connections that have nothing to do with the job.

use super::*;

/// What scanners and other programs say.
fn words() -> Vec<Vec<u8>> {
    let hello = handshake::hello(Kind::Control, true, 1, 0, [3; 32]).encode();
    vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".repeat(3),
        [&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03][..], &[7; 100]].concat(),
        vec![0xff; 4096],
        hello[..31].to_vec(),
        hello.to_vec(),
        [&hello[..], &[9; 32], &u32::MAX.to_le_bytes()].concat(),
    ]
}

fn visit(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let words = words();
    let visits = (0..count).filter_map(|index| {
        let mut stream = TcpStream::connect(address).ok()?;
        // It may be closed already; that is its right.
        let _ = stream.write_all(&words[index % words.len()]);
        Some(stream)
    });
    visits.collect()
}

#[test]
fn two_hundred_strangers_change_nothing() {
    let config = job(3);
    let root = super::super::join(as_rank(&config, 0));
    while TcpStream::connect(address_of(&config)).is_err() {
        thread::sleep(Duration::from_millis(2));
    }
    let strangers = visit(address_of(&config), 200);
    assert_eq!(strangers.len(), 200);
    let mut all: Vec<Membership> =
        run_ranks(&config, 1..3).into_iter().map(|outcome| outcome.unwrap()).collect();
    all.insert(0, block_on(root).unwrap());
    check_streams(all);
}

/// Who says nothing is sent away after a while, and delays nobody.
#[test]
fn two_hundred_silent_ones_are_sent_away_and_counted() {
    let deadlines = Deadlines { link: Duration::from_secs(2), ..job(2).deadlines };
    let config = JoinConfig { deadlines, ..job(2) };
    let root = super::super::join(as_rank(&config, 0));
    let visitors = silent(address_of(&config), 200);
    for mut stream in visitors {
        // It is ended, one way or another; the watchdog is the root's own deadline.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        match stream.read(&mut [0; 1]) {
            Ok(read) => assert_eq!(read, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    let patient = JoinConfig { deadlines: job(2).deadlines, ..config };
    let last = run_ranks(&patient, 1..2).remove(0).unwrap();
    check_streams(vec![block_on(root).unwrap(), last]);
    // If somebody is missing, it is told how many came instead. On a machine that stands still, fewer get their turn.
    let counted = (0..3).any(|_| {
        let deadlines = Deadlines { rendezvous: Duration::from_secs(3), link: Duration::from_millis(300) };
        let config = JoinConfig { deadlines, ..job(2) };
        let root = super::super::join(as_rank(&config, 0));
        let _visitors = silent(address_of(&config), 200);
        let error = block_on(root).unwrap_err().to_string();
        assert!(error.contains("still missing rank 1"), "{error}");
        error.contains("200 connections were turned away")
    });
    assert!(counted);
}

/// Connections that say nothing, as soon as somebody listens.
pub(super) fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    while streams.len() < count {
        match TcpStream::connect(address) {
            Ok(stream) => streams.push(stream),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
    streams
}

/// Every data port is visited while the connections are made.
#[test]
fn strangers_at_data_ports_change_nothing() {
    let config = job(3);
    let others: Vec<_> = (0..2).map(|rank| super::super::join(as_rank(&config, rank))).collect();
    block_on(async {
        let mut puppet = Puppet::seated(&as_rank(&config, 2), "127.0.0.1:9".parse().unwrap()).await;
        let ToMember::Table(table) = puppet.hear().await else { panic!("no table") };
        let strangers: Vec<TcpStream> =
            table.members[..2].iter().flat_map(|member| visit(member.address, 50)).collect();
        assert_eq!(strangers.len(), 100);
        let session = Key::control(config.token.as_ref(), b"").derive("hcomm session", &table.nonce);
        for peer in 0..2u32 {
            // One with another session is refused, and the right one isn't disturbed by it.
            let wrong = dial(&table.members[peer as usize], &Key::new([1; 32]), Kind::Fast, (2, peer)).await;
            assert!(matches!(wrong, Err(handshake::Refusal::Key(_))));
            for kind in [Kind::Fast, Kind::Bulk] {
                dial(&table.members[peer as usize], &session, kind, (2, peer)).await.unwrap();
            }
        }
        puppet.say(&ToRoot::Connected(Vec::new())).await;
        puppet.share().await;
        for other in others {
            assert_eq!(other.await.unwrap().session, session.bytes());
        }
    });
}
