//! [`Group`]: an ordered set of the processes of a world.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::Error;
use crate::rank::Rank;

/// An ordered set of the processes of a world, each of which has a rank in it, from 0 on: those of a communicator at first,
/// by [`Communicator::group`](crate::Communicator::group), and then what set operations make of it. From a group,
/// [`Communicator::create`](crate::Communicator::create) makes a communicator.
///
/// A group is a value: making one is local, sends nothing, and any rank may do it by itself. It goes on to be of use once its
/// communicator is closed, and says nothing of whether its processes are still there.
///
/// Ranks that a method is given are those in the group that it is called on. Groups can be combined if they are of one world, as
/// are those of all communicators that come from one call of [`Communicator::local`](crate::Communicator::local), or from
/// processes that have met once. Another world's is refused by [`Error::InvalidArgument`], and equal or similar to none of
/// this one's.
///
/// Groups are equal that have the same processes in the same order.
///
/// ```
/// use hcomm::{Communicator, Rank};
///
/// let comm = Communicator::local(6).remove(4);
/// let all = comm.group();
/// let even = all.include((0..6).step_by(2))?;
/// let low = all.exclude([3, 4, 5])?;
/// assert_eq!((even.size(), even.rank(), low.rank()), (3, Some(Rank(2)), None));
/// assert_eq!(low.union(&even)?.to_string(), "{0, 1, 2, 4}");
/// assert_eq!(even.intersection(&low)?, all.include([0, 2])?);
/// assert_eq!(even.difference(&low)?, all.include([4])?);
/// // Rank 2 of the even ones is rank 4 of all, and none of the low ones.
/// assert_eq!(even.translate(2, &all)?, Some(Rank(4)));
/// assert_eq!(even.translate(2, &low)?, None);
///
/// let backwards = all.include((0..6).rev())?;
/// assert!(backwards != all && backwards.is_similar(&all));
/// # Ok::<(), hcomm::Error>(())
/// ```
#[derive(Clone)]
pub struct Group {
    /// Different for all worlds.
    world: Arc<str>,
    /// World rank of each rank; each once.
    members: Arc<[u32]>,
    /// World rank of the process that has the communicator.
    own: u32,
}

