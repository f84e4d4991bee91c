//! What each launcher sets, as it sets it.

use std::collections::HashSet;

use super::super::env::{from, is_rank};
use super::super::launcher::Launcher;
use super::super::variables::Env;
use super::super::{JoinConfig, Rendezvous, join_blocking};
use crate::error::InitError;

/// Rank 1 of 4 by `mpirun` of Open MPI 4.1 on one host.
const OPEN_MPI_4: &str = "
    OMPI_APP_CTX_NUM_PROCS=4 OMPI_COMMAND=program OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4
    OMPI_COMM_WORLD_NODE_RANK=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4
    OMPI_FILE_LOCATION=/tmp/ompi.vm.0/pid.28110/0/0 OMPI_MCA_ess_base_jobid=19922945 OMPI_MCA_ess_base_vpid=1
    OMPI_MCA_orte_hnp_uri=19922944.0;tcp://192.0.2.2:42437 OMPI_MCA_orte_num_nodes=1 OMPI_UNIVERSE_SIZE=4
    PMIX_HOSTNAME=vm PMIX_ID=19922945.1 PMIX_NAMESPACE=19922945 PMIX_RANK=1
    PMIX_SERVER_TMPDIR=/tmp/ompi.vm.0/pid.28110 PMIX_SYSTEM_TMPDIR=/tmp PMIX_VERSION=4.2.2rc2";

/// Rank 2 of 4 by `mpirun` of Open MPI 5, which is `prterun`, on one host.
const OPEN_MPI_5: &str = "
    OMPI_ARGV=8 OMPI_COMMAND=program OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4
    OMPI_COMM_WORLD_NODE_RANK=2 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_WORLD_SIZE=4
    OMPI_FILE_LOCATION=/tmp/prte.vm.0/dvm.4711/1/2 OMPI_MCA_num_procs=4 OMPI_WORLD_LOCAL_SIZE=4
    PMIX_HOSTNAME=vm PMIX_NAMESPACE=prterun-vm-4711@1 PMIX_RANK=2 PMIX_SERVER_TMPDIR=/tmp/prte.vm.0/dvm.4711
    PMIX_SYSTEM_TMPDIR=/tmp PMIX_VERSION=5.0.3 PRTE_LAUNCHED=1";

/// Rank 1 of 2 by `mpiexec` of MPICH 4.0 on one host.
const HYDRA: &str = "
    GFORTRAN_UNBUFFERED_PRECONNECTED=y HYDI_CONTROL_FD=7 MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm MPI_LOCALNRANKS=2
    MPI_LOCALRANKID=1 PMI_FD=8 PMI_RANK=1 PMI_SIZE=2";

/// Rank 3 of 4 by `srun` on two nodes of a larger allocation.
const SRUN: &str = "
    SLURM_CPUS_ON_NODE=8 SLURM_DISTRIBUTION=cyclic,pack SLURM_GTIDS=2,3 SLURM_JOBID=258187 SLURM_JOB_ID=258187
    SLURM_JOB_NODELIST=node[001-003,7],other-2 SLURM_JOB_NUM_NODES=5 SLURM_LAUNCH_NODE_IPADDR=172.21.103.15 SLURM_LOCALID=1
    SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NODELIST=node[002-003] SLURM_NPROCS=4 SLURM_NTASKS=4 SLURM_PRIO_PROCESS=0
    SLURM_PROCID=3 SLURM_SRUN_COMM_HOST=172.21.103.15 SLURM_SRUN_COMM_PORT=46441 SLURM_STEPID=0 SLURM_STEP_ID=0
    SLURM_STEP_LAUNCHER_PORT=46441 SLURM_STEP_NODELIST=node[002-003] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4
    SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_SUBMIT_HOST=login SLURM_TASKS_PER_NODE=2(x2) SLURM_TASK_PID=4193906";

/// A script of `sbatch -n 4 -N 2`.
const SBATCH: &str = "
    ENVIRONMENT=BATCH SLURM_GTIDS=0 SLURM_JOBID=258187 SLURM_JOB_ID=258187 SLURM_JOB_NODELIST=node[001-002]
    SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_NODELIST=node[001-002] SLURM_NPROCS=4
    SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=2(x2) SLURM_TASK_PID=4711";

