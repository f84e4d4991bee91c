//! Who has come, and what is wrong with it: the root's book, without sockets or clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::Member;
use super::message::{HOST_BYTES_MAX, Join, Table};
use super::processors::MASK_WORDS_MAX;
use crate::error::InitError;
use crate::rank::Rank;

/// Longest part of a fact's value that an error shows.
const VALUE_SHOWN_MAX: usize = 60;

/// The ranks of one rendezvous, as they come.
pub(super) struct Roster {
    world: u32,
    /// By rank.
    present: BTreeMap<Rank, Join>,
    /// By claimed size of the world.
    claims: BTreeMap<u32, BTreeSet<Rank>>,
    arrivals: u32,
    /// The first thing that was wrong; it decides, except that a disagreement on the size explains more.
    fault: Option<InitError>,
    /// Where others have reached the root.
    root_ip: Option<IpAddr>,
}

impl Roster {
    pub(super) fn new(world: u32) -> Roster {
        Roster {
            world,
            present: BTreeMap::new(),
            claims: BTreeMap::new(),
            arrivals: 0,
            fault: None,
            root_ip: None,
        }
    }

    /// Enters one that has proved the token.
    pub(super) fn admit(&mut self, join: Join) {
        self.arrivals += 1;
        self.claims.entry(join.world).or_default().insert(join.rank);
        if join.world != self.world {
            return;
        }
        if let Some(problem) = self.problem(&join) {
            return self.fault(problem);
        }
        self.present.insert(join.rank, join);
    }

    fn problem(&self, join: &Join) -> Option<InitError> {
        let Join { rank, member, .. } = join;
        if rank.0 >= self.world
            || member.hostname.len().max(member.host.len()) > HOST_BYTES_MAX
            || member.processors.mask.len() > MASK_WORDS_MAX
        {
            let problem =
                format!("a process introduced itself as rank {rank} of {}, against the protocol", self.world);
            return Some(InitError::Config(problem));
        }
        if let Some(first) = self.present.get(rank) {
            let (first, second) = (first.member.to_string(), member.to_string());
            return Some(InitError::DuplicateRank { rank: *rank, first, second });
        }
        let device = join.device?;
        let other = self
            .present
            .values()
            .find(|other| other.device == Some(device) && other.member.host == member.host)?;
        let (first, second) = (other.rank.min(*rank), other.rank.max(*rank));
        Some(InitError::DuplicateDevice { device, host: member.hostname.clone(), first, second })
    }

    /// Notes that it can't succeed.
    pub(super) fn fault(&mut self, error: InitError) {
        self.fault.get_or_insert(error);
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.fault.is_some() || self.claims.len() > 1
    }

    /// Nobody else needs to be waited for.
    pub(super) fn is_decided(&self) -> bool {
        let complete = self.present.len() == self.world as usize;
        complete || (self.is_faulty() && self.arrivals >= self.world)
    }

    pub(super) fn missing(&self) -> Vec<Rank> {
        (0..self.world).map(Rank).filter(|rank| !self.present.contains_key(rank)).collect()
    }

    pub(super) fn describe(&self, rank: Rank) -> String {
        match self.present.get(&rank) {
            Some(join) => format!("rank {rank} at {}", join.member),
            None => format!("rank {rank}"),
        }
    }

    fn present(&self) -> String {
        let each: Vec<String> = self.present.keys().map(|rank| self.describe(*rank)).collect();
        if each.is_empty() { "nobody".into() } else { each.join(", ") }
    }

    /// What all are told: who takes part, or why it can't be. `root` is where the root listens, `refused` who was
    /// turned away.
    pub(super) fn decide(
        &mut self,
        nonce: [u8; 32],
        root: &str,
        waited: Duration,
        refused: String,
    ) -> Result<Table, InitError> {
        if self.claims.len() > 1 {
            return Err(InitError::WorldSize { claims: self.show_claims() });
        }
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let missing = self.missing();
        if !missing.is_empty() {
            let (root, present) = (root.to_owned(), self.present());
            return Err(InitError::MissingRanks { root, missing, present, waited, refused });
        }
        self.name_root();
        self.check_loopback()?;
        let facts = self.agree()?;
        let members = self.present.values().map(|join| join.member.clone()).collect();
        Ok(Table { nonce, members, facts })
    }

