//! What launchers tell the processes that they start: who each is, how many there are, and where they may meet.
//!
//! | Launcher | Rank and world | Where ranks meet, if nothing else is set |
//! |---|---|---|
//! | Open MPI `mpirun` | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | on one host, a file in the job's session directory |
//! | MPICH `mpiexec` (Hydra) | `PMI_RANK`, `PMI_SIZE` | on one host, a port made of its proxy's process id |
//! | Slurm `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | first node of the step, a port made of job and step |
//! | Kubernetes indexed job | `JOB_COMPLETION_INDEX`, `WORLD_SIZE` | `MASTER_ADDR`, port 29500 |
//!
//! `mpirun` and `mpiexec` have `srun` start their daemons, so that their ranks have the variables of those daemons' step
//! as well: so Slurm's count only where neither has set its own. A batch script and an interactive shell are no tasks of a
//! step although `SLURM_PROCID` is 0 there: what tells is the number of the step.

use std::path::PathBuf;

use super::nodelist;
use super::variables::Env;

/// Who started this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// One that sets `RANK` and `WORLD_SIZE`, or nobody.
    #[default]
    Other,
    Torchrun,
    OpenMpi,
    Hydra,
    Slurm,
    Kubernetes,
}

/// Every variable of a launcher that is looked at, but for those that `env` reads.
pub(super) const VARIABLES: [&str; 27] = [
    OMPI[0],
    OMPI[1],
    OMPI_LOCAL[0],
    OMPI_LOCAL[1],
    PMIX_RANK,
    "PMIX_NAMESPACE",
    "PMIX_SERVER_TMPDIR",
    PMI[0],
    PMI[1],
    HYDRA_LOCAL[0],
    HYDRA_LOCAL[1],
    STEP_ID[0],
    STEP_ID[1],
    PROCID,
    STEP_TASKS[0],
    STEP_TASKS[1],
    "SLURM_LOCALID",
    "SLURM_GTIDS",
    "SLURM_HET_SIZE",
    JOB_ID[0],
    JOB_ID[1],
    STEP_NODES[0],
    STEP_NODES[1],
    NODE_LIST[0],
    NODE_LIST[1],
    INDEX,
    "HOSTNAME",
];

const OMPI: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
const OMPI_LOCAL: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
const PMIX_RANK: &str = "PMIX_RANK";
const PMI: [&str; 2] = ["PMI_RANK", "PMI_SIZE"];
const HYDRA_LOCAL: [&str; 2] = ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
const HYDRA_PROXY: &str = "hydra_pmi_proxy";
const PROCID: &str = "SLURM_PROCID";
const INDEX: &str = "JOB_COMPLETION_INDEX";
// Of each two, the second is read where the first is not set: older, or less exact.
const STEP_ID: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEPID"];
const STEP_TASKS: [&str; 2] = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
const JOB_ID: [&str; 2] = ["SLURM_JOB_ID", "SLURM_JOBID"];
const STEP_NODES: [&str; 2] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
const NODE_LIST: [&str; 2] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];

/// Names of the same, of which the first counts.
pub(super) const OLDER: [[&str; 2]; 4] = [STEP_ID, STEP_TASKS, JOB_ID, STEP_NODES];

/// From here on step numbers are Slurm's own: of batch scripts, interactive shells, and others that are no tasks.
const STEP_RESERVED_MIN: u32 = 0xffff_fff0;

/// Derived ports are 16384 to 32767: above those of most services, and below those that Linux gives out itself.
const PORT_MIN: u16 = 16384;
const PORT_COUNT: u64 = 16384;
/// How far apart two steps of a job are. Jobs of a node have numbers close to each other, and steps small ones; so near
/// the golden section of all ports, where the multiples of small numbers stay far apart.
const STEP_STRIDE: u64 = 10125;
/// A pod has a network of its own, so all jobs may use one port: that of torchrun.
const POD_PORT: u16 = 29500;

/// What starts ranks.
const START: &str =
    "`hcomm run -n N -- PROGRAM`, torchrun, mpirun, mpiexec or srun, or use Communicator::builder()";

const LOOPBACK: &str = "127.0.0.1";

/// What one process was told.
#[derive(Debug, Default)]
pub(super) struct Launched {
    pub launcher: Launcher,
    pub rank: u32,
    pub world: u32,
    /// The variables that say so, with their values.
    pub said: String,
    /// Where rank 0 may listen.
    pub host: Option<String>,
    pub port: Option<u16>,
    /// A file that all ranks can reach, and no other job uses.
    pub file: Option<PathBuf>,
}

