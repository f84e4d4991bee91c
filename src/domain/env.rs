//! Settings from the environment, as launchers set it.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `RANK`, `WORLD_SIZE` | who this process is, and how many there are; else what its launcher says |
//! | `LOCAL_RANK` | its number within the host (optional; checked only) |
//! | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 listens; else what its launcher says |
//! | `HCOMM_ROOT_PORT` | rank 0's port, instead of `MASTER_PORT` |
//! | `HCOMM_RENDEZVOUS` | `tcp:HOST:PORT` or `file:PATH`, instead of both |
//! | `HCOMM_REPORT` | file to which reports of failed operations are appended; read by `hcomm why` |
//! | `HCOMM_MEMORY` | memory per process beyond the users' buffers, as `64M`; equal on all |
//! | `HCOMM_SHARED_MEMORY` | `auto`, `require` or `never`: whether ranks of one host share memory |
//! | `HCOMM_TOKEN` | the job's secret, 64 hexadecimal digits |
//! | `HCOMM_INTERFACE` | exact interface name, or address, that the others are told |
//! | `HCOMM_PORT_RANGE` | `FIRST-LAST`, ports where ranks listen: one per rank of a host, and one for rank 0 at a `file` |
//!
//! torchrun keeps `MASTER_PORT` busy with a store of its own. Under it (`TORCHELASTIC_USE_AGENT_STORE` is `True`, or
//! `TORCHELASTIC_RUN_ID` is set) rank 0 therefore listens on `MASTER_PORT + 1`, unless `HCOMM_ROOT_PORT` says
//! otherwise.
//!
//! `RANK` and `WORLD_SIZE` together hold before what `launcher` reads, since they are set by hand, or by a launcher that was
//! itself started by another. One of them alone must agree with it.

use std::net::Ipv6Addr;
use std::ops::RangeInclusive;

use super::beside::SharedMemory;
use super::config::{JoinConfig, Rendezvous};
use super::launcher::{self, Launched, Launcher};
use super::token::Token;
use super::variables::Env;
use crate::error::InitError;
use crate::rank::Rank;

const RENDEZVOUS: &str = "HCOMM_RENDEZVOUS";
const TOKEN: &str = "HCOMM_TOKEN";
const SHARED_MEMORY: &str = "HCOMM_SHARED_MEMORY";

/// Every variable that is looked at whatever the launcher, in the order in which an error shows those that are set.
const VARIABLES: [&str; 13] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "HCOMM_ROOT_PORT",
    RENDEZVOUS,
    TOKEN,
    "HCOMM_INTERFACE",
    SHARED_MEMORY,
    "HCOMM_PORT_RANGE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
];

/// Settings from this process's environment.
pub(crate) fn from_env() -> Result<JoinConfig, InitError> {
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let env = Env { lookup: &lookup, ancestor: &launcher::ancestor };
    let is_mangled = |name: &&str| std::env::var_os(name).is_some_and(|value| value.to_str().is_none());
    // Read as not set, a token would be no token.
    if let Some(name) = VARIABLES.into_iter().chain(launcher::VARIABLES).find(is_mangled) {
        let message = format!("{name} is no text: it is not UTF-8");
        return Err(InitError::Environment { message, seen: seen(&env) });
    }
    from(&env)
}

/// Whether a launcher says that this process is a rank, if only in part.
pub(crate) fn is_launched() -> bool {
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    is_rank(&Env { lookup: &lookup, ancestor: &launcher::ancestor })
}

pub(super) fn is_rank(env: &Env<'_>) -> bool {
    let none = |launched: Result<Option<Launched>, String>| matches!(launched, Ok(None));
    env.text("RANK").is_some()
        || launcher::task_without_step(env).is_some()
        || !none(launcher::detect(env))
        || !none(launcher::detect_number(env, None))
}

/// Settings from any environment.
pub(super) fn from(env: &Env<'_>) -> Result<JoinConfig, InitError> {
    read(env).map_err(|message| InitError::Environment { message, seen: seen(env) })
}

fn seen(env: &Env<'_>) -> String {
    env.show(VARIABLES.into_iter().chain(launcher::VARIABLES), &launcher::OLDER, TOKEN)
}