    fn show_claims(&self) -> String {
        let each: Vec<String> = self
            .claims
            .iter()
            .map(|(world, ranks)| {
                let ranks: Vec<Rank> = ranks.iter().copied().collect();
                let verb = if ranks.len() == 1 { "says" } else { "say" };
                format!("{} {verb} {world}", show_ranks(&ranks))
            })
            .collect();
        each.join("; ")
    }

    /// A loopback address reaches its own host only. It happens where a host's own name stands for 127.0.1.1 in its
    /// hosts file.
    fn check_loopback(&self) -> Result<(), InitError> {
        let Some(local) = self.present.values().find(|join| join.member.address.ip().is_loopback()) else {
            return Ok(());
        };
        let Some(far) = self.present.values().find(|join| join.member.host != local.member.host) else {
            return Ok(());
        };
        Err(InitError::Config(format!(
            "{} can be reached on its own host only, but {} is on another host: give it the root's address \
             as a number (its name may stand for a loopback address there), or an interface (HCOMM_INTERFACE)",
            self.describe(local.rank),
            self.describe(far.rank)
        )))
    }

    /// The facts, if they are equal everywhere.
    fn agree(&self) -> Result<Vec<(String, String)>, InitError> {
        let mut by_key: BTreeMap<&str, BTreeMap<&str, Vec<Rank>>> = BTreeMap::new();
        for join in self.present.values() {
            for (key, value) in &join.facts {
                by_key.entry(key).or_default().entry(value).or_default().push(join.rank);
            }
        }
        let mut agreed = Vec::new();
        for (key, values) in by_key {
            match values.first_key_value() {
                Some((value, ranks)) if ranks.len() == self.world as usize => {
                    agreed.push((key.into(), (*value).into()))
                }
                _ => {
                    return Err(InitError::FactsDiffer {
                        key: key.into(),
                        values: self.show_values(&values),
                    });
                }
            }
        }
        Ok(agreed)
    }

    fn show_values(&self, values: &BTreeMap<&str, Vec<Rank>>) -> String {
        let holders: Vec<Rank> = values.values().flatten().copied().collect();
        let without: Vec<Rank> = (0..self.world).map(Rank).filter(|rank| !holders.contains(rank)).collect();
        let mut each: Vec<String> = values
            .iter()
            .map(|(value, ranks)| format!("\"{value:.VALUE_SHOWN_MAX$}\" on {}", show_ranks(ranks)))
            .collect();
        if !without.is_empty() {
            each.push(format!("not known on {}", show_ranks(&without)));
        }
        each.join("; ")
    }

    /// A root that listens on every address can't tell which one the others reach. One that somebody came through is
    /// known to work, and one that isn't loopback works from more places.
    pub(super) fn reached_through(&mut self, ip: IpAddr) {
        let ip = ip.to_canonical();
        if self.root_ip.is_none_or(|known| known.is_loopback()) {
            self.root_ip = Some(ip);
        }
    }

    fn name_root(&mut self) {
        if let (Some(root), Some(ip)) = (self.present.get_mut(&Rank(0)), self.root_ip)
            && root.member.address.ip().is_unspecified()
        {
            root.member.address.set_ip(ip);
        }
    }
}

/// "rank 3", or "ranks 0, 1, 2".
fn show_ranks(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}