/// The innermost launcher that numbers the ranks itself.
pub(super) fn detect(env: &Env<'_>) -> Result<Option<Launched>, String> {
    // Slurm's PMI sets these as well, but only Hydra numbers the ranks of a host.
    let by_hydra = env.text(HYDRA_LOCAL[0]).is_some();
    if let Some(open_mpi) = open_mpi(env)? {
        if by_hydra && let Some(hydra) = hydra(env)? {
            open_mpi.agrees_with(&hydra)?;
        }
        return Ok(Some(open_mpi));
    }
    let pmi = hydra(env)?;
    if by_hydra && pmi.is_some() {
        return Ok(pmi);
    }
    let slurm = slurm(env)?;
    if let (Some(slurm), Some(pmi)) = (&slurm, &pmi) {
        slurm.agrees_with(pmi)?;
    }
    // Outside of a step they are those of an interactive shell.
    Ok(slurm.or(pmi.filter(|_| !is_job_of_slurm(env))))
}

/// A launcher that numbers its processes, but does not say how many there are; that `WORLD_SIZE` does.
pub(super) fn detect_number(env: &Env<'_>, world: Option<u32>) -> Result<Option<Launched>, String> {
    // Slurm numbers an interactive shell as well, which is no task.
    let by_slurm = env.text("PMIX_NAMESPACE").is_some_and(|job| job.starts_with("slurm."));
    let pmix = if by_slurm { None } else { env.optional(PMIX_RANK)? };
    let (name, rank, launcher) = match (pmix, env.optional(INDEX)?) {
        (Some(rank), _) => (PMIX_RANK, rank, Launcher::OpenMpi),
        (None, Some(rank)) => (INDEX, rank, Launcher::Kubernetes),
        (None, None) => return Ok(None),
    };
    let Some(world) = world else {
        let how = match launcher {
            Launcher::Kubernetes => "set WORLD_SIZE in the manifest, to the number of completions",
            _ => "start it by mpirun, which does, or by `prterun -n N -x WORLD_SIZE=N`",
        };
        return Err(format!("{name} is {rank}, but nothing says how many ranks there are: {how}"));
    };
    let port = (launcher == Launcher::Kubernetes).then_some(POD_PORT);
    let said = format!("{name}={rank}, WORLD_SIZE={world}");
    Ok(Some(Launched { launcher, rank, world, said, port, ..Launched::default() }))
}

fn open_mpi(env: &Env<'_>) -> Result<Option<Launched>, String> {
    let Some(mut launched) = numbered(env, Launcher::OpenMpi, OMPI)? else { return Ok(None) };
    if let Some(other) = env.optional::<u32>(PMIX_RANK)?.filter(|other| *other != launched.rank) {
        return Err(launched.contradicts(&format!("{PMIX_RANK}={other}")));
    }
    if launched.one_host(env.pair(OMPI_LOCAL)?, OMPI_LOCAL)? {
        launched.host = Some(LOOPBACK.into());
        // Made by mpirun for this job and user alone, and removed by it.
        launched.file =
            env.text("PMIX_SERVER_TMPDIR").zip(env.text("PMIX_NAMESPACE")).map(|(directory, job)| {
                let job = job.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
                PathBuf::from(directory).join(format!("hcomm-{job}"))
            });
    }
    Ok(Some(launched))
}

fn hydra(env: &Env<'_>) -> Result<Option<Launched>, String> {
    let Some(mut launched) = numbered(env, Launcher::Hydra, PMI)? else { return Ok(None) };
    if launched.one_host(env.pair(HYDRA_LOCAL)?, HYDRA_LOCAL)? {
        launched.host = Some(LOOPBACK.into());
        // Hydra names neither job nor directory. But all ranks of a host descend from one process of it.
        launched.port = (env.ancestor)(HYDRA_PROXY).map(|id| derived_port(id.into()));
    }
    Ok(Some(launched))
}

fn numbered(env: &Env<'_>, launcher: Launcher, names: [&str; 2]) -> Result<Option<Launched>, String> {
    let launched = |(rank, world)| {
        let said = format!("{}={rank}, {}={world}", names[0], names[1]);
        Launched { launcher, rank, world, said, ..Launched::default() }
    };
    Ok(env.pair(names)?.map(launched))
}