/// An interactive shell of `salloc`, whose PMIx plugin numbers it as well.
const INTERACTIVE: &str = "
    PMIX_NAMESPACE=slurm.pmix.1884900.4294967290 PMIX_RANK=0 SLURM_GTIDS=0 SLURM_JOB_ID=1884900
    SLURM_JOB_NODELIST=GPUC960 SLURM_LOCALID=0 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_STEPID=4294967290
    SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=GPUC960 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1";

/// Pod 2 of an indexed job, whose manifest sets WORLD_SIZE and MASTER_ADDR.
const KUBERNETES: &str = "
    HOSTNAME=train-2 JOB_COMPLETION_INDEX=2 KUBERNETES_PORT=tcp://10.96.0.1:443 KUBERNETES_SERVICE_HOST=10.96.0.1
    MASTER_ADDR=train-0.workers WORLD_SIZE=3";

/// In these variables; of several values of one the last holds, and an empty one is not set.
fn inside<R>(variables: &[&str], act: impl Fn(&Env<'_>) -> R) -> R {
    let all = variables.join(" ");
    let value = |name: &str| {
        let values = all.split_whitespace().filter_map(|word| word.split_once('='));
        values.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next_back()
    };
    let ancestor = |name: &str| (name == "hydra_pmi_proxy").then_some(6493);
    act(&Env { lookup: &value, ancestor: &ancestor })
}

fn read(variables: &[&str]) -> Result<JoinConfig, InitError> {
    inside(variables, from)
}

fn refused(variables: &[&str]) -> String {
    let error = read(variables).unwrap_err();
    assert!(matches!(error, InitError::Environment { .. }), "{error}");
    error.to_string()
}

/// Launcher, rank, world and place.
fn told(variables: &[&str]) -> (Launcher, u32, u32, String) {
    let config = read(variables).unwrap();
    let place = match config.rendezvous {
        Rendezvous::Root { address } => address,
        Rendezvous::File { path } => format!("file:{}", path.display()),
    };
    (config.launcher, config.rank.0, config.world, place)
}

fn place(variables: &[&str]) -> String {
    told(variables).3
}

#[test]
fn open_mpi_has_a_session_directory() {
    let four = "file:/tmp/ompi.vm.0/pid.28110/hcomm-19922945".into();
    assert_eq!(told(&[OPEN_MPI_4]), (Launcher::OpenMpi, 1, 4, four));
    let five = "file:/tmp/prte.vm.0/dvm.4711/hcomm-prterun-vm-4711-1".into();
    assert_eq!(told(&[OPEN_MPI_5]), (Launcher::OpenMpi, 2, 4, five));
    assert_eq!(place(&[OPEN_MPI_4, "MASTER_PORT=7"]), "127.0.0.1:7");
    assert_eq!(place(&[OPEN_MPI_4, "MASTER_ADDR=a MASTER_PORT=7 HCOMM_ROOT_PORT=8"]), "a:8");
    assert_eq!(place(&[OPEN_MPI_4, "HCOMM_RENDEZVOUS=file:/shared/x"]), "file:/shared/x");
    let error = refused(&[OPEN_MPI_4, "PMIX_SERVER_TMPDIR="]);
    assert!(error.starts_with("MASTER_PORT is not set: `mpirun -x MASTER_PORT=PORT`"), "{error}");
}

#[test]
fn of_several_hosts_open_mpi_and_hydra_name_none() {
    let error = refused(&[OPEN_MPI_4, "OMPI_COMM_WORLD_LOCAL_SIZE=2"]);
    assert!(
        error.contains("MASTER_ADDR is not set") && error.contains("mpirun -x MASTER_ADDR=HOST"),
        "{error}"
    );
    assert!(error.contains("OMPI_COMM_WORLD_RANK=\"1\""), "{error}");
    let error = refused(&[HYDRA, "MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0"]);
    assert!(
        error.contains("MASTER_ADDR is not set") && error.contains("mpiexec -genv MASTER_ADDR HOST"),
        "{error}"
    );
    let set = "MASTER_ADDR=node1 MASTER_PORT=7";
    assert_eq!(place(&[OPEN_MPI_4, "OMPI_COMM_WORLD_LOCAL_SIZE=2", set]), "node1:7");
    assert_eq!(place(&[HYDRA, "MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0", set]), "node1:7");
}

#[test]
fn prterun_does_not_say_how_many() {
    let prterun = "PMIX_NAMESPACE=prterun-vm-4711@1 PMIX_RANK=2 PMIX_SERVER_TMPDIR=/tmp/prte.vm.0/dvm.4711";
    let error = refused(&[prterun]);
    assert!(
        error.starts_with("PMIX_RANK is 2,") && error.contains("prterun -n N -x WORLD_SIZE=N"),
        "{error}"
    );
    let set = "WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=7";
    assert_eq!(told(&[prterun, set]), (Launcher::OpenMpi, 2, 4, "a:7".into()));
}

#[test]
fn ranks_of_hydra_meet_at_a_port_of_their_proxy() {
    let port = 16384 + 6493;
    assert_eq!(told(&[HYDRA]), (Launcher::Hydra, 1, 2, format!("127.0.0.1:{port}")));
    assert_eq!(place(&[HYDRA, "MASTER_PORT=7"]), "127.0.0.1:7");
    let alone = Env {
        lookup: &|name| {
            HYDRA.split_whitespace().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.into()))
        },
        ancestor: &|_| None,
    };
    let error = from(&alone).unwrap_err().to_string();
    assert!(error.starts_with("MASTER_PORT is not set: hydra_pmi_proxy, "), "{error}");
    assert!(error.contains("`mpiexec -genv MASTER_PORT PORT`"), "{error}");
}

