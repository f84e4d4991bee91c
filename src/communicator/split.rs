//! Communicators made from communicators.

use std::future::Future;

use super::Communicator;
use crate::error::Error;
use crate::path::Facts;

impl Communicator {
    /// Makes a communicator of all ranks that call with the same `color`, ordered by `key` and, where keys are equal,
    /// by rank; `None` for ranks that call without a color. All ranks call it, as they call a collective.
    ///
    /// The new one shares the connections of this one and has an order of calls and errors of its own.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, this rank is missing in the new communicator.
    pub fn split(
        &mut self,
        color: Option<u32>,
        key: i64,
    ) -> impl Future<Output = Result<Option<Communicator>, Error>> + Send + use<> {
        let number = self.next;
        let mut calls = vec![[0i64; 3]; self.size()].concat();
        let own = self.rank * 3;
        calls[own..own + 3].copy_from_slice(&[i64::from(color.is_some()), color.unwrap_or(0).into(), key]);
        let gathered = self.all_gather(calls);
        let parent = Parent::of(self);
        async move {
            let calls = gathered.await?;
            Ok(color.map(|color| parent.child(number, color, &calls)))
        }
    }

    /// A communicator of the same ranks with an order of calls of its own. All ranks call it, as they call a collective.
    ///
    /// # Errors
    ///
    /// As [`split`](Self::split).
    pub fn dup(&mut self) -> impl Future<Output = Result<Communicator, Error>> + Send + use<> {
        let name = self.name.to_string();
        let split = self.split(Some(0), 0);
        async move { split.await?.ok_or(Error::Closed(name)) }
    }
}

/// What a child takes over.
pub(super) struct Parent {
    engine: std::sync::Arc<crate::engine::Engine>,
    pub id: u64,
    pub name: std::sync::Arc<str>,
    members: std::sync::Arc<[u32]>,
    rank: usize,
    facts: Facts,
    deadline: std::time::Duration,
    plans: std::sync::Arc<std::sync::Mutex<crate::path::PlanCache>>,
}

impl Parent {
    pub(super) fn of(comm: &Communicator) -> Self {
        Parent {
            engine: comm.engine.clone(),
            id: comm.id,
            name: comm.name.clone(),
            members: comm.members.clone(),
            rank: comm.rank,
            facts: comm.facts,
            deadline: comm.deadline,
            plans: comm.plans.clone(),
        }
    }

    fn child(self, number: u64, color: u32, calls: &[i64]) -> Communicator {
        let mut chosen: Vec<(i64, usize)> = calls
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, call)| call[0] == 1 && call[1] == i64::from(color))
            .map(|(rank, call)| (call[2], rank))
            .collect();
        chosen.sort_unstable();
        let chosen: Vec<usize> = chosen.into_iter().map(|(_, rank)| rank).collect();
        let name = format!("{}/{number}:{color}", self.name).into();
        let id = channel_id(self.id, &[number, u64::from(color)]);
        self.open(id, name, &chosen)
    }

    /// A communicator of these ranks of the parent, in this order.
    pub(super) fn open(self, id: u64, name: std::sync::Arc<str>, chosen: &[usize]) -> Communicator {
        let rank = chosen.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let members = chosen.iter().map(|rank| self.members[*rank]).collect();
        let facts = Facts::new(chosen.len() as u32);
        let facts = Facts { order: self.facts.order, mesh_ranks_max: self.facts.mesh_ranks_max, ..facts };
        let mut child = Communicator::open(self.engine, id, name, members, rank, facts, self.plans);
        child.set_deadline(self.deadline);
        child
    }
}

/// Equal on all members, different for every split (number of the call and color) and every epoch (number and members):
/// these, scrambled with the parent's.
pub(super) fn channel_id(parent: u64, words: &[u64]) -> u64 {
    let mut id = parent;
    for word in words {
        id = crate::engine::call::mix(id ^ word.wrapping_add(0x51_7c_c1_b7_27_22_0a_95));
    }
    id | 1
}