fn read(env: &Env<'_>) -> Result<JoinConfig, String> {
    let launched = launched(env)?;
    let Launched { launcher, rank, world, said, .. } = &launched;
    if rank >= world {
        return Err(format!("rank {rank} doesn't exist in a world of {world}: {said}"));
    }
    if let Some(local) = env.optional::<u32>("LOCAL_RANK")?.filter(|local| local > rank) {
        return Err(format!("LOCAL_RANK={local} is greater than the rank of the world: {said}"));
    }
    let token = env.text(TOKEN).map(|text| Token::from_hex(&text)).transpose();
    let config = JoinConfig {
        rank: Rank(*rank),
        world: *world,
        launcher: *launcher,
        rendezvous: rendezvous(env, &launched)?,
        token: token.map_err(|error| format!("{TOKEN}: {error}"))?,
        interface: env.text("HCOMM_INTERFACE"),
        port_range: env.text("HCOMM_PORT_RANGE").map(|text| port_range(&text)).transpose()?,
        shared_memory: shared_memory(env)?,
        ..JoinConfig::default()
    };
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

/// Who this process is.
fn launched(env: &Env<'_>) -> Result<Launched, String> {
    let (rank, world) = (env.optional::<u32>("RANK")?, env.optional::<u32>("WORLD_SIZE")?);
    if let (Some(rank), Some(world)) = (rank, world) {
        return numbered(env, rank, world);
    }
    let said = match rank {
        Some(rank) => format!("RANK={rank}"),
        None => format!("WORLD_SIZE={}", world.unwrap_or_default()),
    };
    if let Some(launched) = launcher::detect(env)? {
        let agrees = rank.is_none_or(|rank| rank == launched.rank)
            && world.is_none_or(|world| world == launched.world);
        return if agrees { Ok(launched) } else { Err(launched.contradicts(&said)) };
    }
    if rank.is_none()
        && let Some(launched) = launcher::detect_number(env, world)?
    {
        return Ok(launched);
    }
    let missing = match (rank, world) {
        (Some(_), _) => format!("{said}, but WORLD_SIZE is not set"),
        (None, Some(_)) => format!("{said}, but RANK is not set"),
        (None, None) => "RANK is not set".into(),
    };
    Err(format!("{missing}: {}", Launcher::how_to_start(env)))
}

/// By `RANK` and `WORLD_SIZE`. Left over in the shell that calls another launcher, they would make all its processes one rank,
/// or each a world of its own. But a process of it may also start a larger world; and torchrun any, as `hcomm run` may.
fn numbered(env: &Env<'_>, rank: u32, world: u32) -> Result<Launched, String> {
    let launcher = if is_torchrun(env) { Launcher::Torchrun } else { Launcher::Other };
    let said = format!("RANK={rank}, WORLD_SIZE={world}");
    let launched = Launched { launcher, rank, world, said, ..Launched::default() };
    if launcher == Launcher::Other
        && env.text(RENDEZVOUS).is_none()
        && let Ok(Some(outer)) = launcher::detect(env)
        && (world < outer.world || world == outer.world && rank != outer.rank)
    {
        return Err(format!(
            "{} contradicts {}: unset RANK and WORLD_SIZE, or, if they are meant, set {RENDEZVOUS}",
            launched.said, outer.said
        ));
    }
    Ok(launched)
}

fn is_torchrun(env: &Env<'_>) -> bool {
    let agent_store =
        env.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    agent_store || env.text("TORCHELASTIC_RUN_ID").is_some()
}

fn shared_memory(env: &Env<'_>) -> Result<SharedMemory, String> {
    let Some(text) = env.text(SHARED_MEMORY) else { return Ok(SharedMemory::default()) };
    match text.as_str() {
        "auto" => Ok(SharedMemory::Auto),
        "require" => Ok(SharedMemory::Require),
        "never" => Ok(SharedMemory::Never),
        _ => Err(format!("{SHARED_MEMORY} is {text:?}, and not auto, require or never")),
    }
}

fn rendezvous(env: &Env<'_>, launched: &Launched) -> Result<Rendezvous, String> {
    if let Some(text) = env.text(RENDEZVOUS) {
        return match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Rendezvous::File { path: path.into() }),
            Some(("tcp", address)) => Ok(Rendezvous::Root { address: address.into() }),
            _ => Err(format!("{RENDEZVOUS} is {text:?}, which is neither tcp:HOST:PORT nor file:PATH")),
        };
    }
    let master = env.text("MASTER_ADDR");
    if master.is_none() && launched.world == 1 {
        return Ok(Rendezvous::Root { address: String::new() });
    }
    let given = root_port(env, launched.launcher)?;
    if let (None, None, Some(path)) = (&master, given, &launched.file) {
        return Ok(Rendezvous::File { path: path.clone() });
    }
    let Some(host) = master.or_else(|| launched.host.clone()) else {
        return Err(launched.launcher.how_to_meet(env, launched.rank));
    };
    let port = given.or(launched.port).ok_or_else(|| launched.launcher.how_to_give_a_port())?;
    let address = match host.contains(':') && !host.starts_with('[') {
        false => format!("{host}:{port}"),
        // The interface of an address that is valid on one link only comes after it.
        true if host.split('%').next().is_some_and(|bare| bare.parse::<Ipv6Addr>().is_ok()) => {
            format!("[{host}]:{port}")
        }
        true => {
            return Err(format!(
                "MASTER_ADDR is {host:?}, which is no host: give a name or an address alone, and the port in MASTER_PORT"
            ));
        }
    };
    Ok(Rendezvous::Root { address })
}

