//! Who has come, and what is wrong with it: the root's book, without sockets or clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::Member;
use super::config::VERSION_FACT;
use super::message::{HOST_BYTES_MAX, Join, Table};
use super::processors::MASK_WORDS_MAX;
use crate::error::{InitError, list_ranks};
use crate::rank::Rank;

/// Longest part of a fact's value that an error shows.
const VALUE_SHOWN_MAX: usize = 60;
/// Most sizes or values that an error lists.
const VIEWS_SHOWN_MAX: usize = 6;
/// Most ranks that an error describes with addresses, of those that hold one of them.
const DESCRIBED_MAX: usize = 4;
/// Most that it names besides by their numbers alone.
const NUMBERED_MAX: usize = 16;

/// The ranks of one rendezvous, as they come.
pub(super) struct Roster {
    world: u32,
    /// By rank.
    present: BTreeMap<Rank, Join>,
    /// By claimed size of the world: who claims it, and where they are.
    claims: BTreeMap<u32, BTreeMap<Rank, Member>>,
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
        if join.rank.0 >= join.world
            || join.member.hostname.len().max(join.member.host.len()) > HOST_BYTES_MAX
            || join.member.processors.mask.len() > MASK_WORDS_MAX
        {
            let Join { rank, world, member, .. } = join;
            let address = member.address;
            return self.fault(InitError::Config(format!(
                "a process at {address} introduced itself as rank {rank} of {world}, against the protocol"
            )));
        }
        self.claims.entry(join.world).or_default().entry(join.rank).or_insert_with(|| join.member.clone());
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
        if let Some(first) = self.present.get(rank) {
            let (first, second) = (first.member.to_string(), member.to_string());
            return Some(InitError::DuplicateRank { rank: *rank, first, second });
        }
        let device = join.device?;
        let other = self
            .present
            .values()
            .find(|other| other.device == Some(device) && other.member.host == member.host)?;
        let (first, second) = if other.rank < *rank { (other, join) } else { (join, other) };
        Some(InitError::DuplicateDevice {
            device,
            host: member.hostname.clone(),
            first: first.rank,
            second: second.rank,
            first_process: first.member.to_string(),
            second_process: second.member.to_string(),
        })
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
        let views = self.claims.iter().map(|(world, ranks)| View {
            says: [format!("says {world}"), format!("say {world}")],
            holders: ranks.iter().map(|(rank, member)| (*rank, member)).collect(),
        });
        show_views(views.collect())
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
        let is_agreed = |values: &BTreeMap<&str, Vec<Rank>>| {
            values.first_key_value().is_some_and(|(_, ranks)| ranks.len() == self.world as usize)
        };
        // Programs of two versions may differ in much, and that is why.
        let differing = by_key.iter().filter(|(_, values)| !is_agreed(values));
        if let Some((key, values)) = differing.min_by_key(|(key, _)| **key != VERSION_FACT) {
            return Err(InitError::FactsDiffer { key: (*key).into(), values: self.show_values(values) });
        }
        let agreed = by_key
            .into_iter()
            .filter_map(|(key, mut values)| values.pop_first().map(|(value, _)| (key.into(), value.into())));
        Ok(agreed.collect())
    }

    fn show_values(&self, values: &BTreeMap<&str, Vec<Rank>>) -> String {
        let holders: BTreeSet<Rank> = values.values().flatten().copied().collect();
        let without = self.present.keys().filter(|rank| !holders.contains(rank)).copied().collect();
        let known = values.iter().map(|(value, ranks)| {
            let says = |verb| format!("{verb} \"{value:.VALUE_SHOWN_MAX$}\"");
            ([says("has"), says("have")], ranks.clone())
        });
        let unknown = (["doesn't know it", "don't know it"].map(String::from), without);
        let views = known.chain([unknown]).filter(|(_, ranks): &(_, Vec<Rank>)| !ranks.is_empty());
        let views = views.map(|(says, ranks)| View {
            says,
            holders: self
                .present
                .iter()
                .filter(|(rank, _)| ranks.contains(rank))
                .map(|(rank, join)| (*rank, &join.member))
                .collect(),
        });
        show_views(views.collect())
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

/// What some ranks hold, of something on which all should agree.
struct View<'a> {
    /// What one does, and what several do: "says 4", "say 4".
    says: [String; 2],
    holders: Vec<(Rank, &'a Member)>,
}

/// All of them, the most common first. Who holds that one is told by number, unless as many hold another; the others are
/// those to look at, and described.
fn show_views(mut views: Vec<View<'_>>) -> String {
    views.sort_by_key(|view| std::cmp::Reverse(view.holders.len()));
    let alone = views.len() == 1 || views[0].holders.len() > views[1].holders.len();
    let mut each: Vec<String> = views
        .iter()
        .take(VIEWS_SHOWN_MAX)
        .enumerate()
        .map(|(at, view)| {
            let [one, several] = &view.says;
            let says = if view.holders.len() == 1 { one } else { several };
            let described = if at == 0 && alone { 0 } else { DESCRIBED_MAX };
            format!("{} {says}", show_holders(&view.holders, described))
        })
        .collect();
    let more = &views[each.len()..];
    if !more.is_empty() {
        let ranks: usize = more.iter().map(|view| view.holders.len()).sum();
        each.push(format!("{ranks} more ranks hold {} other views", more.len()));
    }
    each.join("; ")
}

/// "rank 3 at 10.0.0.4:1003 (host h3, pid 13)", or "ranks 0, 1, 2".
fn show_holders(holders: &[(Rank, &Member)], described_max: usize) -> String {
    let (described, rest) = holders.split_at(described_max.min(holders.len()));
    let mut each: Vec<String> =
        described.iter().map(|(rank, member)| format!("rank {rank} at {member}")).collect();
    let numbers: Vec<Rank> = rest.iter().take(NUMBERED_MAX).map(|(rank, _)| *rank).collect();
    if !rest.is_empty() {
        each.push(list_ranks(&numbers));
    }
    if rest.len() > numbers.len() {
        each.push(format!("{} more", rest.len() - numbers.len()));
    }
    each.join(", ")
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
    use crate::domain::Sharing;
    use crate::domain::message::{self, ToMember, to_member_bytes_max};
    use crate::domain::processors::Processors;

    fn join(rank: u32, world: u32) -> Join {
        let address = format!("10.0.0.{}:100{rank}", rank + 1).parse().unwrap();
        let member = Member {
            address,
            hostname: format!("h{rank}"),
            pid: 10 + rank,
            host: format!("boot{rank}"),
            processors: Processors::default(),
            sharing: Sharing::Unwanted,
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
        let InitError::WorldSize { claims } = error else { panic!("{error}") };
        assert_eq!(claims, "ranks 1, 4 say 5; rank 0 at 10.0.0.1:1000 (host h0, pid 10) says 4");
        let error = decide(vec![join(0, 2), join(1, 3)], 2).unwrap_err();
        let InitError::WorldSize { claims } = error else { panic!("{error}") };
        assert_eq!(
            claims,
            "rank 0 at 10.0.0.1:1000 (host h0, pid 10) says 2; rank 1 at 10.0.0.2:1001 (host h1, pid 11) says 3"
        );
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
        for at in
            ["rank 0 is at 10.0.0.1:1000 (host h0, pid 10)", "rank 1 at 10.0.0.2:1001 (host h1, pid 11)"]
        {
            assert!(error.to_string().contains(at), "{error}");
        }
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
        let error = decide(joins, 3).unwrap_err();
        let InitError::FactsDiffer { key, values } = error else { panic!("{error}") };
        assert_eq!(key, "cpu");
        assert_eq!(
            values,
            "rank 0 at 10.0.0.1:1000 (host h0, pid 10) has \"x\"; rank 1 at 10.0.0.2:1001 (host h1, pid 11) has \"y\"; \
             rank 2 at 10.0.0.3:1002 (host h2, pid 12) doesn't know it"
        );
        let agreed = decide((0..3).map(|rank| with_facts(rank, &same)).collect(), 3).unwrap();
        assert_eq!(agreed.facts.len(), 2);
    }

    #[test]
    fn versions_are_named_before_what_differs_with_them() {
        let with = |rank, version| with_facts(rank, &[("a", version), (VERSION_FACT, version)]);
        let error = decide(vec![with(0, "0.1.0"), with(1, "0.2.0"), with(2, "0.1.0")], 3).unwrap_err();
        let InitError::FactsDiffer { key, values } = error else { panic!("{error}") };
        assert_eq!(key, VERSION_FACT);
        assert_eq!(
            values,
            "ranks 0, 2 have \"0.1.0\"; rank 1 at 10.0.0.2:1001 (host h1, pid 11) has \"0.2.0\""
        );
    }

    /// A disagreement of a large world is told in a few lines, and fits a message whatever it is about.
    #[test]
    fn who_disagrees_is_told_in_short() {
        const RANKS: u32 = 1000;
        let claims = |views: u32| {
            let joins = (0..RANKS).map(|rank| {
                let mut join = join(0, RANKS + rank % views);
                join.rank = Rank(rank);
                join.member.hostname = "h".repeat(HOST_BYTES_MAX);
                join
            });
            decide(joins.collect(), RANKS).unwrap_err()
        };
        let two = claims(2).to_string();
        assert!(
            two.contains("), ranks 8, 10, 12,") && two.contains(", 38, 480 more say 1000; rank 1 at "),
            "{two}"
        );
        let many = claims(RANKS);
        assert!(many.to_string().contains("; 994 more ranks hold 994 other views"), "{many}");
        for error in [claims(2), claims(3), many] {
            let bytes = message::encode(&ToMember::Failed(error), 8 << 10).unwrap();
            assert!(bytes.len() < to_member_bytes_max(1));
        }
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
