//! The group of a communicator, and a communicator made of a group: a split by the ranks in it, whose digest has the group as
//! well, so that whoever gives another one is told as one who calls something else.

use super::Communicator;
use super::split::Split;
use crate::engine::call::mix;
use crate::error::Error;
use crate::group::Group;

impl Communicator {
    /// Its processes, in the order of their ranks. Local: any rank may ask, by itself, and of a communicator that has failed as well.
    ///
    /// ```
    /// let comm = hcomm::Communicator::local(3).remove(1);
    /// let group = comm.group();
    /// assert_eq!((group.size(), group.rank()), (3, Some(comm.rank())));
    /// ```
    pub fn group(&self) -> Group {
        Group::new(self.engine.run(), self.members.clone(), self.members[self.rank])
    }

    /// Makes a communicator of the processes of a [`Group`], which are some of this one's; they have the ranks there that they have
    /// in the group. `None` for ranks that are not in it. *All* ranks of this communicator call it, as they call a collective, with
    /// an equal group, and compare it.
    ///
    /// The new one is like one from [`split`](Self::split): it shares the connections, and has an order of calls, errors and a
    /// deadline of its own. Where each rank knows its own part but not those of others, as with several groups at once, `split` is what
    /// to call.
    ///
    /// What only the members call (`MPI_Comm_create_group`) there is not: without the others' calls nothing tells the
    /// ranks which of their groups is meant.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce): [`Error::Mismatch`], on all ranks, if their groups are not equal.
    /// [`Error::InvalidArgument`] if the group is of another world, or has a process that this communicator has not; ranks that
    /// have called with another group are told by [`Error::Aborted`].
    ///
    /// # Cancel safety
    ///
    /// As [`split`](Self::split).
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// // The last two of three, backwards.
    /// let threads: Vec<_> = Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let rank = comm.rank().0;
    ///         let group = comm.group().include([2, 1]).unwrap();
    ///         let mut pair = comm.create(&group).wait().unwrap()?;
    ///         let sum = pair.all_reduce(vec![rank], ReduceOp::Sum).wait().unwrap()[0];
    ///         Some((pair.rank().0, sum))
    ///     })
    /// }).collect();
    /// let pairs: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(pairs, [None, Some((1, 3)), Some((0, 3))]);
    /// ```
    pub fn create(&mut self, group: &Group) -> Split {
        let all = self.group();
        let checked = self.check_members(group, &all);
        // Of the group that was refused nobody is made a member.
        let rank = checked.is_ok().then(|| group.rank_of(self.members[self.rank])).flatten();
        let key = rank.map_or(0, |rank| rank.0.into());
        self.split_alike("create", rank.map(|_| CREATED), key, checked.map(|()| word(group)))
    }

    fn check_members(&self, group: &Group, all: &Group) -> Result<(), Error> {
        group.check_world(all, "create")?;
        let strangers = group.difference(all)?;
        if strangers.is_empty() {
            return Ok(());
        }
        let problem = format!(
            "the group {group} has processes that are not in \"{}\", which is {all}: leave {strangers} out, as \
             group.intersection(&comm.group()) does",
            self.name
        );
        Err(Error::invalid("create", problem))
    }
}

/// The color of all ranks of a group.
const CREATED: u32 = 0;

/// A group as a number, for digests: different for different ones, also by their order, but for one chance in 2⁶⁴.
fn word(group: &Group) -> u64 {
    const CREATE: u64 = u64::from_le_bytes(*b"a group:");
    group.world_ranks().fold(mix(CREATE ^ group.size() as u64), |word, rank| mix(word ^ u64::from(rank.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_apart_by_members_and_order() {
        let all = Communicator::local(6)[0].group();
        let groups = [vec![], vec![0], vec![1], vec![0, 1], vec![1, 0], vec![0, 1, 2], (0..6).collect()];
        let words: std::collections::HashSet<u64> = groups
            .iter()
            .map(|ranks: &Vec<u32>| word(&all.include(ranks.iter().copied()).unwrap()))
            .collect();
        assert_eq!(words.len(), groups.len());
        assert_eq!(word(&all), word(&all.include(0..6).unwrap()));
    }
}