#[test]
fn tasks_of_slurm_meet_on_the_first_node_of_their_step() {
    let port = 16384 + 258_187 % 16384;
    assert_eq!(told(&[SRUN]), (Launcher::Slurm, 3, 4, format!("node002:{port}")));
    assert_eq!(place(&[SRUN, "SLURM_STEP_NODELIST="]), format!("node001:{port}"));
    let one = "SLURM_STEP_NUM_NODES=1 SLURM_GTIDS=0,1,2,3 SLURM_LOCALID=3";
    assert_eq!(place(&[SRUN, one]), format!("127.0.0.1:{port}"));
    assert_eq!(place(&[SRUN, "MASTER_ADDR=10.0.0.1 MASTER_PORT=7"]), "10.0.0.1:7");
    assert_eq!(place(&[SRUN, "MASTER_ADDR=10.0.0.1"]), format!("10.0.0.1:{port}"));
    assert_eq!(place(&[SRUN, "HCOMM_ROOT_PORT=7"]), "node002:7");
    // Fewer tasks than the allocation has, by `srun --preserve-env`.
    assert_eq!(told(&[SRUN, "SLURM_NTASKS=16"]).2, 4);
    // Two parts of a heterogeneous job: numbers are of all, and those of the node may be of the part.
    assert_eq!(told(&[SRUN, "SLURM_HET_SIZE=2 SLURM_GTIDS=0,1"]).1, 3);
    let error = refused(&[SRUN, "SLURM_STEP_NODELIST=node[2"]);
    assert!(
        error.contains("SLURM_STEP_NODELIST is \"node[2\"") && error.contains("set MASTER_ADDR"),
        "{error}"
    );
}

#[test]
fn jobs_and_steps_near_each_other_have_ports_of_their_own() {
    let mut ports = HashSet::new();
    for job in 258_187..258_251 {
        for step in 0..64 {
            let port = place(&[SRUN, &format!("SLURM_JOB_ID={job} SLURM_STEP_ID={step}")]);
            let number: u16 = port.strip_prefix("node002:").unwrap().parse().unwrap();
            assert!((16384..=32767).contains(&number), "{number}");
            assert!(ports.insert(number), "job {job} step {step}: {number}");
        }
    }
}