impl Group {
    pub(crate) fn new(world: Arc<str>, members: Arc<[u32]>, own: u32) -> Self {
        Group { world, members, own }
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Whether it has no processes.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The rank in it of this process, if it is in it. Of ranks that are threads of one process: of that one whose communicator the
    /// group comes from.
    pub fn rank(&self) -> Option<Rank> {
        self.rank_of(self.own)
    }

    /// What each process is in its world as that was joined, in the order of this group: other than its rank here, a number
    /// that means the same in all groups of the world.
    pub fn world_ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator {
        self.members.iter().map(|world| Rank(*world))
    }

    /// Whether it has the process that is this rank in the group `of`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `of` has no such rank or is of another world.
    pub fn contains(&self, rank: impl Into<Rank>, of: &Group) -> Result<bool, Error> {
        self.check_world(of, "contains")?;
        Ok(self.rank_of(of.world_rank(rank.into(), "contains")?).is_some())
    }

    /// The rank in `other` of the process that is this rank here; `None` if it is not in there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no such rank here, or `other` is of another world.
    pub fn translate(&self, rank: impl Into<Rank>, other: &Group) -> Result<Option<Rank>, Error> {
        self.check_world(other, "translate")?;
        Ok(other.rank_of(self.world_rank(rank.into(), "translate")?))
    }

    /// Whether both have the same processes, in whatever order.
    pub fn is_similar(&self, other: &Group) -> bool {
        self.world == other.world && self.size() == other.size() && {
            let theirs = other.set();
            self.members.iter().all(|world| theirs.contains(world))
        }
    }

    /// The processes that are in one of both: those of this group, then those of the other one that are not in this.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if they are of different worlds.
    pub fn union(&self, other: &Group) -> Result<Group, Error> {
        self.check_world(other, "union")?;
        let mine = self.set();
        let more = other.members.iter().filter(|world| !mine.contains(world));
        Ok(self.of(self.members.iter().chain(more).copied()))
    }

    /// The processes that are in both, in the order of this group.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if they are of different worlds.
    pub fn intersection(&self, other: &Group) -> Result<Group, Error> {
        self.check_world(other, "intersection")?;
        let theirs = other.set();
        Ok(self.of(self.members.iter().copied().filter(|world| theirs.contains(world))))
    }

    /// The processes of this group that are not in the other one, in the order of this.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if they are of different worlds.
    pub fn difference(&self, other: &Group) -> Result<Group, Error> {
        self.check_world(other, "difference")?;
        let theirs = other.set();
        Ok(self.of(self.members.iter().copied().filter(|world| !theirs.contains(world))))
    }

    /// The processes with these ranks, in the order in which they are given: an array, a slice of [`Rank`]s, or a range,
    /// as `(1..8).step_by(2)` or `(0..8).rev()`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no such rank, or one is given twice.
    pub fn include<R: Into<Rank>>(&self, ranks: impl IntoIterator<Item = R>) -> Result<Group, Error> {
        let mut taken = HashSet::new();
        let members = ranks.into_iter().map(|rank| {
            let rank = rank.into();
            let world = self.world_rank(rank, "include")?;
            if taken.insert(world) {
                Ok(world)
            } else {
                let problem =
                    format!("rank {rank} is given twice: a group has a process once, so give it once");
                Err(Error::invalid("include", problem))
            }
        });
        Ok(self.of(members.collect::<Result<Vec<u32>, Error>>()?))
    }

    /// All but the processes with these ranks, in the order of this group; given as to [`include`](Self::include), in any order and
    /// as often as you like.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no such rank.
    pub fn exclude<R: Into<Rank>>(&self, ranks: impl IntoIterator<Item = R>) -> Result<Group, Error> {
        let out = ranks.into_iter().map(|rank| self.world_rank(rank.into(), "exclude"));
        let out = out.collect::<Result<HashSet<u32>, Error>>()?;
        Ok(self.of(self.members.iter().copied().filter(|world| !out.contains(world))))
    }

    /// Refuses another world's group: its processes have the same numbers.
    pub(crate) fn check_world(&self, other: &Group, operation: &str) -> Result<(), Error> {
        if self.world == other.world {
            return Ok(());
        }
        let problem = "the groups are of two worlds, which have no process in common: give groups of communicators that \
                       were made from one";
        Err(Error::invalid(operation, problem.into()))
    }

    fn of(&self, members: impl IntoIterator<Item = u32>) -> Group {
        Group { world: self.world.clone(), members: members.into_iter().collect(), own: self.own }
    }

    fn set(&self) -> HashSet<u32> {
        self.members.iter().copied().collect()
    }

    /// The rank of a process, by what it is in the world.
    pub(crate) fn rank_of(&self, world: u32) -> Option<Rank> {
        self.members.iter().position(|member| *member == world).map(|rank| Rank(rank as u32))
    }

    fn world_rank(&self, rank: Rank, operation: &str) -> Result<u32, Error> {
        self.members.get(rank.index()).copied().ok_or_else(|| {
            let ranks = match self.size() {
                0 => "which is empty: it has none to give".into(),
                size => format!("of {size}: give ranks from 0 to {}", size - 1),
            };
            Error::invalid(operation, format!("there is no rank {rank} in the group, {ranks}"))
        })
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.world == other.world && self.members == other.members
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.world, &self.members).hash(state);
    }
}