fn slurm(env: &Env<'_>) -> Result<Option<Launched>, String> {
    let Some((step_name, step)) = env.either::<u32>(STEP_ID)?.filter(|(_, step)| *step < STEP_RESERVED_MIN)
    else {
        return Ok(None);
    };
    let missing = |name: &str| {
        format!(
            "{step_name} is {step}, but {name} is not set, which srun sets as well: pass on all of srun's variables, or unset {step_name}"
        )
    };
    let rank = env.optional(PROCID)?.ok_or_else(|| missing(PROCID))?;
    let (tasks_name, world) = env.either(STEP_TASKS)?.ok_or_else(|| missing(STEP_TASKS[0]))?;
    let (_, job) = env.either::<u32>(JOB_ID)?.ok_or_else(|| missing(JOB_ID[0]))?;
    let (_, nodes) = env.either::<u32>(STEP_NODES)?.ok_or_else(|| missing(STEP_NODES[0]))?;
    let said = format!("{PROCID}={rank}, {tasks_name}={world} ({step_name}={step})");
    let mut launched = Launched { launcher: Launcher::Slurm, rank, world, said, ..Launched::default() };
    launched.is_among_tasks(env, nodes)?;
    launched.host = Some(if nodes == 1 {
        LOOPBACK.into()
    } else {
        first_node(env).ok_or_else(|| missing(NODE_LIST[0]))??
    });
    launched.port = Some(derived_port(u64::from(job) + u64::from(step) * STEP_STRIDE));
    Ok(Some(launched))
}

fn first_node(env: &Env<'_>) -> Option<Result<String, String>> {
    let (name, list) = NODE_LIST.into_iter().find_map(|name| Some((name, env.text(name)?)))?;
    let unread =
        || format!("{name} is {list:?}, which is no list of nodes: set MASTER_ADDR to the node of rank 0");
    Some(nodelist::first(&list).ok_or_else(unread))
}

fn is_job_of_slurm(env: &Env<'_>) -> bool {
    JOB_ID.iter().any(|name| env.text(name).is_some())
}

/// The number of a task of Slurm's whose other variables were left behind. Scripts and shells, which are no tasks, have number 0.
pub(super) fn task_without_step(env: &Env<'_>) -> Option<String> {
    let id = env.text(PROCID).filter(|id| id != "0" || !is_job_of_slurm(env));
    id.filter(|_| STEP_ID.iter().all(|name| env.text(name).is_none()))
}

fn derived_port(number: u64) -> u16 {
    PORT_MIN + (number % PORT_COUNT) as u16
}

impl Launched {
    /// Whether all ranks are on this host: its number of ranks is the world's.
    fn one_host(&self, local: Option<(u32, u32)>, names: [&str; 2]) -> Result<bool, String> {
        let Some((local_rank, local_world)) = local else { return Ok(false) };
        if local_rank >= local_world || local_rank > self.rank || local_world > self.world {
            return Err(self.contradicts(&format!("{}={local_rank}, {}={local_world}", names[0], names[1])));
        }
        Ok(local_world == self.world)
    }

    /// Variables of a step are inherited by a job that was submitted from it; then these are another's.
    fn is_among_tasks(&self, env: &Env<'_>, nodes: u32) -> Result<(), String> {
        let local = env.optional::<u32>("SLURM_LOCALID")?.filter(|local| *local > self.rank);
        if let Some(local) = local {
            return Err(self.contradicts(&format!("SLURM_LOCALID={local}")));
        }
        // Where jobs have several parts, numbers may be of the part.
        let Some(list) = env.text("SLURM_GTIDS").filter(|_| env.text("SLURM_HET_SIZE").is_none()) else {
            return Ok(());
        };
        let tasks: Vec<&str> = list.split(',').collect();
        let all = nodes != 1 || tasks.len() as u64 == u64::from(self.world);
        if all && tasks.contains(&self.rank.to_string().as_str()) {
            return Ok(());
        }
        Err(self.contradicts(&format!("SLURM_GTIDS={list}")))
    }

    fn agrees_with(&self, other: &Launched) -> Result<(), String> {
        if (self.rank, self.world) == (other.rank, other.world) {
            return Ok(());
        }
        Err(self.contradicts(&other.said))
    }

    pub(super) fn contradicts(&self, other: &str) -> String {
        format!(
            "{} contradicts {other}: unset what the launcher that started this process did not set, or set RANK and WORLD_SIZE, \
             and MASTER_ADDR and MASTER_PORT",
            self.said
        )
    }
}

impl Launcher {
    /// What to do where nothing says who this process is.
    pub(super) fn how_to_start(env: &Env<'_>) -> String {
        if let Some(id) = task_without_step(env) {
            return format!(
                "{PROCID} is {id}, but {} is not set, by which tasks of srun are known: pass on all of srun's variables, as into a \
                 container, or set RANK and WORLD_SIZE, and MASTER_ADDR and MASTER_PORT",
                STEP_ID[0]
            );
        }
        if is_job_of_slurm(env) {
            return format!(
                "this is a job of Slurm, but no task of srun: start it with `srun PROGRAM`, or {START}"
            );
        }
        format!("start it with {START}")
    }

