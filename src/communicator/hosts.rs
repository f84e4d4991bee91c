//! Which ranks are on one host, and a communicator of them.

use super::Communicator;
use super::split::Dup;
use crate::group::Group;

impl Communicator {
    /// The processes of this communicator that are on this rank's host, by rank: what launchers call the local ranks. Local: any
    /// rank may ask, by itself. How many they are is its [`size`](Group::size), and this rank's number among them its
    /// [`rank`](Group::rank), which a program takes to choose a device.
    ///
    /// A host is one kernel with one network, as the processes say themselves when they join: containers that have networks of their own
    /// are hosts of their own. Ranks of one process are on one. Whether those of a host share memory is another question, which
    /// [`links`](Self::links) answers.
    ///
    /// ```
    /// let comm = hcomm::Communicator::local(3).remove(2);
    /// let here = comm.host_group();
    /// assert_eq!((here.rank().unwrap().index(), here.size()), (2, 3));
    /// ```
    pub fn host_group(&self) -> Group {
        let host = self.host_of(self.rank);
        let here = self.members.iter().zip(0..).filter(|(_, rank)| self.host_of(*rank) == host);
        Group::new(self.engine.run(), here.map(|(member, _)| *member).collect(), self.members[self.rank])
    }

    /// Makes a communicator of the ranks of each host, in their order here; each rank gets that of its own. All ranks call it, as they
    /// call a collective. [`host_group`](Self::host_group) has what a host is, and needs no call.
    ///
    /// The new ones are like those from [`split`](Self::split), and have a name like theirs, the color being the lowest rank on the host.
    ///
    /// # Errors
    ///
    /// As [`split`](Self::split).
    ///
    /// # Cancel safety
    ///
    /// As [`split`](Self::split).
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// // Summed within each host; then between the first ranks of hosts, of which there is one here.
    /// let threads: Vec<_> = Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let mut host = comm.split_by_host().wait().unwrap();
    ///         let is_first = host.rank().0 == 0;
    ///         let firsts = comm.split(is_first.then_some(0), 0).wait().unwrap();
    ///         let sum = host.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap()[0];
    ///         (sum, firsts.map(|firsts| firsts.size()))
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [(3, Some(1)), (3, None), (3, None)]);
    /// ```
    pub fn split_by_host(&mut self) -> Dup {
        let host = self.host_of(self.rank);
        let first = (0..self.size()).find(|rank| self.host_of(*rank) == host).unwrap_or(self.rank);
        self.split_with_all("split_by_host", first as u32)
    }

    fn host_of(&self, rank: usize) -> u32 {
        self.engine.host_of(self.members[rank])
    }
}
