//! tokio runtimes without IO: operations end, and nothing is printed about it.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{LINKS, WATCHDOG, world};
use hcomm::ReduceOp;
use tokio::runtime::{Builder, Runtime};

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

#[test]
fn operations_end_and_no_panic_is_heard_of() {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        let said = panic.payload_as_str().unwrap_or("a panic");
        std::io::Write::write_all(&mut std::io::stderr(), format!("{said}\n").as_bytes()).unwrap();
    }));
    for link in LINKS {
        for flavour in [current_thread, multi_thread] {
            world(link, 2, move |mut comm| {
                // Two runtimes one after another: each must be asked for itself.
                for round in 0..2 {
                    flavour().block_on(async {
                        for turn in 0..10 {
                            if comm.rank().0 == turn % 2 {
                                // The other one has gone to sleep.
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            let sum = comm.all_reduce(vec![turn; 1000], ReduceOp::Sum);
                            let sum = tokio::time::timeout(WATCHDOG, sum).await.expect("it hangs").unwrap();
                            assert_eq!(sum, [2 * turn; 1000], "round {round}");
                        }
                    });
                }
            });
        }
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "panics were reported");
    std::panic::catch_unwind(|| panic!("this one is heard")).unwrap_err();
    assert_eq!(PANICS.load(Ordering::SeqCst), 1, "another panic was not reported");
}