#[test]
fn a_lone_process_of_a_slurm_job_is_no_rank() {
    for variables in [
        &[SBATCH][..],
        &[INTERACTIVE],
        &[INTERACTIVE, "PMI_RANK=0 PMI_SIZE=1"],
        &[SBATCH, "WORLD_SIZE=4 MASTER_ADDR=node001 MASTER_PORT=7"],
        &[INTERACTIVE, "WORLD_SIZE=4 MASTER_ADDR=node001 MASTER_PORT=7"],
    ] {
        let error = refused(variables);
        assert!(
            error.contains(
                "RANK is not set: this is a job of Slurm, but no task of srun: start it with `srun"
            ),
            "{error}"
        );
    }
    // Submitted from within a step, whose variables it inherits.
    let stale = "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=node001";
    let error = refused(&[SBATCH, stale]);
    assert!(error.contains("contradicts SLURM_GTIDS=0"), "{error}");
}

/// Where something says so in part, joining has what is wrong; what starts its ranks itself must not do so there.
#[test]
fn whoever_is_no_rank_may_start_ranks() {
    let by_hand = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7";
    for variables in [
        &[by_hand][..],
        &["RANK=0"],
        &[OPEN_MPI_4],
        &[OPEN_MPI_5],
        &[OPEN_MPI_4, "OMPI_COMM_WORLD_SIZE="],
        &["PMIX_NAMESPACE=prterun-vm-4711@1 PMIX_RANK=2"],
        &[HYDRA],
        &[HYDRA, "PMI_SIZE="],
        &[SRUN],
        &[SRUN, "SLURM_PROCID="],
        &[KUBERNETES],
        &[KUBERNETES, "WORLD_SIZE="],
    ] {
        assert!(inside(variables, is_rank), "{variables:?}");
    }
    for variables in
        [&[][..], &["WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7 LOCAL_RANK=0"], &[SBATCH], &[INTERACTIVE]]
    {
        assert!(!inside(variables, is_rank), "{variables:?}");
    }
}

#[test]
fn pods_take_index_from_their_job_and_size_from_its_manifest() {
    assert_eq!(told(&[KUBERNETES]), (Launcher::Kubernetes, 2, 3, "train-0.workers:29500".into()));
    assert_eq!(place(&[KUBERNETES, "MASTER_PORT=7"]), "train-0.workers:7");
    let error = refused(&[KUBERNETES, "WORLD_SIZE="]);
    assert!(
        error.contains("JOB_COMPLETION_INDEX is 2") && error.contains("set WORLD_SIZE in the manifest"),
        "{error}"
    );
    let error = refused(&[KUBERNETES, "MASTER_ADDR="]);
    assert!(error.contains("MASTER_ADDR is not set") && error.contains("train-0.SERVICE"), "{error}");
    let error = refused(&[KUBERNETES, "WORLD_SIZE=2"]);
    assert!(
        error.contains("rank 2 doesn't exist") && error.contains("JOB_COMPLETION_INDEX=2, WORLD_SIZE=2"),
        "{error}"
    );
    assert_eq!(told(&["JOB_COMPLETION_INDEX=0 WORLD_SIZE=1"]).3, "");
}

