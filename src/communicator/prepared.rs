//! A collective agreed once and run often.

use std::marker::PhantomData;

use super::{Communicator, Operation};
use crate::buffer::lend::LendMut;
use crate::element::{Element, ReduceOp};
use crate::engine::{CallDesc, Program, Work};
use crate::error::Error;
use crate::path::Collective;
use std::sync::Arc;

/// An all_reduce whose type, count, reduction and plan are fixed: a run looks nothing up.
///
/// Made by [`Communicator::prepare_all_reduce`]; run on the communicator it was made from.
#[derive(Debug, Clone)]
pub struct PreparedAllReduce<T> {
    desc: CallDesc,
    digest: u64,
    program: Arc<Program>,
    channel: u64,
    element: PhantomData<T>,
}

impl Communicator {
    /// Fixes type, count, reduction and plan of an all_reduce. Local: ranks are compared at each run, by one digest.
    ///
    /// # Errors
    ///
    /// If there is no plan for so many ranks.
    ///
    /// ```
    /// use hcomm::{Buffer, Communicator, ReduceOp};
    ///
    /// let threads: Vec<_> = Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let sum = comm.prepare_all_reduce::<f32>(1000, ReduceOp::Sum).unwrap();
    ///         let mut buffer = Buffer::<f32>::zeroed(1000);
    ///         for _ in 0..10 {
    ///             buffer.fill(1.0);
    ///             buffer = sum.run(&mut comm, buffer).wait().unwrap();
    ///         }
    ///         buffer[999]
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 2.0));
    /// ```
    pub fn prepare_all_reduce<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
    ) -> Result<PreparedAllReduce<T>, Error> {
        let (desc, work) =
            self.describe("all_reduce", Collective::AllReduce, Some(op), count, T::DTYPE, None);
        let Work::Collective(program) = work? else {
            return Err(Error::Closed(self.name.to_string()));
        };
        let channel = self.id;
        Ok(PreparedAllReduce { desc, digest: desc.digest(), program, channel, element: PhantomData })
    }
}

impl<T: Element> PreparedAllReduce<T> {
    /// Runs it: a call of the communicator like any other, and compares equal to an ordinary all_reduce of the same kind.
    ///
    /// # Errors
    ///
    /// As [`Communicator::all_reduce`]; [`Error::InvalidArgument`] for another length or communicator.
    pub fn run<B: LendMut<Element = T>>(&self, communicator: &mut Communicator, buffer: B) -> Operation<B> {
        let seq = communicator.next;
        communicator.next += 1;
        let (lent, guard) = buffer.lend(&communicator.staging);
        let count = lent.0.raw().len() / size_of::<T>();
        let work = if count == self.desc.count && communicator.id == self.channel {
            Ok(Work::Collective(self.program.clone()))
        } else {
            let problem = format!(
                "prepared for {} elements on its own communicator, run with {count}",
                self.desc.count
            );
            Err(Error::InvalidArgument { operation: self.desc.operation.into(), problem })
        };
        communicator.submit_digested(seq, self.desc, self.digest, work, lent, guard)
    }
}
