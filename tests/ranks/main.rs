//! What ranks do with each other through the public interface, a module for each subject. Tests of one module say nothing of
//! their process as a whole, and so run beside all others: most of them wait.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/idle.rs"]
mod idle;

mod admission;
mod ahead;
mod algorithms;
mod away;
mod bits;
mod blocking;
mod busy;
mod cables;
mod close;
mod contributions;
mod deadline;
mod dropped;
mod ends;
mod foreign;
mod groups;
mod keyed;
mod looks;
mod memory;
mod messages;
mod mismatch;
mod neighbors;
mod own_counts;
mod own_plans;
mod panicked;
mod parameters;
mod points;
mod prepared;
mod priorities;
mod promises;
mod rebuild;
mod recorded;
mod reductions;
mod report;
mod resources;
mod runtimes;
mod scopes;
mod split;
mod suspend;
mod unequal;

use common::processes::Role;

/// What a process of a world does, told by the environment; nothing in the test run itself.
#[test]
fn child() {
    let Some(mut role) = Role::of_this_process() else { return };
    let (module, scenario) = role.scenario.split_once(": ").expect("the module whose scenario it is");
    let act = match module {
        "blocking" => blocking::child,
        "ends" => ends::child,
        "rebuild" => rebuild::child,
        "report" => report::child,
        other => panic!("no scenarios of {other}"),
    };
    role.scenario = scenario.to_string();
    act(role);
}
