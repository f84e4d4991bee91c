//! The examples do what they say: with threads for ranks, and as processes of `hcomm run`.
//!
//! A plain `cargo test` builds examples; before one of this file alone, `cargo build --examples` does, with its profile.

use std::path::PathBuf;
use std::process::{Command, Output};

const SAME_BITS: &str = "; the bits of one process\n";

/// Beside the folder that this test is in.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().with_file_name("examples").join(name);
    assert!(path.is_file(), "{} is not there: cargo build --examples", path.display());
    path
}

/// Outside of any launcher.
fn output(mut command: Command) -> Output {
    command.env_remove("RANK").env_remove("WORLD_SIZE").output().unwrap()
}

/// What it prints when all goes well.
fn prints(command: Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn on_threads(name: &str) -> String {
    prints(Command::new(example(name)))
}

#[test]
fn quickstart() {
    assert_eq!(on_threads("quickstart"), "1000000 elements, each 6\n".repeat(4));
}

#[test]
fn data_parallel() {
    let text = on_threads("data_parallel");
    assert!(
        text.starts_with("200 steps on 4 ranks: ") && text.contains("; equal bits on all ranks; "),
        "{text}"
    );
}

#[test]
fn pipeline() {
    let text = on_threads("pipeline");
    assert!(text.contains(" through 4 stages: ") && text.ends_with(SAME_BITS), "{text}");
}

#[test]
fn parameter_server() {
    let text = on_threads("parameter_server");
    assert!(text.starts_with("synchronous: 200 steps of 3 workers: ") && text.contains(SAME_BITS), "{text}");
    for told in [
        "\nwith a backup worker: 200 steps of 2 of 3 workers, ",
        "\nstale synchronous: 600 gradients of 3 workers: ",
        "\nasynchronous: 600 gradients of 3 workers: ",
    ] {
        assert!(text.contains(told), "{text}");
    }
}

/// It fails by itself if a request is not answered as it should be, or a sum is wrong.
#[test]
fn http_service() {
    let mut command = Command::new(example("http_service"));
    command.arg("4");
    let text = prints(command);
    assert!(text.starts_with("3 sums of 4 MiB; ") && text.contains(" requests meanwhile, "), "{text}");
}

#[cfg(feature = "cli")]
mod as_processes {
    use super::{Command, SAME_BITS, example, output, prints};

    fn run(ranks: &str, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hcomm"));
        command.args(["run", "-n", ranks, "--"]).arg(example(name));
        command
    }

    #[test]
    fn all_reduce() {
        assert_eq!(prints(run("4", "all_reduce")), "[0] 4 ranks summed 1000000 elements\n");
    }

    /// Also where the flowers can't be divided by the ranks.
    #[test]
    fn data_parallel() {
        for ranks in ["4", "7"] {
            let text = prints(run(ranks, "data_parallel"));
            assert!(text.starts_with(&format!("[0] 200 steps on {ranks} ranks: ")), "{text}");
        }
    }

    /// Also where stages differ in layers.
    #[test]
    fn pipeline() {
        for stages in ["4", "3"] {
            let text = prints(run(stages, "pipeline"));
            assert!(
                text.contains(&format!(" through {stages} stages: ")) && text.ends_with(SAME_BITS),
                "{text}"
            );
        }
    }

    #[test]
    fn parameter_server() {
        let text = prints(run("4", "parameter_server"));
        assert!(text.contains(SAME_BITS) && text.contains("[0] asynchronous: 600 gradients "), "{text}");
    }

    #[test]
    fn http_service() {
        let mut command = run("3", "http_service");
        command.arg("4");
        let text = prints(command);
        assert!(
            text.starts_with("[0] 3 sums of 4 MiB; ") && text.contains(" requests meanwhile, "),
            "{text}"
        );
    }

    #[test]
    fn too_many_or_too_few_ranks_are_an_error() {
        for (ranks, name, told) in [
            ("5", "pipeline", "the model has 4 layers"),
            ("1", "parameter_server", "needs a worker"),
            ("1", "http_service", "needs ranks that help"),
        ] {
            let output = output(run(ranks, name));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && text.contains(told), "{output:?}");
        }
    }
}