fn root_port(env: &Env<'_>, launcher: Launcher) -> Result<Option<u16>, String> {
    if let Some(port) = env.optional::<u16>("HCOMM_ROOT_PORT")? {
        return Ok(Some(port));
    }
    let Some(port) = env.optional::<u16>("MASTER_PORT")? else { return Ok(None) };
    if launcher != Launcher::Torchrun {
        return Ok(Some(port));
    }
    port.checked_add(1).map(Some).ok_or_else(|| {
        "torchrun keeps MASTER_PORT 65535 busy and there is no port after it: set HCOMM_ROOT_PORT".into()
    })
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let bad = || format!("HCOMM_PORT_RANGE is {text:?}, and not FIRST-LAST, as 30000-30099");
    let (first, last) = text.split_once('-').ok_or_else(bad)?;
    let parse = |text: &str| text.trim().parse::<u16>().map_err(|_| bad());
    Ok(parse(first)?..=parse(last)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHILD: &str = "HCOMM_TEST_MANGLED";

    /// The second process of the test below; nothing in the test run itself.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_some() {
            let InitError::Environment { message, seen } = from_env().unwrap_err() else { panic!() };
            assert_eq!(message, "HCOMM_TOKEN is no text: it is not UTF-8");
            assert!(seen.contains("RANK=\"0\"") && !seen.contains("HCOMM_TOKEN=\"a"), "{seen}");
        }
    }

    #[test]
    fn a_token_that_is_no_text_is_not_taken_for_none() {
        use std::os::unix::ffi::OsStrExt;
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "domain::env::tests::child"]).env(CHILD, "");
        child.env("RANK", "0").env("WORLD_SIZE", "1");
        child.env(TOKEN, std::ffi::OsStr::from_bytes(b"a\xff"));
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    proptest! {
        #[test]
        fn any_environment_is_read_or_refused(
            values in proptest::collection::vec(proptest::option::of(prop_oneof![
                "[0-9]{1,12}", "[0-4]", "[0-9]{1,6}-[0-9]{1,6}", "[a-z0-9,\\[\\]-]{0,9}", "(tcp|file):.{0,20}", "[0-9a-fé]{64}", any::<String>(),
            ]), VARIABLES.len() + launcher::VARIABLES.len()),
        ) {
            let names: Vec<&str> = VARIABLES.into_iter().chain(launcher::VARIABLES).collect();
            let lookup = |name: &str| values[names.iter().position(|of| *of == name)?].clone();
            match from(&Env { lookup: &lookup, ancestor: &|_| None }) {
                Ok(config) => prop_assert!(config.rank.0 < config.world),
                Err(error) => {
                    let text = error.to_string();
                    if let Some(secret) = lookup(TOKEN).filter(|secret| secret.len() >= 32) {
                        prop_assert!(!text.contains(&secret), "{}", text);
                    }
                }
            }
        }
    }

    fn with(variables: &[(&str, &str)]) -> Result<JoinConfig, InitError> {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        from(&Env { lookup: &|name| value(name).map(Into::into), ancestor: &|_| None })
    }

    fn address(config: &JoinConfig) -> String {
        match &config.rendezvous {
            Rendezvous::Root { address } => address.clone(),
            Rendezvous::File { path } => format!("file {}", path.display()),
        }
    }

    const BASE: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];

    fn base_and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        more.iter().copied().chain(BASE).collect()
    }

    #[test]
    fn plain_set() {
        let config = with(&BASE).unwrap();
        assert_eq!((config.rank, config.world, address(&config).as_str()), (Rank(1), 4, "node0:29500"));
    }

    #[test]
    fn torchrun_keeps_its_port() {
        let config = with(&base_and(&[("TORCHELASTIC_USE_AGENT_STORE", "True")])).unwrap();
        assert_eq!(address(&config), "node0:29501");
        let config = with(&base_and(&[("TORCHELASTIC_RUN_ID", "x"), ("HCOMM_ROOT_PORT", "7")])).unwrap();
        assert_eq!(address(&config), "node0:7");
        let error = with(
            &base_and(&[("TORCHELASTIC_RUN_ID", "x")])
                .into_iter()
                .map(|(key, value)| if key == "MASTER_PORT" { (key, "65535") } else { (key, value) })
                .collect::<Vec<_>>(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("HCOMM_ROOT_PORT"), "{error}");
    }

    #[test]
    fn other_meeting_places() {
        let config = with(&base_and(&[("HCOMM_RENDEZVOUS", "file:/tmp/a:b")])).unwrap();
        assert_eq!(address(&config), "file /tmp/a:b");
        let config = with(&base_and(&[("HCOMM_RENDEZVOUS", "tcp:[::1]:5")])).unwrap();
        assert_eq!(address(&config), "[::1]:5");
        let six = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "fd00::1"), ("MASTER_PORT", "5")];
        assert_eq!(address(&with(&six).unwrap()), "[fd00::1]:5");
        with(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap();
    }

    #[test]
    fn inconsistent_sets_show_what_is_set_but_no_secret() {
        let secret = "5e".repeat(31);
        let cases: [&[(&str, &str)]; 10] = [
            &[],
            &[("RANK", "0")],
            &[("RANK", "4"), ("WORLD_SIZE", "4")],
            &[("RANK", "-1"), ("WORLD_SIZE", "4")],
            &[("RANK", "0"), ("WORLD_SIZE", "2")],
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", "1"),
                ("MASTER_ADDR", "a"),
                ("MASTER_PORT", "1"),
            ],
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("HCOMM_RENDEZVOUS", "udp:1")],
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("HCOMM_PORT_RANGE", "5")],
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("HCOMM_TOKEN", &secret)],
        ];
        for (number, case) in cases.into_iter().enumerate() {
            let error = with(case).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, InitError::Environment { .. }), "{text}");
            let (_, seen) = text.split_once("; seen: ").unwrap();
            for name in VARIABLES {
                assert_eq!(
                    seen.contains(&format!("{name}=")) || seen.contains(&format!("{name} (")),
                    case.iter().any(|(set, _)| *set == name),
                    "{text}"
                );
            }
            assert!(!text.contains(&secret), "{text}");
            let launcher_missing = [0, 1, 4].contains(&number);
            assert_eq!(text.contains("hcomm run -n N -- PROGRAM"), launcher_missing, "{text}");
        }
    }

    /// As a person sees them.
    #[test]
    fn messages_say_what_is_wrong_and_what_to_do() {
        let start =
            "`hcomm run -n N -- PROGRAM`, torchrun, mpirun, mpiexec or srun, or use Communicator::builder()";
        let cases: [(&[(&str, &str)], String); 10] = [
            (&[], format!("RANK is not set: start it with {start}; seen: no variable of a launcher, or of hcomm")),
            (&[("RANK", "")], format!("RANK is not set: start it with {start}; seen: RANK=\"\"")),
            (
                &[("WORLD_SIZE", "4")],
                format!("WORLD_SIZE=4, but RANK is not set: start it with {start}; seen: WORLD_SIZE=\"4\""),
            ),
            (
                &[("RANK", "0")],
                format!("RANK=0, but WORLD_SIZE is not set: start it with {start}; seen: RANK=\"0\""),
            ),
            (
                &[("RANK", "one"), ("WORLD_SIZE", "2")],
                "RANK is \"one\", which is no number from 0 to 4294967295; seen: RANK=\"one\", WORLD_SIZE=\"2\"".into(),
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2")],
                format!(
                    "MASTER_ADDR is not set: set it to the host of rank 0, and MASTER_PORT to a port there, or HCOMM_RENDEZVOUS to \
                     file:PATH with a file that all can reach; or start it with {start}; seen: RANK=\"0\", WORLD_SIZE=\"2\""
                ),
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
                "MASTER_PORT is not set: set it to the port where rank 0 is to listen; seen: RANK=\"0\", WORLD_SIZE=\"2\", \
                 MASTER_ADDR=\"a\""
                    .into(),
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")],
                "MASTER_PORT is \"70000\", which is no number from 0 to 65535; seen: RANK=\"0\", WORLD_SIZE=\"2\", \
                 MASTER_ADDR=\"a\", MASTER_PORT=\"70000\""
                    .into(),
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a:7"), ("MASTER_PORT", "7")],
                "MASTER_ADDR is \"a:7\", which is no host: give a name or an address alone, and the port in MASTER_PORT; seen: \
                 RANK=\"0\", WORLD_SIZE=\"2\", MASTER_ADDR=\"a:7\", MASTER_PORT=\"7\""
                    .into(),
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("HCOMM_RENDEZVOUS", "udp:1")],
                "HCOMM_RENDEZVOUS is \"udp:1\", which is neither tcp:HOST:PORT nor file:PATH; seen: RANK=\"0\", WORLD_SIZE=\"2\", \
                 HCOMM_RENDEZVOUS=\"udp:1\""
                    .into(),
            ),
        ];
        for (variables, told) in cases {
            assert_eq!(with(variables).unwrap_err().to_string(), told);
        }
        let local =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "fe80::1%eth0"), ("MASTER_PORT", "5")];
        assert_eq!(address(&with(&local).unwrap()), "[fe80::1%eth0]:5");
    }
}