    /// What to do where nothing says where ranks meet.
    pub(super) fn how_to_meet(self, env: &Env<'_>, rank: u32) -> String {
        let unset = "MASTER_ADDR is not set";
        match self {
            Launcher::Other | Launcher::Torchrun => format!(
                "{unset}: set it to the host of rank 0, and MASTER_PORT to a port there, or HCOMM_RENDEZVOUS to file:PATH with a file \
                 that all can reach; or start it with {START}"
            ),
            Launcher::OpenMpi => format!(
                "{unset}, and mpirun does not say on which host rank 0 is: `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT`, or \
                 `-x HCOMM_RENDEZVOUS=file:PATH` with a file that all hosts share"
            ),
            Launcher::Hydra => format!(
                "{unset}, and mpiexec does not say on which host rank 0 is: `mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT \
                 PORT`, or `-genv HCOMM_RENDEZVOUS file:PATH` with a file that all hosts share"
            ),
            Launcher::Slurm => format!("{unset}: set it to the node of rank 0, and MASTER_PORT"),
            Launcher::Kubernetes => {
                let job = env
                    .text("HOSTNAME")
                    .and_then(|name| Some(name.strip_suffix(&format!("-{rank}"))?.to_owned()));
                let job = job.as_deref().unwrap_or("JOB");
                format!(
                    "{unset}: set it in the manifest to {job}-0.SERVICE, where SERVICE is the headless service that the pods' \
                     subdomain names"
                )
            }
        }
    }

    /// What to do where the host of rank 0 is known, but no port.
    pub(super) fn how_to_give_a_port(self) -> String {
        let how = match self {
            Launcher::OpenMpi => "`mpirun -x MASTER_PORT=PORT`, the port where rank 0 is to listen".into(),
            Launcher::Hydra => format!(
                "{HYDRA_PROXY}, whose process id would make one, is not to be seen from here: `mpiexec -genv MASTER_PORT PORT`, the \
                 port where rank 0 is to listen"
            ),
            _ => "set it to the port where rank 0 is to listen".into(),
        };
        format!("MASTER_PORT is not set: {how}")
    }

    /// What to do where the name of rank 0's host is not known here.
    pub(super) fn how_to_name_the_root(self) -> &'static str {
        match self {
            Launcher::Slurm => {
                "it is the first node in SLURM_STEP_NODELIST, unless MASTER_ADDR is set: set that to an address of the node"
            }
            Launcher::Kubernetes => {
                "MASTER_ADDR is to be JOB-0.SERVICE, where SERVICE is a headless service that publishes addresses that are not ready, and \
                 the subdomain of the pods"
            }
            _ => "give rank 0's host by its address, or by a name that is known on all hosts",
        }
    }

    /// How all ranks get one token.
    pub(super) fn how_to_share_a_token(self) -> &'static str {
        match self {
            Launcher::Other => "HCOMM_TOKEN; `hcomm run` makes it",
            Launcher::Torchrun => {
                "`export HCOMM_TOKEN=…`, 64 hexadecimal digits, before torchrun, the same on all hosts"
            }
            Launcher::OpenMpi => "`export HCOMM_TOKEN=$(openssl rand -hex 32)`, then `mpirun -x HCOMM_TOKEN`",
            Launcher::Hydra => {
                "`export HCOMM_TOKEN=$(openssl rand -hex 32)` before mpiexec, which passes it on"
            }
            Launcher::Slurm => "`export HCOMM_TOKEN=$(openssl rand -hex 32)` before srun, which passes it on",
            Launcher::Kubernetes => {
                "HCOMM_TOKEN in the containers' env, from a Secret of 64 hexadecimal digits"
            }
        }
    }
}

/// The nearest ancestor of this process that has this name, which the kernel cuts after 15 bytes.
pub(super) fn ancestor(name: &str) -> Option<u32> {
    /// No process is that deep; but ids may be used again while they are looked at.
    const DEPTH_MAX: usize = 64;
    let mut id = std::os::unix::process::parent_id();
    for _ in 0..DEPTH_MAX {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        if head.split_once('(')?.1 == name {
            return Some(id);
        }
        id = tail.split(' ').nth(1)?.parse().ok().filter(|parent| *parent != 0)?;
    }
    None
}