/// Daemons of `mpirun` and of `mpiexec` are tasks of Slurm, and all of them may run in a pod.
#[test]
fn of_several_launchers_the_innermost_counts() {
    let (open_mpi, hydra) = (told(&[OPEN_MPI_4]), told(&[HYDRA]));
    assert_eq!(told(&[SRUN, OPEN_MPI_4]), open_mpi);
    assert_eq!(told(&[SBATCH, OPEN_MPI_4]), open_mpi);
    assert_eq!(told(&[SRUN, HYDRA]), hydra);
    assert_eq!(told(&[KUBERNETES, OPEN_MPI_4, "WORLD_SIZE= MASTER_ADDR="]), open_mpi);
    assert_eq!(told(&[KUBERNETES, SRUN, "WORLD_SIZE= MASTER_ADDR="]), told(&[SRUN]));
    // `srun --mpi=pmi2` and `--mpi=pmix` number the same ranks once more.
    assert_eq!(told(&[SRUN, "PMI_FD=5 PMI_RANK=3 PMI_SIZE=4"]), told(&[SRUN]));
    assert_eq!(told(&[SRUN, "PMIX_NAMESPACE=slurm.pmix.258187.0 PMIX_RANK=3"]), told(&[SRUN]));
    // torchrun, and `hcomm run`, in one task each.
    let torchrun = "TORCHELASTIC_RUN_ID=x RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=7";
    assert_eq!(told(&[SRUN, torchrun]), (Launcher::Torchrun, 5, 8, "a:8".into()));
    let run =
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=7 HCOMM_RENDEZVOUS=file:/tmp/x";
    assert_eq!(told(&[SRUN, run]), (Launcher::Other, 1, 2, "file:/tmp/x".into()));
    // Another launcher in each task; and what scripts set from Slurm's variables themselves.
    assert_eq!(told(&[SRUN, "RANK=5 WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=7"]).1, 5);
    assert_eq!(told(&[SRUN, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=7"]).1, 3);
    assert_eq!(
        told(&[SRUN, "WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=7"]),
        (Launcher::Slurm, 3, 4, "a:7".into())
    );
}

#[test]
fn contradictions_are_told_with_their_values() {
    let cases: [(&[&str], &[&str]); 12] = [
        (
            &[OPEN_MPI_4, HYDRA],
            &["OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4", "PMI_RANK=1, PMI_SIZE=2", "unset"],
        ),
        (&[OPEN_MPI_4, "PMIX_RANK=3"], &["OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=3", "unset"]),
        (
            &[SRUN, "PMI_RANK=0 PMI_SIZE=4"],
            &["SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4", "PMI_RANK=0, PMI_SIZE=4"],
        ),
        (&[SRUN, "WORLD_SIZE=8"], &["SLURM_STEP_NUM_TASKS=4", "WORLD_SIZE=8", "unset"]),
        (&[OPEN_MPI_4, "RANK=0"], &["OMPI_COMM_WORLD_RANK=1", "contradicts RANK=0"]),
        (
            &[OPEN_MPI_4, "RANK=0 WORLD_SIZE=1"],
            &["RANK=0, WORLD_SIZE=1", "OMPI_COMM_WORLD_SIZE=4", "unset RANK"],
        ),
        (&[OPEN_MPI_4, "RANK=0 WORLD_SIZE=4"], &["RANK=0, WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=1"]),
        (&[HYDRA, "MPI_LOCALNRANKS=3"], &["PMI_RANK=1, PMI_SIZE=2", "MPI_LOCALRANKID=1, MPI_LOCALNRANKS=3"]),
        (&[SRUN, "SLURM_GTIDS=0,1"], &["SLURM_PROCID=3", "SLURM_GTIDS=0,1"]),
        (&[SRUN, "SLURM_LOCALID=4"], &["SLURM_PROCID=3", "SLURM_LOCALID=4"]),
        (&[OPEN_MPI_4, "LOCAL_RANK=2"], &["LOCAL_RANK=2 is greater", "OMPI_COMM_WORLD_RANK=1"]),
        (&[OPEN_MPI_4, "OMPI_COMM_WORLD_RANK=x"], &["OMPI_COMM_WORLD_RANK is \"x\""]),
    ];
    for (variables, words) in cases {
        let error = refused(variables);
        let (message, _) = error.split_once("; seen: ").unwrap();
        assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {error}");
    }
}

#[test]
fn half_of_what_a_launcher_sets_is_told() {
    let cases = [
        (
            OPEN_MPI_4,
            "OMPI_COMM_WORLD_SIZE=",
            "OMPI_COMM_WORLD_RANK is 1, but OMPI_COMM_WORLD_SIZE is not set",
        ),
        (
            OPEN_MPI_4,
            "OMPI_COMM_WORLD_RANK=",
            "OMPI_COMM_WORLD_SIZE is 4, but OMPI_COMM_WORLD_RANK is not set",
        ),
        (HYDRA, "PMI_SIZE=", "PMI_RANK is 1, but PMI_SIZE is not set"),
        (HYDRA, "MPI_LOCALNRANKS=", "MPI_LOCALRANKID is 1, but MPI_LOCALNRANKS is not set"),
        (SRUN, "SLURM_PROCID=", "SLURM_STEP_ID is 0, but SLURM_PROCID is not set"),
        (
            SRUN,
            "SLURM_STEP_NUM_TASKS= SLURM_NTASKS=",
            "SLURM_STEP_ID is 0, but SLURM_STEP_NUM_TASKS is not set",
        ),
        (SRUN, "SLURM_JOB_ID= SLURM_JOBID=", "SLURM_STEP_ID is 0, but SLURM_JOB_ID is not set"),
        (
            SRUN,
            "SLURM_STEP_NUM_NODES= SLURM_NNODES=",
            "SLURM_STEP_ID is 0, but SLURM_STEP_NUM_NODES is not set",
        ),
        (
            SRUN,
            "SLURM_STEP_NODELIST= SLURM_JOB_NODELIST=",
            "SLURM_STEP_ID is 0, but SLURM_STEP_NODELIST is not set",
        ),
    ];
    for (variables, unset, told) in cases {
        let error = refused(&[variables, unset]);
        assert!(error.starts_with(told), "{error}");
    }
    // Nothing but a number is left of a task, as where a container is given some of the variables; in a job, or not.
    for variables in [
        &["SLURM_PROCID=0 SLURM_NTASKS=4"][..],
        &[SRUN, "SLURM_STEP_ID= SLURM_STEPID="],
        &["SLURM_PROCID=1 SLURM_JOB_ID=5"],
    ] {
        let error = refused(variables);
        assert!(
            error.contains(", but SLURM_STEP_ID is not set, by which tasks of srun are known: pass on all"),
            "{error}"
        );
        assert!(error.starts_with("RANK is not set: SLURM_PROCID is "), "{error}");
        assert!(inside(variables, is_rank), "{variables:?}");
    }
}

/// What has a newer name beside it is shown where it says something else.
#[test]
fn of_two_names_for_the_same_one_is_shown() {
    let error = refused(&[SRUN, "SLURM_PROCID="]);
    let (_, seen) = error.split_once("; seen: ").unwrap();
    assert_eq!(
        seen,
        "SLURM_STEP_ID=\"0\", SLURM_PROCID=\"\", SLURM_STEP_NUM_TASKS=\"4\", SLURM_LOCALID=\"1\", SLURM_GTIDS=\"2,3\", SLURM_JOB_ID=\"258187\", \
         SLURM_STEP_NUM_NODES=\"2\", SLURM_STEP_NODELIST=\"node[002-003]\", SLURM_JOB_NODELIST=\"node[001-003,7],other-2\""
    );
    let error = refused(&[SRUN, "SLURM_PROCID= SLURM_NTASKS=5"]);
    assert!(error.contains("SLURM_STEP_NUM_TASKS=\"4\", SLURM_NTASKS=\"5\""), "{error}");
}

/// A name that no host has is told with where it is from.
#[test]
fn a_host_that_is_not_found_is_told_with_what_to_do() {
    let cases = [
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT=7",
            "give rank 0's host by its address",
        ),
        (SRUN, "it is the first node in SLURM_STEP_NODELIST, unless MASTER_ADDR is set"),
        (KUBERNETES, "MASTER_ADDR is to be JOB-0.SERVICE"),
    ];
    for (variables, how) in cases {
        let config = read(&[variables, "SLURM_STEP_NODELIST=no-such-host.invalid"]).unwrap();
        assert!(config.launcher.how_to_name_the_root().starts_with(how), "{variables}");
    }
    let launched = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT=7";
    let error = join_blocking(read(&[launched]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("looking up \"no-such-host.invalid\": "), "{error}");
    assert!(error.contains(": give rank 0's host by its address, or by a name"), "{error}");
}

#[test]
fn without_a_token_each_launcher_s_user_is_told_how_to_give_one() {
    let torchrun = "TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7";
    let cases = [
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7", "hcomm run"),
        (torchrun, "before torchrun"),
        (OPEN_MPI_4, "mpirun -x HCOMM_TOKEN"),
        (HYDRA, "before mpiexec"),
        (SRUN, "before srun"),
        (KUBERNETES, "from a Secret"),
    ];
    for (variables, how) in cases {
        let config = read(&[variables]).unwrap();
        let error =
            config.check_exposure("10.0.0.1:7".parse().unwrap(), "the address").unwrap_err().to_string();
        assert!(error.contains(how) && error.contains("HCOMM_TOKEN"), "{error}");
        config.check_exposure("127.0.0.1:7".parse().unwrap(), "the address").unwrap();
    }
}
