//! What is not ours misbehaves: a waker that panics, the owner of bytes that panics when it goes, a report file that nobody
//! reads. None of it keeps others waiting: not in this world, and not in another one of the process.

use std::fs::OpenOptions;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::time::Duration;

use crate::common::run;
use hcomm::{Communicator, bytes};
use rustix::fs::{CWD, FileType, Mode, mknodat};

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("on purpose: a waker");
    }
}

struct Owner(Vec<u8>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        panic!("on purpose: an owner of bytes");
    }
}

const LIMIT: Duration = Duration::from_millis(100);

/// In a world that nothing was done to.
fn assert_deadlines_pass() {
    run(Communicator::local(2), |comm| {
        let to = 1 - comm.rank().0;
        comm.recv(to, 1, vec![0u8]).timeout(LIMIT).wait().unwrap_err();
    });
}

#[test]
fn a_waker_that_panics() {
    let comm = Communicator::local(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let mut receives: Vec<_> = (1..4).map(|tag| comm[0].recv(1, tag, vec![0u8]).timeout(LIMIT)).collect();
    for receive in &mut receives {
        let waker = Arc::new(Panics).into();
        assert!(Pin::new(receive).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    std::thread::sleep(3 * LIMIT);
    assert_deadlines_pass();
    for receive in receives {
        receive.wait().unwrap_err();
    }
}

#[test]
fn an_owner_that_panics() {
    let comm = Communicator::local(2);
    let bytes = bytes::Bytes::from_owner(Owner(vec![0; 1 << 20]));
    drop(comm[0].send(1, 1, bytes).timeout(LIMIT));
    std::thread::sleep(3 * LIMIT);
    assert_deadlines_pass();
}

#[test]
fn a_report_file_that_nobody_reads() {
    let path = std::env::temp_dir().join(format!("hcomm-foreign-{}", std::process::id()));
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let comm = Communicator::local(2);
    assert!(comm[0].report_to(&path).is_err(), "a pipe without a reader");
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    comm[0].report_to(&path).unwrap();
    run(comm, |comm| {
        let from = 1 - comm.rank().0;
        // More than the pipe holds.
        for _ in 0..200 {
            comm.recv(from, 1, vec![0u8]).timeout(Duration::from_millis(1)).wait().unwrap_err();
        }
    });
    assert_deadlines_pass();
    drop(reader);
    std::fs::remove_file(&path).unwrap();
}