/// The [ranks in the world](Group::world_ranks): `{4, 0, 2}`.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.world_ranks().map(|rank| rank.to_string()).collect();
        write!(f, "{{{}}}", ranks.join(", "))
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group {self}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Processes in the world that groups are made of.
    const WORLD: u32 = 12;

    fn group(members: &[u32]) -> Group {
        Group::new("a".into(), members.into(), 5)
    }

    fn shown(group: &Group) -> Vec<u32> {
        group.world_ranks().map(|rank| rank.0).collect()
    }

    fn is_invalid(error: &Error) -> bool {
        matches!(error, Error::InvalidArgument { .. })
    }

    /// Some of the processes, in some order.
    fn members() -> impl Strategy<Value = Vec<u32>> {
        (Just((0..WORLD).collect::<Vec<_>>()).prop_shuffle(), 0..=WORLD as usize).prop_map(
            |(mut all, size)| {
                all.truncate(size);
                all
            },
        )
    }

    proptest! {
        /// What sets are, in plain words, with loops.
        #[test]
        fn the_algebra_is_that_of_ordered_sets(one in members(), two in members()) {
            let (first, second) = (group(&one), group(&two));
            let mut union = one.clone();
            let (mut both, mut only) = (Vec::new(), Vec::new());
            for process in &two {
                if !one.contains(process) {
                    union.push(*process);
                }
            }
            for process in &one {
                if two.contains(process) { both.push(*process) } else { only.push(*process) }
            }
            prop_assert_eq!(shown(&first.union(&second).unwrap()), union);
            prop_assert_eq!(shown(&first.intersection(&second).unwrap()), both.clone());
            prop_assert_eq!(shown(&first.difference(&second).unwrap()), only);
            prop_assert_eq!(first.size(), one.len());
            prop_assert_eq!(first.is_empty(), one.is_empty());
            prop_assert_eq!(first == second, one == two);
            let sorted = |members: &[u32]| {
                let mut members = members.to_vec();
                members.sort_unstable();
                members
            };
            prop_assert_eq!(first.is_similar(&second), sorted(&one) == sorted(&two));
            prop_assert!(first.is_similar(&group(&sorted(&one))));
            prop_assert_eq!(first.rank(), one.iter().position(|process| *process == 5).map(|at| Rank(at as u32)));
            for (rank, process) in (0..).zip(&one) {
                let there = two.iter().position(|other| other == process).map(|at| Rank(at as u32));
                prop_assert_eq!(first.translate(rank, &second).unwrap(), there);
                prop_assert_eq!(second.contains(rank, &first).unwrap(), there.is_some());
            }
        }

        /// Ranks are those of the group, in the order in which they are given.
        #[test]
        fn ranks_are_taken_in_and_left_out(
            members in members(),
            ranks in proptest::collection::vec(0..WORLD + 1, 0..6),
        ) {
            let of = group(&members);
            let known = ranks.iter().all(|rank| (*rank as usize) < members.len());
            let mut seen = Vec::new();
            let once = ranks.iter().all(|rank| {
                let fresh = !seen.contains(rank);
                seen.push(*rank);
                fresh
            });
            match of.include(ranks.iter().copied()) {
                Ok(taken) => {
                    prop_assert!(known && once);
                    let expected: Vec<u32> = ranks.iter().map(|rank| members[*rank as usize]).collect();
                    prop_assert_eq!(shown(&taken), expected);
                }
                Err(error) => {
                    prop_assert!(!known || !once);
                    prop_assert!(is_invalid(&error));
                }
            }
            match of.exclude(ranks.iter().copied()) {
                Ok(left) => {
                    prop_assert!(known);
                    let mut expected = Vec::new();
                    for (rank, process) in (0..).zip(&members) {
                        if !ranks.contains(&rank) {
                            expected.push(*process);
                        }
                    }
                    prop_assert_eq!(shown(&left), expected);
                }
                Err(error) => prop_assert!(!known && is_invalid(&error)),
            }
        }
    }

    #[test]
    fn ranges_are_taken_as_iterators() {
        let all = group(&[3, 1, 4, 0, 5, 2]);
        assert_eq!(shown(&all.include((1..6).step_by(2)).unwrap()), [1, 0, 2]);
        assert_eq!(shown(&all.include((0..6).rev().step_by(3)).unwrap()), [2, 4]);
        let ranks: &[Rank] = &[Rank(2), Rank(0)];
        assert_eq!(shown(&all.include(ranks).unwrap()), [4, 3]);
        assert_eq!(shown(&all.include([5, 4]).unwrap()), [2, 5]);
        assert_eq!(shown(&all.exclude(0..=4).unwrap()), [2]);
        assert!(all.include(0..0).unwrap().is_empty());
        let nothing = all.exclude(0..6).unwrap();
        assert_eq!((nothing.size(), nothing.rank(), nothing.to_string().as_str()), (0, None, "{}"));
        assert_eq!(nothing.union(&all).unwrap(), all);
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_do() {
        let some = group(&[7, 8]);
        for (refused, told) in [
            (
                some.include([0, 2]).unwrap_err(),
                "include: there is no rank 2 in the group, of 2: give ranks from 0 to 1",
            ),
            (some.include([1, 1]).unwrap_err(), "rank 1 is given twice"),
            (some.exclude([2]).unwrap_err(), "exclude: there is no rank 2"),
            (some.translate(2, &some).unwrap_err(), "translate: there is no rank 2"),
            (some.contains(0, &group(&[])).unwrap_err(), "which is empty"),
        ] {
            assert!(refused.to_string().contains(told), "{refused}");
        }
    }

    /// Their processes have the same numbers, and are others.
    #[test]
    fn groups_of_different_worlds_do_not_mix() {
        let (here, there) = (group(&[0, 1]), Group::new("b".into(), [0, 1].into(), 0));
        assert!(here != there && !here.is_similar(&there));
        let refused = [
            here.union(&there).map(drop),
            here.intersection(&there).map(drop),
            here.difference(&there).map(drop),
            here.translate(0, &there).map(drop),
            here.contains(0, &there).map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(is_invalid(&error), "{error}");
            assert!(error.to_string().contains("two worlds"), "{error}");
        }
        assert!(here == group(&[0, 1]));
    }

    #[test]
    fn equal_groups_are_one_key() {
        let keys: HashSet<Group> = [group(&[1, 2]), group(&[2, 1]), group(&[1, 2])].into();
        assert_eq!(keys.len(), 2);
        assert_eq!(format!("{:?}", group(&[2, 1])), "Group {2, 1}");
    }
}
