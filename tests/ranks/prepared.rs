//! Prepared collectives: run where they were prepared, refused at once everywhere else.

use std::sync::{Arc, Mutex, mpsc};

use crate::common::{GENEROUS, LINKS, Link, assert_usable, class, connect, run, world};
use hcomm::path::{Algorithm, Collective};
use hcomm::{Communicator, DType, Error, Prepared, Rank, ReduceOp};

const COUNT: usize = 1000;

fn prepare(comm: &mut Communicator) -> Prepared<u32> {
    comm.prepare_all_reduce(COUNT, ReduceOp::Sum).unwrap()
}

fn refused(prepared: &Prepared<u32>, comm: &mut Communicator, count: usize) -> String {
    let error = prepared.run(comm, vec![1; count]).wait().unwrap_err();
    assert_eq!(error.buffer.as_ref().map(Vec::len), Some(count), "the buffer comes back");
    let Error::InvalidArgument { operation, problem, .. } = error.error else { panic!("{error}") };
    assert_eq!(&*operation, "all_reduce");
    problem.to_string()
}

/// Rank 0 of `ranks` runs what does not fit; the others, who call the same, are told who gave it up.
fn one_misuses(ranks: Vec<Communicator>, stranger: Prepared<u32>, part: &'static str) {
    run(ranks, move |mut comm| {
        let own = prepare(&mut comm);
        if comm.rank().0 == 0 {
            let problem = refused(&stranger, &mut comm, COUNT);
            assert!(problem.contains(part), "{problem}");
        } else {
            let error = own.run(&mut comm, vec![1; COUNT]).wait().unwrap_err();
            assert_eq!(class(&error.error), "aborted", "{error}");
        }
        assert_usable(&mut comm);
        assert_eq!(own.run(&mut comm, vec![1; COUNT]).wait().unwrap(), [comm.size() as u32; COUNT]);
    });
}

/// A count needs no memory before it is run: its bytes may be more than can be counted.
#[test]
fn any_count_is_explained_and_prepared() {
    let mut comm = Communicator::local(9).remove(0);
    let large = comm.explain(Collective::AllReduce, 1 << 40, DType::F64).unwrap().choice;
    assert_eq!(large.algorithm, Algorithm::HalvingDoubling);
    for count in [usize::MAX, usize::MAX / 8, usize::MAX / 8 + 1, usize::MAX / 8 + 2] {
        for collective in [Collective::AllGather, Collective::Broadcast { root: Rank(3) }] {
            comm.explain(collective, count, DType::F64).unwrap();
        }
        assert_eq!(comm.explain(Collective::AllReduce, count, DType::F64).unwrap().choice, large, "{count}");
        let sum = comm.prepare_all_reduce::<f64>(count, ReduceOp::Sum).unwrap();
        let refused = sum.run(&mut comm, vec![1.0; 8]).wait().unwrap_err();
        let problem = format!("prepared for {count} elements, run with 8");
        assert!(refused.error.to_string().contains(&problem), "{refused:?}");
    }
}

#[test]
fn another_world_of_any_size() {
    for link in LINKS {
        for of in [1, 2, 4] {
            let mut others = Communicator::local(of);
            let stranger = prepare(&mut others[of - 1]);
            one_misuses(connect(link, 2), stranger, "another communicator");
        }
    }
}

#[test]
fn another_rank_of_the_same_world() {
    for link in LINKS {
        for n in [2, 3] {
            let mut ranks = connect(link, n);
            let stranger = prepare(&mut ranks[n - 1]);
            let owner =
                if n == 2 { "prepared by rank 1 of \"world\"" } else { "prepared by rank 2 of \"world\"" };
            one_misuses(ranks, stranger, owner);
        }
    }
}

#[test]
fn a_split_and_what_it_was_split_from() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut child = runtime.block_on(comm.dup()).unwrap();
            child.set_deadline(GENEROUS);
            let (parents, childs) = (prepare(&mut comm), prepare(&mut child));
            let problem = refused(&childs, &mut comm, COUNT);
            assert!(problem.contains("\"world/0:0\""), "{problem}");
            refused(&parents, &mut child, COUNT);
            assert_usable(&mut comm);
            assert_eq!(childs.run(&mut child, vec![1; COUNT]).wait().unwrap(), [2; COUNT]);
        });
    }
}

#[test]
fn a_handle_moved_to_the_thread_of_another_rank() {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    world(Link::Memory, 2, move |mut comm| {
        if comm.rank().0 == 0 {
            let own = prepare(&mut comm);
            sender.send(own.clone()).unwrap();
            let error = own.run(&mut comm, vec![1; COUNT]).wait().unwrap_err();
            assert_eq!(class(&error.error), "aborted", "{error}");
        } else {
            let stranger = receiver.lock().unwrap().recv().unwrap();
            refused(&stranger, &mut comm, COUNT);
        }
    });
}

#[test]
fn another_length() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            let own = prepare(&mut comm);
            let problem = refused(&own, &mut comm, COUNT - 1);
            assert_eq!(
                problem,
                "prepared for 1000 elements, run with 999: give it a buffer of that length, or prepare one for 999"
            );
            assert_usable(&mut comm);
        });
    }
}