impl Member {
    /// Both are on one host, by what they say.
    pub(super) fn shares_host_with(&self, other: &Member) -> bool {
        self.host == other.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::processors::Processors;

    fn join(rank: u32, world: u32) -> Join {
        let address = format!("10.0.0.{}:100{rank}", rank + 1).parse().unwrap();
        let member = Member {
            address,
            hostname: format!("h{rank}"),
            pid: 10 + rank,
            host: format!("boot{rank}"),
            processors: Processors::default(),
        };
        Join { rank: Rank(rank), world, name: "world".into(), device: None, member, facts: vec![] }
    }

    fn decide(joins: Vec<Join>, world: u32) -> Result<Table, InitError> {
        let mut roster = Roster::new(world);
        joins.into_iter().for_each(|join| roster.admit(join));
        roster.decide([0; 32], "10.0.0.1:1", Duration::from_secs(1), String::new())
    }

    fn with_facts(rank: u32, facts: &[(&str, &str)]) -> Join {
        let facts = facts.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Join { facts, ..join(rank, 3) }
    }

    #[test]
    fn all_present_make_a_table() {
        let table = decide(vec![join(2, 3), join(0, 3), join(1, 3)], 3).unwrap();
        assert_eq!(table.members.iter().map(|member| member.pid).collect::<Vec<_>>(), [10, 11, 12]);
    }

    #[test]
    fn the_missing_are_named_with_those_present() {
        let error = decide(vec![join(0, 4), join(2, 4)], 4).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, InitError::MissingRanks { missing, .. } if missing == [Rank(1), Rank(3)]));
        assert!(
            text.contains("ranks 1, 3") && text.contains("rank 2 at 10.0.0.3:1002 (host h2, pid 12)"),
            "{text}"
        );
    }

    #[test]
    fn sizes_that_differ_are_listed_by_rank() {
        let error = decide(vec![join(0, 4), join(1, 5), join(4, 5)], 4).unwrap_err();
        assert_eq!(error.to_string(), "world size disagreement: rank 0 says 4; ranks 1, 4 say 5");
    }

    #[test]
    fn a_rank_claimed_twice_names_both() {
        let mut second = join(1, 3);
        second.member.pid = 99;
        let text = decide(vec![join(0, 3), join(1, 3), second], 3).unwrap_err().to_string();
        assert!(text.contains("rank 1") && text.contains("pid 11") && text.contains("pid 99"), "{text}");
    }

    #[test]
    fn a_device_belongs_to_one_rank_of_a_host() {
        let on = |rank: u32, host: &str, device: Option<u32>| {
            let mut join = join(rank, 2);
            join.member.host = host.into();
            Join { device, ..join }
        };
        let error = decide(vec![on(0, "a", Some(3)), on(1, "a", Some(3))], 2).unwrap_err();
        assert!(matches!(
            error,
            InitError::DuplicateDevice { device: 3, first: Rank(0), second: Rank(1), .. }
        ));
        decide(vec![on(0, "a", Some(3)), on(1, "b", Some(3))], 2).unwrap();
        decide(vec![on(0, "a", Some(3)), on(1, "a", None)], 2).unwrap();
    }

    #[test]
    fn facts_that_differ_name_key_and_holders() {
        let same = [("a", "1"), ("cpu", "x")];
        let joins = vec![
            with_facts(0, &same),
            with_facts(1, &[("cpu", "y"), ("a", "1")]),
            with_facts(2, &[("a", "1")]),
        ];
        let text = decide(joins, 3).unwrap_err().to_string();
        assert_eq!(text, "ranks disagree on cpu: \"x\" on rank 0; \"y\" on rank 1; not known on rank 2");
        let agreed = decide((0..3).map(|rank| with_facts(rank, &same)).collect(), 3).unwrap();
        assert_eq!(agreed.facts.len(), 2);
    }

    #[test]
    fn loopback_is_for_one_host() {
        let mut root = join(0, 2);
        root.member.address = "127.0.1.1:9".parse().unwrap();
        let text = decide(vec![root.clone(), join(1, 2)], 2).unwrap_err().to_string();
        assert!(
            text.contains("127.0.1.1:9") && text.contains("10.0.0.2:1001") && text.contains("loopback"),
            "{text}"
        );
        let mut near = join(1, 2);
        near.member.host = root.member.host.clone();
        decide(vec![root, near], 2).unwrap();
    }

    #[test]
    fn a_root_on_every_address_is_known_by_one_that_was_reached() {
        let mut roster = Roster::new(1);
        let mut root = join(0, 1);
        root.member.address = "0.0.0.0:9".parse().unwrap();
        roster.admit(root);
        for through in ["127.0.0.1", "::ffff:10.0.0.1", "127.0.0.1"] {
            roster.reached_through(through.parse().unwrap());
        }
        let table = roster.decide([0; 32], "", Duration::ZERO, String::new()).unwrap();
        assert_eq!(table.members[0].address, "10.0.0.1:9".parse().unwrap());
    }
}
